"""Checks of the arrays that kernels take, with errors that say what is wrong."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fugu.core.errors import UsageError
from fugu.core.machine import usable_cores

Shape: TypeAlias = tuple[int, ...]


def describe(value: Any) -> str:
    """Describe `value` in a few words."""
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    return f"{type(value).__name__}"


def refuse(name: str, given: str, allowed: str, advice: str = "") -> UsageError:
    """Return the error for a wrong argument.

    >>> print(refuse("gamma", "2.0", "0 to 1"))
    gamma: given 2.0; allowed: 0 to 1.
    """
    return UsageError(f"{name}: given {given}; allowed: {allowed}." + (f" {advice}" * bool(advice)))


def take(name: str, value: Any, dtype: DTypeLike, shape: Shape, what: str = "") -> NDArray[Any]:
    """Return `value`, an array of this dtype and shape; `what` names the axes in errors."""
    wanted = np.dtype(dtype)
    if isinstance(value, np.ndarray) and value.dtype == wanted and value.shape == shape:
        return tidy(value)
    axes = f" {what}" if what else ""
    cast = isinstance(value, np.ndarray) and value.dtype != wanted
    advice = f"Convert it with .astype(np.{wanted})." if cast else ""
    raise refuse(name, describe(value), f"a {wanted} array of shape {shape}{axes}", advice)


def take_flags(name: str, value: Any, shape: Shape, what: str = "") -> NDArray[np.uint8]:
    """Return `value`, an array of bool or uint8 with this shape, as bytes; nonzero is true."""
    if isinstance(value, np.ndarray) and value.dtype == np.bool_:
        value = value.view(np.uint8)
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape == shape:
        return tidy(value)
    axes = f" {what}" if what else ""
    raise refuse(name, describe(value), f"a bool or uint8 array of shape {shape}{axes}")


def take_out(
    name: str, value: Any, dtype: DTypeLike, shape: Shape, *, contiguous: bool = True
) -> NDArray[Any]:
    """Return an array to write into, a new one if `value` is None."""
    if value is None:
        return np.empty(shape, dtype)
    array = take(name, value, dtype, shape)
    copied = id(array) != id(value)
    if copied or not array.flags.writeable:
        raise refuse(name, "an array that cannot be written in place", "a writeable, aligned array")
    if contiguous and not array.flags.c_contiguous:
        raise refuse(name, "an array that is not contiguous", "a C-contiguous array")
    return array


def apart(name: str, array: NDArray[Any], /, **inputs: NDArray[Any] | None) -> None:
    """Raise if `array` may share memory with an input, which would be overwritten early."""
    for other, source in inputs.items():
        if source is not None and np.may_share_memory(array, source):
            advice = "Give it memory of its own."
            raise refuse(name, f"an array that overlaps {other}", "one apart from it", advice)


def tidy(array: NDArray[Any]) -> NDArray[Any]:
    """Return `array`, or a copy if its items are not aligned."""
    size = array.itemsize
    if array.flags.aligned and all(stride % size == 0 for stride in array.strides):
        return array
    return np.ascontiguousarray(array)


def count_threads(threads: int) -> int:
    """Return the number of threads to use: all usable cores if 0."""
    if threads < 0:
        raise refuse("threads", f"{threads}", "0 for all cores, or how many")
    return threads or usable_cores()
