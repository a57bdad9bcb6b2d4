"""Environments of which a package steps many copies at once, in threads or on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import ActionError, PackError, UsageError
from fugu.core.seeding import fresh_seed
from fugu.envs.contract import AgentGroup, Buffers, Env, Info
from fugu.spaces import Layout


@dataclass(frozen=True)
class Moves:
    """The result of a step of all copies; every array has an entry for each copy.

    Attributes:
        observations: Current observations, nested as their space; where an episode ended, the
            first observation of the next one.
        rewards: Rewards of the step.
        terminations: Whether the episode terminated.
        truncations: Whether the episode was truncated.
        final: Last observations of episodes that ended, ignored for other copies; None if none did.
        infos: More entries for the infos of episodes that ended, by copy.
    """

    observations: Any
    rewards: NDArray[Any]
    terminations: NDArray[Any]
    truncations: NDArray[Any]
    final: Any = None
    infos: Mapping[int, Info] = field(default_factory=dict)


class BatchEnv:
    """Copies of a single-agent environment that step at once, by the rules of `Env`.

    A subclass has `begin` and `advance`; their results are written into the rows of all copies. A
    copy's seed alone decides its episodes, whatever its position and its neighbors.

    Attributes:
        num_envs: Number of copies.
        groups: The one group of a copy.
        buffers: The rows of all copies.
        infos: Infos of the episodes that ended in the last step, by copy.
    """

    def __init__(
        self, num_envs: int, observation_space: Space[Any], action_space: Space[Any]
    ) -> None:
        self.num_envs = num_envs
        seen = Layout.of(observation_space)
        done = Layout.of(action_space, strict=True)
        self.groups = (AgentGroup("agent", ("agent_0",), seen, done),)
        self.infos: dict[int, tuple[Info, ...]] = {}
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)

    def begin(self, seeds: Sequence[int | None]) -> Any:
        """Reset all copies, those without a seed randomly; return their first observations."""
        raise NotImplementedError("begin(seeds: Sequence[int | None]) -> observations")

    def advance(self, actions: Any) -> Moves:
        """Step all copies; episodes that end restart in the same step."""
        raise NotImplementedError("advance(actions) -> Moves")

    def close(self) -> None:
        """Release all resources. Calling it again does nothing."""

    def bind(self, rows: Buffers) -> None:
        """Read and write these rows from now on, one for each copy; `reset` comes next."""
        self.buffers = rows
        layout = self.groups[0].observation_layout
        self._observations = layout.views(rows.observations)
        self._final = layout.views(rows.final)
        self._actions = self.groups[0].action_layout.views(rows.actions)
        rows.action_masks[:] = True
        rows.valid[:] = True

    def reset(self, seeds: Sequence[int | None]) -> None:
        """Reset all copies."""
        rows = self.buffers
        write_tree(self.begin(seeds), self._observations)
        rows.live[:] = True
        rows.rewards[:] = 0
        rows.terminations[:] = rows.truncations[:] = False
        self._returns[:] = self._lengths[:] = 0
        self.infos = {}

    def step(self) -> None:
        """Take the actions of all copies and write everything that follows."""
        moves, rows = self.advance(self._actions), self.buffers
        write_tree(moves.observations, self._observations)
        rows.rewards[:] = moves.rewards
        rows.terminations[:] = moves.terminations
        rows.truncations[:] = moves.truncations
        self._returns += rows.rewards
        self._lengths += 1
        self.infos = {}
        ended = rows.terminations | rows.truncations
        if ended.any():
            write_tree(moves.final, self._final, ended)
            for copy in np.flatnonzero(ended).tolist():
                info = {
                    "episode_return": float(self._returns[copy]),
                    "episode_length": int(self._lengths[copy]),
                }
                self.infos[copy] = (info | moves.infos.get(copy, {}),)
            self._returns[ended] = self._lengths[ended] = 0

    def check_actions(self, rows: NDArray[Any]) -> None:
        """Raise an `ActionError` if a row is not a value of the action space."""
        layout = self.groups[0].action_layout
        raw = np.ascontiguousarray(rows).view(np.uint8)
        for leaf in layout.leaves:
            part = raw[:, leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype)
            low, high = bounds(leaf.space)
            fits = (part >= low.reshape(-1)) & (part <= high.reshape(-1))
            for row in np.flatnonzero(~fits.all(1))[:1]:
                try:
                    layout.unpack(rows[row])
                except PackError as error:
                    raise ActionError(error.path, error.given, error.allowed) from None


class BatchOfOne(Env):
    """A single copy of a batched environment, for every other backend."""

    def __init__(self, make: Callable[[], BatchEnv]) -> None:
        self._batch = make()
        self.groups = self._batch.groups
        self._closed = False

    def bind(self, *buffers: Buffers) -> None:
        """Read and write these buffers from now on."""
        (rows,) = self.buffers = buffers
        self._batch.bind(rows)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Reset the environment."""
        if options:
            raise UsageError(f"reset: given options {dict(options)!r}; allowed: none here.")
        self._batch.reset([fresh_seed() if seed is None else seed])
        self.infos = ()

    def step(self) -> None:
        """Take the action."""
        self._batch.check_actions(self.buffers[0].actions)
        self._batch.step()
        self.infos = self._batch.infos.get(0, ())

    def close(self) -> None:
        """Close the batch."""
        if not self._closed:
            self._closed = True
            self._batch.close()


def write_tree(tree: Any, out: Any, where: NDArray[np.bool_] | None = None) -> None:
    """Copy a tree of arrays, `[copies, ...]`, into views; only copies in `where`, if given."""
    if isinstance(out, dict):
        for key, part in out.items():
            write_tree(tree[key], part, where)
    elif isinstance(out, tuple):
        for part, target in zip(tree, out, strict=True):
            write_tree(part, target, where)
    elif where is None:
        out[...] = tree
    else:
        out[where] = np.asarray(tree)[where]


def bounds(space: Space[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lowest and the highest values of a space that is a single leaf.

    >>> [side.tolist() for side in bounds(spaces.MultiDiscrete([2, 5]))]
    [[0, 0], [1, 4]]
    """
    match space:
        case spaces.Discrete():
            return np.array([space.start]), np.array([space.start + space.n - 1])
        case spaces.MultiDiscrete():
            start = getattr(space, "start", np.zeros_like(space.nvec))
            return start, start + space.nvec - 1
        case spaces.MultiBinary():
            return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
        case spaces.Box():
            return space.low, space.high
        case _:
            raise UsageError(
                f"action space: given {space}; allowed: Discrete, MultiDiscrete, MultiBinary, Box, "
                "and dicts and tuples of them."
            )
