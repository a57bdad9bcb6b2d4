"""A Ray cluster of several nodes on this machine, each with raylet, store and resources of its own.

Tests and `benchmarks/scale.py` share it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

SEAT = "seat"  # what a worker asks its node for
# A node beside busy tests may be slow to say that it lives; a dead one refuses at once.
PATIENCE = {"health_check_timeout_ms": 120_000, "health_check_initial_delay_ms": 60_000}


class Nodes:
    """The nodes, the learner's among them, and what to give to `fugu.make`."""

    def __init__(self, count: int, seats: int) -> None:
        self._seats = seats
        head = {"include_dashboard": False, "_system_config": PATIENCE, **self._node()}
        with importable():
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.others: list[Any] = []
        for _ in range(count - 1):
            self.add()
        ray.init(self.address, logging_level=logging.ERROR, log_to_driver=False)

    @property
    def address(self) -> str:
        """Of the cluster."""
        return str(self._cluster.address)

    @property
    def options(self) -> dict[str, Any]:
        """Of `fugu.make`, but for the number of workers."""
        asks = {"ray_cpus": 0.01, "ray_resources": {SEAT: 1}, "ray_timeout": 120.0}
        return {"backend": "ray", "ray_address": self.address, **asks}

    def add(self) -> None:
        """One node more."""
        with importable():
            self.others.append(self._cluster.add_node(**self._node()))

    def kill(self) -> None:
        """End all processes of a node that is not the learner's, at once."""
        self._cluster.remove_node(self.others.pop(), allow_graceful=False)

    def _node(self) -> dict[str, Any]:
        """What a node has, its ports too: a raylet does not wait long for others to choose them."""
        ports = ("metrics_agent_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
        seats = {"num_cpus": 1, "resources": {SEAT: self._seats}}  # Ray starts a process a CPU
        return {**seats, **dict(zip(ports, free_ports(len(ports)), strict=True))}

    def close(self) -> None:
        """End all."""
        ray.shutdown()
        self._cluster.shutdown()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        made = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in made]


@contextmanager
def importable() -> Iterator[None]:
    """What begins now can import what is beside this file."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), before or ""])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@contextmanager
def nodes(count: int, seats: int) -> Iterator[Nodes]:
    """So many of them, each with seats for so many workers."""
    made = Nodes(count, seats)
    try:
        yield made
    finally:
        made.close()
