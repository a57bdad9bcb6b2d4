"""Every part of a request has a limit: its head, its body, its chunks, and connections at all."""

from __future__ import annotations

import contextlib
import json
import socket
from math import prod
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from serving import BY_NAME, FIVE, PATIENCE, Place, as_client, load_kind, serving, until

from fugu import Layout
from fugu.core.errors import PackError
from fugu.serve import server
from fugu.serve.layout_types import value_of
from fugu.serve.messages import Messages
from fugu.serve.server import MAX_HEAD

POST = b"POST /act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def answered(client: socket.socket) -> bytes:
    """What comes until the server ends the connection, which it must."""
    client.settimeout(PATIENCE)
    told = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65_536):
            told += part
    return told


def exchanged(place: Place, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(sent)
        return answered(client)


# ---------------------------------------------------------------------- heads


@pytest.mark.parametrize("size", [70_000, 100_000, 1_000_000])
@pytest.mark.parametrize("part", ["address", "header", "headers"])
def test_heads_above_the_limit_are_refused(place: Place, size: int, part: str) -> None:
    address = b"/health?" + b"x" * size if part == "address" else b"/health"
    more = {
        "address": b"",
        "header": b"X: " + b"y" * size + b"\r\n",
        "headers": b"X: y\r\n" * (size // 6),
    }[part]
    end = b"Connection: close\r\n\r\n"
    head = b"GET " + address + b" HTTP/1.1\r\nHost: localhost\r\n" + more + end
    assert exchanged(place, head).startswith(b"HTTP/1.1 431 ")
    assert place.act({"observation": FIVE}).status == 200


def test_heads_below_the_limit_are_read(place: Place) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
    head += b"y" * (MAX_HEAD - len(head) - 4)
    assert exchanged(place, head + b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "lengths",
    [b"Content-Length: 2\r\nContent-Length: 3\r\n", b"Content-Length: 2\r\nContent-Length: 2\r\n",
     b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: 2, 2\r\n",
     b"Content-Length: -2\r\n", b"Content-Length: 99999999999999999999\r\n",
     b"Transfer-Encoding: chunked, identity\r\n"],
)  # fmt: skip
def test_lengths_that_can_be_read_in_two_ways_are_refused(place: Place, lengths: bytes) -> None:
    assert exchanged(place, POST + lengths + b"\r\n{}").startswith(b"HTTP/1.1 400 ")


# ---------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"5;", b"x" * 1000),  # the extension of a chunk
        (b"0\r\n", b"x: " + b"y" * 1000 + b"\r\n"),  # trailers
        (b"0\r\nx: ", b"y" * 1000),
        (b"", b"1\r\n \r\n" * 200),  # chunks that are mostly sizes
    ],
)
def test_what_surrounds_a_body_does_not_go_on_forever(
    place: Place, begin: bytes, more: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        client.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + begin)
        with contextlib.suppress(ConnectionError):
            for _ in range(100_000):
                client.sendall(more)
            raise AssertionError("the server took it all")
    assert place.act({"observation": FIVE}).status == 200


@pytest.mark.parametrize("body", [b"zz\r\n{}\r\n", b"2\r\n{}xx\r\n", b"-1\r\n"])
def test_malformed_chunks_are_refused(
    place: Place, body: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert exchanged(place, head + body).startswith(b"HTTP/1.1 400 ")
    assert place.act({"observation": FIVE}).status == 200
    assert capfd.readouterr().err == ""


def test_a_large_head_behind_another_request_ends_the_connection(place: Place) -> None:
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    told = exchanged(place, first + b"\r\n" + first + b"X: " + b"y" * 70_000 + b"\r\n\r\n")
    assert b"431" not in told.partition(b"HTTP/1.1 200 ")[0]
    assert place.act({"observation": FIVE}).status == 200


@pytest.mark.parametrize("name", list(BY_NAME))
@pytest.mark.parametrize("indent", [None, 1])
def test_what_a_policy_can_take_has_room(name: str, indent: int | None) -> None:
    policy, space = load_kind(name), BY_NAME[name].observation
    messages, found = Messages(policy.facts, 8), []
    space.seed(3)
    while len(found) < 8:
        value = space.sample()
        with contextlib.suppress(PackError):  # a sequence that is too long
            policy.facts.observation.pack(value, policy.facts.observation.zeros())
            found.append(as_client(space, value))
    choices = policy.sampler.num_choices
    body = {
        "observations": found,
        "states": ["A" * (-(-policy.facts.state_size * 4 // 3) * 4)] * 8,
        "masks": [[False] * choices] * 8,
        "agents": [2**31 - 1] * 8,
        "rewards": [-1.7976931348623157e308] * 8,
        "greedy": False,
        "seed": 2**63 - 1,
    }
    assert len(json.dumps(body, indent=indent)) <= messages.largest


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(-np.inf, np.inf, (3, 2), np.float64), [[-1.7976931348623157e308] * 2] * 3),
        (spaces.Box(-128, 127, (2, 2, 2), np.int8), [[[-128] * 2] * 2] * 2),
        (spaces.MultiBinary((2, 3)), [[0] * 3] * 2),
        (spaces.Text(5), "\N{GRINNING FACE}"),
        (spaces.Discrete(7, start=-(10**9)), -(10**9)),
        (spaces.Dict({"\N{SNOWMAN} key": spaces.Discrete(2)}), {"\N{SNOWMAN} key": 1}),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(300))), [1, 299]),
        (spaces.Sequence(spaces.Discrete(2000)), [1999] * 5),
    ],
)
def test_the_longest_values_fit(space: Any, value: Any) -> None:
    assert len(json.dumps(value)) <= value_of(Layout.of(space, limits=5)).size


def test_a_body_is_as_large_as_its_policy_needs() -> None:
    """Small observations make small bodies, whatever `max_body` would allow."""
    with serving(load_kind("mlp"), max_batch=64) as place:
        most = place.service.max_body
        assert most < 100_000
        told = place.act(b" " * (most + 1))
        assert told.status == 413
        assert told.json["error"] == f"body: expected at most {most} bytes; got {most + 1}."
        assert place.act({"observations": [FIVE] * 64}).status == 200
        padded = json.dumps({"observations": [[-1.7976931348623157e30] * 5] * 64}).ljust(most)
        assert place.act(padded).status == 200
    shape = BY_NAME["nature"].observation.shape
    assert shape is not None
    images = Messages(load_kind("nature").facts, 64).largest
    assert 64 * 5 * prod(shape) < images < 64 * 20 * prod(shape)


# ---------------------------------------------------------------------- connections


def test_connections_far_beyond_the_limit_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_REFUSED", 2)
    with serving(load_kind("mlp"), max_connections=3, read_timeout=PATIENCE) as place:
        here = ("127.0.0.1", place.port)
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(here)) for _ in range(5)]
            told = []
            for _ in range(5):
                client = stack.enter_context(socket.create_connection(here, PATIENCE))
                told.append(answered(client))
            assert told == [b""] * 5
            held[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert held[0].recv(100).startswith(b"HTTP/1.1 503 ")
        until(lambda: place.act({"observation": FIVE}).status == 200)
