"""The batch crew: threads, each of which steps one batch of copies at once."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import EnvError, UsageError
from fugu.envs.batch_env import BatchEnv
from fugu.envs.finite import ADVICE, first_not_finite, make_check
from fugu.vector.channel import Channel
from fugu.vector.faults import WorkerError
from fugu.vector.slab import Slab

if TYPE_CHECKING:
    from fugu._native import Exchange

POSTED, READY, TAKEN = 1, 2, 0  # of a copy
END_PATIENCE = 5.0  # seconds to wait for a thread that ends


class BatchExchange:
    """Whose turn each copy is: what `Exchange` is to workers that step one copy at a time.

    Args:
        batches: The environments, each of the same number of copies.
        slab: Whose rows they write; they are bound to them here.
        check_finite: Whether a reward or an observation that is NaN or infinite is an error.
    """

    def __init__(self, batches: list[BatchEnv], slab: Slab, check_finite: bool) -> None:
        self._groups = slab.groups
        self._batches, self._size = batches, batches[0].num_envs
        (rows,) = slab.rows
        for worker, batch in enumerate(batches):
            batch.bind(rows.of_envs(*self.envs_of(worker), slab.num_envs))
        self._checks = [
            make_check(slab.groups, (batch.buffers,)) if check_finite else None for batch in batches
        ]
        self._states = np.full(len(batches) * self._size, TAKEN)
        self._changed = threading.Condition()
        self._jobs: list[queue.SimpleQueue[Callable[[], None] | None]] = [
            queue.SimpleQueue() for _ in batches
        ]
        self._busy_since = [0.0] * len(batches)
        self._letters: list[list[tuple[Any, ...]]] = [[] for _ in batches]
        self._error: BaseException | None = None

    # ------------------------------------------------------------------ for the threads

    def serve(self, worker: int) -> None:
        """Do what is asked of a batch until the vector closes, then close it."""
        try:
            self._serve(worker)
        finally:
            self._batches[worker].close()

    def _serve(self, worker: int) -> None:
        first = worker * self._size
        while (job := self._jobs[worker].get()) is not None:
            self._busy_since[worker] = time.monotonic()
            try:
                job()
                self._check(worker)
            except BaseException as error:
                self._error = error
            self._busy_since[worker] = 0.0
            infos = self._batches[worker].infos.items()
            with self._changed:
                self._letters[worker] += [("infos", first + i, info) for i, info in infos]
                self._states[first : first + self._size] = READY
                self._changed.notify_all()
            if self._error is not None:
                return

    def _check(self, worker: int) -> None:
        check = self._checks[worker]
        if check is not None and not check.finite():
            found = first_not_finite(self._groups, (self._batches[worker].buffers,))
            raise EnvError(f"expected finite numbers; got {found} in batch {worker}. {ADVICE}")

    # ------------------------------------------------------------------ for the vector

    def check(self, rows: NDArray[Any]) -> None:
        """Raise an `ActionError` if a row of actions is no value of their space."""
        self._batches[0].check_actions(rows)

    def post(self, ids: NDArray[np.int64], command: bool = False) -> None:
        """Have these copies step, whole batches of them; commands come by the channels."""
        self._states[ids] = POSTED
        if not command:
            for worker in np.unique(ids // self._size).tolist():
                self.begin(worker, self._batches[worker].step)

    def begin(self, worker: int, job: Callable[[], None]) -> None:
        """Have a batch do something."""
        self._busy_since[worker] = time.monotonic()
        self._jobs[worker].put(job)

    def reply(self, worker: int, env: int, message: tuple[Any, ...]) -> None:
        """Answer for a copy at once."""
        with self._changed:
            self._letters[worker].append(message)
            self._states[env] = READY

    def wait_ready(
        self, begin: int, end: int, count: int, known_faults: int, timeout: float
    ) -> int:
        """How many of a range are ready, once there are `count` or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._ready(begin, end) >= count, timeout)
        if self._error is not None:
            text = "".join(traceback.format_exception(self._error))
            raise WorkerError(
                f"given copies that failed, all that step at once with them too: {text}"
            ) from self._error
        return self._ready(begin, end)

    def take(self, begin: int, end: int, count: int, ids: NDArray[np.int64]) -> int:
        """Write the first `count` of a range that are ready to `ids`; how many there are."""
        found = begin + np.flatnonzero(self._states[begin:end] == READY)[:count]
        ids[: len(found)] = found
        self._states[found] = TAKEN
        return len(found)

    def owner(self, env: int) -> int:
        """The batch of a copy."""
        return env // self._size

    def envs_of(self, worker: int) -> tuple[int, int]:
        """The copies of a batch."""
        return worker * self._size, (worker + 1) * self._size

    def silent(self, worker: int) -> tuple[float, int]:
        """Return the seconds since a batch was given what it does, and its first copy."""
        since = self._busy_since[worker]
        return (time.monotonic() - since if since else 0.0), worker * self._size

    def state(self, env: int) -> int:
        """Of a copy."""
        return int(self._states[env])

    def faults(self) -> int:
        """None: what fails here fails for good."""
        return 0

    def mail(self, worker: int) -> int:
        """Letters that wait."""
        return len(self._letters[worker])

    def read_mail(self, worker: int) -> None:
        """They are taken from the channel."""

    def letters(self, worker: int) -> list[tuple[Any, ...]]:
        """Take the letters of a batch."""
        with self._changed:
            found, self._letters[worker] = self._letters[worker], []
        return found

    def close(self) -> None:
        """Have all threads end."""
        for jobs in self._jobs:
            jobs.put(None)

    def _ready(self, begin: int, end: int) -> int:
        return int(np.count_nonzero(self._states[begin:end] == READY))


class BatchCrew:
    """A thread for every batch."""

    def __init__(self, batches: list[BatchEnv], slab: Slab, check_finite: bool) -> None:
        self.exchange = BatchExchange(batches, slab, check_finite)
        self.channels: list[Channel] = [
            BatchChannel(self.exchange, worker, batch) for worker, batch in enumerate(batches)
        ]
        self._threads = [
            threading.Thread(
                target=self.exchange.serve, args=(i,), name=f"fugu-batch-{i}", daemon=True
            )
            for i in range(len(batches))
        ]
        for thread in self._threads:
            thread.start()

    def vector_exchange(self) -> Exchange:
        """The exchange, as a vector takes it."""
        return cast("Exchange", self.exchange)

    def work(self, begin: int, end: int, count: int) -> None:
        """The threads do."""

    def death_of(self, worker: int) -> None:
        """Threads end with an error, which the exchange raises."""

    def kill(self, worker: int) -> str:
        """A thread cannot be ended from outside."""
        frame = sys._current_frames().get(self._threads[worker].ident or -1)
        where = "".join(traceback.format_stack(frame)) if frame else "nobody knows where"
        raise WorkerError(
            "given copies that step at once and stalled; a thread cannot be ended from outside: "
            f"use backend='process'. It is in:\n{where}"
        )

    def restart(self, worker: int) -> None:
        """Never: see `kill`."""
        raise WorkerError("given a batch that ended by itself; that should not be: report it")

    def close(self) -> None:
        """Wait for the threads, which close their batches; one that stalls is left alone."""
        deadline = time.monotonic() + END_PATIENCE
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))


class BatchChannel:
    """Gathers the resets of all copies of a batch, which begin anew together."""

    def __init__(self, exchange: BatchExchange, worker: int, batch: BatchEnv) -> None:
        self._exchange, self._worker, self._batch = exchange, worker, batch
        self._seeds: dict[int, int | None] = {}

    def send(self, message: tuple[Any, ...], waiting: Callable[[], None]) -> None:
        """Note a reset; when all copies have one, it is done. Nothing else can be asked."""
        kind, env, *arguments = message
        if kind != "reset":
            why = "copies that step at once have nothing to ask of; use another backend"
            self._exchange.reply(self._worker, env, ("refusal", env, f"UsageError: {why}", why))
            return
        seed, options = arguments
        if options:
            raise UsageError(f"reset: given options {options!r}; allowed: none with 'batch'.")
        self._seeds[env] = seed
        if len(self._seeds) == self._batch.num_envs:
            seeds = [self._seeds[i] for i in sorted(self._seeds)]
            self._seeds = {}
            self._exchange.begin(self._worker, lambda: self._batch.reset(seeds))

    def receive(self) -> list[tuple[Any, ...]]:
        """What was said since."""
        return self._exchange.letters(self._worker)

    def close(self) -> None:
        """Nothing is open."""
