"""A server by itself: a policy that hangs or fails, how it stops, and what else it tells."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import FIVE, PATIENCE, Place, ask, gated, load_kind, serving, until

from fugu.core.errors import UsageError
from fugu.export import LoadedPolicy
from fugu.serve import ServeConfig, batching, server


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
    assert (place.service.metrics.lost, place.service.metrics.under_way) == (0, 0)


def test_a_second_signal_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "CLOSE_SECONDS", 0.1)
    policy, engine = gated()
    with ThreadPoolExecutor(1) as threads:
        with serving(policy, max_wait_ms=0) as place:
            asked = threads.submit(place.act, {"observation": FIVE})
            assert engine.entered.acquire(timeout=PATIENCE)
            place.stop()
            place.stop()
            told = asked.result(PATIENCE)
            assert (told.status, told.json["error"]) == (
                503,
                "server: it ends before it has an answer.",
            )
        engine.gate.set()
    assert (place.service.metrics.lost, place.service.metrics.under_way) == (1, 0)


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
        {"max_body_mb": 0},
    ],
)
def test_limits_that_will_not_do_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"^{next(iter(limits))}: .*(expected|allowed)"):
        ServeConfig(**limits)


def test_addresses_that_will_not_do_are_refused() -> None:
    with server.open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="--port 0 chooses"):
            server.open_socket("127.0.0.1", port)
    for host, port in (("127.0.0.1", 70_000), ("no.such.host.invalid", 0), ("192.0.2.1", 0)):
        with pytest.raises(UsageError, match="expected"):
            server.open_socket(host, port)
