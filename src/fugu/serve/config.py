"""Settings of a server."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fugu.core.errors import UsageError

LARGEST_BATCH = 65_536


@dataclass(frozen=True)
class ServeConfig:
    """What a server takes on, and how long it waits for what.

    Attributes:
        max_batch: Most observations of a forward pass, and of a request.
        max_wait_ms: How long an observation may wait for others to join its pass, beside those that
            came while the pass before was made.
        max_queue: Most observations that wait; requests beyond are answered 503.
        max_body: Most bytes of a request's body.
        max_connections: Most connections at a time.
        timeout: Seconds in which a request is answered.
        read_timeout: Seconds in which a head, and then a body, must be here.
        keep_alive: Seconds for which a connection may be idle.
    """

    max_batch: int = 64
    max_wait_ms: float = 0.0
    max_queue: int = 1024
    max_body: int = 8_000_000
    max_connections: int = 512
    timeout: float = 30.0
    read_timeout: float = 10.0
    keep_alive: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            given, least = getattr(self, field.name), 0 if field.name == "max_wait_ms" else 1e-3
            if not least <= given < float("inf"):
                allowed = "0 or more" if not least else "a finite number above 0"
                raise UsageError(f"{field.name}: given {given}; allowed: {allowed}.")
        if self.max_batch > LARGEST_BATCH:
            raise UsageError(f"max_batch: given {self.max_batch}; allowed: 1 to {LARGEST_BATCH}.")
        if self.max_queue < self.max_batch:
            raise UsageError(
                f"max_queue: given {self.max_queue}; allowed: {self.max_batch} or more, so that "
                "a request of max_batch observations may wait."
            )
