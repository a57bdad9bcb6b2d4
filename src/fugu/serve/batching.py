"""Dynamic batching: requests that wait are answered by one forward pass, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fugu.core.errors import FuguError
from fugu.export.player import LoadedPolicy
from fugu.serve.config import ServeConfig
from fugu.serve.messages import Answer, Ask
from fugu.serve.passes import Passes

PARTING = 5.0  # seconds for the last pass to end
log = logging.getLogger("fugu.serve")


class FullError(FuguError):
    """More observations wait than may."""


@dataclass(eq=False)
class Job:
    """A request that waits for its answer."""

    ask: Ask
    future: asyncio.Future[Answer]
    since: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """Its observations."""
        return len(self.ask.rows)


class Batcher:
    """Answers requests of an event loop by a policy, several at once.

    All but the passes happens in the loop's thread.

    Args:
        policy: Acts; it is called by this batcher's thread alone.
        cfg: How much may wait, how long, and how many go together.
        note: Is told of each pass: its observations and its seconds. Called by the thread.
    """

    def __init__(
        self, policy: LoadedPolicy, cfg: ServeConfig, note: Callable[[int, float], None]
    ) -> None:
        self._passes, self._cfg, self._note = Passes(policy), cfg, note
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._waiting, self._closed = 0, False
        self._began: float | None = None
        self._loop = asyncio.get_running_loop()
        # A daemon, so that a pass that never ends cannot keep the process.
        self._thread = threading.Thread(target=self._work, name="fugu-serve", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Observations that wait for a pass."""
        return self._waiting

    @property
    def alive(self) -> bool:
        """Whether passes are made, and none takes longer than a request may."""
        began = self._began
        stuck = began is not None and time.monotonic() - began > self._cfg.timeout
        return self._thread.is_alive() and not stuck

    def submit(self, ask: Ask) -> asyncio.Future[Answer]:
        """The answer to come; cancel it and the request waits no longer.

        Raises:
            FullError: If too many wait, or the batcher is closed.
        """
        job = Job(ask, self._loop.create_future())
        with self._changed:
            if self._closed or self._waiting + job.size > self._cfg.max_queue:
                raise FullError(
                    f"queue: given {job.size} observations while {self._waiting} wait; allowed: "
                    f"{self._cfg.max_queue}. Come again later."
                )
            self._jobs.append(job)
            self._waiting += job.size
            self._changed.notify()
        job.future.add_done_callback(lambda _: self._drop(job))
        return job.future

    async def close(self) -> None:
        """Answer what waits and end the thread; one that hangs is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, PARTING)

    def _drop(self, job: Job) -> None:
        """Forget a job that was cancelled before its turn."""
        if job.future.cancelled():
            with self._changed, contextlib.suppress(ValueError):
                self._jobs.remove(job)
                self._waiting -= job.size

    # ------------------------------------------------------------------ the thread

    def _work(self) -> None:
        while jobs := self._take():
            self._began = began = time.monotonic()
            outcomes = self._answer(jobs)
            self._began = None
            self._note(sum(job.size for job in jobs), time.monotonic() - began)
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                self._loop.call_soon_threadsafe(_settle, jobs, outcomes)

    def _take(self) -> list[Job]:
        """The jobs of the next pass; none once the batcher is closed and empty."""
        most = self._cfg.max_batch
        with self._changed:
            while True:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if not self._jobs:
                    return []
                end = self._jobs[0].since + self._cfg.max_wait_ms / 1000
                while self._jobs and self._waiting < most and not self._closed:
                    left = end - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(left)
                jobs: list[Job] = []
                size = 0
                while self._jobs and (not jobs or size + self._jobs[0].size <= most):
                    jobs.append(self._jobs.popleft())
                    size += jobs[-1].size
                self._waiting -= size
                if jobs:  # others may have been cancelled meanwhile
                    return jobs

    def _answer(self, jobs: list[Job]) -> list[Answer | Exception]:
        """The answers; where the pass fails, each request gets one of its own."""
        try:
            return [*self._passes.answer([job.ask for job in jobs])]
        except Exception as error:
            if len(jobs) == 1:
                log.exception("a pass failed")
                return [error]
        return [outcome for job in jobs for outcome in self._answer([job])]


def _settle(jobs: list[Job], outcomes: list[Answer | Exception]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=True):
        if job.future.done():  # its client has gone
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
