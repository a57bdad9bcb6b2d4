"""Sweeps on a toy in a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")
pytest.importorskip("torch")

from fugu.core.config import merge
from fugu.sweep.plan import SearchConfig, SweepPlan, make_plan

TOYS = Path(__file__).parent
TINY = {
    "train": {"total_steps": 320, "horizon": 8, "minibatches": 1, "epochs": 1, "threads": 1},
    "vec": {"num_envs": 4, "backend": "serial", "max_restarts": 0},
    "policy": {"hidden_size": 8},
}
RATE = {"train": {"learning_rate": {"low": 0.001, "high": 0.1, "log": True}}}


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of sweeps; child processes can import the toys."""
    path = os.pathsep.join([str(TOYS), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sweeps"


@pytest.fixture
def plan_of(sweeps: Path) -> Callable[..., SweepPlan]:
    """Makes plans of tiny trainings."""

    def make(
        name: str,
        given: dict[str, Any] | None = None,
        ranges: dict[str, Any] = RATE,
        only: tuple[str, ...] = ("train.learning_rate",),
        **search: Any,
    ) -> SweepPlan:
        settings = {"sampler": "random", "prune": "none", "cost": "steps", "first": False}
        found = SearchConfig(**{**settings, **search})
        tree = merge(TINY, given or {})
        return make_plan(
            "sweep_toys:make", name=name, given=tree, ranges=ranges, only=only, search=found
        )

    return make
