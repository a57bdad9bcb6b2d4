"""The broker: a trusted process that owns the executors of a pool and grades what they run.

It has a thread for each executor; whichever is free takes the next job. It stands apart from the
trainer, so that neither waits for the other's interpreter lock. Checks run in processes of their
own, which are held to limits (`judge.py`); should a job not end all the same, this process does.
The pool starts another in its place and gives it what was left.
"""

from __future__ import annotations

import functools
import os
import pickle
import queue
import select
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fugu.core.errors import FuguError
from fugu.sandbox.backends import make_executor
from fugu.sandbox.execution import Inputs, Limits, Program
from fugu.sandbox.executor import DEFAULT_LIMITS, Executor
from fugu.sandbox.grading import Task, grade
from fugu.sandbox.messages import Inbox, pack, receive_one
from fugu.sandbox.session import GRACE

_LOOK = 0.5  # seconds between looks for jobs that hang
_PATIENCE = 3 * GRACE
_LEAVING = 1.0


@dataclass(frozen=True)
class Job:
    """A program to grade, or only to run."""

    ticket: int
    source: str
    wall_seconds: float
    task: Callable[[], Task] | None = None
    program: Program | None = None
    inputs: Inputs = ()
    limits: Limits = DEFAULT_LIMITS


def main() -> None:
    """Serve the pool at the other end of the descriptor on the command line."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        settings: dict[str, Any] = receive_one(connection)[0]
    except EOFError:  # the pool has changed its mind
        return
    sys.path[:] = settings["path"]
    Broker(connection, settings["workers"], settings["backend"], settings["options"]).serve()


class Broker:
    """Reads jobs, hands them to threads, and writes back what they find."""

    def __init__(
        self, connection: socket.socket, workers: int, backend: Any, options: dict[str, Any]
    ) -> None:
        self._connection = connection
        self._backend, self._options = backend, options
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._tasks: dict[bytes, Callable[[], Task]] = {}  # unpacked where it is needed
        self._under_way: dict[int, tuple[int, float]] = {}  # worker: ticket and when it is late
        self._workers = [
            threading.Thread(target=self._work, args=(index,), daemon=True)
            for index in range(workers)
        ]

    def serve(self) -> None:
        """Work until the pool is gone."""
        threading.Thread(target=self._write, daemon=True).start()
        sysconfig.get_config_vars()  # which Monty looks up: its first use is not safe in threads
        for worker in self._workers:
            worker.start()
        inbox = Inbox()
        while True:
            ready, _, _ = select.select([self._connection], [], [], _LOOK)
            if ready:
                piece = self._read()
                if not piece:
                    break
                for message in inbox.feed(piece):
                    self._take(message)
            self._watch()
        self._leave()

    def _read(self) -> bytes:
        try:
            return self._connection.recv(1 << 20)
        except ConnectionError:  # closed with our answers unread
            return b""

    def _take(self, message: tuple[Any, ...]) -> None:
        if message[0] == "task":
            _, key, pickled = message
            self._tasks[key] = functools.cache(functools.partial(pickle.loads, pickled))
        elif message[0] == "grade":
            _, ticket, key, source, wall_seconds = message
            self._jobs.put(Job(ticket, source, wall_seconds, self._tasks[key]))
        else:
            _, ticket, program, inputs, limits = message
            job = Job(ticket, program.source, limits.wall_seconds, None, program, inputs, limits)
            self._jobs.put(job)

    def _work(self, index: int) -> None:
        try:
            executor = make_executor(self._backend, **self._options)
        except Exception as error:
            ours = isinstance(error, FuguError | TypeError)
            why = str(error) if ours else f"{type(error).__name__}: {error}"
            self._outgoing.put(pack(("broken", why)))
            return
        self._outgoing.put(pack(("ready", index, executor.facts())))
        with executor:
            while (job := self._jobs.get()) is not None:
                self._do(index, executor, job)

    def _do(self, index: int, executor: Executor, job: Job) -> None:
        patience = 4 * (job.wall_seconds + executor.start_seconds) + _PATIENCE
        began = time.monotonic()
        self._under_way[index] = job.ticket, began + patience
        try:
            if job.task is not None:
                found: Any = grade(job.source, job.task(), executor)
            else:
                assert job.program is not None
                found = executor.run(job.program, job.inputs, job.limits)
            answer = ("done", job.ticket, found)
        except Exception as error:  # of the task's own checker, say: its pool raises it
            trace = "".join(traceback.format_exception(error))
            answer = ("failed", job.ticket, f"{type(error).__name__}: {error}\n{trace}")
        del self._under_way[index]
        self._outgoing.put(pack((*answer, index, began, time.monotonic())))

    def _watch(self) -> None:
        """End this process if a job hangs; its pool goes on with another."""
        now = time.monotonic()
        for ticket, late in list(self._under_way.values()):
            if now > late:
                self._outgoing.put(pack(("hung", ticket)))
                self._leave()

    def _write(self) -> None:
        while True:
            data = self._outgoing.get()
            try:
                self._connection.sendall(data)
            except OSError:
                os._exit(1)  # the pool is gone

    def _leave(self) -> None:
        for _ in self._workers:
            self._jobs.put(None)
        deadline = time.monotonic() + _LEAVING
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        os._exit(0)  # what still runs ends with us


if __name__ == "__main__":
    main()
