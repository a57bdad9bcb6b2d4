"""Native environments, stepped by C++ threads and the caller itself, in a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.seeding import fresh_seed
from fugu.envs.contract import AgentGroup
from fugu.envs.native_env import (
    EPISODE,
    NativeEnv,
    NativeSpec,
    action_error,
    episode_info,
    start_pool,
)
from fugu.vector.backends import Infos, Message, WorkerBackend, WorkerError
from fugu.vector.shared_buffers import SharedBuffers
from fugu.vector.snapshots import check_keys
from fugu.vector.worker import call_environment

if TYPE_CHECKING:
    from fugu._native import Pool


class NativeBackend(WorkerBackend):
    """Threads of a pool.

    A vector whose batches are of all its copies waits while they are stepped, so the caller is one
    of the workers; else all of them are threads. Commands are done at once, since copies are idle
    when they come.
    """

    name = "native"
    sets_attributes = False

    def __init__(
        self,
        env: NativeEnv,
        buffers: SharedBuffers,
        num_workers: int,
        step_timeout: float,
        *,
        helps: bool,
    ) -> None:
        self._library, self._spec, self._buffers = env.library, env.spec, buffers
        self._pool, self._episodes = start_pool(
            env.library,
            env.spec,
            buffers.rows,
            buffers.num_envs,
            threads=num_workers - helps,
            helps=helps,
            stall=step_timeout,
        )
        super().__init__(self._pool, buffers.num_envs)
        self.num_workers, self.pool, self.all_act = num_workers, self._pool, self._pool.all_act
        self.post_all, self.take_all = self._pool.post_all, self._pool.take_all
        self.states = PoolStates(self._pool, self._episodes)
        self._replies: list[Message] = []
        self._copies: dict[int, NativeEnv] = {}  # that were asked for; they keep what is set
        self._begun = np.zeros(buffers.num_envs, np.bool_)

    def check_actions(self, actions: list[NDArray[Any]]) -> None:
        """Raise an `ActionError` if a row is no value of its action space."""
        groups: tuple[AgentGroup, ...] = self._buffers.groups
        for i, rows in enumerate(actions):
            bad = self._pool.bad_action(i, rows.view(np.uint8))
            if bad >= 0:
                raise action_error(groups[i].action_layout, rows[bad])

    def infos(self, env_ids: NDArray[np.int64], sent: dict[int, Infos]) -> Mapping[int, Infos]:
        """Return the infos of episodes that ended, which are made when they are looked at."""
        return EpisodeInfos(self._spec, self._episodes, env_ids)

    def send(self, worker: int, message: Message, waiting: Callable[[], None]) -> None:
        """Reset a copy, or call something of it."""
        kind, env, *arguments = message
        if kind == "reset":
            self._reset(env, *arguments)
        else:
            if env not in self._copies:
                copy = NativeEnv.within(self._library.path, self._spec, self._pool, env)
                copy.buffers = self._buffers.of_env(env)
                self._copies[env] = copy
            self._replies.append(call_environment(self._copies[env], env, *arguments))
        self._pool.done(0, env)

    def receive(self, ended: int = -1) -> list[Message]:
        """Return the replies since."""
        found, self._replies = self._replies, []
        return found

    def kill(self, worker: int) -> str:
        """Raise: a thread cannot be ended from outside."""
        raise WorkerError(
            f"given a thread that stalled in the native environment {self._library.name!r}; a "
            "thread cannot be ended from outside. Mend its step, or run it with backend='process'."
        )

    def _reset(self, env: int, seed: int | None, options: Mapping[str, Any] | None) -> None:
        if options:
            raise UsageError(
                f"reset: given options {dict(options)!r}; allowed: none. Settings of a native "
                "environment are given when it is made."
            )
        if seed is None and not self._begun[env]:
            seed = fresh_seed()
        self._begun[env] = True
        self._pool.reset(env, seed)


class PoolStates:
    """The states of native environments in a pool: blocks of bytes of one size."""

    def __init__(self, pool: Pool, episodes: NDArray[np.float32]) -> None:
        self._pool, self._episodes = pool, episodes
        self._all = np.arange(len(episodes))

    def rows(self) -> NDArray[np.uint8]:
        """Return one row of bytes for each environment."""
        out = np.zeros((len(self._all), self._pool.state_bytes), np.uint8)
        self._pool.save(self._all, out)
        return out

    def set_rows(self, env_ids: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        """Put environments into states that `rows` returned."""
        if rows.shape[1] != self._pool.state_bytes:
            raise UsageError(
                f"set_state: given rows of {rows.shape[1]} bytes; allowed: "
                f"{self._pool.state_bytes}, those of this environment with as many agents."
            )
        try:
            self._pool.load(env_ids, rows)
        except ValueError as error:
            raise UsageError(f"set_state: given {error}; allowed: states of this one.") from None

    def save(self) -> dict[str, NDArray[Any]]:
        """Return the states, and the sums of the episodes that ended in the last step."""
        return {"states": self.rows(), "episodes": self._episodes.copy()}

    def load(self, saved: Mapping[str, NDArray[Any]]) -> tuple[dict[int, Infos], dict[int, str]]:
        """Go back, always with success."""
        check_keys(saved, "states", "episodes")
        self.set_rows(self._all, np.ascontiguousarray(saved["states"]))
        self._episodes[...] = saved["episodes"]
        return {}, {}


class EpisodeInfos(Mapping[int, Infos]):
    """Infos of the copies that had an episode end, made only for those who look.

    Attributes:
        episodes: The numbers themselves, `[copies of the batch, 3 + logs]`: how many episodes
            ended, and the sums of their returns, lengths and log fields.
    """

    def __init__(
        self, spec: NativeSpec, episodes: NDArray[np.float32], env_ids: NDArray[np.int64]
    ) -> None:
        self._spec, self._all, self._env_ids = spec, episodes, env_ids

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns of `episodes`, after the first."""
        return (*EPISODE[1:], *self._spec.logs)

    @property
    def episodes(self) -> NDArray[np.float32]:
        """See the class."""
        return self._all if len(self._env_ids) == len(self._all) else self._all[self._env_ids]

    def __getitem__(self, env: int) -> Infos:
        if env not in self._env_ids or not self._all[env, 0]:
            raise KeyError(env)
        return (episode_info(self._spec, self._all[env]),)

    def __iter__(self) -> Iterator[int]:
        return iter(self._env_ids[self._all[self._env_ids, 0] > 0].tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._all[self._env_ids, 0]))

    def __eq__(self, other: object) -> bool:
        return dict(self) == other

    def __repr__(self) -> str:
        return repr(dict(self))
