"""The service as an ASGI application: `POST /act`, and what describes and monitors it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import ipaddress
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from html import escape
from typing import Any

from fugu.core.errors import MissingExtraError
from fugu.inference.player import LoadedPolicy
from fugu.serve.batching import Batcher, Passes
from fugu.serve.config import TOKEN_VARIABLE, ServeConfig
from fugu.serve.json_types import RequestError
from fugu.serve.messages import LARGE, MAX_EXAMPLE, Answer, Ask, Messages, RequestReader

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route, Router
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "starlette", "serve") from error

MAX_BODIES = 32  # of the largest size, in memory at a time
MAX_IGNORED = 16  # times the largest size, read and dropped so that a client reads its answer
POLL_SECONDS = 0.25  # after which it is checked whether a waiting client is still there
OPEN_PATHS = ("/health", "/health/live")  # for probes, which have no token
GONE = 499  # status, in the metrics alone, of requests whose client has gone
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]{1,5})?")
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = [2**i for i in range(17)]
_SHOWN = 80  # characters of a header
METRICS_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;
color:#223;background:#fff}}pre{{background:#f3f5f8;padding:1rem;overflow:auto;border-radius:.5rem;
font-size:.85rem}}a{{color:#06c}}</style></head><body>
<h1>{title}</h1>
<p>Engine {engine}, {memory}.</p>
<h2>Request</h2>
<pre>curl {url}/act{token} -H 'Content-Type: application/json' -d {data}</pre>
<p><code>POST /act</code> takes an <code>observation</code>, or a list of <code>observations</code>,
and returns <code>action</code>, <code>value</code> and <code>state</code>. Send the state back with
the next observation of an episode; without one, an episode begins.</p>
<p><a href="schema">/schema</a> <a href="health">/health</a> <a href="metrics">/metrics</a></p>
<h2>Schema</h2>
<pre>{schema}</pre>
</body></html>
"""


class Service:
    """A policy, which belongs to the service from now on, and its endpoints.

    Attributes:
        max_body: Maximum bytes of a request's body.
        connections: Connections of the server, if it sets them.
        stopping: Whether the server is about to end.
    """

    def __init__(self, policy: LoadedPolicy, cfg: ServeConfig, title: str = "A policy") -> None:
        self.policy, self.cfg, self.title = policy, cfg, title
        self.messages = Messages(policy.facts, cfg.max_batch)
        self._full_size = int(cfg.max_body_mb * 1e6)
        self.max_body = min(self._full_size, self.messages.largest)
        self.metrics, self.stopping, self._held = Metrics(lambda: self.waiting), False, 0
        self.connections: Collection[Any] = ()
        self.routes = [
            Route("/", self.page),
            Route("/act", self.act, methods=["POST"]),
            Route("/schema", self.schema),
            Route("/health", self.health),
            Route("/health/live", self.live),
            Route("/metrics", self.show_metrics),
        ]
        self._batcher: Batcher | None = None
        self._reader: RequestReader | None = None

    @property
    def waiting(self) -> int:
        """Number of observations that wait for a forward pass."""
        return self._batcher.waiting if self._batcher else 0

    def warm_up(self) -> None:
        """Make forward passes of one and of many observations, since the first may take long."""
        ask = self.messages.read(json.dumps(self.messages.example).encode())
        for count in (1, self.cfg.max_batch):
            Passes(self.policy).answer([ask] * count)

    @contextlib.asynccontextmanager
    async def running(self, app: object = None) -> AsyncIterator[None]:
        """Answer requests within this context."""
        self._batcher = Batcher(self.policy, self.cfg, self.metrics.add_pass)
        self._reader = RequestReader(self.messages, self.cfg.timeout)
        if self.max_body > LARGE:
            await self._reader.start()
        try:
            yield
        finally:
            self.stopping = True
            await self._reader.close()
            await self._batcher.close()

    # ------------------------------------------------------------------ POST /act

    async def act(self, request: Request) -> Response:
        """Answer the observations of a body with actions."""
        assert self._reader is not None, "act is called within running()"
        body = await self._body(request)
        self._held += len(body)
        try:
            ask = await self._reader.read(body)
        finally:
            self._held -= len(body)
        answer = await self._answer(request, ask)
        return Response(self.messages.write(ask, answer), media_type="application/json")

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request, or refuse it (408, 413, 415 or 503)."""
        _check_kind(request)
        most, seconds, chunks, size, held = self.max_body, self.cfg.read_timeout, [], 0, 0
        declared = int(request.headers.get("content-length", "0"))
        if declared > most and "expect" in request.headers:  # it is not sent before it is asked for
            raise _too_large(most, declared)
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > MAX_IGNORED * most:
                        break
                    if max(size, declared) <= most:
                        chunks.append(chunk)
                        held, self._held = held + len(chunk), self._held + len(chunk)
                    if self._held > MAX_BODIES * self._full_size:
                        reason = "too many others are being read. Try again later."
                        raise RequestError(503, "body", reason, close=True)
        except TimeoutError:
            if max(size, declared) <= most:
                reason = f"expected all of it within {seconds:g} s; got {size} bytes."
                raise RequestError(408, "body", reason, close=True) from None
        finally:
            self._held -= held
        if max(size, declared) > most:
            raise _too_large(most, declared)
        return b"".join(chunks)

    async def _answer(self, request: Request, ask: Ask) -> Answer:
        """Return the policy's answer, unless the client goes or it takes too long."""
        assert self._batcher is not None, "act is called within running()"
        future, end = self._batcher.submit(ask), time.monotonic() + self.cfg.timeout
        try:
            while True:
                left = end - time.monotonic()
                done, _ = await asyncio.wait((future,), timeout=min(POLL_SECONDS, max(left, 0.0)))
                if done:
                    return future.result()
                if await request.is_disconnected():
                    raise ClientDisconnect
                if left <= 0:
                    reason = f"expected an answer within {self.cfg.timeout:g} s; got none."
                    raise RequestError(504, "policy", reason)
        except (RequestError, ClientDisconnect):
            raise
        except Exception as error:
            reason = f"it failed ({type(error).__name__}). The server's log says more."
            raise RequestError(500, "policy", reason) from error
        finally:
            future.cancel()

    # ------------------------------------------------------------------ all else

    async def schema(self, request: Request) -> Response:
        """Return the JSON Schema of requests and answers."""
        return JSONResponse(self.messages.schema, media_type="application/schema+json")

    async def health(self, request: Request) -> Response:
        """Return whether it takes requests."""
        full = self.waiting >= self.cfg.max_queue
        status = "stopping" if self.stopping else "full" if full else "ready"
        status = status if self._alive else "stuck"
        tree = {"status": status, "engine": self.policy.name, "waiting": self.waiting}
        return JSONResponse(tree, 200 if status == "ready" else 503)

    async def live(self, request: Request) -> Response:
        """Return whether it works at all; if not, it should be restarted."""
        status = "live" if self._alive else "stuck"
        return JSONResponse({"status": status}, 200 if self._alive else 503)

    @property
    def _alive(self) -> bool:
        return self._batcher is not None and self._batcher.alive

    async def show_metrics(self, request: Request) -> Response:
        """Return the metrics, for Prometheus."""
        text = generate_latest(self.metrics.registry)
        return Response(text, headers={"Content-Type": METRICS_FORMAT})

    async def page(self, request: Request) -> Response:
        """Return a page that describes the service to people."""
        sent, size = json.dumps(self.messages.example), self.policy.facts.state_size
        short = len(sent) <= MAX_EXAMPLE and "'" not in sent
        token = f" -H 'Authorization: Bearer '\"${TOKEN_VARIABLE}\"" if self.cfg.token else ""
        parts = {
            "title": self.title,
            "engine": self.policy.name or "unknown",
            "memory": f"a state of {size} numbers" if size else "no memory",
            "url": str(request.base_url).rstrip("/"),
            "token": token,
            "data": f"'{sent}'" if short else "@request.json",
            "schema": json.dumps(self.messages.schema, indent=2),
        }
        page = PAGE.format_map({name: escape(part) for name, part in parts.items()})
        return HTMLResponse(page, headers=PAGE_HEADERS)


def _too_large(most: int, declared: int) -> RequestError:
    problem = f"expected at most {most} bytes; got {declared or 'more'}."
    return RequestError(413, "body", problem, close=True)


def _check_kind(request: Request) -> None:
    """Raise unless a body is plain JSON (415)."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity").lower()
    for name, expected, got in (
        ("Content-Type", "application/json", kind),
        ("Content-Encoding", "identity", encoding),
    ):
        if got != expected:
            raise RequestError(415, name, f"expected {expected}; got {got[:60]!r}.", close=True)


# ---------------------------------------------------------------------- every request


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

    Attributes:
        under_way: Number of requests that are being read or answered.
        answered: Number of requests that were answered.
        lost: Number of requests that were not, since the server had to end.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self.under_way = self.answered = self.lost = 0
        self.registry = CollectorRegistry()
        common: Any = {"namespace": "fugu_serve", "registry": self.registry}
        seconds, sizes = {**common, "buckets": _SECONDS}, {**common, "buckets": _SIZES}
        text = "From a request's head to its answer."
        self._seconds = Histogram("request_seconds", text, ("path",), **seconds)
        text = "Of a forward pass and the sampling of its actions."
        self._passes = Histogram("pass_seconds", text, **seconds)
        self._sizes = Histogram("batch_observations", "Observations of a forward pass.", **sizes)
        self._requests = Counter("requests", "Answered requests.", ("path", "status"), **common)
        text = "Observations that wait for a forward pass."
        Gauge("queue_observations", text, **common).set_function(waiting)
        text = "Requests being read or answered."
        Gauge("requests_under_way", text, **common).set_function(lambda: self.under_way)

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


def make_app(service: Service) -> ASGIApp:
    """Return an application for any ASGI server.

    The limits on heads and connections are the server's; `fugu.serve.server` sets them.
    """
    return Middleware(service)
