"""What every request passes: the check of who asks, metrics, and errors as answers in JSON."""

from __future__ import annotations

import asyncio
import functools
import hmac
import ipaddress
import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fugu.core.errors import MissingExtraError
from fugu.serve.config import ServeConfig
from fugu.serve.errors import RequestError

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response
    from starlette.routing import Router
    from starlette.types import Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "starlette", "serve") from error

OPEN_PATHS = ("/health", "/health/live")  # for probes, which have no token
GONE = 499  # status, in the metrics alone, of requests whose client has gone
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SHOWN = 80  # characters of a header

if TYPE_CHECKING:
    from fugu.serve.app import Service


def check_access(scope: Scope, cfg: ServeConfig) -> None:
    """Raise unless a client may ask what it asks.

    A page of another site cannot read answers, since no answer allows it to (CORS). But it may give
    the server's address a name of its own (DNS rebinding): then the Host header has that name. And
    it may send requests whose answers it cannot read: then the Origin header has its name.

    Raises:
        RequestError: 421 for another Host, 403 for another Origin, 401 without the token.
    """
    headers = Headers(scope=scope)
    host = _only(headers, "host")
    if not is_allowed_host(host, cfg.allow_host):
        problem = f"expected an IP address, localhost or a name of --allow-host; got {host}."
        raise RequestError(421, "Host", problem, close=True)
    if "origin" in headers:
        origin = _only(headers, "origin")
        site = origin.rpartition("://")[2]
        if site.lower() != host.lower() and not _is_named(site, cfg.allow_host):
            problem = f"expected {host[:_SHOWN]} or none; got {origin[:_SHOWN]}."
            raise RequestError(403, "Origin", problem, close=True)
    if cfg.token is not None and scope["path"] not in OPEN_PATHS:
        scheme, _, token = _only(headers, "authorization").partition(" ")
        same = hmac.compare_digest(token.strip().encode("latin-1"), cfg.token.encode())
        if scheme.lower() != "bearer" or not same:
            problem = "expected the server's token, as 'Bearer TOKEN'."
            raise RequestError(401, "Authorization", problem, close=True)


@functools.lru_cache(64)  # clients keep to the same few
def is_allowed_host(host: str, names: tuple[str, ...]) -> bool:
    """Return whether a Host header is an IP address, localhost or one of these names.

    >>> is_allowed_host("127.0.0.1:8000", ()), is_allowed_host("attacker.example", ())
    (True, False)
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    try:
        ipaddress.ip_address(found[1].strip("[]"))
    except ValueError:
        return _is_named(host, ("localhost", *names))
    return True


def _is_named(host: str, names: tuple[str, ...]) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and any(
        name == "*" or name.lower() == found[1].lower() for name in names
    )


def _only(headers: Headers, name: str) -> str:
    """Return the header of a name; nothing if there is none, or more than one."""
    found = headers.getlist(name)
    return found[0] if len(found) == 1 else ""


class Metrics:
    """Prometheus metrics of a server.

    Args:
        waiting: Returns the number of observations that wait.

    Attributes:
        under_way: Number of requests that are being read or answered.
        answered: Number of requests that were answered.
        lost: Number of requests that were not, since the server had to end.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.under_way = self.answered = self.lost = 0
        self.registry = CollectorRegistry()
        seconds: Any = {"buckets": _SECONDS, "registry": self.registry}
        sizes: Any = {"buckets": [2**i for i in range(17)], "registry": self.registry}
        gauges = {
            "queue_observations": ("Observations that wait for a forward pass.", waiting),
            "requests_under_way": ("Requests being read or answered.", lambda: self.under_way),
        }
        labels, text = ("path", "status"), "Answered requests."
        self._requests = Counter("fugu_serve_requests", text, labels, registry=self.registry)
        text = "From a request's head to its answer."
        self._seconds = Histogram("fugu_serve_request_seconds", text, ("path",), **seconds)
        text = "Observations of a forward pass."
        self._sizes = Histogram("fugu_serve_batch_observations", text, **sizes)
        text = "Of a forward pass and the sampling of its actions."
        self._passes = Histogram("fugu_serve_pass_seconds", text, **seconds)
        for name, (text, count) in gauges.items():
            Gauge(f"fugu_serve_{name}", text, registry=self.registry).set_function(count)

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def add_pass(self, observations: int, seconds: float) -> None:
        """Count a forward pass."""
        self._sizes.observe(observations)
        self._passes.observe(seconds)


class Middleware:
    """The ASGI application of a service: every request passes it first, and every error last."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._router = Router(service.routes, lifespan=service.running)
        self._paths = frozenset(route.path for route in service.routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        service, began, status = self._service, time.monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if service.stopping:
                    headers = [*message["headers"], (b"connection", b"close")]
                    message = {**message, "headers": headers}
            await send(message)

        service.metrics.under_way += 1
        scope["app"] = self  # so that the router raises errors for unknown paths and methods
        try:
            check_access(scope, service.cfg)
            if len(service.connections) > service.cfg.max_connections:
                problem = f"expected at most {service.cfg.max_connections}; got more."
                raise RequestError(503, "connections", problem, close=True)
            await self._router(scope, receive, watched)
        except ClientDisconnect:
            status = GONE
        except (RequestError, HTTPException) as error:
            await error_response(error)(scope, receive, watched)
        except asyncio.CancelledError:  # the server ends at once
            service.metrics.lost += 1
            if not status:
                lost = RequestError(503, "server", "it ends before it has an answer.", close=True)
                await error_response(lost)(scope, receive, watched)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            service.metrics.under_way -= 1
            service.metrics.answered += status not in (0, GONE)
            service.metrics.add_request(path, status or 500, time.monotonic() - began)


def error_response(error: RequestError | HTTPException) -> Response:
    """Return an error as an answer in JSON."""
    if isinstance(error, HTTPException):
        tree, status = {"error": error.detail, "field": None}, error.status_code
        headers = dict(error.headers or {})
    else:
        tree, status = {"error": str(error), "field": error.field}, error.status
        headers = {"Connection": "close"} if error.close else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (503, 504):
        headers["Retry-After"] = "1"
    # ASCII, since an error may hold what UTF-8 has no bytes for.
    return Response(json.dumps(tree), status, headers, "application/json")
