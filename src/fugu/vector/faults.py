"""Faults of workers, and how many of them are repaired by a restart."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from fugu.core.errors import FuguError


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


class RestartBudget:
    """Allows at most `most` restarts an hour."""

    def __init__(self, most: int, window: float = 3600.0) -> None:
        self._most, self._window = most, window
        self._times: deque[float] = deque()

    def spend(self, fault: Fault) -> None:
        """Count a restart; raise a `WorkerError` with the fault once there are too many."""
        now = time.monotonic()
        while self._times and now - self._times[0] > self._window:
            self._times.popleft()
        if len(self._times) >= self._most:
            raise WorkerError(
                f"given more than {self._most} restarts within an hour; mend the environment, or "
                "allow more: max_restarts=... The last fault:",
                fault,
            )
        self._times.append(now)
