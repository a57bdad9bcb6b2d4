"""Every space comes back exactly as it was: NumPy -> flat -> NumPy and flat -> torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import LIMIT, any_space, depth_of, same, value_of

from fugu.policies import unpack
from fugu.spaces import Layout

seeds = st.integers(0, 2**32 - 1)


def check_round_trip(space: Space[Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = Layout(space, limits=LIMIT)
    reference = Layout(space, limits=LIMIT, use_native=False)
    check_offsets(layout)
    rows, expected = layout.zeros(3), layout.zeros(3)
    rows[...] = rows.dtype.type(1)  # stale data must not shine through
    padding = padding_of(layout)
    rows.view(np.uint8)[:, padding] = 0
    values = [value_of(space, rng) for _ in range(3)]
    for value, row, row_expected in zip(values, rows, expected, strict=True):
        layout.pack(value, row)
        reference.pack(value, row_expected)
        assert same(layout.unpack(row), value)
        assert same(layout.unpack(row, True), value)
        assert same(reference.unpack(row), value)
    assert rows.tobytes() == expected.tobytes()
    check_trees(layout.views(rows), unpack(layout, torch.from_numpy(rows)))
    check_views(layout, rows)


def padding_of(layout: Layout) -> np.ndarray:
    used = np.zeros(layout.nbytes, bool)
    for leaf in layout.leaves:
        used[leaf.offset : leaf.offset + leaf.nbytes] = True
    return ~used


def check_offsets(layout: Layout) -> None:
    end = 0
    for leaf in layout.leaves:
        assert leaf.offset % leaf.dtype.itemsize == 0
        assert end <= leaf.offset < end + 8
        end = leaf.offset + leaf.nbytes
    assert end <= layout.nbytes < end + 8
    assert len({leaf.path for leaf in layout.leaves}) == len(layout.leaves)
    if len({leaf.dtype for leaf in layout.leaves}) == 1:
        assert layout.dtype == layout.leaves[0].dtype
        assert end == layout.nbytes


def check_trees(arrays: Any, tensors: Any) -> None:
    """The NumPy tree and the torch tree: same shape of tree, same bits, same places."""
    if isinstance(arrays, dict):
        assert list(arrays) == list(tensors)
        for key in arrays:
            check_trees(arrays[key], tensors[key])
    elif isinstance(arrays, tuple):
        assert len(arrays) == len(tensors)
        for a, t in zip(arrays, tensors, strict=True):
            check_trees(a, t)
    else:
        assert same(arrays, tensors.numpy())
        if arrays.size:
            assert arrays.ctypes.data == tensors.data_ptr()


def check_views(layout: Layout, rows: np.ndarray) -> None:
    """The views stand exactly where the leaves say."""
    found: list[tuple[int, np.dtype[Any], tuple[int, ...]]] = []
    layout.tree(lambda *place: found.append(place))
    assert sorted(found, key=str) == sorted(
        ((leaf.offset, leaf.dtype, leaf.shape) for leaf in layout.leaves), key=str
    )


@settings(max_examples=2_000)
@given(space=any_space(5), seed=seeds)
def test_any_space_round_trips(space: Space[Any], seed: int) -> None:
    check_round_trip(space, seed)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@settings(max_examples=100_000)
@given(space=any_space(5), seed=seeds)
def test_a_hundred_thousand_spaces_round_trip(space: Space[Any], seed: int) -> None:
    check_round_trip(space, seed)


def test_the_strategy_reaches_every_kind_and_depth() -> None:
    kinds, depths = set(), set()

    @settings(max_examples=500, database=None)
    @given(space=any_space(5))
    def collect(space: Space[Any]) -> None:
        depths.add(depth_of(space))
        kinds.update(type(leaf.space).__name__ for leaf in Layout.of(space, limits=LIMIT).leaves)
        kinds.update(word for word in ("Graph", "OneOf", "Sequence", "Text") if word in repr(space))

    collect()
    assert max(depths) >= 5
    assert kinds >= {
        "Box", "Discrete", "MultiDiscrete", "MultiBinary", "Graph", "OneOf", "Sequence", "Text",
    }  # fmt: skip
