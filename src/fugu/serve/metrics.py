"""What a server counts, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Callable

from fugu.core.errors import MissingExtraError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
except ModuleNotFoundError as error:
    raise MissingExtraError("prometheus_client", "serve") from error

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = tuple(2**i for i in range(17))


class Metrics:
    """Requests by path and status, their seconds, passes and what waits.

    Args:
        waiting: Says how many observations wait.
        under_way: Says how many requests are under way.
    """

    def __init__(self, waiting: Callable[[], int], under_way: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("path", "status")
        self._requests = Counter(
            "fugu_serve_requests", "Requests that were answered.", labels, registry=registry
        )
        self._seconds = Histogram(
            "fugu_serve_request_seconds",
            "From the head of a request to its answer.",
            ("path",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "fugu_serve_batch_observations",
            "Observations of a forward pass.",
            buckets=_SIZES,
            registry=registry,
        )
        self._passes = Histogram(
            "fugu_serve_pass_seconds",
            "Of a forward pass, its actions drawn.",
            buckets=_SECONDS,
            registry=registry,
        )
        queue = "Observations that wait for a pass."
        Gauge("fugu_serve_queue_observations", queue, registry=registry).set_function(waiting)
        busy = "Requests that are being read or answered."
        Gauge("fugu_serve_requests_under_way", busy, registry=registry).set_function(under_way)

    def note_request(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def note_pass(self, observations: int, seconds: float) -> None:
        """A forward pass was made."""
        self._batches.observe(observations)
        self._passes.observe(seconds)

    def text(self) -> bytes:
        """All of it, in the text format."""
        return generate_latest(self._registry)
