"""Arrays of a request: nested lists of numbers, or base64 of their bytes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.serve.fields import FieldError, show

Bounds = tuple[NDArray[Any] | None, NDArray[Any] | None]


def read_numbers(
    dtype: np.dtype[Any], shape: tuple[int, ...], bounds: Bounds, value: Any, field: str
) -> NDArray[Any]:
    """An array from nested lists, or from base64 of its bytes, little-endian and row by row."""
    if isinstance(value, str) and shape:
        found = read_bytes(dtype, int(np.prod(shape)), value, field).reshape(shape)
        flat: list[Any] = []
    else:
        flat = _flatten(value, shape, field)
        found = _numbers(dtype, shape, flat, field).reshape(shape)
    _check_numbers(found, bounds, flat, field)
    return found


def read_bytes(dtype: np.dtype[Any], count: int, value: str, field: str) -> NDArray[Any]:
    """So many numbers from base64 of their bytes."""
    allowed = f"base64 of the {count * dtype.itemsize} bytes of {count} {dtype}, little-endian"
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FieldError(field, f"{show(value)} ({error})", allowed) from None
    if len(raw) != count * dtype.itemsize:
        raise FieldError(field, f"base64 of {len(raw)} bytes", allowed)
    if dtype.kind == "b" and max(raw, default=0) > 1:
        raise FieldError(field, "a byte above 1", f"{allowed}, each 0 or 1")
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)


def _flatten(value: Any, shape: tuple[int, ...], field: str) -> list[Any]:
    """The numbers of nested lists, in order."""
    flat = [value]
    for axis, side in enumerate(shape):
        if not (set(map(type, flat)) <= {list} and set(map(len, flat)) <= {side}):
            at = next(i for i, item in enumerate(flat) if not _is_list(item, side))
            sides = " x ".join(map(str, shape[axis:]))
            base = ", or base64 of their bytes" if not axis else ""
            given = f"{len(flat[at])} items" if isinstance(flat[at], list) else show(flat[at])
            raise FieldError(
                _at(field, at, shape[:axis]), given, f"a list of {sides} numbers{base}"
            )
        flat = list(chain.from_iterable(flat))
    return flat


def _is_list(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count


def _numbers(
    dtype: np.dtype[Any], shape: tuple[int, ...], flat: list[Any], field: str
) -> NDArray[Any]:
    kinds = set(map(type, flat))
    if dtype.kind == "b":
        if not kinds <= {bool}:
            raise _wrong(flat, shape, field, lambda n: not isinstance(n, bool), "true or false")
        return np.array(flat, dtype)
    if not kinds <= {int, float}:
        word = "an integer" if dtype.kind in "iu" else "a number"
        raise _wrong(flat, shape, field, lambda n: type(n) not in (int, float), word)
    if dtype.kind == "f":
        return _floats(dtype, shape, flat, field)
    return _integers(dtype, shape, flat, field, kinds)


def _floats(
    dtype: np.dtype[Any], shape: tuple[int, ...], flat: list[Any], field: str
) -> NDArray[Any]:
    try:
        wide = np.array(flat, np.float64)
    except OverflowError:  # an integer of hundreds of digits
        most = int(np.finfo(np.float64).max)
        raise _wrong(flat, shape, field, lambda n: abs(n) > most, "a finite number") from None
    with np.errstate(over="ignore"):
        found = wide.astype(dtype)
    beyond = np.isfinite(wide) & ~np.isfinite(found)
    if beyond.any():
        at = int(beyond.argmax())
        allowed = f"a number of {dtype}, up to {np.finfo(dtype).max}"
        raise FieldError(_at(field, at, shape), show(flat[at]), allowed)
    return found


def _integers(
    dtype: np.dtype[Any], shape: tuple[int, ...], flat: list[Any], field: str, kinds: set[type]
) -> NDArray[Any]:
    if float in kinds:
        if not all(map(_is_whole, flat)):
            raise _wrong(flat, shape, field, lambda n: not _is_whole(n), "an integer")
        flat = list(map(int, flat))
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    if flat and not low <= min(flat) <= max(flat) <= high:
        allowed = f"an integer from {low} to {high}"
        raise _wrong(flat, shape, field, lambda n: not low <= n <= high, allowed)
    return np.array(flat, dtype)


def _is_whole(number: int | float) -> bool:
    return isinstance(number, int) or number.is_integer()


def _check_numbers(found: NDArray[Any], bounds: Bounds, flat: list[Any], field: str) -> None:
    """Raise for what is not finite or out of bounds."""
    values, (low, high) = found.reshape(-1), bounds
    if found.dtype.kind == "f" and not np.isfinite(values).all():
        at = int(np.isfinite(values).argmin())
        raise FieldError(_at(field, at, found.shape), show(float(values[at])), "a finite number")
    if low is None or high is None:
        return
    inside = (values >= low) & (values <= high)
    if not inside.all():
        at = int(inside.argmin())
        word = "an integer from " if found.dtype.kind in "iu" else ""
        given = show(flat[at] if flat else values[at].item())
        raise FieldError(_at(field, at, found.shape), given, f"{word}{low[at]} to {high[at]}")


def _wrong(
    flat: list[Any],
    shape: tuple[int, ...],
    field: str,
    is_wrong: Callable[[Any], bool],
    allowed: str,
) -> FieldError:
    """What to say of the first number that is wrong."""
    at, given = next((i, item) for i, item in enumerate(flat) if is_wrong(item))
    return FieldError(_at(field, at, shape), show(given), allowed)


def _at(field: str, index: int, shape: tuple[int, ...]) -> str:
    places = np.unravel_index(index, shape) if shape else ()
    return field + "".join(f"[{int(i)}]" for i in places)
