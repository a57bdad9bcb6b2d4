"""Picking: serial or processes, from a moment's look at one copy."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from fugu.core.closing import close_within
from fugu.core.errors import UsageError
from fugu.vector.crews import CLOSE_SECONDS
from fugu.vector.tuning.bench import Bench, BenchError
from fugu.vector.tuning.profiling import Copy
from fugu.vector.worker import Setup

STEPS = 64  # to time, at the most
SECONDS = 0.05  # after which there are steps enough
LIMIT = 60.0  # seconds after which an environment counts as hung
HANDOVER = 200e-6  # seconds that handing a round over and back costs, with the caches it spoils


def pick_backend(
    setup: Setup, num_envs: int, num_workers: int, start_method: str
) -> Literal["serial", "process"]:
    """Processes if they save more than it costs to hand the copies over to them.

    One copy is timed in a process of its own, so that this one stays as it is. An environment that
    fails or hangs there gets processes, which can tell what happened to it.
    """
    if num_workers == 1:
        return "serial"
    try:
        with Bench(start_method) as bench:
            seconds = bench.run(LIMIT, time_step, setup)
    except BenchError:
        return "process"
    except UsageError:
        return "serial"  # nothing that could be sent to a process
    saved = seconds * num_envs * (1 - 1 / num_workers)
    return "process" if saved > HANDOVER else "serial"


def time_step(setup: Setup) -> float:
    """Median seconds of one copy's step."""
    copy = Copy(setup, seed=0)
    copy.env.reset(0)
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < STEPS and (not times or time.perf_counter() < end):
        copy.act()
        began = time.perf_counter()
        copy.step()
        times.append(time.perf_counter() - began)
    close_within(copy.env, CLOSE_SECONDS)
    return float(np.median(times))
