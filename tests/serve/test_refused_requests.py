"""Requests that a server refuses: malformed, too large, of another kind, or too many at once."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import FIVE, JSON, PATIENCE, Place, ask, gated, load_kind, serving, until

from fugu.serve import app


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ('{"observation": [0.1, NaN, 0, 0, 0]}', 422, "observation[1]"),
        ('{"observation": [0.1, Infinity, 0, 0, 0]}', 422, "observation[1]"),
        ('{"observation": [0.1, 1e999, 0, 0, 0]}', 422, "observation[1]"),
        ('{"observation": [0.1, 1e39, 0, 0, 0]}', 422, "observation[1]"),
        ('{"observation": [0.1]}', 422, "observation"),
        ('{"observation": null}', 422, "observation"),
        ('{"observations": [[0, 0, 0, 0, 0], [0, 0, "x", 0, 0]]}', 422, "observations[1][2]"),
        ('{"observations": [' + "[0,0,0,0,0]," * 8 + "[0,0,0,0,0]]}", 422, "observations"),
        ('{"observation": [0, 0, 0, 0, 0], "mask": [1]}', 422, "mask"),
        ('{"observation": [0, 0, 0, 0, 0], "state": "AAAA"}', 422, "state"),
        ('{"observation": [0, 0, 0, 0, 0], "seed": NaN}', 422, "seed"),
        ('{"observation": [0, 0, 0, 0, 0], "greedily": true}', 422, "greedily"),
        ('{"observation": [3e38, -3e38, 3e38, 3e38, 3e38]}', 422, "observation"),
        ('{"\\ud800": 1, "\\ud800": 2}', 422, "\ud800"),
        ('{"seed": 1, "seed": 2}', 422, "seed"),
        ("{}", 422, "observation"),
        ("3", 422, "body"),
        ("", 400, "body"),
        ("{", 400, "body"),
        ("[" * 1900, 400, "body"),
        ("1" * 1900, 422, "body"),
        ('{"observation": ' + "9" * 1900 + "}", 422, "observation"),
    ],
)
def test_malformed_requests_are_told_where(
    place: Place, body: str, status: int, field: str
) -> None:
    told = place.act(body)
    assert (told.status, told.json["field"]) == (status, field), told.body
    assert told.json["error"].startswith(field)
    assert "expected" in told.json["error"]
    assert "got" in told.json["error"]
    assert place.act({"observation": FIVE}).status == 200


def test_bodies_that_are_too_large_are_refused(place: Place) -> None:
    for size in (2001, 25_000):
        told = place.act(b" " * size)
        assert (told.status, told.json["field"]) == (413, "body"), told.body
        assert told.headers["connection"] == "close"
    connection = place.connect()
    connection.request("POST", "/act", iter([b" " * 500] * 50), JSON, encode_chunked=True)
    told = connection.getresponse()
    assert told.status == 413
    assert json.loads(told.read())["error"] == "body: expected at most 2000 bytes; got more."
    connection.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_not_listened_to_forever(place: Place, chunked: bool) -> None:
    """Past what is read and forgotten the connection ends, whether or not the client has heard."""
    parts, sent = 100_000, 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(parts):
            sent += 1
            yield b" " * 500

    connection = place.connect()
    headers = JSON if chunked else {**JSON, "Content-Length": str(parts * 500)}
    with pytest.raises(ConnectionError):
        connection.request("POST", "/act", endless(), headers, encode_chunked=chunked)
    assert sent < parts
    with contextlib.suppress(ConnectionError):
        assert connection.getresponse().status == 413
    connection.close()
    assert place.act({"observation": FIVE}).status == 200


def test_too_many_bodies_at_a_time_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_BODIES", 0.5)
    told = place.act(b" " * 1001)
    assert (told.status, told.headers["retry-after"]) == (503, "1")
    assert place.act({"observation": FIVE}).status == 200  # what was held is let go
    assert place.act({"observation": FIVE}).status == 200


def test_a_body_that_waits_to_be_asked_for_is_refused_before_it_comes(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        head = "POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: 99999\r\nExpect: 100-continue\r\n\r\n".encode())
        told = b"".join(iter(lambda: client.recv(4096), b""))
    assert told.startswith(b"HTTP/1.1 413 ")


def test_other_kinds_of_bodies_paths_and_methods_are_refused(place: Place) -> None:
    body = json.dumps({"observation": FIVE})
    for headers, field in [
        ({"Content-Type": "text/plain"}, "Content-Type"),
        ({"Content-Encoding": "gzip"}, "Content-Encoding"),
    ]:
        told = place.act(body, **headers)
        assert (told.status, told.json["field"]) == (415, field)
    assert place.ask("GET", "/nowhere").status == 404
    assert place.ask("GET", "/act").status == 405
    assert place.ask("POST", "/schema", "{}").status == 405
    assert place.act(body, **{"Content-Type": "application/json; charset=utf-8"}).status == 200


def test_more_than_may_wait_are_told_to_come_again() -> None:
    policy, engine = gated()
    with (
        serving(policy, max_batch=1, max_queue=2, max_wait_ms=0) as place,
        ThreadPoolExecutor(3) as threads,
    ):
        asked = [threads.submit(place.act, {"observation": FIVE}) for _ in range(1)]
        assert engine.entered.acquire(timeout=PATIENCE)
        asked += [threads.submit(place.act, {"observation": FIVE}) for _ in range(2)]
        until(lambda: place.service.waiting == 2)
        told = place.act({"observation": FIVE})
        assert (told.status, told.headers["retry-after"]) == (503, "1")
        assert told.json["field"] == "queue"
        assert place.ask("GET", "/health").json["status"] == "full"
        assert place.ask("GET", "/health").status == 503
        assert place.ask("GET", "/health/live").status == 200
        engine.gate.set()
        assert [future.result(PATIENCE).status for future in asked] == [200] * 3
        assert place.ask("GET", "/health").status == 200


def test_more_connections_than_may_be_are_refused() -> None:
    with serving(load_kind("mlp"), max_connections=3) as place:
        held = [place.connect() for _ in range(3)]
        for connection in held:
            assert ask(connection, "POST", "/act", {"observation": FIVE}).status == 200
        told = place.ask("GET", "/health")
        assert (told.status, told.json["field"]) == (503, "connections")
        assert (told.headers["retry-after"], told.headers["connection"]) == ("1", "close")
        held.pop().close()
        until(lambda: place.ask("GET", "/health").status == 200)
        assert ask(held[0], "POST", "/act", {"observation": FIVE}).status == 200
        for connection in held:
            connection.close()
