"""A worker in an actor of Ray: the same worker as anywhere, at a desk of its own."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import tempfile
import time
import traceback
from typing import NamedTuple

import cloudpickle
import numpy as np

import fugu
from fugu._native import Exchange
from fugu.core.errors import MissingExtraError
from fugu.envs.contract import AgentGroup
from fugu.vector.channel import LocalChannel, dump
from fugu.vector.crews import one_thread_each
from fugu.vector.gathering import Blocks
from fugu.vector.parcels import Desk
from fugu.vector.worker import POLLING, TIMEOUT, Setup, Worker

try:
    import ray
except ModuleNotFoundError as error:
    raise MissingExtraError("ray", "ray") from error

SLICE = 0.01  # seconds after which a request comes back with what is done so far
MOST_AT_ONCE = 8  # steps between two looks at the clock


class Job(NamedTuple):
    """What every worker of a vector needs to know."""

    setup: Setup
    groups: tuple[AgentGroup, ...]
    num_workers: int
    num_envs: int


class Facts(NamedTuple):
    """Where a worker is.

    Attributes:
        node: Its address, and the beginning of Ray's name for it.
        node_id: Ray's name for it.
        pid: The process.
        trace: The file descriptor that its stacks go to when it is sent SIGUSR1.
        why_not: Why it cannot work there, if it cannot.
    """

    node: str
    node_id: str
    pid: int
    trace: int
    why_not: str = ""


class Reply(NamedTuple):
    """What comes back of a request.

    Attributes:
        rows: The parcel of the environments that are done.
        env_ids: Which they are, 64-bit integers.
        ended: Those of them whose episode ended.
        mail: Messages as channels carry them, pickled; empty if there are none.
        steps: How many of them were stepped.
        left: Environments that are still due, or wait for something.
        seconds: That all of it took here.
    """

    rows: Blocks
    env_ids: bytes
    ended: bytes
    mail: bytes
    steps: int
    left: int
    seconds: float


class RayWorker:
    """Steps its environments for a learner on another machine.

    A request brings actions and commands, and comes back once all that is due is done, or when its
    slice of time is over: what is left is done by the next one.
    """

    def __init__(self, index: int, first: int, end: int, version: str, job: bytes) -> None:
        self._index, self._range = index, (first, end)
        self._version, self._job = version, job
        self._trace = tempfile.TemporaryFile()  # noqa: SIM115
        self._ids = np.zeros(end - first, np.int64)
        self._left, self._at_once = 0, 1
        self._worker: Worker | None = None

    def begin(self) -> Facts:
        """Load the environments' factory and try it; where this is, and what went wrong."""
        node_id = ray.get_runtime_context().get_node_id()
        node = f"{ray.util.get_node_ip_address()}-{node_id[:6]}"
        facts = Facts(node, node_id, os.getpid(), self._trace.fileno())
        one_thread_each()
        if hasattr(signal, "SIGUSR1"):
            faulthandler.register(signal.SIGUSR1, self._trace)
        if self._version != fugu.__version__:
            versions = f"fugu {fugu.__version__} there, {self._version} here"
            return facts._replace(why_not=f"{versions}; install the same everywhere")
        try:
            job = Job(*cloudpickle.loads(self._job))
            job.setup.make().close()  # what is missing here is told before anybody steps
        except (Exception, SystemExit):
            return facts._replace(why_not=traceback.format_exc())
        self._sit_down(job)
        return facts

    def serve(self, env_ids: bytes, actions: bytes, commands: bytes) -> Reply:
        """Take in what is new, work for a while, and give what is done."""
        began = time.perf_counter()
        self._take_in(env_ids, actions, commands)
        self._work()
        ready = self._ids[: self._exchange.take(*self._range, len(self._ids), self._ids)].copy()
        messages = self._channel.receive()
        faults = sum(message[0] == "fault" for message in messages)
        replies = sum(message[0] in ("reply", "refusal") for message in messages)
        self._left -= len(ready) + faults
        rows, ended = self._desk.pack(ready)
        return Reply(
            rows,
            ready.tobytes(),
            ended.tobytes(),
            dump(messages) if messages else b"",
            len(ready) - replies,
            self._left,
            time.perf_counter() - began,
        )

    def close(self) -> None:
        """Close the environments."""
        if self._worker is not None:
            self._worker.close()

    def _sit_down(self, job: Job) -> None:
        first, end = self._range
        exchange_bytes = Exchange.bytes(job.num_workers, job.num_envs)
        self._desk = Desk(job.groups, first, end - first, exchange_bytes)
        self._exchange = Exchange(self._desk.exchange, job.num_workers, job.num_envs, 0.0)
        self._channel, theirs = LocalChannel.pair()
        self._worker = Worker(self._index, job.setup, self._desk, self._exchange, theirs)

    def _take_in(self, env_ids: bytes, actions: bytes, commands: bytes) -> None:
        stepped = np.frombuffer(env_ids, np.int64).copy()
        if len(stepped):
            self._desk.write_actions(stepped, actions)
            self._exchange.post(stepped)
        letters = pickle.loads(commands) if commands else []
        for letter in letters:
            self._channel.send(letter, lambda: None)
        if letters:
            self._exchange.post(np.array([letter[1] for letter in letters]), True)
        self._left += len(stepped) + len(letters)

    def _work(self) -> None:
        """Until nothing is due and nobody waits, or the slice is over."""
        assert self._worker is not None
        now = time.monotonic()
        end = now + SLICE
        while now < end:
            before = now
            event = self._worker.serve(self._at_once, POLLING if self._worker.polls else 0.0)
            if event == TIMEOUT and not self._worker.polls:
                return
            now = time.monotonic()
            slow = now - before > SLICE / 2  # the clock is looked at after each of the next
            self._at_once = 1 if slow else min(2 * self._at_once, MOST_AT_ONCE)
