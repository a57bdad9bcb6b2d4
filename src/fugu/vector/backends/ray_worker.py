"""A worker in an actor of Ray: the same worker as anywhere, with buffers of its own."""

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
from fugu.vector.backends.process import one_thread_each
from fugu.vector.backends.wire_format import RemoteBuffers, WireFormat
from fugu.vector.batching import Blocks
from fugu.vector.worker import POLLING, TIMEOUT, LocalChannel, Setup, Worker, dump

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
    """Where a worker runs.

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
    """The response to a request.

    Attributes:
        rows: The block of the environments that are done, in the wire format.
        env_ids: Their numbers, 64-bit integers.
        ended: The numbers of those whose episode ended.
        messages: Messages as channels carry them, pickled; empty if there are none.
        steps: How many of them were stepped.
        left: Environments that are still due, or wait for something.
        seconds: The seconds that the worker took.
    """

    rows: Blocks
    env_ids: bytes
    ended: bytes
    messages: bytes
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
        """Load the environments' factory and try it; return where this is, and what failed."""
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
            job.setup.make().close()  # what is missing here is reported before anybody steps
        except (Exception, SystemExit):
            return facts._replace(why_not=traceback.format_exc())
        first, end = self._range
        queue_bytes = Exchange.bytes(job.num_workers, job.num_envs)
        buffers = RemoteBuffers(job.groups, first, end - first, queue_bytes)
        self._wire = WireFormat(buffers, first)
        self._queue = Exchange(buffers.queue_memory, job.num_workers, job.num_envs, 0.0)
        self._channel, theirs = LocalChannel.pair()
        self._worker = Worker(self._index, job.setup, buffers, self._queue, theirs)
        return facts

    def serve(self, env_ids: bytes, actions: bytes, commands: bytes) -> Reply:
        """Take what is new, work for a while, and return what is done."""
        began = time.perf_counter()
        stepped = np.frombuffer(env_ids, np.int64).copy()
        if len(stepped):
            self._wire.unpack_actions(stepped, actions)
            self._queue.post(stepped)
        letters = pickle.loads(commands) if commands else []
        for letter in letters:
            self._channel.send(letter, lambda: None)
        if letters:
            self._queue.post(np.array([letter[1] for letter in letters]), True)
        self._left += len(stepped) + len(letters)
        self._work()
        ready = self._ids[: self._queue.take(*self._range, len(self._ids), self._ids)].copy()
        messages = self._channel.receive()
        faults = sum(message[0] == "fault" for message in messages)
        replies = sum(message[0] in ("reply", "refusal") for message in messages)
        self._left -= len(ready) + faults
        rows, ended = self._wire.pack(ready)
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

    def _work(self) -> None:
        """Serve until nothing is due and nobody waits, or the slice of time is over."""
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
