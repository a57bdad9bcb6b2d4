"""Errors that clients get as answers."""

from __future__ import annotations

import json
from typing import Any

from fugu.core.errors import FuguError

MAX_SHOWN = 60  # characters of a value or a name in an error


class RequestError(FuguError, ValueError):
    """A request that is refused.

    Attributes:
        status: HTTP status of the answer.
        field: Part of the request at fault, such as `observation.position[1]`.
        problem: What is wrong with it.
        close: Whether the connection is closed, since the rest of the request is not read.
    """

    def __init__(self, status: int, field: str, problem: str, close: bool = False) -> None:
        self.status, self.field, self.problem, self.close = status, field, problem, close
        super().__init__(f"{field}: {problem}")

    def __reduce__(self) -> tuple[type[RequestError], tuple[int, str, str, bool]]:
        return RequestError, (self.status, self.field, self.problem, self.close)


def mismatch(field: str, expected: str, got: Any) -> RequestError:
    """Return the error for a field that holds something other than expected."""
    return RequestError(422, field, f"expected {expected}; got {got}.")


def show(value: Any) -> str:
    """Return a value as JSON, shortened."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} items"
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def subfield(field: str, key: str) -> str:
    """Return the field of a key in the object at `field`.

    >>> subfield("observation", "position"), subfield("observation", "left wheel")
    ('observation.position', 'observation["left wheel"]')
    """
    key = key[:MAX_SHOWN]
    if not key.isidentifier():
        return f"{field}[{json.dumps(key)}]"
    return f"{field}.{key}" if field else key
