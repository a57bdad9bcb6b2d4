"""Worker backends: who steps the environments of a vector, and how they fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import FuguError
from fugu.envs.contract import Info

if TYPE_CHECKING:
    from fugu._native import Pool
    from fugu.vector.backends.native import PoolStates

Message = tuple[Any, ...]  # its kind, an environment, and what belongs to it
Infos = tuple[Info, ...]


@dataclass(frozen=True)
class Fault:
    """One fault of a worker or of an environment in it.

    Attributes:
        kind: "raised", "exited", "killed", "stalled", with Ray "lost" (the worker or its node) or,
            of a restored one, "replayed otherwise".
        worker: The worker.
        envs: The environments whose step broke.
        detail: The traceback, or the exit code or signal.
        seed: Seed of the first of them.
        actions: The last actions of the first of them, flat, a list for each group.
    """

    kind: str
    worker: int
    envs: tuple[int, ...]
    detail: str
    seed: int | None
    actions: tuple[list[Any], ...]

    def __str__(self) -> str:
        where = f"environment {self.envs[0]}" if self.envs else "no environment"
        if len(self.envs) > 1:
            where = f"environments {self.envs[0]} and {len(self.envs) - 1} more"
        return (
            f"worker {self.worker} {self.kind} in {where} "
            f"(seed {self.seed}, last actions {self.actions}):\n{self.detail.rstrip()}"
        )


class WorkerError(FuguError, RuntimeError):
    """Workers failed more often than `max_restarts` allows, or in a way that none may."""

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        self.fault = fault
        super().__init__(f"{message}\n{fault}" if fault else message)


class RestartedError(WorkerError):
    """Environments restarted instead of replying; asking them again may succeed."""


class MissingAttributeError(WorkerError, AttributeError):
    """An environment does not have the attribute that was asked for."""


class StepQueue(Protocol):
    """Whose turn each environment is; `fugu._native` has the one in shared memory."""

    def post(self, ids: NDArray[np.int64], command: bool = False, /) -> None:
        """Have environments step, or do what a command asks of each."""
        raise NotImplementedError("post(ids, command)")

    def wait_ready(
        self, begin: int, end: int, count: int, known_faults: int, timeout: float, /
    ) -> int:
        """Return how many of a range are ready, once `count` are, one failed, or time is up."""
        raise NotImplementedError("wait_ready(begin, end, count, known_faults, timeout)")

    def take(self, begin: int, end: int, count: int, ids: NDArray[np.int64], /) -> int:
        """Write the first `count` of a range that are ready to `ids` and return their number."""
        raise NotImplementedError("take(begin, end, count, ids)")

    def silent(self, worker: int, /) -> tuple[float, int]:
        """Return the seconds since a busy worker's last sign of life, and where it is or -1."""
        raise NotImplementedError("silent(worker)")

    def owner(self, env: int, /) -> int:
        """Return the worker of an environment."""
        raise NotImplementedError("owner(env)")

    def faults(self) -> int:
        """Return how many environments have failed so far."""
        raise NotImplementedError("faults()")

    def close(self) -> None:
        """Tell workers that the vector closes."""
        raise NotImplementedError("close()")


class WorkerBackend:
    """Runs the workers of one vector. What it has here holds for those that need no more.

    Attributes:
        name: "serial", "threads", "process", "native", "batch" or "ray".
        queue: Whose turn each environment is.
        num_workers: The number of workers.
        post_all: Posts all environments for a step.
        take_all: Takes all environments, each of which is ready.
        reports_start: Whether a worker sends "hello" once it has started.
        resets_some: Whether some environments can be reset while the others stay as they are.
        sets_attributes: Whether attributes of environments can be set.
        states: The states of environments that are not with a worker; None: workers are asked.
        pool: The native pool, for those who step all environments natively; None elsewhere.
        all_act: Whether all agents of native environments act in every step.
    """

    name: str
    num_workers: int
    reports_start = False
    resets_some = True
    sets_attributes = True
    states: PoolStates | None = None
    pool: Pool | None = None
    all_act = False

    def __init__(self, queue: StepQueue, num_envs: int) -> None:
        self.queue = queue
        every = np.arange(num_envs)
        self.post_all: Callable[[], object] = partial(queue.post, every)
        self.take_all: Callable[[], object] = partial(
            queue.take, 0, num_envs, num_envs, np.zeros(num_envs, np.int64)
        )

    def check_actions(self, actions: list[NDArray[Any]]) -> None:
        """Raise an `ActionError` before anybody steps; most leave that to their workers.

        Args:
            actions: Flat rows for each group of agents.
        """

    def infos(self, env_ids: NDArray[np.int64], sent: dict[int, Infos]) -> Mapping[int, Infos]:
        """Return the infos of environments, taken out of those that workers sent."""
        return {env: sent.pop(env) for env in env_ids.tolist() if env in sent} if sent else {}

    def work(self, begin: int, end: int, count: int) -> None:
        """Get `count` environments of a range done, if the caller is the worker."""

    def send(self, worker: int, message: Message, waiting: Callable[[], None]) -> None:
        """Send a command; `waiting` is called now and then while the worker does not read."""
        raise NotImplementedError("send(worker, message, waiting)")

    def receive(self, ended: int = -1) -> list[Message]:
        """Return what workers announced since, and all that the worker `ended` still sent."""
        raise NotImplementedError("receive(ended)")

    def death_of(self, worker: int) -> tuple[str, str] | None:
        """Return how a worker ended, ("exited" or "killed", detail), or None if it lives."""
        return None

    def kill(self, worker: int) -> str:
        """End a stalled worker and return where it was; a `WorkerError` if that cannot be."""
        raise NotImplementedError("kill(worker)")

    def restart(self, worker: int) -> None:
        """Start a new worker in place of one that ended."""
        raise WorkerError("given a worker that ended by itself; that should not be: report it")

    def states_of(self, worker: int) -> dict[int, int]:
        """Return the state of each environment of a worker that can be restarted."""
        return {}

    def hold(self, env: int) -> None:
        """Take an environment whose action was refused; it waits for another one."""

    def report(self) -> ClusterReport | None:
        """Return what the nodes of a cluster did since the last report; None without one."""
        return None

    def close(self) -> None:
        """End all workers; the queue is closed already."""


@dataclass(frozen=True)
class NodeReport:
    """What a node of a Ray cluster did since the last report.

    Attributes:
        name: Its address, and the beginning of Ray's name for it.
        workers: The number of workers that it runs now.
        steps_per_second: Steps of environments per second.
        busy: Share of the time in which its workers were busy.
    """

    name: str
    workers: int
    steps_per_second: float
    busy: float


@dataclass(frozen=True)
class ClusterReport:
    """What a vector's workers on Ray did since the last report.

    Attributes:
        nodes: The nodes that run workers, or did.
        elapsed: Seconds since the last report.
        requests: The number of requests that came back.
        seconds: Seconds of the learner, by activity: "send", "wait", "fetch", "copy".
    """

    nodes: tuple[NodeReport, ...]
    elapsed: float
    requests: int
    seconds: Mapping[str, float]

    def metrics(self) -> dict[str, float]:
        """Return metrics by name, as sinks take them.

        >>> node = NodeReport("10.0.0.7-3fa2c1", 2, 5000.0, 0.5)
        >>> ClusterReport((node,), 1.0, 80, {}).metrics()["nodes/10.0.0.7-3fa2c1/steps_per_second"]
        5000.0
        """
        return {
            f"nodes/{node.name}/{what}": float(getattr(node, what))
            for node in self.nodes
            for what in ("workers", "steps_per_second", "busy")
        }

    def lines(self) -> tuple[str, ...]:
        """Return a line of text for each node."""
        return tuple(
            f"{node.name}: {node.steps_per_second:,.0f} steps/s by {node.workers} workers, "
            f"{node.busy:.0%} busy"
            for node in self.nodes
        )
