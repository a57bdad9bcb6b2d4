"""fugu's training, timed. Settings: env, variant, copies, goal, seconds; see `watching`.

`without` leaves out what no setting of fugu does (the fused loss, rows written straight into
segments), and `bind` binds each thread to a core.

python benchmarks/training/run_fugu.py '{"env": "cartpole", "variant": "defaults", ...}'
"""

from __future__ import annotations

import os
import time
from typing import Any

import psutil
import torch
from watching import Watch, read_settings

import fugu
from fugu.algos import ppo
from fugu.algos.ppo_loss import ppo_loss_reference
from fugu.training.session import Progress, Trainer

BOUND_AFTER = 0.8  # seconds, by which all threads are there
FLAGSHIP: dict[str, Any] = {  # as PufferLib's breakout.ini, where both have the setting
    "horizon": 64,
    "epochs": 1,
    "minibatches": 4,
    "optimiser": "muon",
    "learning_rate": 0.0445,
    "schedule": "cosine",
    "value_loss": "clipped",
    "alpha": 0.99,
    "beta": 0.1,
    "normalise_rewards": False,
    "reward_clip": 1.0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "same": {
        "train": {"horizon": 128, "epochs": 4, "minibatches": 4},
        "policy": {"hidden_size": 64, "layers": 2, "activation": "tanh"},
    },
    "tuned": {
        "train": {
            "horizon": 32,
            "epochs": 6,
            "minibatches": 2,
            "learning_rate": 0.012,
            "entropy_coefficient": 0.001,
            "schedule": "linear",
            "total_steps": 200_000,
        },
        "policy": {"hidden_size": 64, "activation": "relu"},
    },
    "mlp": {"train": FLAGSHIP},
    "lstm": {"train": FLAGSHIP, "policy": {"core": "lstm"}},
    "pixels": {  # RL Baselines3 Zoo's settings of Atari, where the recipe has others
        "train": {"horizon": 128, "epochs": 4, "minibatches": 4},
    },
    "straggler": {"train": {"horizon": 32, "epochs": 1}, "policy": {"hidden_size": 64}},
}


def sections(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `fugu.train`."""
    variant = VARIANTS[settings["variant"]]
    train = {"total_steps": 10**9} if settings["goal"] != "solve" else {}
    policy = {**variant.get("policy", {}), **settings.get("policy", {})}
    copies = {"num_envs": settings["copies"]} if "copies" in settings else {}
    vec = {**copies, **settings.get("vec", {})}
    return {
        "train": {**train, **variant.get("train", {}), **settings.get("train", {})},
        "policy": policy,
        "vec": vec,
        "seed": settings.get("seed", 0),
    }


def products(trainer: Trainer) -> dict[str, float]:
    """Floating-point operations of matrix products a step, and what else tells who trained.

    A forward pass of the rollout; in each epoch one more and twice as many backward, except that
    nobody needs the gradient of the observations.
    """
    (policy,) = trainer.policies
    sizes = [p.numel() for p in policy.parameters() if p.ndim == 2]
    weights, first = sum(sizes), sizes[0]
    flop = 2 * weights + trainer.cfg.train.epochs * (6 * weights - 2 * first)
    return {"flop": flop, "parameters": sum(p.numel() for p in policy.parameters())}


def work(trainer: Trainer) -> dict[str, Any]:
    """What decides how much is computed for a step."""
    cfg, copies = trainer.cfg, trainer.vec.num_envs
    return {
        "copies": copies,
        "horizon": cfg.train.horizon,
        "epochs": cfg.train.epochs,
        "minibatch": copies * cfg.train.horizon // cfg.train.minibatches,
        "threads": torch.get_num_threads(),
    }


def leave_out(name: str) -> None:
    """Take the longer way that was there before."""
    if name == "fused_loss":
        vars(ppo)["fused_ppo_loss"] = ppo_loss_reference
    elif name == "straight_rows":
        vars(ppo)["can_fill_segments"] = lambda *_: False
    else:
        raise SystemExit(f"without: given {name!r}; allowed: 'fused_loss', 'straight_rows'")


def bind_threads() -> None:
    """Give the thread that leads a core of its own, and the others the rest of them."""
    first, *rest = sorted(os.sched_getaffinity(0))
    for i, thread in enumerate(psutil.Process().threads()):
        leads = thread.id == os.getpid() or not rest
        os.sched_setaffinity(thread.id, {first if leads else rest[i % len(rest)]})


def main() -> None:
    """Train until the watch has seen enough."""
    settings = read_settings()
    watch = Watch(settings)
    told: dict[str, Any] = {}
    binds, began = [BOUND_AFTER] if settings.get("bind") else [], time.perf_counter()

    def after_update(trainer: Trainer, progress: Progress) -> None:
        if progress.episodes:
            watch.note(progress.episodes["episode_return"], int(progress.episodes["episodes"]))
        if binds and time.perf_counter() - began > binds[0]:
            binds.clear()
            bind_threads()
        if not told:
            told.update(products(trainer), **work(trainer), backend=trainer.vec.backend)
        trainer.stopping = watch.done(progress.steps)

    for name in settings.get("without", ()):
        leave_out(name)
    arguments = sections(settings)
    fugu.train(settings["env"], keep=False, show=False, callbacks=[after_update], **arguments)
    watch.answer(**told)


if __name__ == "__main__":
    main()
