"""Runs of Safe PPO: resumed exactly, evaluated, shown; costs come from any environment."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.track.sinks import read_metrics
from fugu.training.config import resolve_config
from fugu.training.session import resume, train

pytestmark = pytest.mark.timeout(200)
SMALL = {"total_steps": 6 * 512, "horizon": 16, "cost_limit": 0.5}


class FarCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that costs where the cart is right of the middle, and where its pole leans."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = self.env.step(action)
        costs = {"cost": float(seen[0] > 0), "cost_lean": abs(float(seen[2]))}
        return seen, reward, terminated, truncated, {**info, **costs}


class FreeCartPole(FarCartPole):
    """One of its constraints is never paid for."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "free": 0.0}


def fingerprint(run: Run | None) -> tuple[str, list[dict[str, Any]]]:
    """A hash of all that a run's last checkpoint holds, and its metrics without timings."""
    assert run is not None
    path = run.latest()
    assert path is not None
    checkpoint, digest = load_checkpoint(path), hashlib.sha256()
    assert "multiplier.values" in checkpoint.tensors["learner_0"]
    for file in sorted(checkpoint.tensors):
        for name, tensor in sorted(checkpoint.tensors[file].items()):
            digest.update(f"{file}.{name}".encode() + tensor.contiguous().numpy().tobytes())
    lines = read_metrics(run.metrics_path)
    kept = [{k: v for k, v in line.items() if "second" not in k} for line in lines]
    return digest.hexdigest(), kept


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "native": ("hazard_grid", {"train": SMALL}),
    "pid": ("constrained_cartpole", {"train": {**SMALL, "multiplier": "pid"}}),
    "lstm": ("hazard_grid", {"train": SMALL, "policy": {"core": "lstm"}}),
    "processes": (
        FarCartPole,
        {
            "train": {**SMALL, "costs": ("cost", "cost_lean"), "cost_limit": (5.0, 0.4)},
            "vec": {"num_envs": 32, "backend": "process", "num_workers": 2},
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_equals_never_stopped(case: str, tmp_path: Path) -> None:
    env, settings = CASES[case]
    settings = {"algo": "safe_ppo", "seed": 3, "vec": {"num_envs": 32}, "show": False} | settings

    def stop(trainer: Any, progress: Any) -> None:
        trainer.stopping = progress.updates == 3

    whole = train(env, run={"folder": tmp_path, "name": "whole"}, **settings)
    part = train(env, run={"folder": tmp_path, "name": "part"}, callbacks=[stop], **settings)
    assert part.status == "stopped"
    given = {"env": env} if callable(env) else {}
    rest = resume("part", root=tmp_path, show=False, **given)
    assert rest.status == "finished"
    assert fingerprint(rest.run) == fingerprint(whole.run)


def test_a_resumed_run_remembers_its_multipliers(tmp_path: Path) -> None:
    """What the test above would not see if multipliers never moved."""
    run = {"folder": tmp_path, "name": "run"}
    train("hazard_grid", algo="safe_ppo", train=SMALL, run=run, show=False)
    lines = [line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "updates" in line]
    multipliers = [line["loss/multiplier"] for line in lines]
    assert len(set(multipliers)) == len(lines)
    for line in lines:
        assert {"loss/cost", "loss/violations", "loss/cost_limit"} <= line.keys()


def test_flags_train_and_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--train.total-steps", "1000", "--train.cost-limit", "0.3", "--vec.num-envs", "16"]
    where = ["--run.folder", str(tmp_path), "--run.name", "safe", "--quiet"]
    assert main(["train", "hazard_grid", "--algo", "safe_ppo", *flags, *where]) == 0
    capsys.readouterr()
    assert main(["eval", "safe", "--runs", str(tmp_path), "--episodes", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean_cost"] >= 0.0
    assert main(["eval", "safe", "--runs", str(tmp_path), "--episodes", "16"]) == 0
    assert "mean_cost" in capsys.readouterr().out


def test_limits_are_read_from_flags() -> None:
    several = {"algo": "safe_ppo", "train": {"cost_limit": "10,4", "final_cost_limit": "5"}}
    train_cfg: Any = resolve_config("hazard_grid", overrides=several).train
    assert (train_cfg.cost_limit, train_cfg.final_cost_limit) == ((10.0, 4.0), 5.0)
    assert train_cfg.limits_at(1.0, 2).tolist() == [5.0, 5.0]


def test_evaluations_of_a_run_report_costs(tmp_path: Path) -> None:
    run = {"folder": tmp_path, "name": "run", "evaluate_every": 1000, "evaluation_episodes": 8}
    train(FarCartPole, algo="safe_ppo", train=SMALL, run=run, show=False, vec={"num_envs": 8})
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert any("evaluation/mean_cost" in line for line in lines)


def test_constraints_that_cost_nothing_are_no_fault() -> None:
    names = ("cost", "free")
    result = train(
        FreeCartPole, algo="safe_ppo", train={**SMALL, "costs": names}, keep=False, show=False,
        vec={"num_envs": 8, "backend": "serial"},
    )  # fmt: skip
    assert result.status == "finished"


def test_environments_without_costs_are_refused() -> None:
    with pytest.raises(UsageError, match="cartpole, which has no costs"):
        train("cartpole", algo="safe_ppo", keep=False, show=False)
    with pytest.raises(UsageError, match="given 2 limits; allowed: one for all, or 1"):
        train("hazard_grid", algo="safe_ppo", keep=False, show=False, train={"cost_limit": (1, 2)})
