"""Record what the agents of a vector do, as episodes of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.data.offline import DatasetWriter, Episode, group_folders
from fugu.envs.contract import Buffers
from fugu.vector import Batch, Vector, make
from fugu.vector.make import Backend
from fugu.vector.random_actions import random_policy

Policy = Callable[[Batch], Any]
RECORDING = 0x7265  # the branch of the seed tree
COPIES = 16


@dataclass
class _OpenEpisode:
    """An agent's episode so far."""

    observations: list[NDArray[Any]] = field(default_factory=list)
    actions: list[NDArray[Any]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def close(self, final: NDArray[Any], terminated: bool, truncated: bool) -> Episode:
        ends = np.zeros((2, len(self.rewards)), np.bool_)
        ends[:, -1] = terminated, truncated
        observations = np.stack([*self.observations, final])
        rewards = np.array(self.rewards, np.float32)
        return Episode(observations, np.stack(self.actions), rewards, *ends)


class GroupRecorder:
    """Writes the episodes of one group's agents when they end.

    Rewards that reach an agent between its turns belong to its last action. Left out are episodes
    that a fault broke, those that are open at the end, and what agents do before their first
    recorded reset.

    Args:
        writer: Takes the episodes.
        agents: Number of agents of the vector.
        begun: Whether all agents stand before their first action; of a vector that runs already,
            only episodes that begin later are written.
        quota: Most episodes of an agent that are written.

    Attributes:
        counts: Written episodes of each agent.
    """

    def __init__(
        self, writer: DatasetWriter, agents: int, *, begun: bool = True, quota: int | None = None
    ) -> None:
        self.writer, self._quota = writer, quota
        self.counts = np.zeros(agents, np.int64)
        self._open = [_OpenEpisode() if begun else None for _ in range(agents)]
        self._waiting = np.zeros(agents, np.bool_)  # for what follows the last action

    def record(self, agents: NDArray[np.int64], rows: Buffers, actions: NDArray[Any]) -> None:
        """Record a batch's rows of the group, and what its agents do next."""
        ended = rows.terminations | rows.truncations | ~rows.valid
        for row, agent in enumerate(agents.tolist()):
            episode = self._open[agent]
            if episode is not None and self._waiting[agent]:
                episode.rewards[-1] += float(rows.rewards[row])
                self._waiting[agent] = not (rows.live[row] or ended[row])
                if ended[row] and rows.valid[row] and self.counts[agent] != self._quota:
                    ends = bool(rows.terminations[row]), bool(rows.truncations[row])
                    self.writer.add(episode.close(rows.final[row].copy(), *ends))
                    self.counts[agent] += 1
            if ended[row]:
                episode = self._open[agent] = _OpenEpisode()
            if episode is not None and rows.live[row]:
                episode.observations.append(rows.observations[row].copy())
                episode.actions.append(np.array(actions[row]))
                episode.rewards.append(0.0)
                self._waiting[agent] = True


class Recorder:
    """Records all groups of a vector; several groups have a folder each in the given one.

    The environment's name and arguments are for the metadata; see `GroupRecorder` for the rest.
    """

    def __init__(
        self,
        vec: Vector,
        folder: str | Path,
        env: str,
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        begun: bool = True,
        quota: int | None = None,
    ) -> None:
        self._copies = vec.num_envs
        self._layouts = [group.action_layout for group in vec.groups]
        self.writers = [
            DatasetWriter(place, group, env, env_kwargs)
            for place, group in zip(group_folders(folder, vec.groups), vec.groups, strict=True)
        ]
        self._recorders = [
            GroupRecorder(writer, vec.num_envs * group.num_agents, begun=begun, quota=quota)
            for writer, group in zip(self.writers, vec.groups, strict=True)
        ]

    def __call__(self, batch: Batch, actions: Sequence[NDArray[Any]]) -> None:
        """Record a batch, and what its agents do next."""
        pairs = zip(self._recorders, self._layouts, strict=True)
        for (recorder, layout), group, rows in zip(pairs, batch.groups, actions, strict=True):
            agents = group.agent_ids
            recorder.record(agents, group.rows, layout.fit_rows(rows, len(agents)))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Episodes of each copy, by its agent that had the most."""
        counts = [recorder.counts.reshape(self._copies, -1) for recorder in self._recorders]
        found: NDArray[np.int64] = np.concatenate(counts, 1).max(1)
        return found

    def commit(self) -> list[int]:
        """Commit all episodes; return how many there are of each group."""
        for writer in self.writers:
            writer.commit()
        return [writer.episodes for writer in self.writers]

    def close(self) -> None:
        """Commit, and close the files."""
        for writer in self.writers:
            writer.close()


def record_episodes(
    env: str | Callable[..., Any],
    folder: str | Path,
    *,
    episodes: int = 100,
    policy: Policy | None = None,
    copies: int | None = None,
    backend: Backend = "auto",
    seed: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    tell: Callable[[int], None] = lambda episodes: None,
) -> int:
    """Play episodes and append them to a dataset.

    Every copy plays the same number of episodes, so that short ones are not recorded more often.

    Args:
        env: See `fugu.make`.
        folder: Of the dataset, which may exist already.
        episodes: Of the environment, rounded up to a multiple of the copies.
        policy: Gives the actions for a batch, as `Vector.send` takes them; random legal ones if
            not given.
        copies: Copies of the environment; at most 16 if not given.
        backend: See `fugu.make`.
        seed: Of the environments and of random actions.
        env_kwargs: Arguments of the environment.
        name: Of the environment, for the metadata, if `env` is a callable.
        tell: Called with the number of episodes so far.

    Returns:
        Number of episodes that were played.
    """
    if episodes < 1:
        raise UsageError(f"episodes: given {episodes}; allowed: 1 or more.")
    copies = copies or min(COPIES, episodes)
    quota = -(-episodes // copies)
    with ExitStack() as stack:
        vec = stack.enter_context(make(env, copies, backend=backend, env_kwargs=env_kwargs))
        called = name or (env if isinstance(env, str) else "")
        recorder = Recorder(vec, folder, called, env_kwargs, quota=quota)
        stack.callback(recorder.close)
        act = policy or random_policy(vec, derive(seed, RECORDING))
        vec.async_reset(derive(seed, RECORDING, 1))
        while True:
            batch = vec.recv()
            actions = act(batch)
            recorder(batch, actions if isinstance(actions, tuple) else (actions,))
            done = int(recorder.counts.sum())
            tell(done)
            if done >= quota * copies:
                return done
            vec.send(actions)
