"""What tests of autotune share: requests, profiles and trials that were never measured."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from typing import Any

from fugu.vector.autotune import Machine, Profile, Setting, Trial
from fugu.vector.tuning.profiling import step_times
from fugu.vector.tuning.request import Request

QUICK = {"seconds": 0.4, "show": False}


def profile(step: float = 1e-3, *, slow: float | None = None, **changes: Any) -> Profile:
    """Of an environment whose steps take `step` seconds, a few of them `slow`."""
    times = step_times([step] * 97 + [slow or step] * 3)
    found = Profile(times, 1e-3, 1e-3, 0.1, 20.0, 1 << 20, 100, 1.0)
    return replace(found, **changes)


def request(num_envs: int | None = 8, **changes: Any) -> Request:
    return replace(Request(num_envs, None, None, None, 1, 1 << 30, 6.0), **changes)


def machine(cores: int = 2) -> Machine:
    return Machine(cores, 1 << 32, 0.0, "a machine", "3.11")


def trial(rate: float, backend: Any = "serial", workers: int = 1, batch: int = 8) -> Trial:
    return Trial(Setting(backend, 8, workers, batch), "measured", rate, (rate,))


def assert_no_bench() -> None:
    """Whoever measured is gone."""
    assert "fugu-bench" not in [child.name for child in multiprocessing.active_children()]
