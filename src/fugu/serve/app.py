"""The service as an ASGI application: `POST /act`, and what tells of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from html import escape
from typing import Any

from fugu.core.errors import MissingExtraError
from fugu.export.player import LoadedPolicy
from fugu.serve.access import check_access
from fugu.serve.batching import Batcher, FullError
from fugu.serve.bodies import CLOSE, RETRY, BodyReader
from fugu.serve.config import ServeConfig
from fugu.serve.fields import FieldError
from fugu.serve.messages import Answer, Ask, BodyError, Messages
from fugu.serve.metrics import Metrics
from fugu.serve.page import ADDRESS, make_page
from fugu.serve.passes import Passes, UnansweredError
from fugu.serve.reading import ReaderError, RequestReader
from fugu.serve.schema import example

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise MissingExtraError("starlette", "serve") from error

PATIENCE = 0.05  # seconds after which it is watched whether a waiting client is still there
GONE = 499  # the status, for metrics alone, of requests whose client has gone
METRICS_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STATUSES: dict[type[Exception], int] = {
    BodyError: 400,
    FieldError: 422,
    UnansweredError: 422,
    FullError: 503,
    ReaderError: 503,
}


class Service:
    """What the endpoints share.

    Args:
        policy: Acts; it is the service's own from now on.
        cfg: Limits.
        title: What is served, for people.

    Attributes:
        metrics: What it counts.
        max_body: Most bytes of a request's body.
        stopping: Whether it is about to end, which readiness tells.
        under_way: Requests that are being read or answered.
        answered: Requests that were answered.
        lost: Requests that were not, since the server had to end.
    """

    def __init__(self, policy: LoadedPolicy, cfg: ServeConfig, title: str = "") -> None:
        self.policy, self.cfg, self.title = policy, cfg, title or "A policy"
        self.messages = Messages(policy.facts, cfg.max_batch)
        self.max_body = min(cfg.max_body, self.messages.largest)
        self.stopping, self._batcher, self._reader = False, None, None
        self.under_way = self.answered = self.lost = 0
        self.metrics = Metrics(lambda: self.waiting, lambda: self.under_way)
        self._bodies, self._schema = BodyReader(cfg, self.max_body), self.messages.schema()
        self._schema_text = json.dumps(self._schema)
        self._page = make_page(self.title, policy, self._schema, cfg.token is not None)

    _batcher: Batcher | None
    _reader: RequestReader | None

    @property
    def waiting(self) -> int:
        """Observations that wait for a pass."""
        return self._batcher.waiting if self._batcher else 0

    def warm_up(self) -> None:
        """Make passes of one and of many, since an engine's first may take long."""
        passes, observation = Passes(self.policy), example(self.policy.facts.observation)
        ask = self.messages.read(json.dumps({"observation": observation}).encode())
        for count in (1, self.cfg.max_batch):
            passes.answer([ask] * count)

    @contextlib.asynccontextmanager
    async def running(self, app: object = None) -> AsyncIterator[None]:
        """Passes are made within."""
        self._batcher = Batcher(self.policy, self.cfg, self.metrics.note_pass)
        self._reader = RequestReader(self.messages, self.max_body, self.cfg.timeout)
        try:
            yield
        finally:
            self.stopping = True
            self._reader.close()
            await self._batcher.close()

    # ------------------------------------------------------------------ endpoints

    async def act(self, request: Request) -> Response:
        """Actions for the observations of a body."""
        assert self._reader is not None, "act is called within running()"
        ask = await self._reader.read(await self._bodies.read(request))
        answer = await self._answer(request, ask)
        return Response(self.messages.write(ask, answer), media_type="application/json")

    async def _answer(self, request: Request, ask: Ask) -> Answer:
        assert self._batcher is not None, "act is called within running()"
        future = self._batcher.submit(ask)
        try:
            done, _ = await asyncio.wait((future,), timeout=PATIENCE)
            if not done:
                await self._outlast(request, future)
            return future.result()
        except (UnansweredError, HTTPException, ClientDisconnect):
            raise
        except Exception as error:
            reason = f"policy: it failed ({type(error).__name__}); the server's log has more."
            raise HTTPException(500, reason) from error
        finally:
            future.cancel()

    async def _outlast(self, request: Request, future: asyncio.Future[Answer]) -> None:
        """Wait on, as long as the client does."""
        gone: asyncio.Future[Any] = asyncio.ensure_future(request.receive())
        left = max(self.cfg.timeout - PATIENCE, 0.0)
        try:
            waited: set[asyncio.Future[Any]] = {future, gone}
            await asyncio.wait(waited, timeout=left, return_when="FIRST_COMPLETED")
        finally:
            gone.cancel()
        if future.done():
            return
        if gone.done():
            raise ClientDisconnect
        raise HTTPException(504, f"policy: no answer in {self.cfg.timeout:g} s.", RETRY)

    async def schema(self, request: Request) -> Response:
        """JSON Schema of requests and answers."""
        return Response(self._schema_text, media_type="application/schema+json")

    async def health(self, request: Request) -> Response:
        """Whether it takes requests."""
        full = self.waiting >= self.cfg.max_queue
        status = "stopping" if self.stopping else "full" if full else "ready"
        status = status if self._alive else "stuck"
        tree = {"status": status, "engine": self.policy.name, "waiting": self.waiting}
        return _json(tree, 200 if status == "ready" else 503)

    async def live(self, request: Request) -> Response:
        """Whether it works at all; if not, it should be started anew."""
        tree = {"status": "live" if self._alive else "stuck"}
        return _json(tree, 200 if self._alive else 503)

    @property
    def _alive(self) -> bool:
        return self._batcher is not None and self._batcher.alive

    async def tell_metrics(self, request: Request) -> Response:
        """What was counted, for Prometheus."""
        return Response(self.metrics.text(), headers={"Content-Type": METRICS_FORMAT})

    async def page(self, request: Request) -> Response:
        """For people."""
        base = escape(str(request.base_url).rstrip("/"))
        return HTMLResponse(self._page.replace(ADDRESS, base), headers=_PAGE_POLICY)

    def routes(self) -> list[Route]:
        """The endpoints."""
        return [
            Route("/", self.page),
            Route("/act", self.act, methods=["POST"]),
            Route("/schema", self.schema),
            Route("/health", self.health),
            Route("/health/live", self.live),
            Route("/metrics", self.tell_metrics),
        ]


def make_app(service: Service) -> ASGIApp:
    """An application for any ASGI server.

    Limits on heads and connections are the server's; `fugu.serve.server` sets them.
    """
    handlers = dict.fromkeys(_STATUSES, _tell_error)
    app = Starlette(
        routes=service.routes(),
        lifespan=service.running,
        exception_handlers={
            **handlers,
            HTTPException: _tell_refusal,
            ClientDisconnect: _tell_nobody,
        },
    )
    return _Counted(_Guarded(app, service.cfg), service)


def make_refusal(service: Service, status: int, reason: str) -> ASGIApp:
    """Return an application that refuses every request and ends its connection."""
    headers = CLOSE | (RETRY if status == 503 else {})
    return _Counted(_refusal(HTTPException(status, reason, headers)), service)


def _json(tree: Any, status: int, headers: Mapping[str, str] | None = None) -> Response:
    # ASCII, since what is told may hold what UTF-8 has no bytes for.
    return Response(json.dumps(tree), status, headers, "application/json")


async def _tell_error(request: Request, error: Exception) -> Response:
    status = _STATUSES[type(error)]
    field = error.field if isinstance(error, FieldError) else str(error).partition(":")[0]
    headers = RETRY if status == 503 else None
    return _json({"error": str(error), "field": field}, status, headers)


async def _tell_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refusal(error)


def _refusal(error: HTTPException) -> Response:
    field = error.detail.partition(":")[0] if ":" in error.detail else None
    tree = {"error": error.detail, "field": field}
    return _json(tree, error.status_code, error.headers)


async def _tell_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=GONE)


class _Guarded:
    """Passes on the requests of those who may ask."""

    def __init__(self, app: ASGIApp, cfg: ServeConfig) -> None:
        self._app, self._cfg = app, cfg

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                check_access(scope, self._cfg)
            except HTTPException as error:
                await _refusal(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class _Counted:
    """Counts the requests of an application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._paths = frozenset(route.path for route in service.routes())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        service, began, status = self._service, time.monotonic(), 0
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if service.stopping:
                    headers = [*message["headers"], (b"connection", b"close")]
                    message = {**message, "headers": headers}
            await send(message)

        service.under_way += 1
        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:  # the server must end
            service.lost += 1
            if not status:
                told = _json({"error": "server: it ends.", "field": None}, 503, CLOSE | RETRY)
                await told(scope, receive, note)
        finally:
            service.under_way -= 1
            service.answered += status not in (0, GONE)
            service.metrics.note_request(path, status or 500, time.monotonic() - began)
