"""A pool of executors behind a broker: jobs are submitted, results are asked for, nothing waits."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.core.machine import usable_cores
from fugu.sandbox.backends import BACKENDS, Backend
from fugu.sandbox.execution import Execution, Inputs, Limits, Program, SandboxError
from fugu.sandbox.executor import DEFAULT_LIMITS
from fugu.sandbox.grading import Grade, GradeCache, Task, key_of
from fugu.sandbox.messages import Inbox, pack

_START = 60.0  # seconds until the first executor must stand ready
_SILENCE = 120.0  # seconds without a word, beyond the time of any job, until a broker is given up
_MOST_DEATHS = 5  # of brokers without a single result between them
_GLANCE = 0.0002  # seconds for which it is known what has come: a thousand may ask one by one


@dataclass(frozen=True)
class Finished:
    """A job that is done."""

    ticket: int
    result: Any
    """A Grade; for `submit_run` an Execution."""
    worker: int = -1
    """The executor that ran it; -1 if the result was known."""
    began: float = 0.0
    ended: float = 0.0
    """By the system's monotonic clock."""
    submitted: float = 0.0
    """When it was handed in, by the same clock; of equal jobs, the first."""


@dataclass
class _Waiting:
    message: bytes
    tickets: list[int]
    key: bytes | None
    seconds: float
    deaths: int = 0
    since: float = field(default_factory=time.monotonic)


class ExecutorPool(Closing):
    """Many programs at once: one executor a core, whichever is free takes the next job.

    Args:
        backend: zygote, bubblewrap, monty, gvisor, docker or unsafe.
        workers: Executors; by default one for each core that this process may use.
        cache: Bytes of grades to remember, by program and task; 0 for none.
        **options: Of the backend, as for `make_executor`.

    The calls never wait, but for `wait` with its timeout, and may be mixed freely. One process and
    one thread own a pool.

    Attributes:
        journal: Set to a list, it gets every job that was run, with its times.
    """

    journal: list[Finished] | None = None

    def __init__(
        self,
        backend: Backend = "zygote",
        workers: int | None = None,
        *,
        cache: int = 16 << 20,
        **options: Any,
    ) -> None:
        if backend not in BACKENDS:
            raise UsageError(f"backend: given {backend!r}; allowed: {', '.join(BACKENDS)}.")
        if workers is not None and workers < 1:
            raise UsageError(f"workers: given {workers}; allowed: 1 or more, None for all cores.")
        self.workers = workers or usable_cores()
        self.backend = backend
        self.facts: list[dict[str, Any]] = []
        self.respawns = 0
        self._options = options
        self._cache = GradeCache(cache)
        self._tasks: dict[bytes, Task] = {}
        self._told: set[bytes] = set()
        self._waiting: dict[int, _Waiting] = {}  # by the ticket that was sent
        self._sent: dict[bytes, int] = {}  # by program and task: the ticket that was sent
        self._finished: dict[int, Finished] = {}
        self._failures: dict[int, str] = {}
        self._next_ticket = 0
        self._deaths = 0
        self._glanced = 0.0
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._start()
        self._await_start()

    @property
    def pending(self) -> int:
        """Jobs that have no result yet."""
        return sum(len(waiting.tickets) for waiting in self._waiting.values())

    @property
    def pid(self) -> int:
        """The process that owns the executors; another one after a respawn."""
        assert self._process is not None
        return self._process.pid

    @property
    def cache_hits(self) -> int:
        """Jobs whose grade was known."""
        return self._cache.hits

    def submit(self, source: str, task: Task) -> int:
        """Have a program graded; the ticket to ask with."""
        ticket = self._ticket()
        key = key_of(source, task)
        known = self._cache.get(key)
        if known is not None:
            self._finished[ticket] = Finished(ticket, known)
        elif key in self._sent:  # it is being graded
            self._waiting[self._sent[key]].tickets.append(ticket)
        else:
            self._tell_task(task)
            message = pack(("grade", ticket, task.key, source, task.limits.wall_seconds))
            self._sent[key] = ticket
            self._post(ticket, _Waiting(message, [ticket], key, task.limits.wall_seconds))
        return ticket

    def submit_run(
        self, program: Program | str, inputs: Inputs = (), limits: Limits = DEFAULT_LIMITS
    ) -> int:
        """Have a program run, ungraded; the ticket to ask with."""
        ticket = self._ticket()
        message = pack(("run", ticket, Program.of(program), inputs, limits))
        self._post(ticket, _Waiting(message, [ticket], None, limits.wall_seconds))
        return ticket

    def poll(self) -> list[Finished]:
        """The jobs that have finished since they were last asked for; never waits."""
        self._pump(0.0)
        for ticket in list(self._failures):
            self._finished.pop(ticket, None)
            self._raise_failure(ticket)
        found, self._finished = list(self._finished.values()), {}
        return found

    def result(self, ticket: int) -> Any:
        """The result of one job, once; None if there is none yet. Never waits."""
        if ticket not in self._finished and time.monotonic() - self._glanced > _GLANCE:
            self._pump(0.0)
            self._glanced = time.monotonic()
        finished = self._finished.pop(ticket, None)
        if finished is None:
            return None
        self._raise_failure(ticket)
        return finished.result

    def forget(self, ticket: int) -> None:
        """Let go of a job whose result nobody will ask for."""
        self._finished.pop(ticket, None)
        self._failures.pop(ticket, None)
        for waiting in self._waiting.values():
            if ticket in waiting.tickets:
                waiting.tickets.remove(ticket)

    def wait(self, timeout: float) -> list[Finished]:
        """The jobs that have finished, at least one of them unless `timeout` seconds pass first."""
        deadline = time.monotonic() + timeout
        while not self._finished and self._waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._pump(min(left, 1.0))
        return self.poll()

    def grade(self, jobs: Iterable[tuple[str, Task]]) -> list[Grade]:
        """Grade many programs and wait for all; in their order."""
        tickets = [self.submit(source, task) for source, task in jobs]
        return [self._await(ticket) for ticket in tickets]

    def run(
        self, program: Program | str, inputs: Inputs = (), limits: Limits = DEFAULT_LIMITS
    ) -> Execution:
        """Run one program and wait for it."""
        return self._await(self.submit_run(program, inputs, limits))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the broker, its executors and whatever they run."""
        self._waiting.clear()
        process, self._process = self._process, None
        if process is not None and os.getpid() == self._owner:
            self._connection.close()
            _end(process)

    # ---------------------------------------------------------------- sending and receiving

    def _ticket(self) -> int:
        if self._process is None:
            raise UsageError("this pool: given a job after close(); allowed: before it.")
        if os.getpid() != self._owner:
            raise UsageError(
                "this pool: given a job by another process than its own; allowed: the process that "
                "made it. Make one pool in each process."
            )
        self._next_ticket += 1
        return self._next_ticket

    def _await(self, ticket: int) -> Any:
        while (found := self.result(ticket)) is None:
            self._pump(1.0)
        return found

    def _tell_task(self, task: Task) -> None:
        if task.key not in self._told:
            import cloudpickle  # the rest of the package needs the standard library alone

            self._told.add(task.key)
            self._tasks[task.key] = task
            self._outgoing.append(memoryview(pack(("task", task.key, cloudpickle.dumps(task)))))

    def _post(self, ticket: int, waiting: _Waiting) -> None:
        self._waiting[ticket] = waiting
        self._outgoing.append(memoryview(waiting.message))
        self._send()

    def _pump(self, timeout: float) -> None:
        """Send what is to be sent, take what has come, for at most `timeout` seconds."""
        if self._process is None:
            return
        self._send()
        if timeout:
            writers = [self._connection] if self._outgoing else []
            select.select([self._connection], writers, [], timeout)
        try:
            while piece := self._connection.recv(1 << 20):
                self._heard = time.monotonic()
                for message in self._inbox.feed(piece):
                    self._take(message)
        except BlockingIOError:
            self._watch_silence()
            if self._broken and self.facts:
                self.close()
                raise SandboxError(self._broken) from None
            return
        except OSError:
            pass
        self._mourn()

    def _send(self) -> None:
        while self._outgoing:
            try:
                sent = self._connection.send(self._outgoing[0])
            except BlockingIOError:
                return
            except OSError:  # it has died, which receiving will notice
                return
            if sent < len(self._outgoing[0]):
                self._outgoing[0] = self._outgoing[0][sent:]
            else:
                self._outgoing.popleft()

    def _take(self, message: tuple[Any, ...]) -> None:
        if message[0] == "ready":
            self.facts.append(message[2])
        elif message[0] == "broken":
            self._broken = message[1]
        elif message[0] == "hung":
            self._give_up(message[1], "it does not come to an end")
        else:
            kind, ticket, result, worker, began, ended = message
            self._deaths = 0
            if kind == "failed":
                self._finish(ticket, lambda one: Finished(one, None), failure=result)
            else:
                job = self._waiting.get(ticket)
                since = began if job is None else job.since
                done = Finished(ticket, result, worker, began, ended, since)
                if self.journal is not None:
                    self.journal.append(done)
                self._finish(ticket, lambda one: replace(done, ticket=one))

    def _finish(self, ticket: int, finished: Callable[[int], Finished], failure: str = "") -> None:
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:  # it was given up
            return
        if waiting.key is not None:
            del self._sent[waiting.key]
            result = finished(ticket).result
            if isinstance(result, Grade):
                self._cache.put(waiting.key, result)
        for one in waiting.tickets:
            self._finished[one] = finished(one)
            if failure:
                self._failures[one] = failure

    def _raise_failure(self, ticket: int) -> None:
        failure = self._failures.pop(ticket, "")
        if failure:
            raise SandboxError(f"a task's own checker or check failed: {failure}")

    # ---------------------------------------------------------------- life and death

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        begin = (
            f"import sys; sys.path.insert(0, {root!r}); import fugu.sandbox.broker as b; b.main()"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", begin, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.setblocking(False)
        self._connection = ours
        self._inbox = Inbox()
        self._outgoing: deque[memoryview] = deque()
        self._heard = time.monotonic()
        self._broken = ""
        self._told = set()
        settings = {
            "path": sys.path,
            "workers": self.workers,
            "backend": self.backend,
            "options": self._options,
        }
        self._outgoing.append(memoryview(pack((settings,))))

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START
        while not self.facts and not self._broken and time.monotonic() < deadline:
            self._pump(0.5)
        if not self.facts:
            why = self._broken or f"no executor stands ready after {_START:g} s"
            self.close()
            raise SandboxError(why)

    def _watch_silence(self) -> None:
        longest = max((waiting.seconds for waiting in self._waiting.values()), default=0.0)
        if self._waiting and time.monotonic() - self._heard > 8 * longest + _SILENCE:
            self._mourn()

    def _mourn(self) -> None:
        """The broker is gone: start another, and give it what was left."""
        process, self._process = self._process, None
        assert process is not None
        self._connection.close()
        _end(process)
        self._deaths += 1
        if self._broken or self._deaths > _MOST_DEATHS:
            self._waiting.clear()
            raise SandboxError(
                self._broken
                or f"the broker of a pool died {self._deaths} times in a row; "
                "see what it wrote to standard error"
            )
        self.respawns += 1
        self._start()
        left = list(self._waiting.items())
        for ticket, waiting in left:
            waiting.deaths += 1
            if waiting.deaths > 2 and len(left) <= self.workers:
                self._give_up(ticket, "the broker dies of it")
        for waiting in self._waiting.values():
            if waiting.key is not None:
                self._tell_task(self._task_of(waiting))
            self._outgoing.append(memoryview(waiting.message))

    def _give_up(self, ticket: int, why: str) -> None:
        nothing = Execution("refused", message=why)
        waiting = self._waiting.get(ticket)
        graded = waiting is not None and waiting.key is not None
        result = Grade("refused", (False,), why, nothing) if graded else nothing
        self._finish(ticket, lambda one: Finished(one, result))

    def _task_of(self, waiting: _Waiting) -> Task:
        (message,) = Inbox().feed(waiting.message)
        return self._tasks[message[2]]


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(3.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
