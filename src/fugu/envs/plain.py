"""Values of infos and options as JSON and back: numbers, text, arrays, and trees of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from fugu.core.errors import UsageError

_KINDS = "biufc"  # of arrays and NumPy's numbers


def to_json(value: Any, *, strict: bool = False) -> str:
    """`value` as JSON text; what has no place there as its `repr`, or refused if `strict`.

    >>> from_json(to_json({"length": 3, "where": (1.5, None), 7: np.float32(0.1)}))
    {'length': 3, 'where': (1.5, None), 7: np.float32(0.1)}
    >>> from_json(to_json([len]))
    ['<built-in function len>']
    """
    return json.dumps(_plain(value, strict))


def from_json(text: str) -> Any:
    """What `to_json` was given."""
    return _value(json.loads(text))


def _plain(value: Any, strict: bool) -> Any:
    """Every list names what it stands for first, so that nothing is taken for something else."""
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
