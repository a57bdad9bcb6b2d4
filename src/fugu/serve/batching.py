"""Dynamic batching: requests that wait are answered by one forward pass, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fugu.inference.engine import AttentiveEngine
from fugu.inference.player import LoadedPolicy
from fugu.nets.net import Floats
from fugu.serve.config import ServeConfig
from fugu.serve.json_types import RequestError
from fugu.serve.messages import Answer, Ask

CLOSE_SECONDS = 5.0  # for the last forward passes, when a server ends
log = logging.getLogger("fugu.serve")


@dataclass(eq=False)
class Job:
    """A request that waits for its answer since a time of the event loop."""

    ask: Ask
    future: asyncio.Future[Answer]
    since: float


class Batcher:
    """Answers requests of an event loop by a policy, several at once.

    Only the batcher's thread calls the policy. All else happens in the loop's thread.

    Args:
        policy: Policy.
        cfg: Limits.
        on_pass: Called after each forward pass with its number of observations and its seconds.

    Attributes:
        waiting: Number of observations that wait for a forward pass.
    """

    def __init__(
        self, policy: LoadedPolicy, cfg: ServeConfig, on_pass: Callable[[int, float], None]
    ) -> None:
        self._passes, self._cfg, self._on_pass = Passes(policy), cfg, on_pass
        self._loop = asyncio.get_running_loop()
        self.waiting, self._closed = 0, False
        self._jobs: deque[Job] = deque()
        self._futures: set[asyncio.Future[Answer]] = set()  # of all that is not answered yet
        self._timer: asyncio.TimerHandle | None = None
        self._began: float | None = None  # when the current pass began
        self._batches: queue.SimpleQueue[list[Job]] = queue.SimpleQueue()
        # A daemon, so that a pass that never ends cannot keep the process.
        threading.Thread(target=self._work, name="fugu-serve", daemon=True).start()

    @property
    def alive(self) -> bool:
        """Whether no forward pass takes longer than a request may."""
        return self._began is None or self._loop.time() - self._began <= self._cfg.timeout

    def submit(self, ask: Ask) -> asyncio.Future[Answer]:
        """Return the future answer; RequestError (503) if too many wait or it is closed.

        A request whose future is cancelled no longer waits.
        """
        size, most = len(ask.rows), self._cfg.max_queue
        if self._closed or self.waiting + size > most:
            reason = f"expected at most {most} observations to wait; got {size} more beside "
            raise RequestError(503, "queue", f"{reason}{self.waiting}. Try again later.")
        job = Job(ask, self._loop.create_future(), self._loop.time())
        self._jobs.append(job)
        self.waiting += size
        self._futures.add(job.future)
        job.future.add_done_callback(lambda future: self._forget(job))
        self._plan()
        return job.future

    async def close(self) -> None:
        """Answer what waits and end the thread; one that hangs is left behind."""
        self._closed = True
        self._plan()
        if self._futures:
            await asyncio.wait(self._futures, timeout=CLOSE_SECONDS)
        self._batches.put([])

    def _forget(self, job: Job) -> None:
        self._futures.discard(job.future)
        if job.future.cancelled():
            with contextlib.suppress(ValueError):  # its pass has begun
                self._jobs.remove(job)
                self.waiting -= len(job.ask.rows)

    def _plan(self) -> None:
        """Begin the next pass as soon as it may begin, unless another one is being made."""
        if self._began is not None or not self._jobs:
            return
        if self._timer is not None:
            self._timer.cancel()
        full = self._closed or self.waiting >= self._cfg.max_batch
        begin = 0.0 if full else self._jobs[0].since + self._cfg.max_wait_ms / 1000
        # Even at once, it begins behind the requests that the loop has read already.
        self._timer = self._loop.call_at(begin, self._begin)

    def _begin(self) -> None:
        jobs: list[Job] = []
        size = 0
        while self._jobs and (
            not jobs or size + len(self._jobs[0].ask.rows) <= self._cfg.max_batch
        ):
            jobs.append(self._jobs.popleft())
            size += len(jobs[-1].ask.rows)
        if jobs:  # others may have been cancelled meanwhile
            self.waiting -= size
            self._began = self._loop.time()
            self._batches.put(jobs)

    def _settle(self, jobs: list[Job], outcomes: list[Answer | Exception], seconds: float) -> None:
        self._began = None
        self._plan()
        self._on_pass(sum(len(job.ask.rows) for job in jobs), seconds)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.future.done():  # its client has gone
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    def _work(self) -> None:
        """Make forward passes, in the thread."""
        while jobs := self._batches.get():
            began = time.monotonic()
            outcomes = self._answer([job.ask for job in jobs])
            seconds = time.monotonic() - began
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                self._loop.call_soon_threadsafe(self._settle, jobs, outcomes, seconds)

    def _answer(self, asks: list[Ask]) -> list[Answer | Exception]:
        """Return the answers; where the pass fails, each request gets one of its own."""
        try:
            return [*self._passes.answer(asks)]
        except Exception as error:
            if len(asks) == 1:
                log.exception("a forward pass failed")
                return [error]
        return [outcome for ask in asks for outcome in self._answer([ask])]


class Passes:
    """Makes one forward pass for several requests, each with its own masks and seed."""

    def __init__(self, policy: LoadedPolicy) -> None:
        engine = policy.engine
        self._policy = policy
        self._attentive = engine if isinstance(engine, AttentiveEngine) else None

    def answer(self, asks: Sequence[Ask]) -> list[Answer | RequestError]:
        """Return the answers to requests; each is what it would be alone."""
        rows = np.concatenate([ask.rows for ask in asks])
        state = np.concatenate([ask.state for ask in asks])
        policy, attentive = self._policy, self._attentive
        if attentive is not None:
            state = attentive.earned(state, np.concatenate([ask.rewards for ask in asks]))
            rows = attentive.look(rows, np.concatenate([ask.agents for ask in asks]))
        params, values, after = policy.engine.forward(rows, state)
        finite: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(params), axis=1)
        finite &= np.logical_and.reduce(np.isfinite(after), axis=1)
        samples = self._sample(asks, params, finite)
        if attentive is not None:
            after = attentive.acted(after, samples)
        actions, all_finite = policy.sampler.to_rows(samples), bool(finite.all())
        return [
            Answer(actions[part], values[part], after[part])
            if all_finite or finite[part].all()
            else _not_finite(ask, finite[part])
            for ask, part in zip(asks, _parts(asks), strict=True)
        ]

    def _sample(self, asks: Sequence[Ask], params: Floats, finite: NDArray[np.bool_]) -> Floats:
        """Return samples of all rows: greedy ones and unseeded ones at once, the others alone."""
        sampler, random = self._policy.sampler, self._policy.random
        masks = np.concatenate([ask.masks for ask in asks])
        samples = np.zeros((len(params), sampler.num_samples), np.float32)
        for greedy in (True, False):
            together = [
                ask.greedy if greedy else not ask.greedy and ask.seed is None for ask in asks
            ]
            if any(together):
                live = np.repeat(together, [len(ask.rows) for ask in asks]) & finite
                samples += sampler.sample(params, masks, random, greedy, live)[0]
        for ask, part in zip(asks, _parts(asks), strict=True):
            if ask.seed is not None and not ask.greedy:
                random, live = np.random.default_rng(ask.seed), finite[part]
                samples[part] = sampler.sample(params[part], ask.masks, random, live=live)[0]
        return samples


def _parts(asks: Sequence[Ask]) -> list[slice]:
    """Return the rows of each request."""
    ends = np.cumsum([len(ask.rows) for ask in asks]).tolist()
    return [slice(end - len(ask.rows), end) for ask, end in zip(asks, ends, strict=True)]


def _not_finite(ask: Ask, finite: NDArray[np.bool_]) -> RequestError:
    field = "observation" if ask.single else f"observations[{int(finite.argmin())}]"
    expected = "one like those that the policy was trained on"
    return RequestError(422, field, f"expected {expected}; got one without a finite answer.")
