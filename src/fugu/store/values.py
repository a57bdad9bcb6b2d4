"""State as JSON: what it may hold, and how numbers that JSON lacks are written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fugu.core.errors import UsageError
from fugu.core.files import parse_json

_FLOAT = "$float"


def dump(document: Mapping[str, Any]) -> bytes:
    """A document as strict JSON; UsageError names what cannot be written.

    >>> load(dump({"best": float("-inf"), "steps": (1, 2)}))
    {'best': -inf, 'steps': [1, 2]}
    """
    try:
        plain = _plain(document, "")
        return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()
    except RecursionError:
        raise UsageError("given what is nested too deeply; allowed: some levels.") from None


def load(text: bytes) -> Any:
    """What `dump` was given, with lists for tuples; ValueError for what is no JSON."""
    found = parse_json(text, _restore)
    if b"\\u" in text:  # half a character of two, which nothing can show or write
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _plain(value: Any, path: str) -> Any:
    """The value of plain types only, for nothing may change silently on the way."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _refused(f"{path}{key}", f"the key {key!r}", "keys of text")
        return {key: _plain(inner, f"{path}{key}.") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{path}{index}.") for index, inner in enumerate(value)]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy
        return _plain(value.item(), path)
    raise _refused(path.removesuffix("."), f"a {type(value).__name__}", "what JSON has")


def _refused(path: str, given: str, allowed: str) -> UsageError:
    return UsageError(f"given {given} at {path!r}; allowed: {allowed}. Arrays belong into tensors.")


def _restore(entry: dict[str, Any]) -> Any:
    if entry.keys() != {_FLOAT}:
        return entry
    if not isinstance(entry[_FLOAT], str):
        raise ValueError(f"given {_FLOAT} with no text; allowed: a number's")
    return float(entry[_FLOAT])
