"""States of environments as bytes: plain values as JSON, and the states that environments give."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from fugu.core.errors import EnvError, UsageError

_KINDS = "biufc"  # of arrays and NumPy's numbers
_MARK = b"fugu-env"
_SIZE = struct.Struct("<Q")
_PAIRS = (("state", "set_state"), ("get_state", "set_state"))
_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)  # whose state is known


class ReplayError(EnvError):
    """An episode played again did not lead to where it had led."""


def to_json(value: Any, *, strict: bool = False) -> str:
    """Return `value` as JSON text; what has no place there as its `repr`, or refused if `strict`.

    >>> from_json(to_json({"length": 3, "where": (1.5, None), 7: np.float32(0.1)}))
    {'length': 3, 'where': (1.5, None), 7: np.float32(0.1)}
    >>> from_json(to_json([len]))
    ['<built-in function len>']
    """
    return json.dumps(_plain(value, strict))


def from_json(text: str) -> Any:
    """Return the value that `to_json` was given."""
    return _value(json.loads(text))


def _plain(value: Any, strict: bool) -> Any:
    """Return a value of JSON; every list begins with its type, so that nothing is ambiguous."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _KINDS:
        kind = "array" if isinstance(value, np.ndarray) else "number"
        text = base64.b64encode(value.tobytes()).decode()
        return [kind, value.dtype.str, list(value.shape), text]
    if isinstance(value, Mapping):
        items = [[_plain(key, strict), _plain(item, strict)] for key, item in value.items()]
        return ["dict", items]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_plain(item, strict) for item in value]]
    if strict:
        raise UsageError(
            f"given {value!r} of type {type(value).__qualname__}; allowed, where an episode is to "
            "be begun again: numbers, text, arrays, and lists, tuples and dicts of them."
        )
    return repr(value)


def _value(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    kind, content, *rest = plain
    if kind == "dict":
        return {_value(key): _value(item) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_value(item) for item in content]
        return items if kind == "list" else tuple(items)
    shape, text = rest
    array = np.frombuffer(base64.b64decode(text), np.dtype(content)).reshape(shape)
    return array.copy() if kind == "array" else array[()]


def join_state(header: Mapping[str, Any], parts: list[bytes]) -> bytes:
    """Join a header of plain values and parts of bytes; bytes after them are ignored."""
    text = to_json({**header, "sizes": [len(part) for part in parts]}).encode()
    return b"".join([_MARK, _SIZE.pack(len(text)), text, *parts])


def split_state(state: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and the parts that `join_state` was given."""
    start = len(_MARK) + _SIZE.size
    if len(state) < start or not state.startswith(_MARK):
        raise UsageError(
            f"set_state: given {len(state)} bytes that are no state of an emulated environment; "
            "allowed: what state() of the same environment gave."
        )
    end = start + _SIZE.unpack_from(state, len(_MARK))[0]
    header = from_json(state[start:end].decode())
    parts = []
    for size in header.pop("sizes"):
        parts.append(state[end : end + size])
        end += size
    return header, parts


class SourceState:
    """The state that an environment gives and takes as bytes, with the time limits around it."""

    def __init__(
        self, get: Callable[[], Any], put: Callable[[bytes], Any], limits: list[Any]
    ) -> None:
        self._get, self._put, self._limits = get, put, limits

    @classmethod
    def of(cls, source: Any) -> SourceState | None:
        """Return that of `source`, or of what it wraps if the wrappers keep nothing but time."""
        limits: list[Any] = []
        while True:
            for get, put in _PAIRS:  # of its class: some wrappers pass on what is below them
                if hasattr(type(source), get) and hasattr(type(source), put):
                    return cls(getattr(source, get), getattr(source, put), limits)
            if not isinstance(source, _TRANSPARENT):
                return None
            if isinstance(source, TimeLimit):
                limits.append(source)
            source = source.env

    def works(self) -> bool:
        """Whether it gives bytes; many things are called a state."""
        try:
            return isinstance(self._get(), bytes)
        except Exception:
            return False

    def get(self) -> tuple[bytes, list[int]]:
        """Return the state, and the elapsed steps of each time limit."""
        return self._get(), [limit._elapsed_steps or 0 for limit in self._limits]

    def put(self, state: bytes, elapsed: list[int]) -> None:
        """Restore what `get` returned."""
        self._put(state)
        for limit, steps in zip(self._limits, elapsed, strict=True):
            limit._elapsed_steps = steps
