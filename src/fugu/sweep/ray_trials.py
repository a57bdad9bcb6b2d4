"""Trials on a Ray cluster: each process is held by an actor on whatever node has room."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

from fugu.core.errors import MissingExtraError, UsageError
from fugu.sweep.trials import Launcher, LocalTrial, Look, TrialTask

LOST = -9  # as if the process had been killed


def ray_launcher(address: str | None = None, cpus: float = 1.0) -> Launcher:
    """What begins trials on a cluster.

    Args:
        address: Of the cluster; "auto" for the one that this machine belongs to, "local" for a new
            one of this machine alone. None: RAY_ADDRESS, else "auto", else "local".
        cpus: Processors that a trial asks for.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray")
    ray: Any = importlib.import_module("ray")
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    except ConnectionError as error:
        raise UsageError(
            f"ray-address: given {address!r}, where no cluster answers ({error}); allowed: the "
            "address of one that runs. Begin one with: ray start --head."
        ) from None
    actor = ray.remote(num_cpus=cpus, max_restarts=0)(LocalTrial)
    return lambda task: RayTrial(ray, actor, task)


class RayTrial:
    """A trial in a process of some node; a question is asked while the last answer is read."""

    def __init__(self, ray: Any, actor: Any, task: TrialTask) -> None:
        self._ray, self._actor = ray, actor.remote(task)
        self._answer: Any = self._actor.look.remote()
        self._last: Look | None = None

    def look(self) -> Look:
        """How it stands; without news while it waits for a node."""
        if self._last is not None:
            return self._last
        ready, _ = self._ray.wait([self._answer], timeout=0)
        if not ready:
            return Look([])
        try:
            look: Look = self._ray.get(self._answer)
        except self._ray.exceptions.RayError as error:
            line = str(error).strip().splitlines()[0]
            self._last = Look([], LOST, f"its node is gone: {line}", lost=True)
            return self._last
        if look.status is None:
            self._answer = self._actor.look.remote()
        else:
            self._last = look
            self.end()
        return look

    def stop(self) -> None:
        """Ask it to end after the update under way."""
        self._actor.stop.remote()

    def end(self) -> None:
        """End it now; its process goes with the actor."""
        with contextlib.suppress(Exception):  # the node may be gone already
            self._ray.kill(self._actor)
