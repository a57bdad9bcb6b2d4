"""The nodes of a compiled space, which hold the byte offsets of data in a flat row.

Inside a sequence every leaf is repeated, one slot per item (structure of arrays): slot `i` of a
leaf is `i` items after its offset, and sequences inside sequences multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ArrayNode:
    """A numeric array of fixed shape, bounded by `low` and `high` (flat, inclusive) if given."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class ScalarNode:
    """An integer from `low` to `high`, both included; unpacked as an `int` if `plain`."""

    path: str
    dtype: np.dtype[Any]
    offset: int
    low: int
    high: int
    plain: bool = False


@dataclass(frozen=True, eq=False)
class TextNode:
    """A string as its length, a mask and indices into its sorted alphabet.

    Without an alphabet, it is UTF-8: its bytes, and their number.
    """

    path: str
    alphabet: str | None
    min_length: int
    capacity: int
    length_offset: int
    mask_offset: int
    dtype: np.dtype[Any]
    offset: int


@dataclass(frozen=True, eq=False)
class DictNode:
    """A mapping with fixed keys."""

    path: str
    keys: tuple[Hashable, ...]
    children: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class TupleNode:
    """A tuple of fixed length."""

    path: str
    children: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class SequenceNode:
    """Up to `capacity` items of one kind; `stacked` ones are a single array, `[length, ...]`."""

    path: str
    capacity: int
    length_offset: int
    mask_offset: int
    child: Node
    stacked: bool


@dataclass(frozen=True, eq=False)
class OneOfNode:
    """`(index, value)`: one of several kinds, the others left zero."""

    path: str
    index_offset: int
    children: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class ConvertedNode:
    """A value that is converted to another before packing, and restored from it."""

    path: str
    convert: Callable[[Any, str], Any]
    restore: Callable[[Any], Any]
    child: Node


Node: TypeAlias = (
    ArrayNode
    | ScalarNode
    | TextNode
    | DictNode
    | TupleNode
    | SequenceNode
    | OneOfNode
    | ConvertedNode
)


def join(path: str, key: Hashable) -> str:
    """Return the path of `key` below `path`, escaped as in JSON pointers.

    >>> join("", "a"), join("a", 0), join("a", "b/c")
    ('a', 'a/0', 'a/b~1c')
    """
    name = str(key).replace("~", "~0").replace("/", "~1")
    return f"{path}/{name}" if path else name
