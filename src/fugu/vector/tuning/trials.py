"""Trials: one setting under a learner that is as busy as the policy would be. Runs on the bench."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fugu.core.seeding import derive
from fugu.vector.tuning.playing import Player, be_busy
from fugu.vector.tuning.records import Setting
from fugu.vector.vector import Vector

WINDOWS = 3  # of one visit, at the least
MakeVector = Callable[..., Vector]


@dataclass(frozen=True)
class Timing:
    """What a trial found.

    Attributes:
        windows: Steps a second within each window.
        start_seconds: Until all copies were ready for the first time.
        faults: Steps that broke and were mended by a restart.
    """

    windows: tuple[float, ...]
    start_seconds: float
    faults: int


class Learner:
    """Receives, is busy, and sends random legal actions."""

    def __init__(self, vector: Vector, policy_seconds: float, seed: int) -> None:
        self._vector, self._policy_seconds = vector, policy_seconds
        self._players = [
            Player(group, vector.batch_size * group.num_agents, derive(seed, i))
            for i, group in enumerate(vector.groups)
        ]

    def turn(self) -> int:
        """One batch; the environments in it."""
        batch = self._vector.recv()
        if self._policy_seconds:
            be_busy(self._policy_seconds)
        pairs = zip(self._players, batch.groups, strict=True)
        actions = [player.actions(group.rows) for player, group in pairs]
        self._vector.send(actions[0] if len(actions) == 1 else tuple(actions))
        return len(batch.env_ids)

    def play_round(self) -> None:
        """As many batches as it takes for every copy to have its turn."""
        for _ in range(-(-self._vector.num_envs // self._vector.batch_size)):
            self.turn()

    def play_window(self, seconds: float) -> float:
        """Steps a second, over that time or one batch."""
        steps, began = 0, time.perf_counter()
        while True:
            steps += self.turn()
            elapsed = time.perf_counter() - began
            if elapsed >= seconds:
                return steps / elapsed


def time_setting(
    make_vector: MakeVector,
    factory: Callable[[], Any],
    setting: Setting,
    options: Mapping[str, Any],
    policy_seconds: float,
    seconds: float,
    seed: int,
) -> Timing:
    """Run a setting for a while, after a round to warm up."""
    began = time.perf_counter()
    with make_vector(factory, **setting.make_options(), **options) as vector:
        vector.async_reset(seed=seed)
        learner = Learner(vector, policy_seconds, seed)
        learner.play_round()  # these are the first observations
        start_seconds = time.perf_counter() - began
        learner.play_round()
        windows: list[float] = []
        end = time.perf_counter() + seconds
        while not windows or time.perf_counter() < end:
            windows.append(learner.play_window(seconds / WINDOWS))
        return Timing(tuple(windows), start_seconds, len(vector.faults))
