"""Who may ask: clients that name the server rightly, come of no other site and have the token."""

from __future__ import annotations

import functools
import hmac
import ipaddress
import re

from fugu.core.errors import MissingExtraError
from fugu.serve.bodies import CLOSE
from fugu.serve.config import ServeConfig

try:
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException
    from starlette.types import Scope
except ModuleNotFoundError as error:
    raise MissingExtraError("starlette", "serve") from error

OPEN_PATHS = ("/health", "/health/live")  # for probes, which have no token
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_SHOWN = 80  # characters of a header


def check_access(scope: Scope, cfg: ServeConfig) -> None:
    """Raise unless a client may ask what it asks.

    A page of another site cannot read answers, since none allows it to (CORS). But it may give
    the server's address a name of its own (DNS rebinding): then the Host header has that name. And
    it may send requests whose answers it cannot read: then the Origin header has its name.

    Raises:
        HTTPException: 421 for another Host, 403 for another Origin, 401 without the token.
    """
    headers = Headers(scope=scope)
    host = _only(headers, "host")
    if not is_allowed_host(host, cfg.allow_hosts):
        reason = f"Host: expected an IP address, localhost or a name of --allow-host; got {host}."
        raise HTTPException(421, reason, CLOSE)
    if "origin" in headers:
        origin = _only(headers, "origin")
        site = origin.rpartition("://")[2]
        if site.lower() != host.lower() and not _is_named(site, cfg.allow_hosts):
            reason = f"Origin: expected {host[:_SHOWN]} or none; got {origin[:_SHOWN]}."
            raise HTTPException(403, reason, CLOSE)
    if cfg.token is not None and scope["path"] not in OPEN_PATHS:
        scheme, _, token = _only(headers, "authorization").partition(" ")
        given = token.strip().encode("latin-1")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given, cfg.token.encode()):
            reason = "Authorization: expected the server's token, as 'Bearer TOKEN'."
            raise HTTPException(401, reason, CLOSE | {"WWW-Authenticate": "Bearer"})


@functools.lru_cache(64)  # clients keep to the same few
def is_allowed_host(host: str, names: tuple[str, ...]) -> bool:
    """Return whether a Host header is an IP address, localhost or one of these names.

    >>> is_allowed_host("127.0.0.1:8000", ()), is_allowed_host("attacker.example", ())
    (True, False)
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1].strip("[]")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == "localhost" or _is_named(host, names)
    return True


def _is_named(host: str, names: tuple[str, ...]) -> bool:
    """Whether the user has allowed a host by its name."""
    found = _HOST.fullmatch(host)
    return found is not None and any(
        name == "*" or name.lower() == found[1].lower() for name in names
    )


def _only(headers: Headers, name: str) -> str:
    """The one header of a name; nothing if there is none, or more than one."""
    found = headers.getlist(name)
    return found[0] if len(found) == 1 else ""
