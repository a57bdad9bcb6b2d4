"""A worker in an actor of Ray, and the wire format in which its rows travel."""

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
from numpy.typing import NDArray

import fugu
from fugu._native import Exchange, gather
from fugu.core.errors import MissingExtraError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.vector.backends.process import one_thread_each
from fugu.vector.batching import Blocks, span_of
from fugu.vector.shared_buffers import ACTIONS, ALWAYS, AT_ENDS, SharedBuffers, aligned
from fugu.vector.worker import POLLING, TIMEOUT, LocalChannel, Setup, Worker, dump

try:
    import ray
except ModuleNotFoundError as error:
    raise MissingExtraError("ray", "ray") from error

SLICE = 0.01  # seconds after which a request comes back with what is done so far
MOST_AT_ONCE = 8  # steps between two looks at the clock
Ids = NDArray[np.int64]


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


class RemoteBuffers(SharedBuffers):
    """The rows of one remote worker's environments, numbered as in the whole vector."""

    def __init__(
        self, groups: tuple[AgentGroup, ...], first: int, count: int, queue_bytes: int
    ) -> None:
        self.first = first
        super().__init__(groups, count, queue_bytes)

    def of_env(self, env: int) -> tuple[Buffers, ...]:
        """Return the rows of one environment, by its number in the whole vector."""
        return super().of_env(env - self.first)


class WireFormat:
    """Packs rows of buffers into blocks of bytes, and writes such blocks into buffers.

    Array after array, each with its environments in order. What is written only where an episode
    ends comes last, and only of those environments; actions travel the other way.

    Args:
        buffers: Rows of environments.
        first: The number of the first of them.
    """

    def __init__(self, buffers: SharedBuffers, first: int = 0) -> None:
        self._buffers, self._first = buffers, first
        self._always, self._at_ends, self._actions = (
            [
                array.reshape(-1).view(np.uint8).reshape(buffers.num_envs, -1)
                for name in names
                for rows in buffers.rows
                if (array := getattr(rows, name)).size
            ]
            for names in (ALWAYS, AT_ENDS, ACTIONS)
        )
        size = self.size(buffers.num_envs)
        self._whole = buffers.memory.array(buffers.rows_offset, (size,), np.dtype(np.uint8))

    def size(self, count: int) -> int:
        """Return the bytes of the block of so many environments, without ends of episodes."""
        return sum(aligned(count * array.shape[1]) for array in self._always)

    def pack(self, env_ids: Ids) -> tuple[Blocks, Ids]:
        """Return the block of these environments, and those of them whose episode ended.

        It is the buffers' own memory where all of them are asked for and none ended: it has to be
        sent before they step again.
        """
        if not len(env_ids):
            return np.empty(0, np.uint8), env_ids
        local = env_ids - self._first
        ended = local[self._ended()[local]]
        if len(local) == self._buffers.num_envs and not len(ended):
            return self._whole, ended
        always, at_ends = self.size(len(local)), 0
        if len(ended):
            at_ends = sum(aligned(len(ended) * array.shape[1]) for array in self._at_ends)
        block = np.empty(always + at_ends, np.uint8)
        gather(local, self._always, _split(block, self._always, len(local)))
        if len(ended):
            gather(ended, self._at_ends, _split(block[always:], self._at_ends, len(ended)))
        return block, ended + self._first

    def unpack(self, env_ids: Ids, ended: Ids, block: Blocks) -> None:
        """Write the block of these environments: one copy."""
        always = self.size(len(env_ids))
        for ids, targets, part in (
            (env_ids, self._always, block),
            (ended, self._at_ends, block[always:]),
        ):
            if len(ids):
                span = span_of(ids - self._first)
                for target, rows in zip(targets, _split(part, targets, len(ids)), strict=True):
                    target[span] = rows

    def pack_actions(self, env_ids: Ids) -> bytes:
        """Return the actions of these environments, side by side."""
        parts = [array[env_ids - self._first] for array in self._actions]
        return np.concatenate(parts, axis=1).tobytes()

    def unpack_actions(self, env_ids: Ids, actions: bytes) -> None:
        """Write what `pack_actions` returned for these environments."""
        rows = np.frombuffer(actions, np.uint8).reshape(len(env_ids), -1)
        begin = 0
        for array in self._actions:
            end = begin + array.shape[1]
            array[env_ids - self._first] = rows[:, begin:end]
            begin = end

    def _ended(self) -> NDArray[np.bool_]:
        """Return in which environments some agent's episode ended."""
        ends = [
            (rows.terminations | rows.truncations).reshape(self._buffers.num_envs, -1)
            for rows in self._buffers.rows
        ]
        found: NDArray[np.bool_] = np.logical_or.reduce(np.concatenate(ends, axis=1), axis=1)
        return found


def _split(block: Blocks, arrays: list[Blocks], count: int) -> list[Blocks]:
    """Return the parts of a block that belong to these arrays, `[environments, bytes of one]`."""
    found, begin = [], 0
    for array in arrays:
        width = array.shape[1]
        found.append(block[begin : begin + count * width].reshape(count, width))
        begin = aligned(begin + count * width)
    return found
