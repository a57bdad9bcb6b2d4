"""Toys: an environment that says exactly what was when, players who say who they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup, Buffers, Env
from fugu.spaces import Layout
from fugu.vector import Batch, GroupBatch

CHOICES = 50


class Marks(Env):
    """Agents see and get numbers that come but once; all of their episodes end together.

    With `leaves` above 0, agents end one by one before that; with `returns` they are back at once.
    """

    def __init__(self, agents: int = 2, leaves: float = 0.0, returns: bool = False) -> None:
        layouts = Layout.of(spaces.Box(0, 1, (2,))), Layout.of(spaces.Discrete(CHOICES))
        names = tuple(f"agent_{i}" for i in range(agents))
        self.groups = (AgentGroup("agent", names, *layouts),)
        self._leaves, self._returns = leaves, returns
        self.bind(Buffers.allocate(self.groups[0]))

    def bind(self, *buffers: Buffers) -> None:
        self.buffers = buffers
        buffers[0].valid[:] = True
        buffers[0].action_masks[:] = True

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        rows = self.buffers[0]
        self._random = np.random.default_rng(derive(0 if seed is None else seed))
        rows.rewards[:] = 0.0
        rows.terminations[:] = rows.truncations[:] = False
        self._begin()

    def _begin(self) -> None:
        rows = self.buffers[0]
        self._left = int(self._random.integers(1, 7))
        rows.live[:] = True
        rows.observations[:] = self._random.random(rows.observations.shape)

    def step(self) -> None:
        rows = self.buffers[0]
        alive = rows.live.copy()
        rows.rewards[:] = np.where(alive, self._random.random(len(alive)), 0.0)
        rows.terminations[:] = rows.truncations[:] = False
        rows.observations[:] = self._random.random(rows.observations.shape)
        self._left -= 1
        leaving = alive & (self._random.random(len(alive)) < self._leaves)
        over = self._left <= 0 or not (alive & ~leaving).any()
        ended = alive if over else leaving
        flags = rows.terminations if self._random.random() < 0.5 else rows.truncations
        flags[:] = ended
        rows.final[ended] = rows.observations[ended]
        if over:
            self._begin()
        else:
            rows.live[:] = alive & (~leaving | self._returns)

    def close(self) -> None:
        pass


class Caller:
    """Always does the same, so that everybody sees who acted; it remembers what it was told."""

    def __init__(self, action: int) -> None:
        self.action = action
        self.begun: list[int] = []

    def begin(self, group: int, agents: NDArray[np.int64]) -> None:
        self.begun += agents.tolist()

    def act(self, group: int, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        assert len(rows.observations) == len(agents)
        return np.full((len(agents), 1), self.action)


def make_batch(
    envs: list[int], agents: int, *, rewards: Any = 0.0, ends: Any = False, live: Any = True,
    valid: Any = True, cuts: Any = False,
) -> Batch:  # fmt: skip
    """A batch of one group; arrays are `[copies, agents]` or one value for all."""
    layouts = Layout.of(spaces.Box(0, 1, (2,))), Layout.of(spaces.Discrete(CHOICES))
    group = AgentGroup("agent", tuple(range(len(envs) * agents)), *layouts)
    rows = Buffers.allocate(group)
    told = {
        "rewards": rewards, "terminations": ends, "truncations": cuts, "live": live, "valid": valid
    }  # fmt: skip
    for name, value in told.items():
        getattr(rows, name)[:] = np.broadcast_to(value, (len(envs), agents)).reshape(-1)
    ids = (np.array(envs)[:, None] * agents + np.arange(agents)).reshape(-1)
    return Batch(np.array(envs), (GroupBatch("agent", ids, rows),))
