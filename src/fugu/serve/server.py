"""The server: sockets, patience with slow clients, and a stop that answers what is under way."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar

from fugu.core.errors import MissingExtraError, UsageError
from fugu.serve.app import Service, make_app, make_refusal
from fugu.serve.config import ServeConfig

try:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "uvicorn", "serve") from error

BACKLOG = 1024
MOST_HEAD = 65_536  # bytes
MOST_OVERHEAD = 1_000_000  # bytes of a request that are not its body's: sizes of chunks, trailers
MOST_REFUSED = 64  # connections beyond `max_connections` that are still told so
MOST_PIPELINED = 16  # requests that a client sends before it has read its answers
MARGIN = 5.0  # seconds beyond a request's, before its connection is cut
GRACE = 1.0  # seconds to write that there is no answer


class TimedProtocol(HttpToolsProtocol):
    """HTTP connections that end where a client is too slow, or sends too much.

    uvicorn itself waits forever for the rest of a head and for a client that does not read, and
    takes in whatever is pipelined.
    """

    cfg: ClassVar[ServeConfig]
    crowded: ClassVar[Any]
    large_head: ClassVar[Any]
    _timer: asyncio.TimerHandle | None = None
    _phase = ""
    _taken = 0  # bytes in this phase, without those of bodies that somebody reads
    _head = 0  # bytes of the head that is being read, or was last
    _in_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is here; its head should be soon."""
        super().connection_made(transport)
        if len(self.connections) > self.cfg.max_connections + MOST_REFUSED:
            transport.abort()
            return
        # asyncio does so only for sockets that were made with the protocol's number.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._enter("head", self.cfg.read_timeout)

    def data_received(self, data: bytes) -> None:
        """Take in what came."""
        if self._phase == "idle":
            self._enter("head", self.cfg.read_timeout)
        self._taken += len(data)
        if self._phase != "refused":
            super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._enter("request", self.cfg.read_timeout + self.cfg.timeout + MARGIN)
        if self._phase == "request":
            if self._taken > MOST_OVERHEAD:
                self._cut()
        elif self._taken > MOST_HEAD:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head, self._in_head = 0, True

    def on_url(self, url: bytes) -> None:
        """Take a part of the address in, unless the head is too large by now."""
        self._head += len(url)
        if self._head <= MOST_HEAD:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header in, or a trailer behind a body, unless the head is too large by now."""
        self._head += len(name) + len(value) + len(": \r\n")
        if self._head <= MOST_HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request begins."""
        self._in_head = False
        if len(self.pipeline) >= MOST_PIPELINED:
            self._cut()
            raise ConnectionAbortedError("too many requests are pipelined")  # ends the parsing
        if self._head > MOST_HEAD:
            self.url, self.app = b"/", self.large_head
        elif len(self.connections) > self.cfg.max_connections:
            self.app = self.crowded
        else:
            self.app = self.config.loaded_app
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body in."""
        if not self.cycle.response_complete:
            self._taken -= len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """An answer is written, or at least on its way."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._enter("idle", self.cfg.keep_alive)
            if not self.cycle.response_complete:  # the next one was here already
                self._enter("request", self.cfg.read_timeout + self.cfg.timeout + MARGIN)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _enter(self, phase: str, seconds: float) -> None:
        if phase == self._phase:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._phase, self._taken = phase, 0
        self._timer = self.loop.call_later(seconds, self._cut)

    def _refuse_head(self) -> None:
        """Tell a client that is still writing a head, or end the connection of any other."""
        if not self._in_head or self._taken > MOST_OVERHEAD:
            self._cut()
        elif self._phase != "refused":
            told = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"
            self.transport.write(told)
            self.transport.write_eof()
            self._enter("refused", GRACE)  # closed at once, the answer may get lost

    def _cut(self) -> None:
        """End the connection, and forget what the client has not taken."""
        if self.transport.get_write_buffer_size():
            now = struct.pack("ii", 1, 0)  # or the system would go on offering it
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        self.transport.abort()


class _Server(uvicorn.Server):
    """Stops at the first signal when all is answered, and at the second at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals, if that can be done in this thread; they are not raised again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        names = (signal.SIGINT, signal.SIGTERM)
        before = {name: signal.signal(name, self.handle_exit) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(name, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        again, self.should_exit = self.should_exit, True
        self._service.stopping = True
        if again and self._loop is not None:
            self._loop.call_soon_threadsafe(self._give_up)

    def _give_up(self) -> None:
        """Tell those who wait that nothing will come."""
        assert self._loop is not None
        for task in self.server_state.tasks:
            task.cancel()
        for connection in self.server_state.connections:
            self._loop.call_later(GRACE, connection.transport.abort)


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 chooses a free one."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"port: given {port}; allowed: 0 to 65535, where 0 chooses one.")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"host, port: given {host}, {port} ({error}); allowed: an address of this machine and "
            "a port that is free. --port 0 chooses one."
        ) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_of(listener: socket.socket) -> str:
    """Where a socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def freeze_memory() -> None:
    """Exempt all that this process has by now from garbage collections.

    With torch imported, a collection that looks at every object stops the process for a tenth of
    a second. What requests leave behind is collected as before; what is garbage by now, and is in
    a cycle, was collected here. Only for a process that serves and does nothing else.
    """
    gc.collect()
    gc.freeze()


def run_server(
    service: Service,
    listener: socket.socket,
    started: Callable[[uvicorn.Server], None] | None = None,
) -> bool:
    """Serve until a signal comes; whether all that was under way has been answered.

    Args:
        service: What is served.
        listener: Where; it is closed in the end.
        started: Is given the server, whose `should_exit` ends it, before it begins.
    """
    cfg = service.cfg
    limits = {
        "cfg": cfg,
        "crowded": make_refusal(
            service, 503, f"connections: expected at most {cfg.max_connections}; got more."
        ),
        "large_head": make_refusal(
            service, 431, f"head: expected at most {MOST_HEAD} bytes; got more."
        ),
    }
    protocol = type("Protocol", (TimedProtocol,), limits)
    config = uvicorn.Config(
        make_app(service),
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(cfg.keep_alive) + 1,
        timeout_graceful_shutdown=int(cfg.timeout + MARGIN) + 1,
    )
    server = _Server(config, service)
    if started is not None:
        started(server)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
    return not service.lost and not service.under_way


@contextlib.contextmanager
def serve_in_background(service: Service, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve in a thread, and give the address; all that was asked is answered in the end."""
    listener = open_socket(host, port)
    servers: list[uvicorn.Server] = []
    thread = threading.Thread(target=run_server, args=(service, listener, servers.append))
    url = url_of(listener)
    thread.start()
    try:
        yield url
    finally:
        while thread.is_alive():  # it may not have begun yet
            for server in servers:
                server.should_exit = True
            thread.join(0.1)
