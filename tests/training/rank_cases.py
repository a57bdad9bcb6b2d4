"""Runs that are trained by one rank and by two; torchrun runs this file as a program."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fugu.core.errors import FuguError
from fugu.training.distributed import TIMEOUT, RankLostError, joined
from fugu.training.session import train
from fugu.training.trainer import DivergedError

# One minibatch holds all rows, whoever has them: only the order of sums differs.
WHOLE: dict[str, Any] = {"horizon": 16, "minibatches": 1, "epochs": 2, "alpha": 0.0}
LSTM = {"core": "lstm", "hidden_size": 32}
MLP = {"hidden_size": 32}


def steps(updates: int, agents: int, **settings: Any) -> dict[str, Any]:
    """Settings of so many updates."""
    return {**WHOLE, "total_steps": updates * agents * 16, **settings}


EQUAL: dict[str, dict[str, Any]] = {
    "mlp": {"env": "cartpole", "train": steps(4, 16)},
    "lstm": {"env": "cartpole", "train": steps(4, 16), "policy": LSTM},
    "muon": {
        "env": "cartpole",
        "train": steps(3, 16, optimiser="muon", learning_rate=0.005, weight_decay=0.01),
    },
    "parts": {"env": "cartpole", "train": steps(3, 16, microbatch=48)},
    "python": {"env": "CartPole-v1", "vec": {"backend": "serial"}, "train": steps(2, 16)},
    "normalised": {"env": "pendulum", "train": steps(4, 16), "policy": MLP | {"normalise": True}},
    "target_kl": {"env": "cartpole", "train": steps(3, 16, epochs=8, target_kl=1e-4)},
    "safe_ppo": {"env": "hazard_grid", "algo": "safe_ppo", "train": steps(4, 16, cost_limit=1.0)},
    "mappo": {"env": "simple_spread", "algo": "mappo", "train": steps(2, 48)},
    "apart": {
        "env": "simple_spread",
        "algo": "mappo",
        "train": steps(2, 48, share_parameters=False, weight_decay=0.01),
    },
    "kinds": {"env": "speaker_listener", "train": steps(4, 16)},
    "grpo": {
        "env": "bandit",
        "algo": "grpo",
        "vec": {"group_size": 4},
        "train": {"total_steps": 128, "teams": 4, "minibatches": 1, "epochs": 2},
    },
}
# What several minibatches learn from is not the same rows, but ranks stay alike.
ALIKE: dict[str, dict[str, Any]] = {
    "minibatches": {"env": "cartpole", "train": steps(3, 16, minibatches=4)},
    "preferred": {"env": "cartpole", "train": steps(3, 16, minibatches=4, alpha=0.8)},
    "leaving": {
        "env": "vector_toys:Herd",
        "vec": {"num_envs": 4, "backend": "serial"},
        "train": {"total_steps": 1500, "horizon": 8, "normalise_advantages": True, "alpha": 0.5},
    },
    "sampled": {
        "env": "bandit",
        "algo": "grpo",
        "vec": {"group_size": 4},
        "policy": {"hidden_size": 16, "normalise": True},
        "train": {"total_steps": 512, "teams": 4, "dynamic_sampling": True, "beta": 0.01},
    },
}


def run(case: dict[str, Any], **changes: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What came of a case: weights, and what updates told."""
    told: list[dict[str, float]] = []

    def note(_: Any, progress: Any) -> None:
        losses = {f"loss/{name}": value for name, value in progress.losses.items()}
        told.append({"steps": float(progress.steps), **losses, **progress.episodes})

    settings = {"seed": 5, "keep": False, "show": False, "policy": MLP, **case, **changes}
    settings["vec"] = {"num_envs": 16, **case.get("vec", {}), **changes.get("vec", {})}
    result = train(settings.pop("env"), callbacks=[note], **settings)
    weights = [
        tensor.detach().double().flatten()
        for policy in result.policies
        for tensor in (*policy.parameters(), *policy.buffers())
    ]
    names = sorted({name for each in told for name in each})
    numbers = [[each.get(name, np.nan) for name in names] for each in told]
    return {
        "weights": torch.cat(weights).numpy(),
        "names": np.array(names),
        "told": np.array(numbers),
    }


def diverge(rank: int) -> str:
    """What happens at this rank if the weights of the last one are spoilt."""

    def spoil(trainer: Any, progress: Any) -> None:
        if progress.updates == 2 and rank == 1:
            with torch.no_grad():
                next(trainer.policies[0].parameters()).fill_(float("nan"))

    try:
        train("bandit", keep=False, show=False, train={"total_steps": 50_000}, callbacks=[spoil])
    except DivergedError as error:
        return f"DivergedError: {error}"
    return "nothing"


def fall_silent(rank: int) -> str:
    """What happens at this rank if the last one does nothing for long."""
    os.environ[TIMEOUT] = "3"

    def sleep(_: Any, progress: Any) -> None:
        if progress.updates == 2 and rank == 1:
            time.sleep(8)

    try:
        train("bandit", keep=False, show=False, train={"total_steps": 50_000}, callbacks=[sleep])
    except RankLostError as error:
        return f"RankLostError: {error}"
    return "nothing"


def stop(rank: int) -> str:
    """How a session ends that the last rank stops."""

    def say(trainer: Any, progress: Any) -> None:
        trainer.stopping = progress.updates == 2 and rank == 1

    result = train("bandit", keep=False, show=False, train={"total_steps": 50_000}, callbacks=[say])
    return f"{result.status} {result.steps}"


def refuse(**settings: Any) -> str:
    """What is said of settings that cannot be divided."""
    try:
        train("cartpole", keep=False, show=False, **settings)
    except FuguError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main(folder: Path) -> None:
    """All cases, as one of two ranks."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name, case in {**EQUAL, **ALIKE}.items():
        np.savez(folder / f"{name}.{rank}.npz", **run(case))  # type: ignore[arg-type]
    with joined() as ranks:
        brought, handed = ranks.bring(rank), ranks.hand_out([] if rank else ["a", "b"])
        gathered, largest = ranks.gather(rank + 1), ranks.largest(rank + 0.5)
    said = {
        "exchanged": f"{brought} {handed} {gathered} {largest}",
        "stop": stop(rank),
        "odd copies": refuse(vec={"num_envs": 3}),
        "best episodes": refuse(train={"best_episodes": 2}),
        "dreamer": refuse(algo="dreamer"),
        "diverge": diverge(rank),
        "fall silent": fall_silent(rank),
    }
    text = "\n".join(f"{name}|{line}" for name, line in said.items())
    (folder / f"said.{rank}.txt").write_text(text)


if __name__ == "__main__":
    tests = Path(__file__).parents[1]
    sys.path += [str(tests / "vector"), str(tests / "envs")]
    main(Path(sys.argv[1]))
    os._exit(0)  # the silent one has left its group in pieces
