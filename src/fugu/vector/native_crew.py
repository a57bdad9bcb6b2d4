"""The native crew: C++ threads, and the caller itself, that step a pool of native environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.seeding import fresh_seed
from fugu.envs.contract import Info
from fugu.envs.native_env import (
    EPISODE,
    NativeEnv,
    NativeLibrary,
    NativeSpec,
    episode_info,
    start_pool,
)
from fugu.vector.channel import Channel
from fugu.vector.faults import WorkerError
from fugu.vector.slab import Slab
from fugu.vector.worker import call_environment

if TYPE_CHECKING:
    from fugu._native import Pool


class NativeCrew:
    """Threads of a pool.

    A vector whose batches are of all its copies waits while they are stepped, so the caller is one
    of the workers; else all of them are threads.

    Attributes:
        pool: What the vector has for an exchange.
        episodes: What ended in the last step, as `start_pool` describes it.
    """

    def __init__(
        self,
        library: NativeLibrary,
        spec: NativeSpec,
        slab: Slab,
        num_workers: int,
        step_timeout: float,
        *,
        helps: bool,
        chunk: int = 0,
    ) -> None:
        self.spec, self._library = spec, library
        self.pool, self.episodes = start_pool(
            library,
            spec,
            slab.rows,
            slab.num_envs,
            threads=num_workers - helps,
            helps=helps,
            chunk=chunk,
            stall=step_timeout,
        )
        channel = PoolChannel(self.pool, library.path, spec, slab)
        self.channels: list[Channel] = [channel] * num_workers

    def work(self, begin: int, end: int, count: int) -> None:
        """The pool does, in the vector's wait."""

    def death_of(self, worker: int) -> None:
        """Threads of the pool end with it."""

    def kill(self, worker: int) -> str:
        """A thread cannot be ended from outside."""
        raise WorkerError(
            f"given a thread that stalled in the native environment {self._library.name!r}; a "
            "thread cannot be ended from outside. Mend its step, or run it with backend='process'."
        )

    def restart(self, worker: int) -> None:
        """Never: see `kill`."""

    def close(self) -> None:
        """The exchange, which is the pool, is closed already."""

    def infos(self, env_ids: NDArray[np.int64]) -> Mapping[int, tuple[Info, ...]]:
        """What these copies have to say of episodes that ended, read when it is looked at."""
        return EpisodeInfos(self.spec, self.episodes, env_ids)


class PoolChannel:
    """Does what it is told at once: a pool's copies are idle when commands come."""

    def __init__(self, pool: Pool, path: str, spec: NativeSpec, slab: Slab) -> None:
        self._pool, self._path, self._spec, self._slab = pool, path, spec, slab
        self._replies: list[tuple[Any, ...]] = []
        self._copies: dict[int, NativeEnv] = {}  # that were asked for; they keep what is set
        self._begun = np.zeros(slab.num_envs, np.bool_)

    def send(self, message: tuple[Any, ...], wait: Callable[[], None]) -> None:
        """Reset a copy, or call something of it."""
        kind, env, *arguments = message
        if kind == "reset":
            self._reset(env, *arguments)
        else:
            if env not in self._copies:
                self._copies[env] = NativeEnv.within(self._path, self._spec, self._pool, env)
                self._copies[env].buffers = self._slab.of_env(env)
            self._replies.append(call_environment(self._copies[env], env, *arguments))
            self._pool.send_mail(0, False)
        self._pool.done(0, env)

    def receive(self) -> list[tuple[Any, ...]]:
        """What was replied since."""
        found, self._replies = self._replies, []
        return found

    def close(self) -> None:
        """Nothing is open."""

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


class EpisodeInfos(Mapping[int, tuple[Info, ...]]):
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
        """What the columns of `episodes` are, after the first."""
        return (*EPISODE[1:], *self._spec.logs)

    @property
    def episodes(self) -> NDArray[np.float32]:
        """See the class."""
        return self._all if len(self._env_ids) == len(self._all) else self._all[self._env_ids]

    def __getitem__(self, env: int) -> tuple[Info, ...]:
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
