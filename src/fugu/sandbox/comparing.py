"""Comparing answers with what is expected: types count, floats may differ a little."""

from __future__ import annotations

import math
from typing import Any


def same(expected: Any, given: Any, tolerance: float = 1e-6) -> bool:
    """Whether two plain values agree, in their types too.

    >>> same([1, 2.0], [1, 2.0000000001]), same((1, 2), [1, 2]), same(1, True)
    (True, False, False)
    """
    kind = type(expected)
    if kind is not type(given):
        return False
    if kind is float:
        return _close(expected, given, tolerance)
    if kind is complex:
        return _close(expected.real, given.real, tolerance) and _close(
            expected.imag, given.imag, tolerance
        )
    if kind in (list, tuple):
        return len(expected) == len(given) and all(
            same(one, other, tolerance) for one, other in zip(expected, given, strict=True)
        )
    if kind is dict:
        return _same_dicts(expected, given, tolerance)
    if kind in (set, frozenset):
        return len(expected) == len(given) and _typed(expected) == _typed(given)
    return bool(expected == given)


def _close(one: float, other: float, tolerance: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _same_dicts(expected: dict[Any, Any], given: dict[Any, Any], tolerance: float) -> bool:
    if len(expected) != len(given):
        return False
    others = {_key(key): value for key, value in given.items()}
    return all(
        _key(key) in others and same(value, others[_key(key)], tolerance)
        for key, value in expected.items()
    )


def _typed(values: set[Any] | frozenset[Any]) -> set[Any]:
    return {_key(value) for value in values}


def _key(value: Any) -> Any:
    """A key that is equal only to one of the same types all through; all nans are one."""
    if isinstance(value, tuple):
        return (tuple, tuple(_key(item) for item in value))
    if isinstance(value, frozenset):
        return (frozenset, frozenset(_key(item) for item in value))
    if isinstance(value, float) and math.isnan(value):
        return (float, "nan")
    return (type(value), value)
