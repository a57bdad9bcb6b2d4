"""Random spaces, and random values of them down to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import strategies as st

LIMIT = 3  # most items of a sequence, and nodes and edges of a graph

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
FLOATS = [np.float16, np.float32, np.float64]
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> Space[Any]:
    dtype = np.dtype(draw(st.sampled_from([*INTEGERS, *FLOATS, np.bool_])))
    shape = draw(shapes)
    if dtype.kind == "f":
        bound = draw(st.sampled_from([1.0, 100.0, np.inf]))
        return spaces.Box(-bound, bound, shape, dtype.type)
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, dtype.type)
    high = min(int(np.iinfo(dtype).max), 2**31)
    return spaces.Box(0 if dtype.kind == "u" else -100, high, shape, dtype.type)


discretes = st.builds(
    lambda n, start: spaces.Discrete(n, start=start),
    st.integers(1, 2**40),
    st.integers(-(2**40), 2**40),
)


@st.composite
def multi_discretes(draw: st.DrawFn) -> Space[Any]:
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from([np.int64, np.int32, np.uint8]))
    nvec = rng.integers(1, 100, shape)
    start = rng.integers(0, 100, shape)
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=start.astype(dtype))


multi_binaries = st.one_of(
    st.integers(1, 9).map(spaces.MultiBinary),
    st.lists(st.integers(1, 3), min_size=1, max_size=3).map(spaces.MultiBinary),
)
texts = st.builds(
    lambda alphabet, low, more: spaces.Text(low + more, min_length=low, charset=alphabet),
    st.sampled_from(["ab", "0123456789", "".join(map(chr, range(0x4E00, 0x4F00 + 200))), "äß🐡"]),
    st.integers(0, 3),
    st.integers(0, 5),
)


class OpenText(Space[str]):
    """A space of strings that says nothing more of them, as MiniGrid's missions."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return str(self.np_random.choice(["", "a", "abc", "é", "äb", "ab\0"]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenText)

    def __repr__(self) -> str:
        return "OpenText"


plain = st.one_of(boxes(), discretes, multi_discretes(), multi_binaries)
graphs = st.builds(
    spaces.Graph,
    st.one_of(boxes(), discretes),
    st.one_of(st.none(), boxes(), discretes),
)
leaves = st.one_of(plain, plain, texts, graphs, st.builds(OpenText))
keys = st.text("abcxyz/~ é0", min_size=1, max_size=4)


def _grow(inner: st.SearchStrategy[Space[Any]]) -> st.SearchStrategy[Space[Any]]:
    return st.one_of(
        st.dictionaries(keys, inner, max_size=4).map(spaces.Dict),
        st.lists(inner, max_size=4).map(lambda items: spaces.Tuple(tuple(items))),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: spaces.OneOf(tuple(items))),
        st.builds(spaces.Sequence, inner, stack=st.just(False)),
        st.builds(spaces.Sequence, stackable, stack=st.just(True)),
    )


# Gymnasium itself stacks sequences only of these.
stackable = st.one_of(plain, st.dictionaries(keys, plain, min_size=1, max_size=3).map(spaces.Dict))


def any_space(depth: int = 5) -> st.SearchStrategy[Space[Any]]:
    """Spaces of every kind, nested to at most `depth`."""
    if depth == 1:
        return leaves
    inner = st.deferred(lambda: any_space(depth - 1))
    return st.one_of(leaves, _grow(inner), _grow(inner))


def depth_of(space: Space[Any]) -> int:
    match space:
        case spaces.Dict():
            return 1 + max((depth_of(s) for s in space.spaces.values()), default=0)
        case spaces.Tuple() | spaces.OneOf():
            return 1 + max((depth_of(s) for s in space.spaces), default=0)
        case spaces.Sequence():
            return 1 + depth_of(space.feature_space)
        case _:
            return 1


def value_of(space: Space[Any], rng: np.random.Generator) -> Any:
    """A random value; floats of any bits (not-a-number and infinities too)."""
    match space:
        case spaces.Box():
            return random_bits(space, rng)
        case (
            spaces.MultiDiscrete()
            | spaces.MultiBinary()
            | spaces.Discrete()
            | spaces.Text()
            | OpenText()
        ):
            space.seed(int(rng.integers(2**31)))
            return space.sample()
        case spaces.Dict():
            return {key: value_of(item, rng) for key, item in space.spaces.items()}
        case spaces.Tuple():
            return tuple(value_of(item, rng) for item in space.spaces)
        case spaces.OneOf():
            index = rng.integers(len(space.spaces))
            return (index, value_of(space.spaces[index], rng))
        case spaces.Sequence():
            items = tuple(
                value_of(space.feature_space, rng) for _ in range(rng.integers(LIMIT + 1))
            )
            return stack(space.feature_space, items) if space.stack else items
        case spaces.Graph():
            return random_graph(space, rng)
    raise AssertionError(space)


def random_bits(space: spaces.Box, rng: np.random.Generator) -> Any:
    if space.dtype == np.bool_:
        return rng.integers(0, 2, space.shape).astype(np.bool_)
    count = int(np.prod(space.shape, dtype=np.int64)) * space.dtype.itemsize
    return np.frombuffer(rng.bytes(count), space.dtype).reshape(space.shape).copy()


def stack(space: Space[Any], items: tuple[Any, ...]) -> Any:
    out = create_empty_array(space, len(items))
    return concatenate(space, items, out) if items else out


def random_graph(space: spaces.Graph, rng: np.random.Generator) -> spaces.GraphInstance:
    count = int(rng.integers(1, LIMIT + 1))
    nodes = stack(space.node_space, tuple(value_of(space.node_space, rng) for _ in range(count)))
    if space.edge_space is None or rng.random() < 0.3:
        return spaces.GraphInstance(nodes, None, None)
    links = rng.integers(0, count, (rng.integers(LIMIT + 1), 2)).astype(np.int32)
    edges = stack(space.edge_space, tuple(value_of(space.edge_space, rng) for _ in links))
    return spaces.GraphInstance(nodes, edges, links)


def same(a: Any, b: Any) -> bool:
    """Equal in type, dtype, shape and every bit."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (
            isinstance(a, np.ndarray)
            and isinstance(b, np.ndarray)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return (
            isinstance(b, tuple)
            and len(a) == len(b)
            and all(same(x, y) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, np.integer):
        return isinstance(b, np.integer) and a.dtype == b.dtype and a == b
    return type(a) is type(b) and bool(a == b)
