"""Who may ask a server: under which names, from which pages, and with which token."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from serving import FIVE, PATIENCE, Place, load_kind, serving

from fugu.core.errors import UsageError
from fugu.serve import ServeConfig
from fugu.serve.app import is_allowed_host

TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def guarded() -> Any:
    """A server with a token and a name."""
    with serving(load_kind("mlp"), token=TOKEN, allow_host=("Robot.example",)) as place:
        yield place


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True), ("LOCALHOST:80", True), ("127.0.0.1:8000", True), ("[::1]:8000", True),
        ("10.0.0.7", True), ("robot.example", True), ("ROBOT.example:99", True),
        ("attacker.example", False), ("localhost.attacker.example", False),
        ("127.0.0.1.attacker.example", False), ("robot.example.attacker.example", False),
        ("localhost@attacker.example", False), ("attacker.example#localhost", False), ("", False),
        ("localhost:80:80", False), ("[localhost", False), ("localhost/", False), ("::1", False),
    ],
)  # fmt: skip
def test_names_of_hosts(host: str, allowed: bool) -> None:
    assert is_allowed_host(host, ("robot.example",)) == allowed
    assert is_allowed_host("attacker.example", ("*",))


def test_another_host_is_refused_wherever_it_asks(place: Place) -> None:
    """A page that gave the server's address a name of its own must read nothing."""
    for method, path in [("GET", "/"), ("GET", "/schema"), ("GET", "/health"), ("POST", "/act")]:
        body = {"observation": FIVE} if method == "POST" else None
        told = place.ask(method, path, body, Host="attacker.example")
        assert (told.status, told.json["field"]) == (421, "Host")
        assert "attacker.example" in told.json["error"]
        assert "--allow-host" in told.json["error"]
    assert place.act({"observation": FIVE}, Host="localhost").status == 200


def test_a_name_is_allowed_by_a_setting(guarded: Place) -> None:
    assert guarded.ask("GET", "/health", Host="robot.example").status == 200
    assert guarded.ask("GET", "/health", Host="attacker.example").status == 421


@pytest.mark.parametrize("lines", [b"", b"Host: localhost\r\nHost: attacker.example\r\n"])
def test_a_request_names_one_host(place: Place, lines: bytes) -> None:
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n" + lines + b"\r\n")
        told = b"".join(iter(lambda: client.recv(4096), b""))
    assert told.startswith((b"HTTP/1.1 421 ", b"HTTP/1.1 400 "))


def test_pages_of_other_sites_are_refused(guarded: Place, place: Place) -> None:
    here = f"127.0.0.1:{place.port}"
    for origin in ("http://attacker.example", "null", "http://localhost:1", f"http://{here}0"):
        told = place.act({"observation": FIVE}, Origin=origin)
        assert (told.status, told.json["field"]) == (403, "Origin"), origin
        assert place.ask("GET", "/health", Origin=origin).status == 403
    told = place.act({"observation": FIVE}, Origin=f"http://{here}")
    assert told.status == 200
    assert not any(name.startswith("access-control-") for name in told.headers)
    assert guarded.ask("GET", "/health", Origin="https://robot.example").status == 200


def test_a_browser_may_not_ask_ahead(place: Place) -> None:
    """The request that a browser sends before one from another site finds no consent."""
    told = place.ask("OPTIONS", "/act", **{"Access-Control-Request-Method": "POST"})
    assert told.status == 405
    assert not any(name.startswith("access-control-") for name in told.headers)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN,
     "Bearer \xe9\xff", f"Bearer {TOKEN} {TOKEN}"],
)  # fmt: skip
def test_without_the_token_nothing_is_told(guarded: Place, header: str) -> None:
    headers = {"Authorization": header} if header else {}
    for path in ("/", "/schema", "/metrics", "/act", "/nowhere", "/health/", "//health"):
        method, body = ("POST", {"observation": FIVE}) if path == "/act" else ("GET", None)
        told = guarded.ask(method, path, body, **headers)
        assert (told.status, told.json["field"]) == (401, "Authorization"), path
        assert told.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in told.body.decode()


def test_with_the_token_all_is_told(guarded: Place) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} {TOKEN}"}
        assert guarded.act({"observation": FIVE}, **headers).status == 200
        page = guarded.ask("GET", "/", **headers).body.decode()
        assert "Authorization: Bearer" in page
        assert TOKEN not in page
    assert guarded.ask("GET", "/health").status == 200  # probes have no token
    assert guarded.ask("GET", "/health/live").status == 200


@pytest.mark.parametrize("token", ["", "short", "with spaces in it, many", "x" * 20 + "\n"])
def test_tokens_that_will_not_do_are_refused(token: str) -> None:
    with pytest.raises(UsageError, match="^token: expected at least 16"):
        ServeConfig(token=token)


@pytest.mark.parametrize("host", ["", "http://robot.example", "robot.example:80", "*.example"])
def test_names_that_will_not_do_are_refused(host: str) -> None:
    with pytest.raises(UsageError, match="^allow_host: expected names"):
        ServeConfig(allow_host=(host,))


def test_settings_do_not_show_the_token() -> None:
    assert TOKEN not in repr(ServeConfig(token=TOKEN))
