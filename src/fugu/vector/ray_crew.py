"""The Ray crew: workers that are actors, wherever their cluster has a place for them."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import cloudpickle
import numpy as np

import fugu
from fugu._native import Exchange
from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.contract import AgentGroup
from fugu.vector.channel import Channel
from fugu.vector.faults import WorkerError
from fugu.vector.parcels import Ids, Unpacker
from fugu.vector.ray_cluster import Lease, RaySettings
from fugu.vector.ray_report import ClusterReport, Ledger
from fugu.vector.ray_worker import Facts, Job, RayWorker, Reply
from fugu.vector.slab import Slab
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
UNDER_WAY = (1, 2, 3)  # of Exchange.state
NOBODY: Ids = np.zeros(0, np.int64)


def begin_on_ray(
    setup: Setup,
    groups: tuple[AgentGroup, ...],
    num_envs: int,
    num_workers: int | None,
    settings: RaySettings,
) -> tuple[Slab, RayCrew]:
    """A slab and its crew, all of whose workers have begun; as many as there is room for."""
    _check_sendable(setup)
    lease = Lease(settings, num_workers)
    crew: RayCrew | None = None
    try:
        workers = num_workers or min(num_envs, lease.places())
        slab = Slab(groups, num_envs, Exchange.bytes(workers, num_envs))
        job = Job(replace(setup, one_thread=True), groups, workers, num_envs)
        crew = RayCrew(slab, job, lease, settings.timeout)
        crew.wait_for_all()
    except BaseException:
        (crew or lease).close()
        raise
    return slab, crew


def _check_sendable(setup: Setup) -> None:
    try:
        cloudpickle.dumps(setup)
    except Exception as error:
        raise UsageError(
            f"env: given something to call that cannot be sent to other machines "
            f"({type(error).__name__}: {error}); allowed: one that itself makes all it needs "
            "(locks, files, connections) when it is called."
        ) from error


@dataclass
class Member:
    """A worker's actor, and what is known of it.

    Attributes:
        actor: Its handle.
        each: Environments that a request is expected to bring back.
        asked: When it was asked for, by the monotonic clock.
        facts: Where it is, once it is somewhere.
        requests: That are under way.
        since: When the first of them became the first.
        envs: That it has to step.
        announced: Commands that are still to come before they are sent together.
        commands: Those that came.
        death: How it ended.
    """

    actor: Any
    each: int
    asked: float = field(default_factory=time.monotonic)
    facts: Facts | None = None
    requests: int = 0
    since: float = 0.0
    envs: int = 0
    announced: int = 0
    commands: list[tuple[Any, ...]] = field(default_factory=list)
    death: tuple[str, str] | None = None


class RayCrew:
    """An actor a worker.

    What is posted leaves at once, one request a worker; what has come back is copied when the
    learner looks for it. A worker whose environments take longer than a slice of time has several
    requests, so that it goes on while the learner is busy.

    Attributes:
        exchange: What the vector has for an exchange.
    """

    def __init__(self, slab: Slab, job: Job, lease: Lease, timeout: float) -> None:
        self.exchange = RayExchange(slab.exchange, job.num_workers, job.num_envs, self)
        self._unpacker, self._lease, self._timeout = Unpacker(slab), lease, timeout
        self._ledger = Ledger()
        self._class: Any = ray.remote(RayWorker)
        self._settings = job
        self._job = ray.put(cloudpickle.dumps(tuple(job)))
        workers = range(job.num_workers)
        self._firsts = np.array([self.exchange.envs_of(worker)[0] for worker in workers])
        self._waiting: dict[Any, int] = {}  # what is under way, and at which worker
        self._channels = [RayChannel(self, worker) for worker in workers]
        self.channels: list[Channel] = list(self._channels)
        self._members = [self._begin(worker) for worker in workers]

    def wait_for_all(self) -> None:
        """Wait until every worker has begun."""
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
                self._ledger = Ledger()  # what began is over
                return
            if time.monotonic() > missing[0].asked + self._timeout:
                share = f"{len(missing)} of {len(self._members)} workers"
                raise UsageError(f"{share} have {self._lease.why_none()}.")
            self.collect(0.1)

    # ------------------------------------------------------------------ a crew

    def work(self, begin: int, end: int, count: int) -> None:
        """The actors do."""

    def death_of(self, worker: int) -> tuple[str, str] | None:
        """How it ended: "lost", with its node perhaps, or "stalled" if it never had a place."""
        member = self._members[worker]
        late = time.monotonic() > member.asked + self._timeout
        if late and member.death is None and member.facts is None:
            self._let_go(worker, ("stalled", self._lease.why_none()))
        return member.death

    def kill(self, worker: int) -> str:
        """Ask where it is, then end it."""
        where = self._where(self._members[worker])
        self._let_go(worker, ("stalled", where))
        return where

    def restart(self, worker: int) -> None:
        """Begin a new actor, wherever there is a place, that does what the old one left."""
        self._let_go(worker, ("lost", ""))
        self._job = ray.put(cloudpickle.dumps(tuple(self._settings)))  # attributes may be set now
        self._members[worker] = self._begin(worker)
        begin, end = self.exchange.envs_of(worker)
        due = [env for env in range(begin, end) if self.exchange.state(env) in UNDER_WAY]
        self._send(worker, np.array(due, np.int64))

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
        """What the nodes did since this was asked last."""
        return self._ledger.report(m.facts.node for m in self._members if m.facts is not None)

    # ------------------------------------------------------------------ what leaves

    def dispatch(self, env_ids: Ids, command: bool) -> None:
        """Send environments that are due to their workers; commands wait for their letters."""
        if not len(env_ids):
            return
        ids = np.sort(env_ids)
        owners = np.searchsorted(self._firsts, ids, side="right") - 1
        for part in np.split(np.arange(len(ids)), np.flatnonzero(np.diff(owners)) + 1):
            worker = int(owners[part[0]])
            if command:
                self._members[worker].announced += len(part)
            else:
                self._send(worker, ids[part])

    def command(self, worker: int, command: tuple[Any, ...]) -> None:
        """Take a letter; the last one that was announced takes all of them along."""
        member = self._members[worker]
        member.commands.append(command)
        member.announced -= 1
        if not member.announced:
            commands, member.commands = member.commands, []
            self._send(worker, NOBODY, commands)

    def _send(
        self, worker: int, env_ids: Ids, commands: list[tuple[Any, ...]] | None = None
    ) -> None:
        member = self._members[worker]
        member.envs += len(env_ids) + len(commands or ())
        if member.death is None:  # else its successor is told
            with self._ledger.timing("send"):
                letters = cloudpickle.dumps(commands) if commands else b""
                actions = self._unpacker.read_actions(env_ids)
                self._request(worker, env_ids.tobytes(), actions, letters)
                self._look_ahead(worker, member.each)

    def _look_ahead(self, worker: int, each: int) -> None:
        """Have as many requests wait at a worker as it takes to do all it has."""
        member = self._members[worker]
        while member.requests < min(MOST_AHEAD, -(-member.envs // each)):
            self._request(worker, b"", b"", b"")

    def _request(self, worker: int, *letter: bytes) -> None:
        member = self._members[worker]
        if not member.requests:
            member.since = time.monotonic()
        member.requests += 1
        self._waiting[member.actor.serve.remote(*letter)] = worker

    # ------------------------------------------------------------------ what comes back

    def collect(self, timeout: float) -> None:
        """Take in all that has come back; if nothing has, wait for the first."""
        if not self._waiting:
            time.sleep(min(timeout, IDLE))
            return
        with self._ledger.timing("wait"):
            waiting = list(self._waiting)
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
            if not ready and timeout > 0:
                ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout)
        for reference in ready:
            worker = self._waiting.pop(reference, None)
            if worker is None:
                continue  # another one told of its worker's end
            try:
                with self._ledger.timing("fetch"):
                    reply = ray.get(reference)
            except RayError as error:
                self._let_go(worker, ("lost", f"{type(error).__name__}: {error}"))
                continue
            self._take(worker, reply)

    def _take(self, worker: int, reply: Reply | Facts) -> None:
        member = self._members[worker]
        member.since = time.monotonic()
        if isinstance(reply, Facts):
            member.facts = reply
            if reply.why_not:
                self._let_go(worker, ("lost", f"on node {reply.node}: {reply.why_not}"))
            return
        assert member.facts is not None
        member.requests -= 1
        self._ledger.note(member.facts.node, reply.steps, reply.seconds)
        env_ids = np.frombuffer(reply.env_ids, np.int64)
        with self._ledger.timing("copy"):
            self._unpacker.write(env_ids, np.frombuffer(reply.ended, np.int64), reply.rows)
        faults = self._channels[worker].deliver(reply.mail)
        for env in env_ids.tolist():
            self.exchange.done(worker, env)
        for env in faults:
            self.exchange.done(worker, env, True)
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

    def _begin(self, worker: int) -> Member:
        first, end = self.exchange.envs_of(worker)
        options = {**self._lease.requests(), "scheduling_strategy": "SPREAD", "max_restarts": 0}
        actor = self._class.options(**options).remote(
            worker, first, end, fugu.__version__, self._job
        )
        self._waiting[actor.begin.remote()] = worker
        return Member(actor, end - first)

    def _let_go(self, worker: int, death: tuple[str, str]) -> None:
        """A worker is no more: nothing of it counts from now on."""
        member = self._members[worker]
        if member.death is None:
            member.death = death
            self._waiting = {ref: at for ref, at in self._waiting.items() if at != worker}
            _end(member.actor)

    def _where(self, member: Member) -> str:
        """The stacks of a worker that stalls, which a task on its node asks it for."""
        assert member.facts is not None
        node = NodeAffinitySchedulingStrategy(member.facts.node_id, soft=False)
        ask = ray.remote(ask_where).options(num_cpus=0, scheduling_strategy=node)
        try:
            where: str = ray.get(ask.remote(member.facts.pid, member.facts.trace), timeout=ASKING)
        except (RayError, TimeoutError) as error:
            return f"nobody knows where: {type(error).__name__}"
        return where


class RayExchange(Exchange):
    """Whose turn each environment is; what is posted leaves, and waiting takes in what came."""

    def __init__(self, memory: Any, workers: int, envs: int, crew: RayCrew) -> None:
        super().__init__(memory, workers, envs, 0.0)
        self._crew = crew

    def post(self, ids: Ids, command: bool = False, /) -> None:
        """Hand environments over to their workers."""
        super().post(ids, command)
        self._crew.dispatch(ids, command)

    def wait_ready(
        self, begin: int, end: int, count: int, known_faults: int, timeout: float, /
    ) -> int:
        """Wait until so many of a range are ready, or one failed, or time is up."""
        limit = time.monotonic() + timeout
        if timeout <= 0:
            self._crew.collect(0.0)
        while True:
            found = super().wait_ready(begin, end, count, known_faults, 0.0)
            left = limit - time.monotonic()
            if found >= count or left <= 0 or self.faults() != known_faults:
                return found
            self._crew.collect(left)

    def silent(self, worker: int, /) -> tuple[float, int]:
        """Return how long a worker that has something to do has sent nothing back."""
        return self._crew.silent(worker), -1


class RayChannel:
    """Small messages beside the rows, to one worker and back."""

    def __init__(self, crew: RayCrew, worker: int) -> None:
        self._crew, self._worker = crew, worker
        self._inbox: list[tuple[Any, ...]] = []

    def send(self, message: tuple[Any, ...], waiting: Callable[[], None]) -> None:
        """Send, once all that were announced are there."""
        self._crew.command(self._worker, message)

    def receive(self) -> list[tuple[Any, ...]]:
        """All messages that have arrived."""
        found, self._inbox = self._inbox, []
        return found

    def deliver(self, mail: bytes) -> list[int]:
        """Messages of a reply have come; the environments that they report as failed."""
        if not mail:
            return []
        messages = pickle.loads(mail)
        self._inbox += messages
        self._crew.exchange.send_mail(self._worker, False)
        return [message[1] for message in messages if message[0] == "fault"]

    def close(self) -> None:
        """Nothing is open."""


def ask_where(pid: int, trace: int) -> str:
    """Have a process of this machine write its stacks, and read them."""
    if not hasattr(signal, "SIGUSR1") or not os.path.exists(f"/proc/{pid}/fd/{trace}"):
        return "nobody can ask it where on this system"
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.1)
    with open(f"/proc/{pid}/fd/{trace}", "rb") as file:
        return file.read().decode(errors="replace")


def _end(actor: Any) -> None:
    with contextlib.suppress(RayError, ValueError):
        ray.kill(actor, no_restart=True)
