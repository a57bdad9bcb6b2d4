"""The smallest search for settings that there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fugu.core.config import merge
from fugu.training.auto_record import SearchRecord, read_record
from fugu.training.session import Result, train

STEPS = 32 * 64  # the fewest that a search takes: 32 updates of 8 copies and 8 steps
SMALL: dict[str, Any] = {
    "vec": {"num_envs": 8},
    "train": {"total_steps": STEPS, "horizon": 8, "epochs": 2},
    "policy": {"hidden_size": 16},
}


def search(folder: Path, env: Any = "cartpole", **more: Any) -> Result:
    settings = merge(SMALL, {"run": {"folder": folder, "name": "auto"}})
    return train(env, auto=True, show=False, seed=3, **{**settings, **more})


def record_of(result: Result) -> SearchRecord:
    assert result.run is not None
    found = read_record(result.run)
    assert found is not None
    return found
