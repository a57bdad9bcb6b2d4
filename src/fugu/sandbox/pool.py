"""A pool of executors behind a broker: it takes jobs and returns results without waiting."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.core.machine import usable_cores
from fugu.sandbox.backends import BACKENDS, Backend
from fugu.sandbox.execution import Execution, Inputs, Limits, Program, SandboxError
from fugu.sandbox.executor import DEFAULT_LIMITS
from fugu.sandbox.grading import Grade, GradeCache, Task, key_of
from fugu.sandbox.messages import Inbox, pack, start

_START = 60.0  # seconds until the first executor must be ready
_SILENCE = 120.0  # seconds without a message, beyond the time of any job, until a broker is ended
_MOST_DEATHS = 5  # of brokers without a single result between them
_POLL = 0.0002  # seconds between reads of the socket: a thousand may ask one by one


@dataclass(frozen=True)
class Finished:
    """A finished job."""

    ticket: int
    result: Any
    """A Grade; for `submit_run` an Execution."""
    worker: int = -1
    """The executor that ran it; -1 if the result was known."""
    began: float = 0.0
    ended: float = 0.0
    """By the system's monotonic clock."""
    submitted: float = 0.0
    """When it was submitted, by the same clock; of equal jobs, the first."""


@dataclass
class _Waiting:
    message: bytes
    tickets: list[int]
    seconds: float
    key: bytes | None = None  # of the program and its task, if it is graded
    task: Task | None = None
    deaths: int = 0
    since: float = field(default_factory=time.monotonic)


class ExecutorPool(Closing):
    """Runs many programs at once, each on the next free executor, by default one per core.

    Args:
        backend: zygote, bubblewrap, monty, gvisor, docker or unsafe.
        workers: Executors; by default one for each core that this process may use.
        cache: Bytes of grades to remember, by program and task; 0 for none.
        **options: Of the backend, as for `make_executor`.

    `submit`, `poll` and `result` never wait. One process and one thread own a pool.

    Attributes:
        journal: A list to which every job that was run is appended, with its times.
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
        self._waiting: dict[int, _Waiting] = {}  # by the ticket that was sent
        self._sent: dict[bytes, int] = {}  # by program and task: the ticket that was sent
        self._finished: dict[int, Finished] = {}
        self._next_ticket = 0
        self._deaths = 0
        self._polled = 0.0
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._start()
        self._await_start()

    @property
    def pending(self) -> int:
        """Number of jobs that have no result yet."""
        return sum(len(waiting.tickets) for waiting in self._waiting.values())

    @property
    def pid(self) -> int:
        """The process that owns the executors; another one after a respawn."""
        assert self._process is not None
        return self._process.pid

    @property
    def cache_hits(self) -> int:
        """Number of jobs whose grade was in the cache."""
        return self._cache.hits

    def submit(self, source: str, task: Task) -> int:
        """Submit a program to be graded, and return its ticket."""
        ticket = self._ticket()
        key = key_of(source, task)
        known = self._cache.get(key)
        if known is not None:
            self._finished[ticket] = Finished(ticket, known)
        elif key in self._sent:  # it is being graded
            self._waiting[self._sent[key]].tickets.append(ticket)
        else:
            seconds = task.limits.wall_seconds
            message = pack(("grade", ticket, task.key, source, seconds))
            self._post(ticket, _Waiting(message, [ticket], seconds, key, task))
            self._sent[key] = ticket
        return ticket

    def submit_run(
        self, program: Program | str, inputs: Inputs = (), limits: Limits = DEFAULT_LIMITS
    ) -> int:
        """Submit a program to be run without a grade, and return its ticket."""
        ticket = self._ticket()
        message = pack(("run", ticket, Program.of(program), inputs, limits))
        self._post(ticket, _Waiting(message, [ticket], limits.wall_seconds))
        return ticket

    def poll(self) -> list[Finished]:
        """Return the jobs that have finished since the last call; never waits."""
        self._pump(0.0)
        for ticket, finished in list(self._finished.items()):
            if isinstance(finished.result, SandboxError):
                del self._finished[ticket]
                raise finished.result
        found, self._finished = list(self._finished.values()), {}
        return found

    def result(self, ticket: int) -> Any:
        """Return the result of one job, once; None if there is none yet. Never waits."""
        if ticket not in self._finished and time.monotonic() - self._polled > _POLL:
            self._pump(0.0)
            self._polled = time.monotonic()
        finished = self._finished.pop(ticket, None)
        if finished is not None and isinstance(finished.result, SandboxError):
            raise finished.result
        return None if finished is None else finished.result

    def forget(self, ticket: int) -> None:
        """Forget a job whose result nobody will ask for."""
        self._finished.pop(ticket, None)
        for waiting in self._waiting.values():
            if ticket in waiting.tickets:
                waiting.tickets.remove(ticket)

    def wait(self, timeout: float) -> list[Finished]:
        """Return the finished jobs, at least one unless `timeout` seconds pass first."""
        deadline = time.monotonic() + timeout
        while not self._finished and self._waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._pump(min(left, 1.0))
        return self.poll()

    def grade(self, jobs: Iterable[tuple[str, Task]]) -> list[Grade]:
        """Grade many programs, wait for all, and return their grades in order."""
        tickets = [self.submit(source, task) for source, task in jobs]
        return [self._await(ticket) for ticket in tickets]

    def run(
        self, program: Program | str, inputs: Inputs = (), limits: Limits = DEFAULT_LIMITS
    ) -> Execution:
        """Run one program and wait for it."""
        return self._await(self.submit_run(program, inputs, limits))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the broker, its executors and all that they run."""
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

    def _queue(self, waiting: _Waiting) -> None:
        """Queue a job, after its task if the broker does not have it."""
        task = waiting.task
        if task is not None and task.key not in self._sent_tasks:
            import cloudpickle  # the rest of the package needs only the standard library

            message = pack(("task", task.key, cloudpickle.dumps(task)))
            self._outgoing.append(memoryview(message))
            self._sent_tasks.add(task.key)
        self._outgoing.append(memoryview(waiting.message))

    def _post(self, ticket: int, waiting: _Waiting) -> None:
        self._queue(waiting)
        self._waiting[ticket] = waiting
        self._send()

    def _pump(self, timeout: float) -> None:
        """Send and receive messages, for at most `timeout` seconds."""
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
        self._replace_broker()

    def _send(self) -> None:
        while self._outgoing:
            try:
                sent = self._connection.send(self._outgoing[0])
            except BlockingIOError:
                return
            except OSError:  # it has died; the next read notices that
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
                result = SandboxError(f"a task's own checker or check failed: {result}")
            waiting = self._waiting.get(ticket)
            since = began if waiting is None else waiting.since
            finished = Finished(ticket, result, worker, began, ended, since)
            if self.journal is not None and kind != "failed":
                self.journal.append(finished)
            self._finish(finished)

    def _finish(self, finished: Finished) -> None:
        waiting = self._waiting.pop(finished.ticket, None)
        if waiting is None:  # it was given up
            return
        if waiting.key is not None:
            del self._sent[waiting.key]
            if isinstance(finished.result, Grade):
                self._cache.put(waiting.key, finished.result)
        for ticket in waiting.tickets:
            self._finished[ticket] = replace(finished, ticket=ticket)

    # ---------------------------------------------------------------- the broker

    def _start(self) -> None:
        self._process, self._connection = start("fugu.sandbox.broker")
        self._inbox = Inbox()
        self._outgoing: deque[memoryview] = deque()
        self._heard = time.monotonic()
        self._broken = ""
        self._sent_tasks: set[bytes] = set()
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
            why = self._broken or f"no executor is ready after {_START:g} s"
            self.close()
            raise SandboxError(why)

    def _watch_silence(self) -> None:
        longest = max((waiting.seconds for waiting in self._waiting.values()), default=0.0)
        if self._waiting and time.monotonic() - self._heard > 8 * longest + _SILENCE:
            self._replace_broker()

    def _replace_broker(self) -> None:
        """Start another broker after one has died, and give it the jobs that are left."""
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
                "its standard error says why"
            )
        self.respawns += 1
        self._start()
        left = list(self._waiting.items())
        for ticket, waiting in left:
            waiting.deaths += 1
            if waiting.deaths > 2 and len(left) <= self.workers:
                self._give_up(ticket, "it ends the broker")
        for waiting in self._waiting.values():
            self._queue(waiting)

    def _give_up(self, ticket: int, why: str) -> None:
        nothing = Execution("refused", message=why)
        waiting = self._waiting.get(ticket)
        graded = waiting is not None and waiting.key is not None
        result = Grade("refused", (False,), why, nothing) if graded else nothing
        self._finish(Finished(ticket, result))


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(3.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
