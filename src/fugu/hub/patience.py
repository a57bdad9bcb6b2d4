"""Requests to the Hub that end: asked again where that may help, and never waited for in vain.

huggingface_hub itself repeats uploads of large files, what comes before them, and downloads that
break off; it does not repeat commits, the making of repositories and branches, questions about
them, and downloads that are refused for a moment. None of its requests has a limit of time but
downloads.
"""

from __future__ import annotations

import importlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("fugu.hub")

TRIES = 5
FIRST_WAIT = 0.5  # seconds before the second try, and twice as many before each further one
LONGEST_WAIT = 60.0  # seconds, if the Hub itself says when to come again
SILENCE = {"connect": 10.0, "read": 120.0, "write": 120.0, "pool": 120.0}  # seconds
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


def http_library() -> Any:
    """What huggingface_hub speaks HTTP with: httpx, or httpx2 since its version 2."""
    session = importlib.import_module("huggingface_hub").get_session()
    return importlib.import_module(type(session).__module__.partition(".")[0])


@contextmanager
def limited() -> Iterator[None]:
    """Let requests of huggingface_hub fail where nothing comes for long."""
    library = importlib.import_module("huggingface_hub.utils._http")
    default = library.default_client_factory
    made: Callable[[], Any] = getattr(library, "_GLOBAL_CLIENT_FACTORY", default)  # the caller's

    def make_client() -> Any:
        client = made()
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "request": [*hooks["request"], _limit]}
        return client

    library.set_client_factory(make_client)
    try:
        yield
    finally:
        library.set_client_factory(made)


def _limit(request: Any) -> None:
    given = request.extensions.get("timeout") or {}
    request.extensions["timeout"] = {
        name: seconds if given.get(name) is None else given[name]
        for name, seconds in SILENCE.items()
    }


def repeated(call: Callable[[], T]) -> T:
    """What a call gives; one that fails for the moment is made again, after longer and longer."""
    wait = FIRST_WAIT
    for left in reversed(range(TRIES)):
        try:
            return call()
        except Exception as error:
            if not left or not _is_transient(error):
                raise
            pause = max(wait, _asked_wait(error))
            log.warning("%s; trying again in %.1f s", _first_line(error), pause)
        time.sleep(pause)
        wait *= 2
    raise AssertionError("unreachable")


def _is_transient(error: Exception) -> bool:
    response = getattr(error, "response", None)
    if response is not None:
        return response.status_code in TRANSIENT
    if isinstance(error, json.JSONDecodeError):  # a page of some gateway, and not the Hub's answer
        return True
    return isinstance(error, http_library().TransportError)


def _asked_wait(error: Exception) -> float:
    headers = getattr(getattr(error, "response", None), "headers", {})
    asked = headers.get("retry-after", "")
    return min(float(asked), LONGEST_WAIT) if asked.isdigit() else 0.0


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
