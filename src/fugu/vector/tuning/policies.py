"""The policy's time for a batch, given or measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fugu.core.errors import UsageError
from fugu.vector.tuning.profiling import Rows
from fugu.vector.tuning.request import check_seconds

Policy = float | Callable[[Any], Any]
WARM_UP = 2  # calls that are not timed
SECONDS = 0.1  # for each size of batch
MOST_CALLS = 100


class PolicyClock:
    """Tells the policy's seconds for a batch of some size, and measures each size once.

    A policy that is given to be measured runs in the caller, with whatever device and threads it
    has there.
    """

    def __init__(self, policy: Policy) -> None:
        if not callable(policy):
            try:
                check_seconds("policy_seconds", policy, above=False)
            except UsageError as error:
                raise UsageError(f"{error} Or give the policy, to be measured.") from None
        self._policy = policy
        self._known: dict[int, float] = {}

    def seconds(self, batch_size: int, groups: list[Rows]) -> float:
        """For the observations of that many environments."""
        if not callable(self._policy):
            return float(self._policy)
        if batch_size not in self._known:
            self._known[batch_size] = _measure(self._policy, batch_size, groups)
        return self._known[batch_size]


def _measure(policy: Callable[[Any], Any], batch_size: int, groups: list[Rows]) -> float:
    parts = tuple(
        np.zeros((batch_size * rows.num_agents, rows.size), np.dtype(rows.dtype)) for rows in groups
    )
    observations = parts[0] if len(parts) == 1 else parts
    for _ in range(WARM_UP):
        policy(observations)
    times: list[float] = []
    while len(times) < MOST_CALLS and sum(times) < SECONDS:
        began = time.perf_counter()
        policy(observations)
        times.append(time.perf_counter() - began)
    return float(np.median(times))
