"""What nodes of a Ray cluster do for a vector, counted and told."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeReport:
    """What a node did since the last report.

    Attributes:
        name: Its address, and the beginning of Ray's name for it.
        workers: That it runs now.
        steps_per_second: Of environments.
        busy: Share of the time in which its workers were at work.
    """

    name: str
    workers: int
    steps_per_second: float
    busy: float


@dataclass(frozen=True)
class ClusterReport:
    """What a vector's workers on Ray did since the last report.

    Attributes:
        nodes: Those that run workers, or did.
        elapsed: Seconds since the last report.
        requests: Requests that came back.
        seconds: Of the learner's own time, by what took it: "send", "wait", "fetch", "copy".
    """

    nodes: tuple[NodeReport, ...]
    elapsed: float
    requests: int
    seconds: Mapping[str, float]

    def metrics(self) -> dict[str, float]:
        """By names, as sinks take them.

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
        """For people, a line a node."""
        return tuple(
            f"{node.name}: {node.steps_per_second:,.0f} steps/s by {node.workers} workers, "
            f"{node.busy:.0%} busy"
            for node in self.nodes
        )


class Ledger:
    """Counts what comes back, node by node, and what it costs the learner."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._requests = 0
        self._steps: Counter[str] = Counter()
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def note(self, node: str, steps: int, seconds: float) -> None:
        """A request came back from a node, after so many steps and seconds there."""
        self._requests += 1
        self._steps[node] += steps
        self._busy[node] += seconds

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Count the time of this to what the learner does."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[what] += time.perf_counter() - began

    def report(self, nodes: Iterable[str]) -> ClusterReport:
        """What came since the last report; `nodes` has the node of each worker that runs now."""
        workers, elapsed = Counter(nodes), max(time.monotonic() - self._since, 1e-9)
        told = tuple(
            NodeReport(
                name,
                workers[name],
                self._steps[name] / elapsed,
                self._busy[name] / elapsed / max(workers[name], 1),
            )
            for name in sorted(workers.keys() | self._steps.keys())
        )
        found = ClusterReport(told, elapsed, self._requests, dict(self._seconds))
        self._begin()
        return found
