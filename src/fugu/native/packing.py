"""Packers: they move values into flat rows and back by the nodes of a layout."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.native.nodes import Node
from fugu.native.packing_reference import ReferencePacker

if native.available:
    from fugu._native import Packer as NativePacker


class Packer(Protocol):
    """Moves values into flat rows and back."""

    def pack(self, value: Any, out: NDArray[Any], /) -> None:
        """Write `value` into the row `out`."""
        raise NotImplementedError("pack(value, out)")

    def unpack(self, row: NDArray[Any], copy: bool = False, /) -> Any:
        """The value that stands in `row`, its arrays views of it unless `copy`."""
        raise NotImplementedError("unpack(row, copy)")


def make_packer(root: Node, dtype: np.dtype[Any], size: int, *, use_native: bool = True) -> Packer:
    """The native packer of `root`, or the reference where the extension is missing."""
    reference = ReferencePacker(root, dtype, size)
    if not (native.available and use_native):
        return reference
    return NativePacker(
        root,
        dtype,
        size,
        reference.clears,
        reference.pack_node,
        reference.unpack_node,
        reference.refuse_row,
    )
