"""The Ray cluster that workers run on: how to reach it, and what to ask of it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fugu.core.errors import MissingExtraError, UsageError
from fugu.core.machine import usable_cores

try:
    import ray
except ModuleNotFoundError as error:
    raise MissingExtraError("ray", "ray") from error

PORT = 6379  # where Ray's head node listens by default
ANSWER_SECONDS = 5.0  # for a sign that somebody is there who speaks as Ray does
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # what gRPC begins with
ALLOWED = "auto (the cluster that this machine is part of), local (a cluster begun here), HOST:PORT"


@dataclass(frozen=True)
class RaySettings:
    """What is asked of Ray; `fugu.make` documents each."""

    address: str = "auto"
    cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if not self.address or self.address.startswith("ray://"):
            raise UsageError(f"ray_address: given {self.address!r}; allowed: {ALLOWED}.")
        numbers = {"ray_cpus": self.cpus, **self.resources}
        wrong = {name: n for name, n in numbers.items() if not (_is_number(n) and n >= 0)}
        if wrong or "CPU" in self.resources:
            raise UsageError(
                f"ray_resources, ray_cpus: given {wrong or dict(self.resources)}; allowed: numbers "
                "from 0 on, by the names that the cluster's nodes have; CPUs are ray_cpus."
            )
        if not (_is_number(self.timeout) and self.timeout > 0):
            raise UsageError(f"ray_timeout: given {self.timeout!r}; allowed: seconds above 0.")

    def requests(self) -> dict[str, Any]:
        """Return what one actor asks for, as Ray takes it."""
        rest = dict(self.resources)
        found: dict[str, Any] = {"num_cpus": self.cpus, "num_gpus": rest.pop("GPU", 0)}
        if "memory" in rest:
            found["memory"] = rest.pop("memory")
        return {**found, "resources": rest}


@dataclass
class Connection:
    """The connection of this process to Ray, of which there can be one.

    Attributes:
        private: Whether the cluster began with it, and is nobody else's.
        leases: The number of vectors that use it.
    """

    private: bool
    leases: int = 0


class Lease:
    """A vector's use of the connection: one that fugu made ends with its last lease."""

    _current: Connection | None = None  # None if somebody else made the one there is

    def __init__(self, settings: RaySettings, num_workers: int | None) -> None:
        self._settings = settings
        if not ray.is_initialized():
            _connect(settings, num_workers)
            Lease._current = Connection(private=settings.address == "local")
        self._connection = Lease._current
        self._private = False  # else nothing needs to be asked for
        if self._connection is not None:
            self._connection.leases += 1
            self._private = self._connection.private

    def requests(self) -> dict[str, Any]:
        """Return what one actor asks for."""
        return {"num_cpus": 0} if self._private else self._settings.requests()

    def places(self) -> int:
        """Return for how many workers the cluster has resources, if nobody else uses any."""
        if self._private:
            return usable_cores()
        resources = ray.cluster_resources()
        needed = {"CPU": self._settings.cpus, **self._settings.resources}
        fits = [resources.get(name, 0.0) // amount for name, amount in needed.items() if amount]
        return int(max(1.0, min(fits, default=1.0)))

    def why_none(self) -> str:
        """Return why a worker got no place, and what to do."""
        free = {name: n for name, n in ray.available_resources().items() if "node:" not in name}
        return (
            f"no place on the cluster within {self._settings.timeout:g} s: given a worker that "
            f"asks for {self._settings.requests()}; allowed: what some node has free, of {free} in "
            "all. Ask for less (ray_cpus, ray_resources), for fewer workers (num_workers), add "
            "nodes, or wait longer (ray_timeout)"
        )

    def close(self) -> None:
        """Give it up."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.leases -= 1
        if not connection.leases and connection is Lease._current:
            Lease._current = None
            ray.shutdown()


def _connect(settings: RaySettings, num_workers: int | None) -> None:
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    address = settings.address
    if address == "local":
        options |= {"num_cpus": num_workers or usable_cores(), "include_dashboard": False}
    elif address == "auto":
        known = _known_address()
        if known is not None:
            check_answer(known)
    else:
        address = address if ":" in address else f"{address}:{PORT}"
        check_answer(address)
    try:
        with _handlers_kept():
            ray.init(address=address, **options)
    except Exception as error:
        raise UsageError(
            f"ray_address: given {settings.address!r}, where no cluster can be joined "
            f"({type(error).__name__}: {error}); allowed: {ALLOWED}. Begin one by: ray start --head"
        ) from error


def _known_address() -> str | None:
    """Return the cluster that Ray would find from here; None if there is none."""
    if found := os.environ.get("RAY_ADDRESS"):
        return found if ":" in found else None
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    note = Path(folder) / "ray" / "ray_current_cluster"
    with contextlib.suppress(OSError):
        return note.read_text().strip() or None
    return None


def check_answer(address: str) -> None:
    """Raise unless somebody answers there: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWER_SECONDS) as wire:
            if os.environ.get("RAY_USE_TLS", "0") != "1":
                wire.sendall(HTTP2)
                if not wire.recv(1):
                    raise ConnectionError("the connection was closed")
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"ray_address: given {address!r}, where no Ray cluster answers within "
            f"{ANSWER_SECONDS:g} s ({error}); allowed: {ALLOWED}. Begin one by: ray start --head"
        ) from None


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Put back the handler of SIGTERM, in whose place Ray sets its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
