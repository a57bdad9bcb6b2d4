"""Workers in this process: the caller itself, or threads."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fugu.vector.backends import Message, WorkerBackend, WorkerError
from fugu.vector.shared_buffers import SharedBuffers
from fugu.vector.worker import (
    CLOSING,
    DONE,
    POLLING,
    TIMEOUT,
    Channel,
    LocalChannel,
    Setup,
    Worker,
)

if TYPE_CHECKING:
    from fugu._native import Exchange

END_SECONDS = 5.0  # to wait for threads that end
MakeQueue = Callable[[SharedBuffers], "Exchange"]


class QueueBackend(WorkerBackend):
    """A backend whose workers share the native step queue, and have a channel each."""

    def __init__(self, queue: Exchange, num_envs: int, num_workers: int) -> None:
        super().__init__(queue, num_envs)
        self._queue, self.num_workers = queue, num_workers
        self._channels: list[Channel] = []

    def send(self, worker: int, message: Message, waiting: Callable[[], None]) -> None:
        """Send a command; `waiting` is called now and then while the worker does not read."""
        self._channels[worker].send(message, waiting)

    def receive(self, ended: int = -1) -> list[Message]:
        """Return what workers announced since, and all that the worker `ended` still sent."""
        found: list[Message] = []
        for worker in range(self.num_workers):
            if self._queue.mail(worker) or worker == ended:
                self._queue.read_mail(worker)
                found += self._receive(worker)
        return found

    def _receive(self, worker: int) -> list[Message]:
        return self._channels[worker].receive()

    def states_of(self, worker: int) -> dict[int, int]:
        """Return the state of each environment of a worker."""
        return {env: self._queue.state(env) for env in range(*self._queue.envs_of(worker))}

    def hold(self, env: int) -> None:
        """Take an environment whose action was refused; it waits for another one."""
        self._queue.hold(env)


class SerialBackend(QueueBackend):
    """The caller is the only worker."""

    name = "serial"

    def __init__(self, setup: Setup, buffers: SharedBuffers, make_queue: MakeQueue) -> None:
        super().__init__(make_queue(buffers), buffers.num_envs, 1)
        ours, theirs = LocalChannel.pair()
        self._channels = [ours]
        self._worker = Worker(0, setup, buffers, self._queue, theirs)

    def work(self, begin: int, end: int, count: int) -> None:
        """Serve that many environments; those that wait for something are not waited for."""
        faults = self._queue.faults()
        while True:
            enough = (
                not self._worker.polls
                or self._queue.wait_ready(begin, end, count, faults, 0.0) >= count
                or self._queue.faults() != faults
            )
            event = self._worker.serve(count, 0.0 if enough else POLLING)
            if event in (DONE, TIMEOUT, CLOSING) and (enough or not self._worker.polls):
                return

    def kill(self, worker: int) -> str:
        """Raise: the caller does not notice that it stalls."""
        raise WorkerError("the caller is its own worker and cannot be ended")

    def close(self) -> None:
        """Close the environments."""
        self._worker.close()


class ThreadBackend(QueueBackend):
    """A thread for each worker."""

    name = "threads"

    def __init__(
        self, setup: Setup, buffers: SharedBuffers, make_queue: MakeQueue, num_workers: int
    ) -> None:
        super().__init__(make_queue(buffers), buffers.num_envs, num_workers)
        runs: list[Callable[[], None]] = []
        for index in range(num_workers):
            ours, theirs = LocalChannel.pair()
            # Each has a queue of its own over the same memory, which keeps its place in it.
            runs.append(Worker(index, setup, buffers, make_queue(buffers), theirs).run)
            self._channels.append(ours)
        self._threads = start_threads("fugu", runs)

    def death_of(self, worker: int) -> tuple[str, str] | None:
        """Threads end only by a mistake of ours or when Python ends."""
        return None if self._threads[worker].is_alive() else ("exited", "its thread is gone")

    def kill(self, worker: int) -> str:
        """Raise: a thread cannot be ended from outside."""
        raise WorkerError(
            "given a thread that stalled in an environment; a thread cannot be ended from outside: "
            "use backend='process' for environments that may stall. It is in:\n"
            f"{stack_of(self._threads[worker])}"
        )

    def close(self) -> None:
        """Wait for the threads; one that stalls is left to end with Python."""
        join_threads(self._threads)


def start_threads(name: str, targets: list[Callable[[], None]]) -> list[threading.Thread]:
    """Start a thread for each function."""
    make = partial(threading.Thread, daemon=True)
    threads = [make(target=target, name=f"{name}-{i}") for i, target in enumerate(targets)]
    for thread in threads:
        thread.start()
    return threads


def join_threads(threads: list[threading.Thread]) -> None:
    """Wait some seconds for threads that end."""
    deadline = time.monotonic() + END_SECONDS
    for thread in threads:
        thread.join(timeout=max(0.0, deadline - time.monotonic()))


def stack_of(thread: threading.Thread) -> str:
    """Return where a thread is."""
    frame = sys._current_frames().get(thread.ident or -1)
    return "".join(traceback.format_stack(frame)) if frame else "nobody knows where"
