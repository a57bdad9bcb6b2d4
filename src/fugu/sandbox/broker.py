"""The broker: a trusted process that owns the executors of a pool and grades their results.

It has a thread for each executor; a free one takes the next job. It is a process of its own, so
that it and the trainer do not wait for each other's interpreter lock. Checks run in processes of
their own with limits (`judge.py`); if a job does not end nevertheless, this process does. The pool
then starts another broker, which gets the jobs that were left.
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
from typing import Any, NamedTuple

from fugu.core.errors import FuguError
from fugu.sandbox.backends import make_executor
from fugu.sandbox.execution import Inputs, Limits, Program
from fugu.sandbox.executor import Executor
from fugu.sandbox.grading import Task, grade
from fugu.sandbox.messages import Inbox, pack, receive_one
from fugu.sandbox.session import GRACE

_CHECK = 0.5  # seconds between checks for jobs that hang
_PATIENCE = 3 * GRACE
_LEAVING = 1.0


class Job(NamedTuple):
    """A program to grade or to run."""

    ticket: int
    wall_seconds: float
    run: Callable[[Executor], Any]


def _grade(source: str, task: Callable[[], Task], executor: Executor) -> Any:
    return grade(source, task(), executor)


def _run(program: Program, inputs: Inputs, limits: Limits, executor: Executor) -> Any:
    return executor.run(program, inputs, limits)


def main() -> None:
    """Serve the pool at the other end of the socket on the command line."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        settings: dict[str, Any] = receive_one(connection)[0]
    except EOFError:  # the pool has closed already
        return
    sys.path[:] = settings["path"]
    Broker(connection, settings["workers"], settings["backend"], settings["options"]).serve()


class Broker:
    """Reads jobs, gives them to threads, and writes back their results."""

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
        """Work until the pool closes its socket."""
        threading.Thread(target=self._write, daemon=True).start()
        sysconfig.get_config_vars()  # Monty uses it, and its first use is not thread-safe
        for worker in self._workers:
            worker.start()
        inbox = Inbox()
        while True:
            ready, _, _ = select.select([self._connection], [], [], _CHECK)
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
        run: Callable[[Executor], Any]
        if message[0] == "task":
            _, key, pickled = message
            self._tasks[key] = functools.cache(functools.partial(pickle.loads, pickled))
            return
        if message[0] == "grade":
            _, ticket, key, source, wall_seconds = message
            run = functools.partial(_grade, source, self._tasks[key])
        else:
            _, ticket, program, inputs, limits = message
            wall_seconds = limits.wall_seconds
            run = functools.partial(_run, program, inputs, limits)
        self._jobs.put(Job(ticket, wall_seconds, run))

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
            answer = ("done", job.ticket, job.run(executor))
        except Exception as error:  # such as that of a task's checker; the pool raises it
            trace = "".join(traceback.format_exception(error))
            answer = ("failed", job.ticket, f"{type(error).__name__}: {error}\n{trace}")
        del self._under_way[index]
        self._outgoing.put(pack((*answer, index, began, time.monotonic())))

    def _watch(self) -> None:
        """End this process if a job hangs; the pool starts another."""
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
        os._exit(0)  # ends the threads that still run
