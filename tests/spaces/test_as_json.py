"""Spaces and layouts come back from JSON as they were."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import LIMIT, any_space, value_of

from fugu.core.errors import SpaceError
from fugu.spaces import Layout
from fugu.spaces.as_json import (
    OpenText,
    layout_from_json,
    layout_to_json,
    space_from_json,
    space_to_json,
)


def strict_json(tree: Any) -> Any:
    return json.loads(json.dumps(tree, allow_nan=False))


@settings(max_examples=1_000)
@given(space=any_space(4), seed=st.integers(0, 2**32 - 1))
def test_any_layout_comes_back(space: Space[Any], seed: int) -> None:
    layout = Layout.of(space, limits=LIMIT, plain=bool(seed % 2))
    written = strict_json(layout_to_json(layout))
    again = layout_from_json(written)
    assert again == layout or "OpenText" in repr(space)  # of the strategy, equal to itself alone
    assert layout_to_json(again) == written
    assert repr(again) == repr(layout)  # leaf by leaf, offsets and all
    row, other = layout.zeros(), again.zeros()
    value = value_of(space, np.random.default_rng(seed))
    layout.pack(value, row)
    again.pack(value, other)
    assert row.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        spaces.Box(np.float16([-1, -np.inf]), np.float16([0.1, 2]), dtype=np.float16),
        spaces.Box(0, 2**64 - 1, (2,), np.uint64),
        spaces.Box(-(2**63), 2**63 - 1, (), np.int64),
        spaces.Box(0, 1, (0, 3)),
        spaces.MultiDiscrete([[2, 3], [4, 5]], np.int16, start=[[1, 2], [3, 4]]),
        spaces.MultiBinary(3),
        spaces.MultiBinary([3]),
        spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(3, start=-7))]),
        spaces.Dict([(2, spaces.Discrete(2)), (1, spaces.Discrete(2))]),
        OpenText(),
    ],
)
def test_bounds_types_and_order_are_exact(space: Space[Any]) -> None:
    again = space_from_json(strict_json(space_to_json(space)))
    assert again == space
    if isinstance(space, spaces.Box):  # whose own comparison is approximate
        assert again.low.tobytes() == space.low.tobytes()
        assert again.high.tobytes() == space.high.tobytes()
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


def test_a_space_of_strings_is_kept_as_one() -> None:
    class Mission(Space[str]):
        def __init__(self) -> None:
            super().__init__(dtype=str)

    layout = Layout.of(spaces.Dict(mission=Mission()), limits={"mission": 9})
    again = layout_from_json(strict_json(layout_to_json(layout)))
    row = again.zeros()
    again.pack({"mission": "go"}, row)
    assert layout.unpack(row) == {"mission": "go"}
    assert "go" in again.space["mission"]
    assert 3 not in again.space["mission"]


def test_options_are_kept() -> None:
    layout = Layout.of(spaces.Sequence(spaces.Box(-1, 1)), limits={"": 4}, strict=True)
    again = layout_from_json(strict_json(layout_to_json(layout)))
    assert again == layout
    assert again.options == ({"": 4}, True, False)


def test_a_subclass_is_written_as_what_it_is() -> None:
    class Angle(spaces.Box):
        pass

    assert space_to_json(Angle(-1, 1, (2,))) == space_to_json(spaces.Box(-1, 1, (2,)))


def test_what_cannot_be_written_is_named() -> None:
    class Odd(Space[Any]):
        pass

    with pytest.raises(SpaceError, match="given Odd; allowed: Box"):
        space_to_json(Odd())
    with pytest.raises(SpaceError, match=r"the key \(1, 2\); allowed: keys of text"):
        space_to_json(spaces.Dict([((1, 2), spaces.Discrete(2))]))


@pytest.mark.parametrize(
    "tree",
    [
        None,
        3,
        {},
        {"kind": "os.system"},
        {"kind": "Box", "dtype": "float32", "shape": [2], "low": 0},
        {"kind": "Box", "dtype": "object", "shape": [2], "low": 0, "high": 1},
        {"kind": "Box", "dtype": "float32", "shape": [3], "low": [0, 0], "high": 1},
        {"kind": "Discrete", "dtype": "int64", "n": -1, "start": 0},
        {"kind": "Tuple", "items": [{"kind": "Box"}]},
        {"kind": "Dict", "items": [["a"]]},
        {"kind": "Text", "min": 3, "max": 1, "characters": "ab"},
    ],
)
def test_what_is_no_space_is_refused(tree: Any) -> None:
    with pytest.raises(SpaceError, match="allowed"):
        Layout.of(space_from_json(tree))


def test_what_is_no_layout_is_refused() -> None:
    with pytest.raises(SpaceError, match="layout: given"):
        layout_from_json([1])
    with pytest.raises(SpaceError, match="limits"):
        layout_from_json({"space": {"kind": "OpenText"}, "limits": "many"})
    with pytest.raises(SpaceError, match="without a maximum"):
        layout_from_json({"space": {"kind": "OpenText"}})
