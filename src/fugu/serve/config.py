"""Settings of a server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from fugu.core.errors import UsageError
from fugu.core.intervals import (
    CheckedConfig,
    Interval,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)

TOKEN_VARIABLE = "FUGU_SERVE_TOKEN"
MIN_TOKEN = 16  # characters
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TOKEN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{MIN_TOKEN},}}")


@dataclass(frozen=True)
class ServeConfig(CheckedConfig):
    """Limits of a server, and who may use it."""

    max_batch: Annotated[int, Interval(1, 65_536)] = 64
    """Maximum number of observations in a forward pass, and in a request."""
    max_wait_ms: NonNegativeFloat = 0.0
    """Milliseconds that an observation may wait for others to join its forward pass, in addition to
    those that came during the previous pass."""
    max_queue: PositiveInt = 1024
    """Maximum number of observations that wait; more are answered 503."""
    max_body_mb: PositiveFloat = 8.0
    """Maximum megabytes of a request's body; larger ones are answered 413. The limit is lower if
    --max-batch observations of this policy cannot be as large."""
    max_connections: PositiveInt = 512
    """Maximum number of connections at a time; more are answered 503."""
    timeout: PositiveFloat = 30.0
    """Seconds within which a request is answered, with 504 if need be."""
    read_timeout: PositiveFloat = 10.0
    """Seconds within which a request's head, and then its body, must arrive."""
    keep_alive: PositiveFloat = 30.0
    """Seconds after which an idle connection is closed."""
    allow_host: tuple[str, ...] = ()
    """Host names by which clients may reach the server, in addition to localhost and IP addresses;
    '*' allows any. Others are answered 421."""
    token: str | None = field(default=None, repr=False)
    """Token that clients must send, as 'Authorization: Bearer TOKEN'; others are answered 401.
    Other users of this machine can see flags, so better set FUGU_SERVE_TOKEN."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_queue < self.max_batch:
            raise UsageError(
                f"max_queue: expected {self.max_batch} or more, so that a request of max_batch "
                f"observations may wait; got {self.max_queue}."
            )
        for host in self.allow_host:
            if host != "*" and not _HOST_NAME.fullmatch(host):
                raise UsageError(
                    f"allow_host: expected names of hosts without a port, or '*'; got {host!r}."
                )
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            raise UsageError(
                f"token: expected at least {MIN_TOKEN} letters, digits or any of -._~+/=; "
                f"got {len(self.token)} characters. Make one with: openssl rand -hex 32"
            )
