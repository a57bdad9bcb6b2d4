"""Whole episodes in memory, recorded step by step and returned in groups to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.data.segments import Rewarded
from fugu.envs.contract import AgentGroup

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
FIRST_CAPACITY = 64  # steps of an open episode


@dataclass(frozen=True)
class Episode:
    """All that one agent saw and did from a reset to an end."""

    observations: NDArray[Any]  # [steps, size], in the layout's dtype
    samples: Floats  # of the actions, [steps, numbers]
    masks: Flags  # which choices were allowed, [steps, choices]
    log_probabilities: Floats  # of the samples, when they were drawn, [steps]
    rewards: Floats  # beside the actions that they followed, [steps]

    @property
    def length(self) -> int:
        """Return the number of steps."""
        return len(self.rewards)

    @property
    def total(self) -> float:
        """Return the sum of rewards."""
        return float(self.rewards.sum(dtype=np.float64))


FIELDS = ("observations", "samples", "masks", "log_probabilities", "rewards")


@dataclass(frozen=True)
class EpisodeShape:
    """The size of a buffer of episodes."""

    agents: int  # agents of all copies
    team_size: int  # copies of an environment that begin each episode alike: a group
    num_samples: int  # size of a sampled action
    ahead: int = 16  # episodes that a copy may be ahead of the slowest of its group
    longest: int = 100_000  # steps after which an episode counts as endless


class Episodes:
    """The open episode of every agent, and ended ones until their group is complete.

    Copies of an environment that begin alike are a group: their episodes of the same number are
    compared, and `take` returns them as soon as the slowest copy has ended its own. If a copy
    begins an episode more than `ahead` numbers before the slowest one, the whole group gives up
    that number, which bounds the memory; since that is decided before the episode is played, the
    episodes that are left are not selected by their content.

    Agents of one environment are counted separately, so each is to act in every episode. `given_up`
    counts the numbers that groups gave up so far.
    """

    bootstraps: ClassVar[bool] = False

    def __init__(self, group: AgentGroup, shape: EpisodeShape) -> None:
        if shape.agents % (group.num_agents * shape.team_size):
            raise UsageError(
                f"team_size: given {shape.team_size} for {shape.agents} agents; allowed: a divisor "
                f"of {shape.agents // group.num_agents}, the copies of the environment."
            )
        self.group, self.shape = group, shape
        self._open = {name: self._table(name, FIRST_CAPACITY) for name in FIELDS}
        agents = np.arange(shape.agents)
        copies, slots = agents // group.num_agents, agents % group.num_agents
        self._team = copies // shape.team_size * group.num_agents + slots
        self._place = copies % shape.team_size  # within the team
        self._length = np.zeros(shape.agents, np.int64)  # steps of the open episode
        self._number = np.zeros(shape.agents, np.int64)  # of the open episode
        self._waiting = np.zeros(shape.agents, np.bool_)  # for what the last action earns
        self._ended: dict[tuple[int, int], dict[int, Episode]] = {}  # by team and number
        self._given_up: set[tuple[int, int]] = set()
        self._complete: list[list[Episode]] = []
        self.given_up = 0

    # ------------------------------------------------------------------ writing

    def record_reward(
        self,
        agents: Ids,
        rewards: Floats,
        terminations: Flags,
        truncations: Flags,
        valid: Flags,
        live: Flags,
        costs: Floats | None = None,
    ) -> Rewarded:
        """Record what reached these agents now; it belongs to their last actions.

        Agents that have not acted since their last end are passed over. One that is not to act
        next, and whose episode continues, waits for more. `forget` episodes that a fault broke.
        """
        acted = self._waiting[agents]
        ended = (terminations | truncations) & acted
        mine, times = agents[acted], self._length[agents[acted]] - 1
        sums = np.zeros(len(agents), np.float32)
        self._open["rewards"][mine, times] += rewards[acted]
        sums[acted] = self._open["rewards"][mine, times]
        self._waiting[mine] = ~(live | ended)[acted]
        for agent in agents[ended].tolist():
            self._end(agent)
        return Rewarded(acted, acted & (live | ended), sums)

    def bootstrap(self, agents: Ids, final_values: Floats) -> None:
        """Nothing: whole episodes need no values."""

    def record_step(
        self,
        agents: Ids,
        observations: NDArray[Any],
        masks: Flags,
        samples: Floats,
        log_probabilities: Floats,
        *_: Any,
    ) -> None:
        """Record what agents see and do now; values and states are not kept."""
        times = self._length[agents]
        if times.size and times.max() >= self._capacity:
            self._grow()
        for agent in agents[times == 0].tolist():
            self._begin(agent)
        given = (observations, samples, masks, log_probabilities, 0.0)
        for name, values in zip(FIELDS, given, strict=True):
            self._open[name][agents, times] = values
        self._length[agents] = times + 1
        self._waiting[agents] = True

    def forget(self, agents: Ids) -> None:
        """Drop all incomplete episodes of these agents' groups, and restart their numbers."""
        teams = set(self._team[agents].tolist())
        whole = np.isin(self._team, list(teams))
        self._length[whole], self._number[whole], self._waiting[whole] = 0, 0, False
        self._ended = {key: value for key, value in self._ended.items() if key[0] not in teams}
        self._given_up = {key for key in self._given_up if key[0] not in teams}

    # ------------------------------------------------------------------ reading

    def take(self) -> list[list[Episode]]:
        """Return the groups that were completed since the last call."""
        found, self._complete = self._complete, []
        return found

    @property
    def full(self) -> bool:
        """Whether a team is complete."""
        return bool(self._complete)

    @property
    def kept(self) -> int:
        """Return the number of ended episodes that wait for their group."""
        return sum(map(len, self._ended.values()))

    # ------------------------------------------------------------------ episodes

    def _begin(self, agent: int) -> None:
        team, number = int(self._team[agent]), int(self._number[agent])
        slowest = int(self._number[self._team == team].min())
        if number - slowest > self.shape.ahead and (team, number) not in self._given_up:
            self._given_up.add((team, number))
            self.given_up += 1

    def _end(self, agent: int) -> None:
        team, number = int(self._team[agent]), int(self._number[agent])
        steps = int(self._length[agent])
        self._number[agent] += 1
        self._length[agent] = 0
        key = (team, number)
        if key in self._given_up:
            if int(self._number[self._team == team].min()) > number:
                self._given_up.discard(key)
            return
        episode = Episode(**{name: self._open[name][agent, :steps].copy() for name in FIELDS})
        ended = self._ended.setdefault(key, {})
        ended[int(self._place[agent])] = episode
        if len(ended) == self.shape.team_size:
            del self._ended[key]
            self._complete.append([ended[place] for place in range(self.shape.team_size)])

    # ------------------------------------------------------------------ memory

    @property
    def _capacity(self) -> int:
        return int(self._open["rewards"].shape[1])

    def _table(self, name: str, capacity: int) -> NDArray[Any]:
        layout = self.group.observation_layout
        width, dtype = {
            "observations": ((layout.size,), layout.dtype),
            "samples": ((self.shape.num_samples,), np.dtype(np.float32)),
            "masks": ((self.group.mask_width,), np.dtype(np.bool_)),
        }.get(name, ((), np.dtype(np.float32)))
        return np.zeros((self.shape.agents, capacity, *width), dtype)

    def _grow(self) -> None:
        if self._capacity >= self.shape.longest:
            raise UsageError(
                f"episodes: given one of more than {self._capacity} steps; allowed: up to "
                f"{self.shape.longest}. Give the environment a time limit: whole episodes are "
                "compared, so they must end."
            )
        capacity = min(2 * self._capacity, self.shape.longest)
        larger = {name: self._table(name, capacity) for name in FIELDS}
        for name, old in self._open.items():
            larger[name][:, : old.shape[1]] = old
        self._open = larger

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything that is open or waits, as arrays."""
        keys = [(*key, place) for key, ended in self._ended.items() for place in ended]
        waiting = [self._ended[team, number][place] for team, number, place in keys]
        complete = [episode for team in self._complete for episode in team]
        return {
            **{f"open.{name}": table for name, table in self._open.items()},
            **{f"ended.{name}": array for name, array in pack(waiting, self.group).items()},
            **{f"complete.{name}": array for name, array in pack(complete, self.group).items()},
            "keys": np.array(keys, np.int64).reshape(-1, 3),
            "given_up": np.array(sorted(self._given_up), np.int64).reshape(-1, 2),
            "length": self._length,
            "number": self._number,
            "waiting": self._waiting,
            "count": np.array(self.given_up),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        if len(state["length"]) != self.shape.agents:
            raise UsageError(
                f"episodes: given those of {len(state['length'])} agents; allowed: "
                f"{self.shape.agents}. A run is resumed with the settings that it began with."
            )
        self._open = {name: state[f"open.{name}"].copy() for name in FIELDS}
        self._length[:], self._number[:] = state["length"], state["number"]
        self._waiting[:] = state["waiting"]
        self._given_up = {(int(team), int(number)) for team, number in state["given_up"]}
        self.given_up = int(state["count"])
        self._ended = {}
        for (team, number, place), episode in zip(
            state["keys"].tolist(), unpack(with_prefix(state, "ended.")), strict=True
        ):
            self._ended.setdefault((team, number), {})[place] = episode
        complete = unpack(with_prefix(state, "complete."))
        size = self.shape.team_size
        self._complete = [complete[i : i + size] for i in range(0, len(complete), size)]


def pack(episodes: Sequence[Episode], group: AgentGroup) -> dict[str, NDArray[Any]]:
    """Concatenate episodes into one array for each field, with their lengths."""
    layout = group.observation_layout
    packed: dict[str, NDArray[Any]] = {"lengths": np.array([e.length for e in episodes], np.int64)}
    for name in FIELDS:
        parts = [getattr(episode, name) for episode in episodes]
        dtype = {"observations": layout.dtype, "masks": np.dtype(np.bool_)}.get(name)
        width = {"observations": (layout.size,), "masks": (group.mask_width,), "samples": (0,)}
        empty = np.zeros((0, *width.get(name, ())), dtype or np.float32)
        packed[name] = np.concatenate(parts) if parts else empty
    return packed


def unpack(packed: Mapping[str, NDArray[Any]]) -> list[Episode]:
    """Undo `pack`."""
    ends = np.cumsum(packed["lengths"])[:-1]
    columns = [np.split(packed[name], ends) for name in FIELDS] if len(packed["lengths"]) else []
    return [Episode(*(part.copy() for part in parts)) for parts in zip(*columns, strict=True)]


def with_prefix(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries whose names have a prefix, without it."""
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}


def began_alike(team: Iterable[Episode]) -> bool:
    """Return whether episodes have the same first observation."""
    first, *others = [episode.observations[0] for episode in team]
    return all(np.array_equal(first, other) for other in others)
