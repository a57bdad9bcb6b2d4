"""Copies that another package steps at once: a thread for each batch of them."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import EnvError, UsageError
from fugu.envs.batch_env import BatchEnv
from fugu.envs.finite import ADVICE, first_not_finite, make_check
from fugu.vector.backends import Message, WorkerBackend, WorkerError
from fugu.vector.backends.local import join_threads, stack_of, start_threads
from fugu.vector.shared_buffers import SharedBuffers

POSTED, READY, TAKEN = 1, 2, 0  # states of a copy


class BatchQueue:
    """Whose turn each copy is, and the threads that step whole batches of copies.

    Args:
        batches: The environments, each of the same number of copies.
        buffers: The rows that they write; they are bound to them here.
        check_finite: Whether a reward or an observation that is NaN or infinite is an error.
    """

    def __init__(self, batches: list[BatchEnv], buffers: SharedBuffers, check_finite: bool) -> None:
        self._groups = buffers.groups
        self._batches, self._size = batches, batches[0].num_envs
        (rows,) = buffers.rows
        for i, batch in enumerate(batches):
            first = i * self._size
            batch.bind(rows.of_envs(first, first + self._size, buffers.num_envs))
        self._checks = [
            make_check(buffers.groups, (batch.buffers,)) if check_finite else None
            for batch in batches
        ]
        self._states = np.full(buffers.num_envs, TAKEN)
        self._changed = threading.Condition()
        self._jobs: list[queue.SimpleQueue[Callable[[], None] | None]] = [
            queue.SimpleQueue() for _ in batches
        ]
        self._busy_since = [0.0] * len(batches)
        self._messages: list[Message] = []
        self._error: BaseException | None = None

    # ------------------------------------------------------------------ for the threads

    def serve(self, worker: int) -> None:
        """Do what a batch is given to do until the vector closes, then close it."""
        first, batch = worker * self._size, self._batches[worker]
        try:
            while self._error is None and (job := self._jobs[worker].get()) is not None:
                self._busy_since[worker] = time.monotonic()
                try:
                    job()
                    self._check(worker)
                except BaseException as error:
                    self._error = error
                self._busy_since[worker] = 0.0
                with self._changed:
                    self._messages += [
                        ("infos", first + i, infos) for i, infos in batch.infos.items()
                    ]
                    self._states[first : first + self._size] = READY
                    self._changed.notify_all()
        finally:
            batch.close()

    def _check(self, worker: int) -> None:
        check = self._checks[worker]
        if check is not None and not check.finite():
            found = first_not_finite(self._groups, (self._batches[worker].buffers,))
            raise EnvError(f"expected finite numbers; got {found} in batch {worker}. {ADVICE}")

    # ------------------------------------------------------------------ for the vector

    def post(self, ids: NDArray[np.int64], command: bool = False, /) -> None:
        """Have these copies step, whole batches of them; commands are sent apart."""
        self._states[ids] = POSTED
        if not command:
            for worker in np.unique(ids // self._size).tolist():
                self.begin(worker, self._batches[worker].step)

    def begin(self, worker: int, job: Callable[[], None]) -> None:
        """Have a batch do something."""
        self._busy_since[worker] = time.monotonic()
        self._jobs[worker].put(job)

    def reply(self, env: int, message: Message) -> None:
        """Answer for a copy at once."""
        with self._changed:
            self._messages.append(message)
            self._states[env] = READY

    def wait_ready(
        self, begin: int, end: int, count: int, known_faults: int, timeout: float, /
    ) -> int:
        """Return how many of a range are ready, once there are `count` or the time is over."""

        def ready() -> int:
            return int(np.count_nonzero(self._states[begin:end] == READY))

        with self._changed:
            self._changed.wait_for(lambda: self._error or ready() >= count, timeout)
        if self._error is not None:
            text = "".join(traceback.format_exception(self._error))
            raise WorkerError(
                f"given copies that failed, all that step at once with them too: {text}"
            ) from self._error
        return ready()

    def take(self, begin: int, end: int, count: int, ids: NDArray[np.int64], /) -> int:
        """Write the first `count` of a range that are ready to `ids`; return their number."""
        found = begin + np.flatnonzero(self._states[begin:end] == READY)[:count]
        ids[: len(found)] = found
        self._states[found] = TAKEN
        return len(found)

    def owner(self, env: int, /) -> int:
        """Return the batch of a copy."""
        return env // self._size

    def silent(self, worker: int, /) -> tuple[float, int]:
        """Return the seconds since a batch was given what it does, and its first copy."""
        since = self._busy_since[worker]
        return (time.monotonic() - since if since else 0.0), worker * self._size

    def faults(self) -> int:
        """Return 0: a copy that fails ends the vector."""
        return 0

    def messages(self) -> list[Message]:
        """Take the messages of all batches."""
        if not self._messages:
            return []
        with self._changed:
            found, self._messages = self._messages, []
        return found

    def close(self) -> None:
        """Have all threads end."""
        for jobs in self._jobs:
            jobs.put(None)


class BatchBackend(WorkerBackend):
    """A thread for every batch."""

    name = "batch"
    resets_some = False
    sets_attributes = False

    def __init__(self, batches: list[BatchEnv], buffers: SharedBuffers, check_finite: bool) -> None:
        self._queue = BatchQueue(batches, buffers, check_finite)
        super().__init__(self._queue, buffers.num_envs)
        self.num_workers, self._batches = len(batches), batches
        self._seeds: list[dict[int, int | None]] = [{} for _ in batches]  # of resets, by copy
        serve = self._queue.serve
        self._threads = start_threads(
            "fugu-batch", [partial(serve, i) for i in range(len(batches))]
        )

    def check_actions(self, actions: list[NDArray[Any]]) -> None:
        """Raise an `ActionError` if a row is no value of the action space."""
        self._batches[0].check_actions(actions[0])

    def send(self, worker: int, message: Message, waiting: Callable[[], None]) -> None:
        """Note a reset; when all copies have one, it is done. Nothing else can be asked."""
        kind, env, *arguments = message
        if kind != "reset":
            why = "copies that step at once have nothing to ask of; use another backend"
            self._queue.reply(env, ("refusal", env, f"UsageError: {why}", why))
            return
        seed, options = arguments
        if options:
            raise UsageError(f"reset: given options {options!r}; allowed: none with 'batch'.")
        batch, seeds = self._batches[worker], self._seeds[worker]
        seeds[env] = seed
        if len(seeds) == batch.num_envs:
            self._queue.begin(worker, partial(batch.reset, [seeds[i] for i in sorted(seeds)]))
            self._seeds[worker] = {}

    def receive(self, ended: int = -1) -> list[Message]:
        """Return the messages since."""
        return self._queue.messages()

    def kill(self, worker: int) -> str:
        """Raise: a thread cannot be ended from outside."""
        raise WorkerError(
            "given copies that step at once and stalled; a thread cannot be ended from outside: "
            f"use backend='process'. It is in:\n{stack_of(self._threads[worker])}"
        )

    def close(self) -> None:
        """Wait for the threads, which close their batches; one that stalls is left alone."""
        join_threads(self._threads)
