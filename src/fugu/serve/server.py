"""The server: sockets, limits on slow and greedy clients, and an end that answers all requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import struct
import threading
from collections.abc import Iterator
from types import FrameType
from typing import ClassVar

from fugu.core.errors import MissingExtraError, UsageError
from fugu.serve.app import Service, make_app
from fugu.serve.config import ServeConfig

try:
    import uvicorn
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "uvicorn", "serve") from error

BACKLOG = 1024
MAX_HEAD = 65_536  # bytes
MAX_OVERHEAD = 1_000_000  # bytes of a request beside its body: sizes of chunks, trailers
MAX_REFUSED = 64  # connections beyond `max_connections` that still get an answer
MAX_PIPELINED = 16  # requests that a client sends before it has read the answers
MARGIN = 5.0  # seconds beyond a request's, before its connection is cut
GRACE = 1.0  # seconds to send a last answer


class LimitedProtocol(HttpToolsProtocol):
    """HTTP connections that end where a client is too slow, or sends too much.

    uvicorn itself waits forever for the rest of a head and for a client that does not read, and
    accepts any number of pipelined requests.

    Attributes:
        cfg: Limits.
        deadline: Time of the event loop at which the connection is cut.
    """

    cfg: ClassVar[ServeConfig]
    deadline = 0.0
    _phase = ""
    _left = 0  # bytes that may still come in this phase, without those of bodies
    _large_head = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to read a head."""
        super().connection_made(transport)
        if len(self.connections) > self.cfg.max_connections + MAX_REFUSED:
            transport.abort()
            return
        # asyncio does so only for sockets that were made with the protocol's number.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._enter("head", self.cfg.read_timeout)

    def data_received(self, data: bytes) -> None:
        """Read what came, within the limits."""
        if self._phase == "idle":
            self._enter("head", self.cfg.read_timeout)
        self._left -= len(data)
        if self._phase != "refused":
            super().data_received(data)
        if self._under_way:
            self._enter_request()
        if self._left < 0 and self._phase == "head":
            self._large_head = True
            self.send_400_response("")
        elif self._left < 0:
            self.cut()

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is too large or too many are pipelined."""
        head = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._large_head = head > MAX_HEAD
        too_many = len(self.pipeline) >= MAX_PIPELINED
        if too_many or (self._large_head and self._under_way):
            self.cut()  # an answer would be taken for that of another request
        if too_many or self._large_head:
            raise ConnectionAbortedError  # the parser stops, and send_400_response is called
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or a head that is too large."""
        if self._under_way or self.transport.is_closing():
            super().send_400_response(msg)
            return
        status, tree = 400, {"error": msg, "field": None}
        if self._large_head:
            problem = f"head: expected at most {MAX_HEAD} bytes; got more."
            status, tree = 431, {"error": problem, "field": "head"}
        body = json.dumps(tree).encode()
        head = b"Content-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.write_eof()
        self._enter("refused", GRACE)  # if it were closed at once, the answer might get lost

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, unless nobody reads it."""
        if not self.cycle.response_complete:
            self._left += len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        """Wait for the next request, or answer the one that is here already."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._enter("idle", self.cfg.keep_alive)
            if self._under_way:
                self._enter_request()

    @property
    def _under_way(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _enter_request(self) -> None:
        self._enter("request", self.cfg.read_timeout + self.cfg.timeout + MARGIN)

    def _enter(self, phase: str, seconds: float) -> None:
        if phase != self._phase:
            self._phase, self.deadline = phase, self.loop.time() + seconds
            self._left = MAX_HEAD if phase == "head" else MAX_OVERHEAD

    def cut(self) -> None:
        """End the connection, and drop what the client has not read."""
        if self.transport.get_write_buffer_size():
            now = struct.pack("ii", 1, 0)  # or the system would still offer it
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        self.transport.abort()


class Server(uvicorn.Server):
    """Serves until a signal comes: ends at the first once all is answered, at the second at once.

    Args:
        service: Service of a policy.
    """

    def __init__(self, service: Service) -> None:
        cfg = service.cfg
        config = uvicorn.Config(
            make_app(service),
            http=type("Protocol", (LimitedProtocol,), {"cfg": cfg}),
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
        super().__init__(config)
        self._service = service
        service.connections = self.server_state.connections

    def run_on(self, listener: socket.socket) -> bool:
        """Serve at a socket, close it, and return whether all requests have been answered."""
        with listener:
            self.run(sockets=[listener])
        return not self._service.metrics.lost and not self._service.metrics.under_way

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Cut connections whose time is up; called ten times a second."""
        now = self._loop.time()
        for connection in [*self.server_state.connections]:
            if isinstance(connection, LimitedProtocol) and connection.deadline < now:
                connection.cut()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        again, self.should_exit = self.should_exit, True
        self._service.stopping = True
        if again and self.started:
            self._loop.call_soon_threadsafe(self._give_up)

    def _give_up(self) -> None:
        """Tell clients that still wait that there will be no answer."""
        for task in self.server_state.tasks:
            task.cancel()
        for connection in self.server_state.connections:
            self._loop.call_later(GRACE, connection.transport.abort)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 chooses a free one."""
    if not 0 <= port <= 65_535:
        raise UsageError(f"port: expected 0 to 65535, where 0 chooses one; got {port}.")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            "host, port: expected an address of this machine and a free port; got "
            f"{host}, {port} ({error}). --port 0 chooses one."
        ) from error


def url_of(listener: socket.socket) -> str:
    """Return the address at which a socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def freeze_memory() -> None:
    """Exempt all objects that this process has by now from garbage collections.

    With torch imported, a full collection stops the process for a tenth of a second. What requests
    leave behind is collected as before. Only for a process that serves and does nothing else.
    """
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def serve_in_background(service: Service, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve in a thread, and yield the address; in the end, all requests are answered."""
    server, listener = Server(service), open_socket(host, port)
    thread = threading.Thread(target=server.run_on, args=(listener,))
    url = url_of(listener)
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()
