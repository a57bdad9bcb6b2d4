"""Servers in threads, clients over real connections, and values as clients write them."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray
from policy_kinds import KINDS

from fugu.export import Engine, LoadedPolicy
from fugu.inference.torch_engine import TorchEngine
from fugu.serve import ServeConfig
from fugu.serve.app import Service
from fugu.serve.server import Server, open_socket

BY_NAME = {kind.name: kind for kind in KINDS}
PATIENCE = 60.0  # seconds after which a test gives up
JSON = {"Content-Type": "application/json"}
FIVE = [0.1, 0.2, 0.3, 0.4, 0.5]  # an observation of the plain policy


def until(happens: Callable[[], object]) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def load_kind(name: str) -> LoadedPolicy:
    """A policy of a kind; each call gives an equal one."""
    return LoadedPolicy(TorchEngine(*BY_NAME[name].make()), "torch")


class GatedEngine:
    """A policy's engine whose passes wait until they are let through."""

    def __init__(self, engine: Engine) -> None:
        self.facts, self._engine = engine.facts, engine
        self.gate, self.entered, self.sizes = threading.Event(), threading.Semaphore(0), []

    def forward(self, rows: NDArray[Any], state: NDArray[np.float32]) -> Any:
        self.sizes.append(len(rows))
        self.entered.release()
        assert self.gate.wait(PATIENCE)
        return self._engine.forward(rows, state)


def gated(name: str = "mlp") -> tuple[LoadedPolicy, GatedEngine]:
    engine = GatedEngine(load_kind(name).engine)
    return LoadedPolicy(engine, "gated"), engine


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Place:
    """Where a server is, and what it serves."""

    port: int
    service: Service
    server: Server

    def stop(self) -> None:
        """What a signal does."""
        self.server.handle_exit(signal.SIGTERM, None)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request on a connection of its own; what is no text is sent as JSON."""
        connection = self.connect()
        try:
            return ask(connection, method, path, body, **headers)
        finally:
            connection.close()

    def act(self, body: Any, **headers: str) -> Reply:
        return self.ask("POST", "/act", body, **headers)

    def metric(self, name: str) -> float:
        text = self.ask("GET", "/metrics").body.decode()
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
        return float(line.split()[1])


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **more: str
) -> Reply:
    if body is not None and not isinstance(body, str | bytes):
        body = json.dumps(body)
    headers = {**(JSON if body is not None else {}), **more}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())


@contextmanager
def serving(policy: LoadedPolicy, title: str = "a test", **limits: Any) -> Iterator[Place]:
    """A server in a thread, on a free port."""
    service = Service(policy, ServeConfig(**limits), title)
    server, listener = Server(service), open_socket("127.0.0.1", 0)
    place = Place(listener.getsockname()[1], service, server)
    thread = threading.Thread(target=server.run_on, args=(listener,))
    thread.start()
    try:
        yield place
    finally:
        if not service.stopping:
            place.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def as_client(space: Space[Any], value: Any) -> Any:
    """A value of a space as a client would send it."""
    match space:
        case spaces.Dict():
            return {str(key): as_client(part, value[key]) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return [as_client(part, v) for part, v in zip(space.spaces, value, strict=True)]
        case spaces.OneOf():
            index = int(value[0])
            return {"index": index, "value": as_client(space.spaces[index], value[1])}
        case spaces.Sequence() if space.stack:
            items = iterate(space.stacked_feature_space, value)
            return [as_client(space.feature_space, item) for item in items]
        case spaces.Sequence():
            return [as_client(space.feature_space, item) for item in value]
        case spaces.Graph():
            if value.edges is None:
                return {"nodes": value.nodes.tolist()}
            edges, links = value.edges.tolist(), value.edge_links.tolist()
            return {"nodes": value.nodes.tolist(), "edges": edges, "edge_links": links}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
