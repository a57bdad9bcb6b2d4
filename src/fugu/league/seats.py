"""Seats: which player holds which agents of which copy, and the matches under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.league.players import Ids
from fugu.vector import Batch

NOBODY, LEARNER = -1, 0  # numbers of players; those of a pool begin at 1
SAME = 1e-6  # returns closer than this are a draw
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Matches:
    """Matches that are over, `[matches, sides]`.

    Attributes:
        holders: Who held each side.
        returns: What each side got.
        lengths: Steps of the environment, `[matches]`.
    """

    holders: Ids
    returns: NDArray[np.float64]
    lengths: Ids

    def outcomes(self) -> dict[tuple[int, int], list[int]]:
        """Wins, draws and losses of the first of each two players, who is the lower number.

        Every two sides of a match that different players held count once.
        """
        found: dict[tuple[int, int], list[int]] = {}
        sides = self.holders.shape[1]
        for i in range(sides):
            for j in range(i + 1, sides):
                one, other = self.holders[:, i], self.holders[:, j]
                lead = self.returns[:, i] - self.returns[:, j]
                signs = np.where(np.abs(lead) <= SAME, 0, np.sign(lead)).astype(np.int64)
                signs = np.where(one < other, signs, -signs)
                pairs = np.stack([np.minimum(one, other), np.maximum(one, other), signs], 1)
                kinds, counts = np.unique(pairs[one != other], axis=0, return_counts=True)
                for (low, high, sign), count in zip(kinds.tolist(), counts.tolist(), strict=True):
                    found.setdefault((low, high), [0, 0, 0])[1 - sign] += count
        return found


class Seats:
    """Who holds what: one player a side, from the beginning of a match to its end.

    A match is an episode of all agents of a copy. Sides are runs of agents that play together.

    Args:
        groups: The agents of a copy.
        num_envs: Copies.
        sides: How many; 0: each agent is one.

    Attributes:
        sides: How many.
        side_of: The side of each agent of a copy, group after group.
        holders: Players, `[copies, sides]`; they change only where a match is over.
    """

    def __init__(self, groups: Sequence[AgentGroup], num_envs: int, sides: int = 0) -> None:
        agents = sum(group.num_agents for group in groups)
        self.sides = sides or agents
        if agents < 2 or not 2 <= self.sides <= agents or agents % self.sides:
            raise UsageError(
                f"league: given {agents} agents in {self.sides} sides; allowed: two or more "
                "agents, and a number of sides, two or more, that divides them. An environment's "
                "setting may ask for more agents, such as --env.opponent 2 of connect4."
            )
        self.side_of = np.arange(agents) // (agents // self.sides)
        ends = np.cumsum([group.num_agents for group in groups]).tolist()
        self._parts = [
            self.side_of[end - g.num_agents : end] for g, end in zip(groups, ends, strict=True)
        ]
        self.holders = np.full((num_envs, self.sides), NOBODY)
        self._returns = np.zeros((num_envs, self.sides))
        self._lengths = np.zeros(num_envs, np.int64)
        self._ended = np.zeros((num_envs, agents), np.bool_)

    def of_group(self, group: int, holders: Ids) -> Ids:
        """The holder of each agent of a group, of holders `[copies, sides]` of a batch."""
        found: Ids = holders[:, self._parts[group]].reshape(-1)
        return found

    def note(self, batch: Batch) -> tuple[Flags, Matches]:
        """What a batch says: in which of its copies nobody plays now, and what came of matches.

        Matches that a fault broke are over and not counted.

        Raises:
            UsageError: Agents begin anew while others play on.
        """
        envs = batch.env_ids
        ends, rewards, valid, live = self._gather(batch)
        playing, broken = self.holders[envs, 0] != NOBODY, ~valid.all(1)
        for side in range(self.sides):
            self._returns[envs, side] += rewards[:, self.side_of == side].sum(1)
        self._lengths[envs] += playing
        ended = self._ended[envs] | ends
        over = ended.all(1) | broken | ~playing
        if (ended & live & ~over[:, None]).any():
            raise UsageError(
                "league: given an environment whose agents begin anew while others play on; "
                "allowed: one in which all agents' episodes end before any begins the next."
            )
        self._ended[envs] = ended
        told = envs[over & playing & ~broken]
        matches = Matches(
            self.holders[told], self._returns[told].copy(), self._lengths[told].copy()
        )
        gone = envs[over]
        self.holders[gone], self._returns[gone] = NOBODY, 0.0
        self._lengths[gone], self._ended[gone] = 0, False
        return over, matches

    def clear(self) -> None:
        """All copies begin anew."""
        self.holders[:], self._returns[:], self._lengths[:] = NOBODY, 0.0, 0
        self._ended[:] = False

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """All of it, as arrays."""
        return {
            "holders": self.holders,
            "returns": self._returns,
            "lengths": self._lengths,
            "ended": self._ended,
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self.holders[:], self._returns[:] = state["holders"], state["returns"]
        self._lengths[:], self._ended[:] = state["lengths"], state["ended"]

    def _gather(self, batch: Batch) -> tuple[Flags, NDArray[np.float32], Flags, Flags]:
        """Ends, rewards, validity and turns of all agents, `[copies, agents]`."""
        envs, rows = len(batch.env_ids), [group.rows for group in batch.groups]

        def side_by_side(arrays: list[NDArray[Any]]) -> NDArray[Any]:
            return np.concatenate([array.reshape(envs, -1) for array in arrays], 1)

        return (
            side_by_side([row.terminations | row.truncations for row in rows]),
            side_by_side([row.rewards for row in rows]),
            side_by_side([row.valid for row in rows]),
            side_by_side([row.live for row in rows]),
        )
