"""Large requests are read in another process: others do not wait, whatever becomes of it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from serving import BY_NAME, PATIENCE, Place, load_kind, serving, until

from fugu.core.machine import is_running
from fugu.serve import app
from fugu.serve.messages import LARGE

IMAGES = [np.full((44, 40, 3), i, np.uint8) for i in range(8)]
LISTS = {"observations": [image.tolist() for image in IMAGES]}
SMALL = {"observation": base64.b64encode(IMAGES[0].tobytes()).decode()}


@pytest.fixture
def images() -> Iterator[Place]:
    with serving(load_kind("nature")) as place:
        yield place


def child_of(place: Place) -> int:
    """The process that reads, once it is there."""
    service = place.service
    until(lambda: service._reader is not None and service._reader._child is not None)
    assert service._reader is not None
    assert service._reader._child is not None
    return service._reader._child.pid


def test_large_and_small_requests_have_the_same_answers(images: Place) -> None:
    assert BY_NAME["nature"].observation.shape == (44, 40, 3)
    packed = {"observations": [base64.b64encode(image.tobytes()).decode() for image in IMAGES]}
    told = [images.act(body) for body in (LISTS, packed)]
    assert [each.status for each in told] == [200, 200]
    assert told[0].json == told[1].json
    alone = images.act(SMALL).json
    assert alone["action"] == told[0].json["actions"][0]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"observations": [LISTS["observations"][0][:-1]] * 8}, 422, "observations[0]"),
        ("[" * (LARGE + 1), 400, "body"),
        (b"\xff" * (LARGE + 1), 400, "body"),
        ('{"observation": ' + "9" * (LARGE + 1) + "}", 400, "body"),
        ('{"seed": 1, "seed": 2' + " " * LARGE + "}", 422, "seed"),
    ],
)
def test_large_requests_that_are_malformed_are_told_where(
    images: Place, body: Any, status: int, field: str
) -> None:
    told = images.act(body)
    assert (told.status, told.json["field"]) == (status, field), told.body
    assert images.act(LISTS).status == 200


def test_others_do_not_wait_for_a_large_request() -> None:
    with serving(load_kind("nature"), timeout=5.0) as place:
        until(lambda: place.act(LISTS).status == 200)
        child = child_of(place)
        os.kill(child, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(2) as threads:
                large = [threads.submit(place.act, LISTS) for _ in range(2)]
                until(lambda: place.service.metrics.under_way == 2)
                assert place.act(SMALL).status == 200
                assert not any(each.done() for each in large)
                assert [each.result(PATIENCE).status for each in large] == [503] * 2
        finally:
            with contextlib.suppress(ProcessLookupError):  # it was ended, since it took too long
                os.kill(child, signal.SIGCONT)
        until(lambda: place.act(LISTS).status == 200)


def test_bodies_that_wait_to_be_read_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(LISTS).encode()
    monkeypatch.setattr(app, "MAX_BODIES", 1.5 * len(body) / 8e6)
    with serving(load_kind("nature"), timeout=5.0) as place, ThreadPoolExecutor(1) as threads:
        until(lambda: place.act(body).status == 200)
        os.kill(child_of(place), signal.SIGSTOP)
        waiting = threads.submit(place.act, body)
        until(lambda: place.service._held == len(body))
        told = place.act(body)
        assert (told.status, told.headers["retry-after"]) == (503, "1")
        assert told.json["error"].startswith("body: too many others are being read")
        assert waiting.result(PATIENCE).status == 503  # after its time
        until(lambda: place.act(body).status == 200)


def test_a_reader_that_is_killed_is_replaced(images: Place) -> None:
    assert images.act(LISTS).status == 200
    child = child_of(images)
    os.kill(child, signal.SIGKILL)
    until(lambda: images.act(LISTS).status == 200)
    assert child_of(images) != child


def test_the_reader_ends_with_the_server() -> None:
    with serving(load_kind("nature")) as place:
        child = child_of(place)
        os.kill(child, signal.SIGSTOP)
    until(lambda: not is_running(child))


def test_small_policies_have_no_reader() -> None:
    with serving(load_kind("mlp")) as place:
        assert place.service.max_body < LARGE
        assert place.act({"observation": [0.0] * 5}).status == 200
        assert place.service._reader is not None
        assert place.service._reader._child is None
