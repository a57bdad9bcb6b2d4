"""Leaves by name: how rows reach engines that take an array for each part of an observation."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fugu.nets.net import Place
from fugu.spaces import Layout, Leaf

Named = dict[str, Leaf]


def named_leaves(layout: Layout, whole: str) -> Named:
    """The leaves of a layout by name: `whole` for one at the top, else `whole/path`.

    >>> from gymnasium import spaces
    >>> layout = Layout.of(spaces.Dict(gear=spaces.Discrete(5), at=spaces.Box(-1, 1, (2,))))
    >>> list(named_leaves(layout, "observation"))
    ['observation/gear', 'observation/at']
    """
    return {f"{whole}/{leaf.path}" if leaf.path else whole: leaf for leaf in layout.leaves}


def split_rows(leaves: Named, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Each leaf of rows `[batch, size]`, `[batch, *its shape]`: views, where they can be."""
    if len(leaves) == 1:
        ((name, leaf),) = leaves.items()
        return {name: rows.reshape(len(rows), *leaf.shape)}
    raw = rows.view("uint8")
    return {
        name: raw[:, leaf.offset : leaf.offset + leaf.nbytes]
        .view(leaf.dtype)
        .reshape(len(rows), *leaf.shape)
        for name, leaf in leaves.items()
    }


def leaves_at(leaves: Named, place: Place, count: int) -> list[str]:
    """The leaves of which a place and its `count` numbers consist, side by side."""
    end = place.offset + count * place.dtype.itemsize
    found = [
        name
        for name, leaf in leaves.items()
        if place.offset <= leaf.offset and leaf.offset + leaf.nbytes <= end and leaf.nbytes
    ]
    assert sum(leaves[name].nbytes for name in found) == end - place.offset
    assert all(leaves[name].dtype == place.dtype for name in found)
    return found
