"""Leaves: the typed arrays that a layout is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space


@dataclass(frozen=True)
class Leaf:
    """One typed array at a fixed place in every row of a layout.

    Attributes:
        path: Keys and indices from the top, joined by slashes; empty if the space is one leaf.
        dtype: Type of its numbers.
        shape: Its shape, the slots of enclosing sequences first.
        offset: Byte offset in the row, a multiple of the type's size.
        space: The space of one item: the environment's own, or a synthetic one for the lengths,
            masks and indices that a layout adds.
    """

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    space: Space[Any]

    @property
    def nbytes(self) -> int:
        """Bytes the leaf takes in a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
