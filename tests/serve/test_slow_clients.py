"""Clients that stall, drip, do not read or go away: they are cut off, and others do not notice."""

from __future__ import annotations

import json
import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import FIVE, JSON, PATIENCE, Place, gated, load_kind, serving, until

from fugu.serve import server


def hangs_up(client: socket.socket) -> bytes:
    """What comes until the server ends the connection, which it must."""
    client.settimeout(PATIENCE)
    told = b""
    try:
        while part := client.recv(65_536):
            told += part
    except ConnectionResetError:
        pass
    return told


def write_until_cut_off(client: socket.socket, data: bytes, pause: float = 0.0) -> None:
    for _ in range(100_000):
        try:
            client.sendall(data)
        except ConnectionError:
            return
        time.sleep(pause)
    raise AssertionError("the server took it all")


HEAD = b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"POST /act HTTP/1.1\r\nHost:", b""),
        (HEAD + b"Content-Length: 99\r\n\r\n{", b"HTTP/1.1 408 "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", b"HTTP/1.1 408 "),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT", b"HTTP/1.1 200 "),
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
    ],
)
def test_a_client_that_stalls_is_cut_off(sent: bytes, told: bytes) -> None:
    with (
        serving(load_kind("mlp"), read_timeout=0.3, keep_alive=0.5) as place,
        socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client,
    ):
        client.sendall(sent)
        assert place.act({"observation": FIVE}).status == 200  # others do not notice
        assert hangs_up(client)[: len(told) or 1] == told


def test_an_endless_head_is_cut_off(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        write_until_cut_off(client, b"x: " + b"y" * 1000 + b"\r\n")
    assert place.act({"observation": FIVE}).status == 200


def test_a_client_that_drips_its_head_is_cut_off() -> None:
    with (
        serving(load_kind("mlp"), read_timeout=0.3) as place,
        socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n")
        write_until_cut_off(client, b"x", pause=0.02)  # no byte is late after the one before


@pytest.mark.parametrize("requests", [1, 2])
def test_a_client_that_does_not_read_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    monkeypatch.setattr(server, "MARGIN", 0.2)
    limits = {"read_timeout": 0.2, "timeout": 0.2, "keep_alive": 0.4}
    with (
        serving(load_kind("mlp"), "x" * 20_000_000, **limits) as place,
        socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * requests)
        ends = select.poll()
        ends.register(client, 0)  # errors and ends alone
        assert ends.poll(PATIENCE * 1000)
        assert len(hangs_up(client)) < 20_000_000
        assert place.act({"observation": FIVE}).status == 200


def test_a_client_that_sends_on_without_reading_is_cut_off(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        write_until_cut_off(client, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000)
    few = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        client.sendall(
            few + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert hangs_up(client).count(b"HTTP/1.1 200 ") == 6


def test_a_client_that_goes_takes_its_request_along() -> None:
    policy, engine = gated()
    with serving(policy, max_batch=1, max_wait_ms=0) as place, ThreadPoolExecutor(1) as threads:
        first = threads.submit(place.act, {"observation": FIVE})
        assert engine.entered.acquire(timeout=PATIENCE)
        gone = place.connect()
        gone.request("POST", "/act", json.dumps({"observation": FIVE}), JSON)
        until(lambda: place.service.waiting == 1)
        gone.close()
        until(lambda: place.service.waiting == 0)  # it is noticed before its turn comes
        engine.gate.set()
        assert first.result(PATIENCE).status == 200
        assert place.act({"observation": FIVE}).status == 200
        assert engine.sizes == [1, 1]
        assert 'status="499"' in place.ask("GET", "/metrics").body.decode()
