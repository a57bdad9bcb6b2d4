"""Any tree of values, declared or not: its leaves, and fingerprints of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import PackError
from fugu.native.nodes import join
from fugu.spaces import Layout

Fingerprint = dict[str, int]
"""A hash of each leaf, by its path."""


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree of dicts, tuples and lists, with their paths.

    >>> list(leaves_of({"a": (1, 2), "b": "x"}))
    [('a/0', 1), ('a/1', 2), ('b', 'x')]
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves_of(item, join(path, key))
    elif isinstance(value, tuple | list):
        for i, item in enumerate(value):
            yield from leaves_of(item, join(path, i))
    else:
        yield path, value


def arrays_of(value: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """The leaves that are arrays."""
    return ((path, leaf) for path, leaf in leaves_of(value) if isinstance(leaf, np.ndarray))


def fingerprint(value: Any) -> Fingerprint:
    """A hash of each leaf of any tree; equal data have equal ones within one process."""
    return {path: _hash(leaf) for path, leaf in leaves_of(value)}


def packed_fingerprint(layout: Layout, row: NDArray[Any]) -> Fingerprint:
    """A hash of each leaf of a packed row."""
    raw = row.view(np.uint8)
    return {
        leaf.path: hash(raw[leaf.offset : leaf.offset + leaf.nbytes].tobytes())
        for leaf in layout.leaves
    }


def try_pack(layout: Layout | None, value: Any) -> NDArray[Any] | None:
    """The value as a row of its own, or None if it does not fit."""
    if layout is None:
        return None
    row = layout.zeros()
    try:
        layout.pack(value, row)
    except PackError:
        return None
    return row


def name_leaf(path: str, what: str = "the observation") -> str:
    """A leaf in words."""
    return f"'{path}'" if path else what


def _hash(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray | np.generic | bool | int | float):
        array = np.asarray(leaf)
        if array.dtype != object:
            return hash((array.dtype.str, array.shape, array.tobytes()))
        return hash((array.shape, str(array.dtype)))
    if isinstance(leaf, str | bytes):
        return hash(leaf)
    # The text of an unknown object may hold its address, which differs from run to run.
    return hash(type(leaf).__qualname__)
