"""EpisodeQuota: counts the same number of episodes of every agent of a vector."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.envs.contract import AgentGroup, Info
from fugu.envs.episode_stats import scalars
from fugu.vector import Batch

# Entries of an episode's info that are not statistics of it.
_RESERVED = ("agent", "episodes", "episode_return", "episode_length")
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Episode:
    """One episode of one agent.

    Attributes:
        env: Number of the agent's copy.
        agent: Number of the agent among those of its copy, group after group.
        length: Steps in which the agent acted.
        costs: Sums of its costs, `[constraints]`.
        stats: The other numbers of its info, such as `is_success`.
        cut_off: Whether it was still running when it reached the step limit.
    """

    env: int
    agent: int
    episode_return: float
    length: float
    costs: NDArray[np.float64]
    stats: Mapping[str, float]
    cut_off: bool = False


class EpisodeQuota:
    """Follows the episodes of every agent, and counts the first `quota` of each.

    Agents with short episodes finish their quota early and play on uncounted; if the first episodes
    to end were counted instead, whoever they are from, short ones would be counted more often.

    Agents may die while others play on, respawn on their own, or take no part in some rounds. A
    round ends when nobody in a copy plays any more; an agent that took no part in it has one
    episode less to play, so that agents that never appear are not waited for.

    An episode that reaches `max_episode_steps` is counted as truncated there. Its agent begins the
    next one when the environment does, or at the latest with a reset: see `stuck`.

    `episodes` are those counted so far, in the order in which they ended.
    """

    def __init__(
        self, groups: Sequence[AgentGroup], num_envs: int, quota: int, max_episode_steps: int
    ) -> None:
        self.episodes: list[Episode] = []
        self._quota, self._max_steps = quota, max_episode_steps
        self._num_costs = [group.num_costs for group in groups for _ in group.agents]
        names = [agent for group in groups for agent in group.agents]
        unique = len(set(names)) == len(names)
        self._numbers = {name: i for i, name in enumerate(names)} if unique else {}
        shape = (num_envs, len(names))
        self._counted = np.zeros(shape, np.int64)
        self._idle = np.zeros(shape, np.int64)  # rounds without the agent
        self._unfinished = np.ones(shape, np.bool_)
        # Of the episode that an agent is in:
        self._returns = np.zeros(shape)
        self._lengths = np.zeros(shape, np.int64)
        self._costs = np.zeros((*shape, max(self._num_costs)))
        self._ages = np.zeros(shape, np.int64)  # steps of the environment since it began
        self._open = np.zeros(shape, np.bool_)
        self._cut = np.zeros(shape, np.bool_)  # counted already
        self._acted = np.zeros(shape, np.bool_)  # in the step under way
        self._played = np.zeros(shape, np.bool_)  # in this round

    @property
    def complete(self) -> bool:
        """Whether every agent's quota is counted."""
        return not self._unfinished.any()

    @property
    def stuck(self) -> bool:
        """Whether a reset is needed: every unfinished agent was cut off, or was out for as long."""
        return not (self._unfinished & (self._ages < self._max_steps)).any()

    def restart(self) -> None:
        """Begin new episodes: the whole vector was reset."""
        self._idle += ~self._played
        self._unfinished = self._counted + self._idle < self._quota
        for array in (self._returns, self._lengths, self._costs, self._ages):
            array[...] = 0
        for flags in (self._open, self._cut, self._acted, self._played):
            flags[...] = False

    def add(self, batch: Batch) -> None:
        """Add a step of some copies: the batch that a vector gave."""
        whole = len(batch.env_ids) == len(self._counted)
        envs = slice(None) if whole else batch.env_ids  # views are faster than copies
        valid, live = _of_agents(batch, "valid"), _of_agents(batch, "live")
        ended = (_of_agents(batch, "terminations") | _of_agents(batch, "truncations")) & valid
        self._returns[envs] += _of_agents(batch, "rewards")
        self._lengths[envs] += self._acted[envs]
        self._ages[envs] += 1
        if self._costs.shape[2]:
            self._add_costs(batch)
        over = ended | ~valid  # a step that failed ends its episode uncounted
        if over.any():
            self._count(batch, ended)
            self._close(batch.env_ids, ended, over, live)
        begun = live & ~self._open[envs]
        if begun.any():
            self._ages[envs] = np.where(begun, 0, self._ages[envs])
            self._open[envs] |= begun
            self._played[envs] |= begun
        self._acted[envs] = live
        self._cut_off()

    def _add_costs(self, batch: Batch) -> None:
        envs, first = batch.env_ids, 0
        for group in batch.groups:
            costs = group.rows.costs
            last = first + len(costs) // len(envs)
            if costs.shape[1]:
                paid = costs.reshape(len(envs), last - first, -1)
                self._costs[envs, first:last, : costs.shape[1]] += paid
            first = last

    def _count(self, batch: Batch, ended: Flags) -> None:
        """Count the episodes that ended of agents that are not finished."""
        for env, mine in zip(batch.env_ids.tolist(), ended, strict=True):
            agents = np.flatnonzero(mine).tolist()
            if not agents:
                continue
            infos = self._by_agent(agents, batch.infos.get(env, ()))
            wanted = self._unfinished[env] & ~self._cut[env]
            for agent in agents:
                if wanted[agent]:
                    self._append(env, agent, infos.get(agent, {}))

    def _by_agent(self, agents: Sequence[int], infos: Sequence[Info]) -> dict[int, Info]:
        """The info of each agent of a copy whose episode ended.

        Where infos do not say whose they are (native environments give one for all episodes that
        end in a step), every agent gets the mean of their statistics, and its return and length
        are those of its rows.
        """
        infos = [info for info in infos if "episode_return" in info]
        if len(agents) == len(infos) == 1:
            return {agents[0]: infos[0]}
        found: dict[int, Info] = {}
        unnamed = []
        for info in infos:
            name = info.get("agent")
            number = self._numbers.get(name) if isinstance(name, Hashable) else None
            if number is not None and number in agents:
                found[number] = info
            else:
                unnamed.append(_stats_of(info))
        return {**dict.fromkeys(agents, mean_stats(unnamed)), **found}

    def _append(self, env: int, agent: int, info: Info, *, cut_off: bool = False) -> None:
        self._counted[env, agent] += 1
        used = self._counted[env, agent] + self._idle[env, agent]
        self._unfinished[env, agent] = used < self._quota
        self.episodes.append(
            Episode(
                env,
                agent,
                float(info.get("episode_return", self._returns[env, agent])),
                float(info.get("episode_length", self._lengths[env, agent])),
                self._costs[env, agent, : self._num_costs[agent]].copy(),
                _stats_of(info),
                cut_off,
            )
        )

    def _close(self, envs: NDArray[np.int64], ended: Flags, over: Flags, live: Flags) -> None:
        """Forget the episodes that are over, and find the rounds that ended with them."""
        for sums in (self._returns, self._lengths, self._costs):
            sums[envs] = np.where(over if sums.ndim == 2 else over[..., None], 0, sums[envs])
        self._cut[envs] &= ~over
        self._open[envs] &= ~over
        played = self._played[envs] | ended
        # Somebody is back; else an agent may have died before another had its first turn.
        back = np.any(played & live, 1)
        next_round = np.any(ended, 1) & ~np.any(self._open[envs], 1) & back
        self._idle[envs] += next_round[:, None] & ~played
        self._unfinished[envs] = self._counted[envs] + self._idle[envs] < self._quota
        broken = np.any(over & ~ended, 1)
        played[next_round | broken] = False
        self._played[envs] = played

    def _cut_off(self) -> None:
        """Count the running episodes that have reached the limit."""
        late = self._open & ~self._cut & self._unfinished & (self._ages >= self._max_steps)
        if late.any():
            for env, agent in np.argwhere(late).tolist():
                self._append(env, agent, {}, cut_off=True)
            self._cut |= late


def mean_stats(stats: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each statistic over the episodes that have it.

    >>> mean_stats([{"is_success": 1.0, "score": 4.0}, {"is_success": 0.0}])
    {'is_success': 0.5, 'score': 4.0}
    """
    values: dict[str, list[float]] = {}
    for each in stats:
        for name, value in each.items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(found)) for name, found in values.items()}


def _stats_of(info: Info) -> dict[str, float]:
    return {name: value for name, value in scalars(info).items() if name not in _RESERVED}


def _of_agents(batch: Batch, name: str) -> NDArray[Any]:
    """An array of a batch for all agents, group after group: `[copies, agents]`."""
    parts = [getattr(group.rows, name).reshape(len(batch.env_ids), -1) for group in batch.groups]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
