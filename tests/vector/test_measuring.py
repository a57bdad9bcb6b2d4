"""Measurements in a process of their own: whatever happens there is an error here."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import time
from typing import Any

import pytest
from vector_toys import Slow, Small, Waiting, misbehave

from fugu.core.errors import UsageError
from fugu.vector import make
from fugu.vector.measuring import (
    MeasurementError,
    StalledError,
    measure_vector,
    pick_backend,
    profile_env,
    run_isolated,
)
from fugu.vector.worker import Setup

pytestmark = pytest.mark.timeout(120)


def add(a: int, b: int) -> int:
    return a + b


def assert_no_measurement() -> None:
    assert "fugu-measurement" not in [child.name for child in multiprocessing.active_children()]


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_function_runs_in_another_process(method: str) -> None:
    assert run_isolated(method, 30.0, add, 1, 2) == 3
    assert run_isolated(method, 30.0, lambda: os.getpid()) != os.getpid()
    assert_no_measurement()


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("raise", "ZeroDivisionError: a deed of its own"),
        ("exit", "SystemExit: 3"),
        ("hard-exit", "exited with status 7"),
        ("segfault", "killed by SIGSEGV"),
    ],
)
def test_whatever_ends_it_is_an_error(deed: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        run_isolated("forkserver", 30.0, misbehave, deed)
    assert_no_measurement()


@pytest.mark.parametrize("deed", ["stall", "spin"])
def test_what_takes_too_long_is_ended(deed: str) -> None:
    began = time.monotonic()
    with pytest.raises(StalledError, match="no end after 1 s"):
        run_isolated("forkserver", 1.0, misbehave, deed)
    assert time.monotonic() - began < 20.0
    assert_no_measurement()


def test_what_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cloudpickle can send"):
        run_isolated("forkserver", 30.0, lambda: lock)


def refuse() -> None:
    raise UsageError("size: given 0; allowed: 1 or more")


def test_a_wrong_argument_is_the_error_that_it_is() -> None:
    with pytest.raises(UsageError, match="^size: given 0; allowed: 1 or more$"):
        run_isolated("forkserver", 30.0, refuse)


# ---------------------------------------------------------------------- one environment


def test_the_profile_of_an_environment() -> None:
    profile, shapes = profile_env(Setup(functools.partial(Slow, 0.002)), 0.1, 0)
    assert 0.002 <= profile.step_seconds < 0.1
    assert profile.start_seconds > 0
    assert profile.env_bytes is not None
    assert not profile.polled
    assert shapes == [(1, 2, "<f4")]


class Hoarder(Small):
    """Uses 50 MB."""

    def __init__(self) -> None:
        self.memory = b"x" * (50 << 20)


def test_the_profile_has_the_memory_of_another_environment() -> None:
    profile, _ = run_isolated("forkserver", 60.0, profile_env, Setup(Hoarder), 0.01, 0)
    assert profile.env_bytes is not None
    assert 45 << 20 < profile.env_bytes < 60 << 20


class Alone(Small):
    """A process can have only one."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        if self.made > 1:
            raise RuntimeError("there can be only one")


def test_an_environment_of_which_a_process_can_have_only_one() -> None:
    profile, _ = run_isolated("forkserver", 60.0, profile_env, Setup(Alone), 0.01, 0)
    assert profile.env_bytes is None


def test_an_environment_that_is_polled() -> None:
    profile, _ = profile_env(Setup(functools.partial(Waiting, 0.001)), 0.05, 0)
    assert profile.polled


def test_workers_are_picked_where_they_save_time() -> None:
    assert pick_backend(Setup(Small), 4, 2, "forkserver") == "serial"
    slow = Setup(functools.partial(Slow, 0.005))
    assert pick_backend(slow, 4, 2, "forkserver") == "process"
    assert pick_backend(slow, 4, 1, "forkserver") == "serial"
    assert pick_backend(Setup(functools.partial(misbehave, "raise")), 4, 2, "fork") == "process"
    lock = threading.Lock()
    assert pick_backend(Setup(lambda: lock), 4, 2, "forkserver") == "serial"


# ---------------------------------------------------------------------- a vector


@pytest.mark.parametrize("batch_size", [2, 4])
def test_the_rate_of_a_vector_includes_the_policy(batch_size: int) -> None:
    options: dict[str, Any] = {"num_envs": 4, "backend": "serial", "batch_size": batch_size}
    factory = functools.partial(Slow, 0.005)
    rate, faults = measure_vector(make, factory, options, 0.0, 0.2, 0)
    assert 50 < rate <= 200  # a step takes 5 ms
    assert faults == 0
    slower, _ = measure_vector(make, factory, options, 0.02, 0.2, 0)
    assert slower <= 1 / (0.005 + 0.02 / batch_size)
