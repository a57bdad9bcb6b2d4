"""Settings of a server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields

from fugu.core.errors import UsageError

LARGEST_BATCH = 65_536
TOKEN_VARIABLE = "FUGU_SERVE_TOKEN"
SHORTEST_TOKEN = 16  # characters
HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")
TOKEN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{SHORTEST_TOKEN},}}")
NOT_NUMBERS = ("allow_hosts", "token")


@dataclass(frozen=True)
class ServeConfig:
    """What a server takes on, and how long it waits for what.

    Attributes:
        max_batch: Most observations of a forward pass, and of a request.
        max_wait_ms: How long an observation may wait for others to join its pass, beside those that
            came while the pass before was made.
        max_queue: Most observations that wait; requests beyond are answered 503.
        max_body: Most bytes of a request's body; fewer where the largest request of the policy
            needs fewer.
        max_connections: Most connections at a time.
        timeout: Seconds in which a request is answered.
        read_timeout: Seconds in which a head, and then a body, must be here.
        keep_alive: Seconds for which a connection may be idle.
        allow_hosts: Host names by which clients may reach the server, beside `localhost` and IP
            addresses; "*" allows any.
        token: Clients must send this as a bearer token; None: no token is needed.
    """

    max_batch: int = 64
    max_wait_ms: float = 0.0
    max_queue: int = 1024
    max_body: int = 8_000_000
    max_connections: int = 512
    timeout: float = 30.0
    read_timeout: float = 10.0
    keep_alive: float = 30.0
    allow_hosts: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        for host in self.allow_hosts:
            if host != "*" and not HOST_NAME.fullmatch(host):
                raise UsageError(
                    f"allow_hosts: expected names of hosts without a port, or '*'; got {host!r}."
                )
        if self.token is not None and not TOKEN.fullmatch(self.token):
            raise UsageError(
                f"token: expected at least {SHORTEST_TOKEN} letters, digits or any of -._~+/=; "
                f"got {len(self.token)} characters. Make one with: openssl rand -hex 32"
            )

    def _check_numbers(self) -> None:
        numbers = (field.name for field in fields(self) if field.name not in NOT_NUMBERS)
        for name in numbers:
            given, least = getattr(self, name), 0 if name == "max_wait_ms" else 1e-3
            if not least <= given < float("inf"):
                allowed = "0 or more" if not least else "a finite number above 0"
                raise UsageError(f"{name}: given {given}; allowed: {allowed}.")
        if self.max_batch > LARGEST_BATCH:
            raise UsageError(f"max_batch: given {self.max_batch}; allowed: 1 to {LARGEST_BATCH}.")
        if self.max_queue < self.max_batch:
            raise UsageError(
                f"max_queue: given {self.max_queue}; allowed: {self.max_batch} or more, so that "
                "a request of max_batch observations may wait."
            )
