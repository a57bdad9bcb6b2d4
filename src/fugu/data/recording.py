"""Recording: what agents of a vector do, written down as episodes when they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
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


class _Stretch:
    """An agent's episode so far."""

    def __init__(self) -> None:
        self.observations: list[NDArray[Any]] = []
        self.actions: list[NDArray[Any]] = []
        self.rewards: list[float] = []

    def close(self, final: NDArray[Any], terminated: bool, truncated: bool) -> Episode:
        ends = np.zeros((2, len(self.rewards)), np.bool_)
        ends[:, -1] = terminated, truncated
        return Episode(
            np.stack([*self.observations, final]),
            np.stack(self.actions),
            np.array(self.rewards, np.float32),
            *ends,
        )


class EpisodeStatisticser:
    """One group's agents: their episodes go to a writer when they end.

    Rewards that reach an agent between its turns belong to its last action. An episode that a
    fault broke, and what is under way in the end, are left out; so is what an agent does before
    the first reset that is seen of it.

    Args:
        writer: Takes the episodes.
        agents: Of the whole vector.
        begun: Whether all agents stand before their first action; of a vector under way, only
            episodes that begin later are written.
        quota: Episodes of an agent that are written at most.

    Attributes:
        counts: Episodes of each agent that were written.
    """

    def __init__(
        self, writer: DatasetWriter, agents: int, *, begun: bool = True, quota: int | None = None
    ) -> None:
        self.writer, self._quota = writer, quota
        self.counts = np.zeros(agents, np.int64)
        self._stretches = [_Stretch() if begun else None for _ in range(agents)]
        self._waiting = np.zeros(agents, np.bool_)

    def note(self, agents: NDArray[np.int64], rows: Buffers, actions: NDArray[Any]) -> None:
        """A batch's rows of the group, and what its agents do next."""
        ended = rows.terminations | rows.truncations | ~rows.valid
        for row, agent in enumerate(agents.tolist()):
            stretch = self._stretches[agent]
            if stretch is not None and self._waiting[agent]:
                stretch.rewards[-1] += float(rows.rewards[row])
                self._waiting[agent] = not (rows.live[row] or ended[row])
                if ended[row] and rows.valid[row] and self.counts[agent] != self._quota:
                    ends = bool(rows.terminations[row]), bool(rows.truncations[row])
                    self.writer.add(stretch.close(rows.final[row].copy(), *ends))
                    self.counts[agent] += 1
            if ended[row]:
                stretch = self._stretches[agent] = _Stretch()
            if stretch is not None and rows.live[row]:
                stretch.observations.append(rows.observations[row].copy())
                stretch.actions.append(np.array(actions[row]))
                stretch.rewards.append(0.0)
                self._waiting[agent] = True


class Recorder:
    """All groups of a vector, each into its own folder.

    Args:
        vec: Whose batches are noted.
        folder: Of the data; of several groups, each has a folder in it.
        env: The environment's name.
        env_kwargs: Its arguments.
        begun: As of `EpisodeStatisticser`.
        quota: As of `EpisodeStatisticser`.
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
        self._groups, self._copies = vec.groups, vec.num_envs
        self.writers = [
            DatasetWriter(place, group, env, env_kwargs)
            for place, group in zip(group_folders(folder, vec.groups), vec.groups, strict=True)
        ]
        self._recorders = [
            EpisodeStatisticser(writer, vec.num_envs * group.num_agents, begun=begun, quota=quota)
            for writer, group in zip(self.writers, vec.groups, strict=True)
        ]

    def __call__(self, batch: Batch, actions: Sequence[NDArray[Any]]) -> None:
        """Note a batch, and what its agents do next."""
        for recorder, group, rows, layout in zip(
            self._recorders, batch.groups, actions, self._groups, strict=True
        ):
            fitted = layout.action_layout.fit_rows(rows, len(group.agent_ids))
            recorder.note(group.agent_ids, group.rows, fitted)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Episodes of each copy, by its agent that had the most."""
        counts = [recorder.counts.reshape(self._copies, -1) for recorder in self._recorders]
        found: NDArray[np.int64] = np.concatenate(counts, 1).max(1)
        return found

    def commit(self) -> list[int]:
        """Let all episodes count; how many there are of each group."""
        for writer in self.writers:
            writer.commit()
        return [writer.episodes for writer in self.writers]

    def close(self) -> None:
        """Commit, and let go of the files."""
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
        env: As of `fugu.make`.
        folder: Of the dataset; one that is there already goes on.
        episodes: Of the environment, rounded up to a multiple of the copies.
        policy: Gives the actions for a batch, as `Vector.send` takes them; random legal ones if
            not given.
        copies: That play side by side; at most 16 if not given.
        backend: Who steps them, as of `fugu.make`.
        seed: Of the environments and of random actions.
        env_kwargs: Arguments of the environment.
        name: Of the environment, for the metadata, if `env` is something to call.
        tell: Called with the episodes so far.

    Returns:
        Episodes that were played.
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
