"""A real server, asked over real connections."""

from __future__ import annotations

import base64
import json
import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from serving import BY_NAME, JSON, PATIENCE, Place, as_client, ask, gated, load_kind, serving, until

from fugu import Layout
from fugu.core.errors import PackError, UsageError
from fugu.envs.contract import AgentGroup
from fugu.export import LoadedPolicy
from fugu.export.torch_engine import TorchEngine
from fugu.policies.decision_transformer import (
    DecisionTransformerPolicyConfig,
    make_decision_transformer,
)
from fugu.serve import ServeConfig, batching, bodies, server

FIVE = [0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A server of a plain policy, with small limits."""
    with serving(load_kind("mlp"), max_batch=8, max_queue=64, max_body=2000) as found:
        yield found


def samples(policy: LoadedPolicy, count: int) -> list[Any]:
    """Observations that fit."""
    layout, found = policy.facts.observation, []
    layout.space.seed(5)
    while len(found) < count:
        value = layout.space.sample()
        try:
            layout.pack(value, layout.zeros())
        except PackError:  # a sequence that is too long
            continue
        found.append(value)
    return found


def plain(value: Any) -> Any:
    """An action as JSON has it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def same(told: Any, expected: Any) -> None:
    """Compare actions, up to the rounding of a pass of another size."""
    if isinstance(expected, dict):
        assert set(told) == set(expected)
        for key in expected:
            same(told[key], expected[key])
    else:
        np.testing.assert_allclose(told, expected, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- answers


@pytest.mark.parametrize("name", list(BY_NAME))
def test_answers_are_those_of_the_policy(name: str) -> None:
    local, space = load_kind(name), BY_NAME[name].observation
    seen = samples(local, 4)
    with serving(load_kind(name)) as place:
        connection = place.connect()
        for seed, observation in enumerate(seen):
            for greedy in (True, False):
                sent = {
                    "observation": as_client(space, observation),
                    "seed": seed,
                    "greedy": greedy,
                }
                told = ask(connection, "POST", "/act", sent)
                assert told.status == 200, told.body
                action, value, state = local.act(
                    observation, greedy=greedy, random=np.random.default_rng(seed)
                )
                same(told.json["action"], plain(action))
                values = [n for n in np.ravel(told.json["value"]) if n is not None]
                if local.facts.num_critics:
                    np.testing.assert_allclose(values[0], value, rtol=1e-5, atol=1e-6)
                assert len(values) == local.facts.num_critics
                assert (told.json["state"] is None) == (state.size == 0)
        several = [as_client(space, observation) for observation in seen]
        told = ask(
            connection, "POST", "/act", {"observations": several, "greedy": False, "seed": 9}
        )
        rows = local.facts.observation.zeros(4)
        for row, observation in zip(rows, seen, strict=True):
            local.facts.observation.pack(observation, row)
        actions, *_ = local.act_rows(rows, greedy=False, random=np.random.default_rng(9))
        for one, row in zip(told.json["actions"], actions, strict=True):
            same(one, plain(local.facts.action.unpack(row)))
        connection.close()


@pytest.mark.parametrize("name", ["lstm", "gru", "mingru", "transformer", "own-critic"])
def test_episodes_of_a_policy_that_remembers(name: str) -> None:
    local, space = load_kind(name), BY_NAME[name].observation
    with serving(load_kind(name)) as place:
        connection = place.connect()
        for _ in range(2):  # episodes
            state, token = None, None
            for step, observation in enumerate(samples(local, 12)):
                sent = {"observation": as_client(space, observation), "state": token}
                sent |= {"greedy": False, "seed": step}
                told = ask(connection, "POST", "/act", sent).json
                random = np.random.default_rng(step)
                action, _, state = local.act(observation, state, greedy=False, random=random)
                same(told["action"], plain(action))
                token = told["state"]
                carried = np.frombuffer(base64.b64decode(token), "<f4")
                np.testing.assert_allclose(carried, state, rtol=1e-4, atol=1e-5)
        assert np.abs(state).max() > 0
        connection.close()


def test_rewards_reach_a_policy_that_aims_at_a_return() -> None:
    layout, actions = Layout.of(spaces.Box(-3, 3, (5,))), Layout.of(spaces.Discrete(4))
    cfg = DecisionTransformerPolicyConfig(hidden_size=16, window=4, heads=2)
    policy = make_decision_transformer(AgentGroup("agent", (0,), layout, actions), cfg).eval()
    policy.ask(10.0)  # type: ignore[operator]
    local, state, token = LoadedPolicy(TorchEngine(policy, layout)), None, None
    with serving(LoadedPolicy(TorchEngine(policy, layout))) as place:
        for step, observation in enumerate(samples(local, 8)):
            reward = 0.5 * step
            sent = {"observation": observation.tolist(), "state": token, "reward": reward}
            told = place.act(sent).json
            action, _, state = local.act(observation, state, reward=reward)
            assert (told["action"], told["value"]) == (action, None)
            token = told["state"]
            carried = np.frombuffer(base64.b64decode(token), "<f4")
            np.testing.assert_allclose(carried, state, rtol=1e-4, atol=1e-5)
        unpaid = place.act(sent | {"reward": 0.0}).json["state"]
        assert unpaid != token


def test_masks_are_held(place: Place) -> None:
    for allowed in range(4):
        mask = [i == allowed for i in range(4)]
        assert place.act({"observation": FIVE, "mask": mask}).json["action"] == allowed
    sent = {"observations": [FIVE, FIVE], "masks": [[0, 0, 0, 1], None]}
    free = place.act({"observation": FIVE}).json["action"]
    assert place.act(sent).json["actions"] == [3, free]


def test_many_at_once_are_batched_and_each_gets_its_own() -> None:
    policy, engine = gated()
    local = load_kind("mlp")
    seen = samples(local, 24)
    with serving(policy, max_batch=16) as place, ThreadPoolExecutor(len(seen)) as threads:
        asked = [threads.submit(place.act, {"observation": each.tolist()}) for each in seen]
        assert engine.entered.acquire(timeout=PATIENCE)
        until(lambda: place.service.waiting == len(seen) - engine.sizes[0])
        engine.gate.set()
        for observation, future in zip(seen, asked, strict=True):
            told = future.result(PATIENCE).json
            action, value, _ = local.act(observation)
            assert told["action"] == action
            np.testing.assert_allclose(told["value"], value, rtol=1e-5, atol=1e-6)
        passes = place.metric("fugu_serve_batch_observations_count")
        assert place.metric("fugu_serve_batch_observations_sum") == len(seen)
        assert passes <= 3
        assert max(engine.sizes) > 1


# ---------------------------------------------------------------------- what is refused


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
    assert "given" in told.json["error"]
    assert "allowed" in told.json["error"]
    assert place.act({"observation": FIVE}).status == 200


def test_bodies_that_are_too_large_are_refused(place: Place) -> None:
    for size in (2001, 25_000, 1_000_000):
        told = place.act(b" " * size)
        assert (told.status, told.json["field"]) == (413, "body"), told.body
        assert told.headers["connection"] == "close"
    parts = iter([b" " * 500] * 100)
    connection = place.connect()
    connection.request("POST", "/act", parts, JSON, encode_chunked=True)
    told = connection.getresponse()
    assert told.status == 413
    assert json.loads(told.read())["error"] == "body: given more than 2000 bytes; allowed: 2000."
    connection.close()


def test_too_many_bodies_at_a_time_are_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MOST_BODIES", 0.5)
    told = place.act(b" " * 1001)
    assert (told.status, told.headers["retry-after"]) == (503, "1")
    assert place.act({"observation": FIVE}).status == 200  # what was held is let go
    assert place.act({"observation": FIVE}).status == 200


def test_a_body_that_waits_to_be_asked_for_is_refused_before_it_comes(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        head = "POST /act HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
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


# ---------------------------------------------------------------------- slow and dead clients


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


HEAD = b"POST /act HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"POST /act HTTP/1.1\r\nHost:", b""),
        (HEAD + b"Content-Length: 99\r\n\r\n{", b"HTTP/1.1 408 "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", b"HTTP/1.1 408 "),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT", b"HTTP/1.1 200 "),
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
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * requests)
        ends = select.poll()
        ends.register(client, 0)  # errors and ends alone
        assert ends.poll(PATIENCE * 1000)
        assert len(hangs_up(client)) < 20_000_000
        assert place.act({"observation": FIVE}).status == 200


def test_a_client_that_sends_on_without_reading_is_cut_off(place: Place) -> None:
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        write_until_cut_off(client, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000)
    few = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 5
    with socket.create_connection(("127.0.0.1", place.port), PATIENCE) as client:
        client.sendall(few + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
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


def test_a_pass_that_hangs_is_told_and_not_waited_for() -> None:
    policy, engine = gated()
    with serving(policy, timeout=0.3, max_wait_ms=0) as place:
        told = place.act({"observation": FIVE})
        assert told.status == 504
        until(lambda: place.ask("GET", "/health/live").status == 503)
        assert place.ask("GET", "/health").json["status"] == "stuck"
        engine.gate.set()
        assert place.act({"observation": FIVE}).status == 200
        assert place.ask("GET", "/health/live").status == 200


def is_refused(place: Place) -> bool:
    try:
        place.ask("GET", "/health")
    except ConnectionError:
        return True
    return False


def test_a_stop_answers_what_is_under_way_and_takes_no_more() -> None:
    policy, engine = gated()
    with serving(policy, max_batch=2, max_wait_ms=0) as place, ThreadPoolExecutor(8) as threads:
        idle = place.connect()
        assert ask(idle, "GET", "/health").json["status"] == "ready"
        asked = [threads.submit(place.act, {"observation": FIVE}) for _ in range(7)]
        until(lambda: place.service.waiting + sum(engine.sizes) == 7)
        place.stop()
        until(lambda: is_refused(place))
        assert not any(future.done() for future in asked)
        with pytest.raises(ConnectionError):
            ask(idle, "GET", "/health")
        engine.gate.set()
        told = [future.result(PATIENCE) for future in asked]
        assert [each.status for each in told] == [200] * 7
        assert {each.headers["connection"] for each in told} == {"close"}
    assert (place.service.lost, place.service.under_way) == (0, 0)


def test_a_second_signal_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "PARTING", 0.1)
    policy, engine = gated()
    with ThreadPoolExecutor(1) as threads:
        with serving(policy, max_wait_ms=0) as place:
            asked = threads.submit(place.act, {"observation": FIVE})
            assert engine.entered.acquire(timeout=PATIENCE)
            place.stop()
            place.stop()
            told = asked.result(PATIENCE)
            assert (told.status, told.json["error"]) == (503, "server: it ends.")
        engine.gate.set()
    assert (place.service.lost, place.service.under_way) == (1, 0)


class BrokenEngine:
    """Fails at every pass."""

    def __init__(self, policy: LoadedPolicy) -> None:
        self.facts = policy.facts

    def forward(self, rows: Any, state: Any) -> Any:
        raise UsageError("a secret")


def test_a_policy_that_fails_is_a_fault_of_the_server() -> None:
    with serving(LoadedPolicy(BrokenEngine(load_kind("mlp")))) as place:
        told = place.act({"observation": FIVE})
        assert (told.status, told.json["field"]) == (500, "policy")
        assert "secret" not in told.json["error"]
        assert place.ask("GET", "/health").status == 200


# ---------------------------------------------------------------------- what else it tells


def test_the_schema_the_page_and_the_metrics(place: Place) -> None:
    schema = place.ask("GET", "/schema")
    assert schema.headers["content-type"] == "application/schema+json"
    assert place.act(schema.json["examples"][0]).status == 200
    page = place.ask("GET", "/").body.decode()
    assert f"curl http://127.0.0.1:{place.port}/act -H" in page
    assert "&quot;minItems&quot;: 5" in page
    before = place.metric('fugu_serve_requests_total{path="/act",status="200"}')
    place.act({"observation": FIVE})
    assert place.metric('fugu_serve_requests_total{path="/act",status="200"}') == before + 1
    assert place.metric("fugu_serve_queue_observations") == 0
    place.ask("GET", "/a/path/of/my/own")
    text = place.ask("GET", "/metrics").body.decode()
    assert "my/own" not in text  # or anybody could make it grow
    assert 'fugu_serve_request_seconds_bucket{le="0.001",path="/act"}' in text
    health = place.ask("GET", "/health").json
    assert health == {"status": "ready", "engine": "torch", "waiting": 0}


@pytest.mark.parametrize(
    "limits",
    [
        {"max_batch": 0},
        {"max_batch": 10**6, "max_queue": 10**7},
        {"max_queue": 3},
        {"max_wait_ms": -1},
        {"timeout": float("nan")},
        {"read_timeout": float("inf")},
        {"max_body": 0},
    ],
)
def test_limits_that_will_not_do_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(limits))}: given .* allowed: "):
        ServeConfig(**limits)


def test_addresses_that_will_not_do_are_refused() -> None:
    with server.open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="--port 0 chooses"):
            server.open_socket("127.0.0.1", port)
    for host, port in (("127.0.0.1", 70_000), ("no.such.host.invalid", 0), ("192.0.2.1", 0)):
        with pytest.raises(UsageError, match="allowed:"):
            server.open_socket(host, port)
    assert server.is_loopback("127.0.0.1")
    assert server.is_loopback("::1")
    assert server.is_loopback("localhost")
    assert not server.is_loopback("0.0.0.0")
