"""State as JSON, with the numbers that JSON lacks, and dataclasses from JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from fugu.core.errors import UsageError, nearest_names
from fugu.core.files import parse_json

T = TypeVar("T")
_FLOAT = "$float"


def dump(document: Mapping[str, Any]) -> bytes:
    """Return a document as strict JSON; UsageError names what cannot be written.

    >>> load(dump({"best": float("-inf"), "steps": (1, 2)}))
    {'best': -inf, 'steps': [1, 2]}
    """
    try:
        plain = _plain(document, "")
        return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()
    except RecursionError:
        raise UsageError("given what is nested too deeply; allowed: some levels.") from None


def load(text: bytes) -> Any:
    """Return what `dump` was given, with lists for tuples; ValueError for what is no JSON."""
    found = parse_json(text, _restore)
    if b"\\u" in text:  # half a character of two, which nothing can show or write
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _plain(value: Any, path: str) -> Any:
    """Return the value in plain types only: nothing may change silently on the way."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _unwritable(f"{path}{key}", f"the key {key!r}", "keys of text")
        return {key: _plain(inner, f"{path}{key}.") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, f"{path}{index}.") for index, inner in enumerate(value)]
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a scalar of NumPy
        return _plain(value.item(), path)
    raise _unwritable(path.removesuffix("."), f"a {type(value).__name__}", "what JSON has")


def _unwritable(path: str, given: str, allowed: str) -> UsageError:
    return UsageError(f"given {given} at {path!r}; allowed: {allowed}. Arrays belong into tensors.")


def _restore(entry: dict[str, Any]) -> Any:
    if entry.keys() != {_FLOAT}:
        return entry
    if not isinstance(entry[_FLOAT], str):
        raise ValueError(f"given {_FLOAT} with no text; allowed: a number's")
    return float(entry[_FLOAT])


# ------------------------------------------------------------------ dataclasses


def parse(kind: type[T], given: Any, place: str) -> T:
    """Return an instance of a dataclass from JSON; errors name the place.

    Its fields are texts, numbers, literals, mappings of text to text, other dataclasses, tuples of
    such, or None.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Point:
    ...     x: float
    >>> parse(Point, {"x": 1}, "line 3")
    Point(x=1.0)
    """
    if not isinstance(given, Mapping):
        raise _refused(place, given, "an object")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in given:
        if key not in fields:
            (nearest,) = nearest_names(key, fields)
            raise UsageError(f"{place}: given the key {key!r}; nearest allowed: {nearest!r}.")
    for name, field in fields.items():
        if name not in given and field.default is field.default_factory is dataclasses.MISSING:
            raise UsageError(f"{place}: the key {name!r} is missing; allowed: {', '.join(fields)}.")
    return kind(
        **{name: _value(hints[name], value, f"{place}.{name}") for name, value in given.items()}
    )


def plain(value: Any) -> Any:
    """Return a dataclass as JSON, without what is None or empty and may be left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        entries = {}
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            required = field.default is field.default_factory is dataclasses.MISSING
            if required or (inner is not None and inner != () and inner != {} and inner != ""):
                entries[field.name] = plain(inner)
        return entries
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return value


def _value(hint: Any, given: Any, place: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):  # of something and None
        if given is None:
            return None
        (inner,) = [option for option in arguments if option is not type(None)]
        return _value(inner, given, place)
    if origin is Literal:
        if given not in arguments:
            raise _refused(place, given, ", ".join(map(repr, arguments)))
        return given
    if origin is tuple:
        if not isinstance(given, list | tuple):
            raise _refused(place, given, "a list")
        return tuple(_value(arguments[0], x, f"{place}[{i}]") for i, x in enumerate(given))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(given, Mapping):
            raise _refused(place, given, "an object")
        return {
            _scalar(str, key, f"{place} key"): _scalar(str, value, f"{place}.{key}")
            for key, value in given.items()
        }
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return parse(hint, given, place)
    return _scalar(hint, given, place)


def _scalar(hint: Any, given: Any, place: str) -> Any:
    if hint is str and isinstance(given, str):
        return given
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if hint is float and number and math.isfinite(given):
        return float(given)
    if hint is int and number and isinstance(given, int):
        return given
    raise _refused(place, given, {str: "text", float: "a number", int: "a whole number"}[hint])


def _refused(place: str, given: Any, allowed: str) -> UsageError:
    shown = repr(given)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return UsageError(f"{place}: given {shown}; allowed: {allowed}.")
