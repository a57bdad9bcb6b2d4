"""Layouts: what they accept, what they refuse, and what they say then."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import Space, spaces
from strategies import OpenText

from fugu import Layout
from fugu.core.errors import PackError, SpaceError

BOX = spaces.Box(-1, 1, (3,))
NESTED = spaces.Dict(
    inner=spaces.Dict(x=spaces.Box(-1, 1, (2,)), y=spaces.Box(0, 255, (), np.uint8)),
    z=spaces.Box(0, 255, (), np.uint8),
)


@pytest.fixture(params=[True, False], ids=["native", "reference"])
def native(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def layout_of(space: Space[Any], native: bool, **options: Any) -> Layout:
    return Layout(space, use_native=native, **options)


# ---------------------------------------------------------------------- shapes of memory


def test_a_homogeneous_layout_keeps_its_dtype() -> None:
    layout = Layout.of(spaces.Dict(a=spaces.Box(0, 1, (2, 2)), b=spaces.Box(0, 1, (3,))))
    assert (layout.dtype, layout.size, layout.nbytes) == (np.float32, 7, 28)


def test_a_mixed_layout_is_bytes_and_aligned_even_when_nested() -> None:
    """The reference implementation reads z at 5 and d at 8 in these two."""
    layout = Layout.of(NESTED)
    assert layout.dtype == np.uint8
    assert {leaf.path: leaf.offset for leaf in layout.leaves} == {
        "inner/x": 0, "inner/y": 8, "z": 9,
    }  # fmt: skip
    inner = spaces.Dict(c=spaces.Box(0, 9, (), np.uint8), d=spaces.Box(0, 9, (), np.float64))
    layout = Layout.of(spaces.Dict(a=spaces.Box(0, 9, (), np.uint8), b=inner))
    assert {leaf.path: leaf.offset for leaf in layout.leaves} == {"a": 0, "b/c": 1, "b/d": 8}
    assert layout.nbytes == 16


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(16), 7),
        (spaces.Discrete(5, start=-2), -2),
        (spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))), (21, 5, 1)),
        (spaces.MultiDiscrete([[3, 2], [5, 4]]), np.array([[2, 1], [4, 3]])),
        (spaces.MultiBinary([2, 2]), np.array([[1, 0], [0, 1]], np.int8)),
        (spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2, 2))), None),
        (spaces.Box(-np.inf, np.inf, (), np.float64), np.array(2.5)),
        (spaces.Tuple(()), ()),
        (spaces.Dict(), {}),
    ],
)
def test_what_the_reference_implementation_loses_comes_back(
    space: Space[Any], value: Any, native: bool
) -> None:
    space.seed(3)
    value = space.sample() if value is None else value
    layout = layout_of(space, native)
    row = layout.zeros()
    layout.pack(value, row)
    back = layout.unpack(row)
    np.testing.assert_equal(back, value)
    assert back in space


def test_the_alphabet_of_a_text_is_the_same_in_every_process() -> None:
    program = (
        "import fugu; from gymnasium import spaces;"
        "layout = fugu.Layout.of(spaces.Text(12)); row = layout.zeros();"
        "layout.pack('Fugu42', row); print(row.tobytes().hex())"
    )
    rows = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(rows) == 1


def test_views_keep_leading_axes_and_share_memory() -> None:
    layout = Layout.of(NESTED)
    rows = layout.zeros(4, 5)
    tree = layout.views(rows)
    assert tree["inner"]["x"].shape == (4, 5, 2)
    tree["z"][...] = 7
    assert (rows[..., 9] == 7).all()


def test_unpack_gives_views_or_copies(native: bool) -> None:
    layout = layout_of(BOX, native)
    row = layout.zeros()
    view, copy = layout.unpack(row), layout.unpack(row, True)
    row[:] = 1
    assert (view == 1).all()
    assert (copy == 0).all()


def test_plain_layouts_give_ints(native: bool) -> None:
    space = spaces.Tuple((spaces.Discrete(5, start=-2), spaces.MultiDiscrete([3])))
    layout = layout_of(space, native, plain=True)
    row = layout.zeros()
    layout.pack((-1, np.array([2])), row)
    number, array = layout.unpack(row)
    assert type(number) is int
    assert number == -1
    assert array.dtype == np.int64


def test_a_view_keeps_its_row_alive(native: bool) -> None:
    layout = layout_of(spaces.Dict(a=spaces.Box(0, 1, (1000,))), native)
    row = layout.zeros()
    row[:] = 3
    view = layout.unpack(row)["a"]
    del row
    junk = [np.ones(1000, np.float32) for _ in range(100)]
    assert (view == 3).all()
    assert junk


def test_a_read_only_row_gives_read_only_views(native: bool) -> None:
    layout = layout_of(BOX, native)
    row = layout.zeros()
    row.flags.writeable = False
    assert not layout.unpack(row).flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        layout.pack(np.zeros(3, np.float32), row)


def test_layouts_are_equal_when_their_spaces_are_and_survive_pickling() -> None:
    layout = Layout.of(spaces.Sequence(BOX), limits=4)
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert hash(again) == hash(layout)
    assert again != Layout.of(spaces.Sequence(BOX), limits=5)
    assert again != Layout.of(BOX)


# ---------------------------------------------------------------------- casts


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (BOX, np.array([0.1, 0.2, 0.3]), np.float32([0.1, 0.2, 0.3])),
        (BOX, [1, 0, 1], np.float32([1, 0, 1])),
        (BOX, np.zeros((3, 2), np.float32)[:, 0], np.zeros(3, np.float32)),
        (BOX, np.array([1, 0, 1], ">f4"), np.float32([1, 0, 1])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 255]), np.uint8([0, 255])),
        (spaces.Box(0, 1, (2,), np.bool_), np.array([0, 1]), np.array([False, True])),
        (spaces.Box(-5, 5, (), np.int16), 3, np.int16(3)),
        (spaces.MultiBinary(2), [True, False], np.int8([1, 0])),
        (spaces.MultiBinary(2), np.array([True, False]), np.int8([1, 0])),
        (spaces.Discrete(4), np.uint8(3), np.int64(3)),
        (spaces.Discrete(4), np.array(3, np.int16), np.int64(3)),
        (spaces.Discrete(2), True, np.int64(1)),
    ],
)
def test_numbers_of_another_width_are_cast_exactly(
    space: Space[Any], value: Any, expected: Any, native: bool
) -> None:
    layout = layout_of(space, native)
    row = layout.zeros()
    layout.pack(value, row)
    back = layout.unpack(row)
    assert back.dtype == expected.dtype
    np.testing.assert_array_equal(back, expected)


def test_not_a_number_and_infinities_pass_as_they_are(native: bool) -> None:
    layout = layout_of(BOX, native)
    row = layout.zeros()
    layout.pack(np.array([np.nan, np.inf, -np.inf]), row)
    np.testing.assert_array_equal(row, np.float32([np.nan, np.inf, -np.inf]))


# ---------------------------------------------------------------------- refusals

REFUSALS: list[tuple[Space[Any], Any, str, str]] = [
    (BOX, np.zeros(4, np.float32), "", r"float32 array of shape \(4,\).*float32.*\(3,\)"),
    (BOX, np.zeros((3, 1), np.float32), "", r"shape \(3, 1\)"),
    (BOX, "text", "", r"str|<U4"),
    (BOX, None, "", "object|None"),
    (BOX, [[1.0], [1.0, 2.0], [3.0]], "", "list of 3 items"),
    (BOX, np.zeros(3, np.complex64), "", "complex64"),
    (BOX, np.array([1e300, 0, 0]), "", "do not fit into float32"),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([0.5, 1.0]), "", "never reinterpreted"),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 256]), "", "values 0 to 256"),
    (spaces.Box(0, 255, (2,), np.uint8), np.array([-1, 0]), "", "values -1 to 0"),
    (spaces.Box(0, 9, (2,), np.uint64), np.array([-1, 0]), "", "values -1 to 0"),
    (spaces.Box(0, 1, (1,), np.bool_), np.array([2]), "", "do not fit into bool"),
    (spaces.Discrete(5), 5, "", "given 5; allowed: an integer from 0 to 4"),
    (spaces.Discrete(5, start=-2), -3, "", "from -2 to 2"),
    (spaces.Discrete(5), 2**70, "", "from 0 to 4"),
    (spaces.Discrete(5), 1.0, "", "float 1.0"),
    (spaces.Discrete(5), np.array([1]), "", r"int64 array of shape \(1,\)"),
    (spaces.MultiDiscrete([3, 2]), np.array([2, 2]), "", r"given 2 at index \[1\]; .*0 to 1"),
    (spaces.MultiBinary(2), np.int8([1, 2]), "", r"2 at index \[1\]"),
    (NESTED, {"inner": {"x": np.zeros(2)}, "z": 1}, "inner", r"without \['y'\]"),
    (NESTED, {"inner": {"x": np.zeros(2), "y": 1, "w": 2}, "z": 1}, "inner", r"unknown.*'w'"),
    (NESTED, {"inner": {"x": np.zeros(9), "y": 1}, "z": 1}, "inner/x", r"\(9,\)"),
    (NESTED, [1, 2], "", "list of 2 items; allowed: a dict"),
    (spaces.Tuple((BOX, BOX)), (np.zeros(3),), "", "1 items; allowed: a tuple of 2"),
    (spaces.Tuple((BOX, BOX)), (np.zeros(3), np.zeros(2)), "1", r"\(2,\)"),
    (spaces.Text(3, charset="ab"), "abab", "", "4 of them"),
    (spaces.Text(3, charset="ab"), "", "", "of 1 to 3 characters"),
    (spaces.Text(3, charset="ab"), "axb", "", "with 'x'"),
    (spaces.Text(3), 3, "", "int 3"),
    (OpenText(), "abcde", "", "5 of them.*bytes of UTF-8"),
    (OpenText(), "\ud800", "", "surrogates"),
    (spaces.Sequence(spaces.Discrete(3)), (0, 1, 2, 0, 1), "", "5 items.*larger limit"),
    (spaces.Sequence(spaces.Discrete(3)), (0, 3), "items", "given 3"),
    (spaces.Sequence(spaces.Discrete(3)), 7, "", "int 7; allowed: a tuple"),
    (spaces.Sequence(BOX, stack=True), np.zeros((5, 3), np.float32), "", "5 items"),
    (spaces.Sequence(BOX, stack=True), np.zeros((2, 4), np.float32), "items", r"\(4,\)"),
    (spaces.Sequence(spaces.Dict(a=BOX), stack=True), 3, "", "stacked"),
    (spaces.OneOf((BOX, spaces.Discrete(2))), (2, 0), "", "index 2"),
    (spaces.OneOf((BOX, spaces.Discrete(2))), (1, 2), "1", "from 0 to 1"),
    (spaces.OneOf((BOX, spaces.Discrete(2))), 5, "", r"a tuple \(index, value\)"),
    (spaces.Graph(BOX, None), 5, "", "GraphInstance"),
    (spaces.Graph(BOX, None), spaces.GraphInstance(np.zeros((5, 3)), None, None), "nodes", "5 i"),
    (
        spaces.Graph(BOX, BOX),
        spaces.GraphInstance(np.zeros((1, 3)), np.zeros((1, 3)), np.array([[0, 1]])),
        "links",
        "links from 0 to 1.*its 1 nodes",
    ),
    (
        spaces.Graph(BOX, BOX),
        spaces.GraphInstance(np.zeros((1, 3)), np.zeros((1, 3)), None),
        "",
        "both or neither",
    ),
    (
        spaces.Graph(BOX, BOX),
        spaces.GraphInstance(np.zeros((1, 3)), np.zeros((2, 3)), np.array([[0, 0]])),
        "links",
        "1 links for 2 edges",
    ),
]


@pytest.mark.parametrize(("space", "value", "path", "message"), REFUSALS)
def test_what_does_not_fit_is_refused_by_name(
    space: Space[Any], value: Any, path: str, message: str, native: bool
) -> None:
    layout = layout_of(space, native, limits=4)
    with pytest.raises(PackError, match=message) as caught:
        layout.pack(value, layout.zeros())
    assert caught.value.path == path
    if path:
        assert f"leaf '{path}'" in str(caught.value)
    assert "allowed" in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        np.zeros(4, np.float32),
        np.zeros(3, np.float64),
        np.zeros(3, np.int32),
        np.zeros((1, 3), np.float32),
        np.zeros(6, np.float32)[::2],
        np.zeros(3, ">f4"),
        [0.0, 0.0, 0.0],
        None,
    ],
)
def test_a_row_of_another_layout_is_refused(row: Any, native: bool) -> None:
    layout = layout_of(BOX, native)
    with pytest.raises(PackError, match=r"allowed: a contiguous float32 array of shape \(3,\)"):
        layout.pack(np.zeros(3, np.float32), row)
    with pytest.raises(PackError, match="allowed"):
        layout.unpack(row)


@pytest.mark.parametrize(
    ("space", "leaf", "number", "path"),
    [
        (spaces.Discrete(3), "", 3, ""),
        (spaces.Discrete(3, start=5), "", 4, ""),
        (spaces.MultiDiscrete([3, 3]), "", 3, ""),
        (spaces.Text(3, charset="ab"), "length", 4, "length"),
        (spaces.Text(3, charset="ab"), "length", -1, "length"),
        (spaces.Text(3, charset="ab"), "characters", 2, "characters"),
        (OpenText(), "characters", 255, "characters"),
        (spaces.Sequence(BOX), "length", 5, "length"),
        (spaces.Sequence(spaces.Discrete(2), stack=True), "items", 2, "items"),
        (spaces.OneOf((BOX, BOX)), "index", 2, "index"),
    ],
)
def test_flat_data_that_is_no_value_is_refused(
    space: Space[Any], leaf: str, number: int, path: str, native: bool
) -> None:
    layout = layout_of(space, native, limits=4)
    row = layout.zeros()
    length = [each for each in layout.leaves if each.path == "length"]
    for each in length:  # so that the number is looked at
        row.view(np.uint8)[each.offset : each.offset + 4].view(np.int32)[0] = 1
    (target,) = (each for each in layout.leaves if each.path == leaf)
    raw = row.view(np.uint8)[target.offset : target.offset + target.nbytes]
    raw.view(target.dtype)[0] = number
    with pytest.raises(PackError) as caught:
        layout.unpack(row)
    assert caught.value.path == path


def test_strict_layouts_refuse_values_outside_their_box(native: bool) -> None:
    space = spaces.Dict(push=spaces.Box(-1, 1, (2,)), gear=spaces.Box(0, 3, (), np.int8))
    layout = layout_of(space, native, strict=True)
    row = layout.zeros()
    layout.pack({"push": np.float32([-1, 1]), "gear": 3}, row)
    for push, gear, path in [
        (np.float32([0, 1.001]), 0, "push"),
        (np.float32([np.nan, 0]), 0, "push"),
        (np.float32([0, 0]), 4, "gear"),
    ]:
        with pytest.raises(PackError) as caught:
            layout.pack({"push": push, "gear": gear}, row)
        assert caught.value.path == path
    row = layout.zeros()
    layout.views(row)["push"][:] = 2
    with pytest.raises(PackError, match=r"2.0 at index \[0\]; allowed: -1.0 to 1.0"):
        layout.unpack(row)


@pytest.mark.parametrize("dtype", [np.float16, np.uint64, np.float64, np.int64])
def test_strict_bounds_of_every_width(dtype: Any, native: bool) -> None:
    layout = layout_of(spaces.Box(0, 3, (2,), dtype), native, strict=True)
    row = layout.zeros()
    layout.pack(np.array([0, 3], dtype), row)
    assert layout.unpack(row, True).tolist() == [0, 3]
    row[0] = 4
    with pytest.raises(PackError, match=r"at index \[0\]"):
        layout.unpack(row)


# ---------------------------------------------------------------------- rows


def test_assign_casts_or_refuses_but_never_reinterprets() -> None:
    """The reference implementation reads int64 [2, 3] as 2 and 0."""
    layout = Layout.of(spaces.Tuple((spaces.Discrete(5), spaces.Discrete(5))))
    out = layout.zeros(2)
    for dtype in (np.int8, np.uint16, np.int32, np.int64):
        layout.assign(np.array([[2, 3], [4, 1]], dtype), out)
        assert [layout.unpack(row) for row in out] == [(2, 3), (4, 1)]
    with pytest.raises(PackError, match="float64"):
        layout.assign(np.zeros((2, 2)), out)
    with pytest.raises(PackError, match=r"\(2, 3\)"):
        layout.assign(np.zeros((2, 3), np.int64), out)


def test_assign_takes_plain_numbers_for_single_ones() -> None:
    layout = Layout.of(spaces.Discrete(5))
    out = layout.zeros(3)
    layout.assign([1, 2, 3], out)
    assert out[:, 0].tolist() == [1, 2, 3]


def test_assign_takes_only_bytes_for_a_mixed_layout() -> None:
    layout = Layout.of(spaces.Dict(a=spaces.Discrete(5), b=BOX))
    out = layout.zeros(2)
    layout.assign(np.ones_like(out), out)
    assert (out == 1).all()
    with pytest.raises(PackError, match="make them with pack"):
        layout.assign(np.zeros(out.shape, np.int64), out)


# ---------------------------------------------------------------------- spaces


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (spaces.Sequence(BOX), {}, r"declared maximum.*limits={'': 16}"),
        (spaces.Dict(a=spaces.Sequence(BOX)), {}, r"at 'a'.*limits={'a': 16}"),
        (spaces.Dict(g=spaces.Graph(BOX, None)), {}, r"at 'g/nodes'"),
        (spaces.Graph(BOX, BOX), {"limits": {"nodes": 3}}, r"at 'edges'"),
        (OpenText(), {}, "declared maximum"),
        (spaces.Sequence(BOX), {"limits": -1}, "given the limit -1"),
        (spaces.Sequence(BOX), {"limits": {"": 2.5}}, "given the limit 2.5"),
        (spaces.Dict(a=spaces.Sequence(BOX)), {"limits": {"b": 3, "a": 2}}, r"\['b'\].*\['a'\]"),
        (spaces.Box(0, 1, (2,), np.longdouble), {}, "float128"),
        (spaces.Dict({"1": BOX, 1: BOX}), {}, "differ as text"),
        (Space(), {}, "given Space; allowed: Box"),
        (None, {}, "given None; allowed: a gymnasium Space"),
    ],
)
def test_a_space_without_a_layout_says_what_is_missing(
    space: Space[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpaceError, match=message):
        Layout.of(space, **options)


def test_a_subclass_is_its_space() -> None:
    class Pixels(spaces.Box):
        pass

    assert Layout.of(Pixels(0, 255, (4,), np.uint8)).size == 4
