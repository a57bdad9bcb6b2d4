"""Workers that are actors on a Ray cluster, wherever it has room for them."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import numpy as np

import fugu
from fugu._native import Exchange
from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.contract import AgentGroup
from fugu.vector.backends import ClusterReport, Message, NodeReport, WorkerError
from fugu.vector.backends.local import QueueBackend
from fugu.vector.backends.ray_cluster import Lease, RaySettings
from fugu.vector.backends.ray_worker import Facts, Ids, Job, RayWorker, Reply, WireFormat
from fugu.vector.shared_buffers import SharedBuffers
from fugu.vector.supervisor import UNDER_WAY
from fugu.vector.worker import Setup

try:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ModuleNotFoundError as error:
    raise MissingExtraError("ray", "ray") from error

MOST_AHEAD = 16  # requests that may wait at a worker
CLOSING = 3.0  # seconds for workers to close their environments
ASKING = 5.0  # seconds to find out where a worker stalls
IDLE = 0.02  # seconds to wait where nothing is under way
NOBODY: Ids = np.zeros(0, np.int64)


def start_on_ray(
    setup: Setup,
    groups: tuple[AgentGroup, ...],
    num_envs: int,
    num_workers: int | None,
    settings: RaySettings,
) -> tuple[SharedBuffers, RayBackend]:
    """Return buffers and a backend, all of whose workers have started.

    Without `num_workers`, it has as many workers as the cluster has room for.
    """
    try:
        cloudpickle.dumps(setup)
    except Exception as error:
        raise UsageError(
            f"env: given something to call that cannot be sent to other machines "
            f"({type(error).__name__}: {error}); allowed: one that itself makes all it needs "
            "(locks, files, connections) when it is called."
        ) from error
    lease = Lease(settings, num_workers)
    backend: RayBackend | None = None
    try:
        workers = num_workers or min(num_envs, lease.places())
        buffers = SharedBuffers(groups, num_envs, Exchange.bytes(workers, num_envs))
        job = Job(replace(setup, one_thread=True), groups, workers, num_envs)
        backend = RayBackend(buffers, job, lease, settings.timeout)
        backend.wait_for_all()
    except BaseException:
        (backend or lease).close()
        raise
    return buffers, backend


@dataclass
class Member:
    """A worker's actor, and what is known of it.

    Attributes:
        actor: Its handle.
        each: Environments that a request is expected to bring back.
        started: When it was requested, by the monotonic clock.
        facts: Where it is, once it is somewhere.
        requests: The number of requests under way.
        since: When the first of them became the first.
        envs: The number of environments that it has to step.
        announced: Commands that are still to come before they are sent together.
        commands: Those that came.
        death: How it ended.
    """

    actor: Any
    each: int
    started: float = field(default_factory=time.monotonic)
    facts: Facts | None = None
    requests: int = 0
    since: float = 0.0
    envs: int = 0
    announced: int = 0
    commands: list[Message] = field(default_factory=list)
    death: tuple[str, str] | None = None


class RayBackend(QueueBackend):
    """An actor for each worker.

    What is posted leaves at once, one request a worker; what has come back is copied when the
    learner looks for it. A worker whose environments take longer than a slice of time has several
    requests, so that it goes on while the learner is busy.
    """

    name = "ray"

    def __init__(self, buffers: SharedBuffers, job: Job, lease: Lease, timeout: float) -> None:
        queue = RayQueue(buffers.queue_memory, job.num_workers, job.num_envs, self)
        super().__init__(queue, job.num_envs, job.num_workers)
        self._wire, self._lease, self._timeout = WireFormat(buffers), lease, timeout
        self._meter = ClusterMeter()
        self._class: Any = ray.remote(RayWorker)
        self._job = job
        self._waiting: dict[Any, int] = {}  # what is under way, and at which worker
        self._inbox: list[Message] = []
        self._pickle_job()
        workers = range(job.num_workers)
        self._firsts = np.array([queue.envs_of(worker)[0] for worker in workers])
        self._members = [self._start(worker) for worker in workers]

    def wait_for_all(self) -> None:
        """Wait until every worker has started."""
        while True:
            died = next((m.death for m in self._members if m.death is not None), None)
            if died is not None:
                raise WorkerError(
                    f"given a worker that cannot begin on Ray's cluster: {died[1].strip()}\n"
                    "allowed: an environment whose modules every node can import. Install them "
                    "(and fugu) there, or name them in Ray's runtime environment."
                )
            missing = [m for m in self._members if m.facts is None]
            if not missing:
                self._meter = ClusterMeter()  # without the time to start
                return
            if time.monotonic() > missing[0].started + self._timeout:
                share = f"{len(missing)} of {len(self._members)} workers"
                raise UsageError(f"{share} have {self._lease.why_none()}.")
            self.collect(0.1)

    def death_of(self, worker: int) -> tuple[str, str] | None:
        """Return how it ended: "lost", with its node perhaps, or "stalled" without any place."""
        member = self._members[worker]
        late = time.monotonic() > member.started + self._timeout
        if late and member.death is None and member.facts is None:
            self._let_go(worker, ("stalled", self._lease.why_none()))
        return member.death

    def kill(self, worker: int) -> str:
        """End a stalled worker and return where it was."""
        where = _stacks_of(self._members[worker].facts)
        self._let_go(worker, ("stalled", where))
        return where

    def restart(self, worker: int) -> None:
        """Start an actor, wherever there is a place, that does what the old one left."""
        self._queue.revive(worker)
        self._let_go(worker, ("lost", ""))
        self._pickle_job()  # attributes may be set now
        self._members[worker] = self._start(worker)
        due = [env for env, state in self.states_of(worker).items() if state in UNDER_WAY]
        self._request_steps(worker, np.array(due, np.int64))

    def close(self) -> None:
        """Close the environments and end the actors; fugu's own connection ends with them."""
        if ray.is_initialized():
            members = [m for m in self._members if m.death is None]
            with contextlib.suppress(RayError):
                closing = [m.actor.close.remote() for m in members if m.facts is not None]
                if closing:
                    ray.wait(closing, num_returns=len(closing), timeout=CLOSING)
            for member in members:
                _end(member.actor)
        self._waiting.clear()
        self._lease.close()

    def report(self) -> ClusterReport:
        """Return what the nodes did since the last report."""
        nodes = Counter(m.facts.node for m in self._members if m.facts is not None)
        found, self._meter = self._meter.report(nodes), ClusterMeter()
        return found

    # ------------------------------------------------------------------ requests

    def dispatch(self, env_ids: Ids, command: bool) -> None:
        """Send environments that are due to their workers; commands wait for their messages."""
        if not len(env_ids):
            return
        ids = np.sort(env_ids)
        owners = np.searchsorted(self._firsts, ids, side="right") - 1
        for part in np.split(np.arange(len(ids)), np.flatnonzero(np.diff(owners)) + 1):
            worker = int(owners[part[0]])
            if command:
                self._members[worker].announced += len(part)
            else:
                self._request_steps(worker, ids[part])

    def send(self, worker: int, message: Message, waiting: Callable[[], None]) -> None:
        """Take a command; the last one that was announced takes all of them along."""
        member = self._members[worker]
        member.commands.append(message)
        member.announced -= 1
        if not member.announced:
            commands, member.commands = member.commands, []
            self._request_steps(worker, NOBODY, commands)

    def _request_steps(
        self, worker: int, env_ids: Ids, commands: list[Message] | None = None
    ) -> None:
        member = self._members[worker]
        member.envs += len(env_ids) + len(commands or ())
        if member.death is None:  # else its successor gets them
            with self._meter.timing("send"):
                letters = cloudpickle.dumps(commands) if commands else b""
                actions = self._wire.pack_actions(env_ids)
                self._request(worker, env_ids.tobytes(), actions, letters)
                self._look_ahead(worker, member.each)

    def _look_ahead(self, worker: int, each: int) -> None:
        """Have as many requests wait at a worker as it takes to do all it has."""
        member = self._members[worker]
        while member.requests < min(MOST_AHEAD, -(-member.envs // each)):
            self._request(worker, b"", b"", b"")

    def _request(self, worker: int, *content: bytes) -> None:
        member = self._members[worker]
        if not member.requests:
            member.since = time.monotonic()
        member.requests += 1
        self._waiting[member.actor.serve.remote(*content)] = worker

    # ------------------------------------------------------------------ responses

    def receive(self, ended: int = -1) -> list[Message]:
        """Return the messages that responses brought."""
        found, self._inbox = self._inbox, []
        return found

    def collect(self, timeout: float) -> None:
        """Take in all that has come back; if nothing has, wait for the first."""
        if not self._waiting:
            time.sleep(min(timeout, IDLE))
            return
        with self._meter.timing("wait"):
            waiting = list(self._waiting)
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
            if not ready and timeout > 0:
                ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout)
        for reference in ready:
            worker = self._waiting.pop(reference, None)
            if worker is None:
                continue  # another response reported the end of its worker
            try:
                with self._meter.timing("fetch"):
                    reply = ray.get(reference)
            except RayError as error:
                self._let_go(worker, ("lost", f"{type(error).__name__}: {error}"))
                continue
            self._members[worker].since = time.monotonic()
            if isinstance(reply, Facts):
                self._members[worker].facts = reply
                if reply.why_not:
                    self._let_go(worker, ("lost", f"on node {reply.node}: {reply.why_not}"))
            else:
                self._take(worker, reply)

    def _take(self, worker: int, reply: Reply) -> None:
        member = self._members[worker]
        assert member.facts is not None
        member.requests -= 1
        self._meter.note(member.facts.node, reply.steps, reply.seconds)
        env_ids = np.frombuffer(reply.env_ids, np.int64)
        with self._meter.timing("copy"):
            self._wire.unpack(env_ids, np.frombuffer(reply.ended, np.int64), reply.rows)
        messages = pickle.loads(reply.messages) if reply.messages else []
        self._inbox += messages
        faults = [message[1] for message in messages if message[0] == "fault"]
        for env in env_ids.tolist():
            self._queue.done(worker, env)
        for env in faults:
            self._queue.done(worker, env, True)
        done = len(env_ids) + len(faults)
        member.envs -= done
        if done:
            member.each = done if reply.left else max(done, member.each)
        self._look_ahead(worker, member.each if done else max(member.envs, 1))

    def silent(self, worker: int) -> float:
        """Return the seconds since a worker with requests under way sent something back."""
        self.collect(0.0)  # what came while the learner was elsewhere
        member = self._members[worker]
        under_way = member.requests and member.facts is not None and member.death is None
        return time.monotonic() - member.since if under_way else 0.0

    # ------------------------------------------------------------------ actors

    def _pickle_job(self) -> None:
        self._pickled_job = ray.put(cloudpickle.dumps(tuple(self._job)))

    def _start(self, worker: int) -> Member:
        first, end = self._queue.envs_of(worker)
        options = {**self._lease.requests(), "scheduling_strategy": "SPREAD", "max_restarts": 0}
        actor = self._class.options(**options).remote(
            worker, first, end, fugu.__version__, self._pickled_job
        )
        self._waiting[actor.begin.remote()] = worker
        return Member(actor, end - first)

    def _let_go(self, worker: int, death: tuple[str, str]) -> None:
        """Note that a worker has ended: nothing of it counts from now on."""
        member = self._members[worker]
        if member.death is None:
            member.death = death
            self._waiting = {ref: at for ref, at in self._waiting.items() if at != worker}
            _end(member.actor)


class RayQueue(Exchange):
    """Whose turn each environment is; what is posted leaves, and waiting takes in what came."""

    def __init__(self, memory: Any, workers: int, envs: int, backend: RayBackend) -> None:
        super().__init__(memory, workers, envs, 0.0)
        self._backend = backend

    def post(self, ids: Ids, command: bool = False, /) -> None:
        """Hand environments over to their workers."""
        super().post(ids, command)
        self._backend.dispatch(ids, command)

    def wait_ready(
        self, begin: int, end: int, count: int, known_faults: int, timeout: float, /
    ) -> int:
        """Wait until so many of a range are ready, or one failed, or time is up."""
        limit = time.monotonic() + timeout
        if timeout <= 0:
            self._backend.collect(0.0)
        while True:
            found = super().wait_ready(begin, end, count, known_faults, 0.0)
            left = limit - time.monotonic()
            if found >= count or left <= 0 or self.faults() != known_faults:
                return found
            self._backend.collect(left)

    def silent(self, worker: int, /) -> tuple[float, int]:
        """Return how long a worker that has something to do has sent nothing back."""
        return self._backend.silent(worker), -1


class ClusterMeter:
    """Counts the steps and seconds of each node, and the learner's own seconds."""

    def __init__(self) -> None:
        self._since, self._requests = time.monotonic(), 0
        self._steps: Counter[str] = Counter()
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def note(self, node: str, steps: int, seconds: float) -> None:
        """Count a request that came back from a node, its steps and its seconds there."""
        self._requests += 1
        self._steps[node] += steps
        self._busy[node] += seconds

    @contextmanager
    def timing(self, activity: str) -> Iterator[None]:
        """Count the time of a block for an activity of the learner."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[activity] += time.perf_counter() - began

    def report(self, workers: Counter[str]) -> ClusterReport:
        """Return what was counted, given the number of workers of each node."""
        elapsed = max(time.monotonic() - self._since, 1e-9)
        nodes = tuple(
            NodeReport(
                name,
                workers[name],
                self._steps[name] / elapsed,
                self._busy[name] / elapsed / max(workers[name], 1),
            )
            for name in sorted(workers.keys() | self._steps.keys())
        )
        return ClusterReport(nodes, elapsed, self._requests, dict(self._seconds))


def _stacks_of(facts: Facts | None) -> str:
    """Return the stacks of a worker that stalls, which a task on its node asks it for."""
    assert facts is not None
    node = NodeAffinitySchedulingStrategy(facts.node_id, soft=False)
    task = ray.remote(read_stacks).options(num_cpus=0, scheduling_strategy=node)
    try:
        stacks: str = ray.get(task.remote(facts.pid, facts.trace), timeout=ASKING)
    except (RayError, TimeoutError) as error:
        return f"nobody knows where: {type(error).__name__}"
    return stacks


def read_stacks(pid: int, trace: int) -> str:
    """Have a process of this machine write its stacks, and return them."""
    if not hasattr(signal, "SIGUSR1") or not os.path.exists(f"/proc/{pid}/fd/{trace}"):
        return "nobody can ask it where on this system"
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.1)
    with open(f"/proc/{pid}/fd/{trace}", "rb") as file:
        return file.read().decode(errors="replace")


def _end(actor: Any) -> None:
    with contextlib.suppress(RayError, ValueError):
        ray.kill(actor, no_restart=True)
