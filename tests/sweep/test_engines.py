"""Other ways to run trials: as an agent of Weights & Biases, and on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fugu.store.run import Run
from fugu.sweep.plan import SweepPlan
from fugu.sweep.running import ExecutionConfig, start_sweep
from fugu.sweep.wandb_agent import run_trial, sweep_settings

pytestmark = pytest.mark.timeout(600)
Plans = Callable[..., SweepPlan]


class Config(dict[str, Any]):
    """The settings of a run there."""

    def update(self, *args: Any, allow_val_change: bool = False, **more: Any) -> None:
        super().update(*args, **more)


class Service:
    """Stands for the service, which is not here: keeps what is logged."""

    def __init__(self, drawn: dict[str, Any]) -> None:
        self.config, self.summary, self.id = Config(drawn), dict[str, Any](), "abc"
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.exit_code: int | None = None

    def init(self) -> Service:
        return self

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.logged.append((step, numbers))

    def finish(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code


def test_ranges_as_the_service_describes_them(plan_of: Plans) -> None:
    ranges = {
        "train": {
            "clip": {"low": 0.1, "high": 0.3},
            "learning_rate": {"low": 0.001, "high": 0.1, "log": True},
            "gamma": {"low": 0.5, "high": 0.9, "logit": True},
            "epochs": {"low": 1, "high": 4, "integer": True},
            "horizon": {"low": 4, "high": 16, "power_of_two": True},
        },
        "policy": {"core": {"choices": ["none", "lstm"]}},
    }
    only = (*(f"train.{name}" for name in ranges["train"]), "policy.core")
    told = sweep_settings(plan_of("there", None, ranges, only, sampler="cost"))
    assert told["method"] == "bayes"
    assert told["metric"] == {"name": "score", "goal": "maximize"}
    assert told["parameters"]["train.clip"] == {"distribution": "uniform", "min": 0.1, "max": 0.3}
    rate = told["parameters"]["train.learning_rate"]
    assert rate == {"distribution": "log_uniform_values", "min": 0.001, "max": 0.1}
    assert told["parameters"]["train.epochs"]["distribution"] == "int_uniform"
    assert told["parameters"]["log2(train.horizon)"] == {"values": [2, 3, 4]}
    assert told["parameters"]["policy.core"] == {"values": ["none", "lstm"]}
    gamma = told["parameters"]["logit(train.gamma)"]
    assert (gamma["min"], round(gamma["max"], 6)) == (0.0, 2.197225)


def test_an_agent_trains_with_what_it_is_given_and_logs_it(sweeps: Path, plan_of: Plans) -> None:
    plan = plan_of("agent")
    service = Service({"train.learning_rate": 0.02})
    run_trial(service, plan, sweeps / "agent")
    assert service.exit_code == 0
    run = Run(sweeps / "agent" / "runs" / "trial-abc")
    assert run.config["train"]["learning_rate"] == 0.02
    steps = [step for step, _ in service.logged]
    assert steps == sorted(set(steps))
    assert steps[-1] >= 320
    assert "score" in service.logged[-1][1]


def test_an_agent_says_what_failed(sweeps: Path, plan_of: Plans) -> None:
    plan = plan_of("agent", {"env_kwargs": {"fault": "raise"}})
    service = Service({"train.learning_rate": 0.02})
    run_trial(service, plan, sweeps / "agent")
    assert service.exit_code == 1
    assert service.summary["failure"]


@pytest.mark.slow
def test_trials_on_a_ray_cluster(sweeps: Path, plan_of: Plans) -> None:
    ray = pytest.importorskip("ray")
    try:
        execution = ExecutionConfig(
            sweeps, workers=2, cluster="ray", ray_address="local", ray_cpus=0.5, show=False
        )
        report = start_sweep(plan_of("cluster", trials=2), execution).report
        assert report.complete == 2
        assert (sweeps / "cluster" / "best.toml").exists()
    finally:
        ray.shutdown()
