"""Compiles a space, once, into nodes (for the packers) and leaves (for everybody else)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from fugu.core.errors import PackError, SpaceError
from fugu.native.nodes import (
    ArrayNode,
    ConvertedNode,
    DictNode,
    Node,
    OneOfNode,
    ScalarNode,
    SequenceNode,
    TextNode,
    TupleNode,
    join,
)
from fugu.native.packing import INDEX, LENGTH, describe
from fugu.spaces.leaves import Leaf

Limits = int | Mapping[str, int] | None
_BOOL = np.dtype(np.bool_)
_SUPPORTED = {np.dtype(name) for name in "?bBhHiIqQlLefd"}


class Compiler:
    """Lays the leaves of one space out, one behind the other, each naturally aligned."""

    def __init__(self, limits: Limits, *, strict: bool = False, plain: bool = False) -> None:
        self.leaves: list[Leaf] = []
        self.end = 0
        self.limited: set[str] = set()  # paths that needed a limit
        self._limits, self._strict, self._plain = limits, strict, plain
        self._compilers: dict[type[Space[Any]], Callable[[Any, str, tuple[int, ...]], Node]] = {
            spaces.Box: self._box,
            spaces.Discrete: self._discrete,
            spaces.MultiDiscrete: self._multi_discrete,
            spaces.MultiBinary: self._multi_binary,
            spaces.Text: self._text,
            spaces.Dict: self._dict,
            spaces.Tuple: self._tuple,
            spaces.Sequence: self._sequence,
            spaces.OneOf: self._one_of,
            spaces.Graph: self._graph,
        }

    @property
    def unused(self) -> set[str]:
        """Limits declared for paths that need none."""
        return set(self._limits) - self.limited if isinstance(self._limits, Mapping) else set()

    def compile(self, space: Space[Any], path: str = "", slots: tuple[int, ...] = ()) -> Node:
        """The node of `space`; its leaves are appended to `leaves`."""
        if not isinstance(space, Space):
            raise SpaceError(f"{_place(path)}: given {space!r}; allowed: a gymnasium Space.")
        for kind in type(space).__mro__:
            if kind in self._compilers:
                return self._compilers[kind](space, path, slots)
        if space.dtype is not None and np.dtype(space.dtype).kind == "U":
            return self._open_text(path, slots)
        names = ", ".join(kind.__name__ for kind in self._compilers)
        raise SpaceError(
            f"{_place(path)}: given {type(space).__name__}; allowed: {names} and subclasses of "
            "them, and spaces of dtype str. Describe it with those, or convert it in a wrapper."
        )

    # ------------------------------------------------------------------ numbers

    def _box(self, space: spaces.Box, path: str, slots: tuple[int, ...]) -> Node:
        low = high = None
        if self._strict:
            low, high = space.low.reshape(-1), space.high.reshape(-1)
        return self._array(space, path, slots, low, high)

    def _multi_discrete(
        self, space: spaces.MultiDiscrete, path: str, slots: tuple[int, ...]
    ) -> Node:
        start = getattr(space, "start", np.zeros_like(space.nvec))
        low, high = start.reshape(-1), (start + space.nvec - 1).reshape(-1)
        return self._array(space, path, slots, low, high)

    def _multi_binary(self, space: spaces.MultiBinary, path: str, slots: tuple[int, ...]) -> Node:
        low = np.zeros(int(np.prod(space.shape)), np.int64)
        return self._array(space, path, slots, low, low + 1)

    def _array(
        self,
        space: Space[Any],
        path: str,
        slots: tuple[int, ...],
        low: NDArray[Any] | None,
        high: NDArray[Any] | None,
    ) -> Node:
        dtype, shape = np.dtype(space.dtype), tuple(map(int, space.shape or ()))
        offset = self._leaf(path, dtype, slots + shape, space)
        return ArrayNode(path, dtype, shape, offset, low, high)

    def _discrete(self, space: spaces.Discrete, path: str, slots: tuple[int, ...]) -> Node:
        dtype, start, count = np.dtype(space.dtype), int(space.start), int(space.n)
        offset = self._leaf(path, dtype, slots, space)
        return ScalarNode(path, dtype, offset, start, start + count - 1, self._plain)

    # ------------------------------------------------------------------ trees

    def _dict(self, space: spaces.Dict, path: str, slots: tuple[int, ...]) -> Node:
        keys = tuple(space.spaces)
        names = [join(path, key) for key in keys]
        if len(set(names)) < len(names):
            raise SpaceError(
                f"{_place(path)}: given the keys {list(keys)}, some alike once written as text; "
                "allowed: keys that differ as text. Rename one."
            )
        children = [
            self.compile(space.spaces[key], name, slots)
            for key, name in zip(keys, names, strict=True)
        ]
        return DictNode(path, keys, tuple(children))

    def _tuple(self, space: spaces.Tuple, path: str, slots: tuple[int, ...]) -> Node:
        return TupleNode(path, self._children(space.spaces, path, slots))

    def _one_of(self, space: spaces.OneOf, path: str, slots: tuple[int, ...]) -> Node:
        index = spaces.Discrete(len(space.spaces))
        offset = self._leaf(join(path, "index"), INDEX, slots, index)
        return OneOfNode(path, offset, self._children(space.spaces, path, slots))

    def _children(
        self, children: tuple[Space[Any], ...], path: str, slots: tuple[int, ...]
    ) -> tuple[Node, ...]:
        return tuple(self.compile(child, join(path, i), slots) for i, child in enumerate(children))

    # ------------------------------------------------------------------ variable lengths

    def _text(self, space: spaces.Text, path: str, slots: tuple[int, ...]) -> Node:
        # Sorted, since the order of the set that a Text keeps changes from process to process.
        alphabet = "".join(sorted(space.character_set))
        dtype = np.dtype(np.min_scalar_type(max(len(alphabet) - 1, 0)))
        return self._characters(path, slots, alphabet, space.min_length, space.max_length, dtype)

    def _open_text(self, path: str, slots: tuple[int, ...]) -> Node:
        """Strings of a space that says no more of them (as MiniGrid's missions): UTF-8."""
        return self._characters(path, slots, None, 0, self._limit(path), np.dtype(np.uint8))

    def _characters(
        self,
        path: str,
        slots: tuple[int, ...],
        alphabet: str | None,
        low: int,
        high: int,
        dtype: np.dtype[Any],
    ) -> Node:
        length, mask = self._length(path, slots, high)
        count = 256 if alphabet is None else max(len(alphabet), 1)
        codes = spaces.Discrete(count)
        offset = self._leaf(join(path, "characters"), dtype, (*slots, high), codes)
        return TextNode(path, alphabet, low, high, length, mask, dtype, offset)

    def _sequence(self, space: spaces.Sequence, path: str, slots: tuple[int, ...]) -> Node:
        plain = isinstance(space.feature_space, _PLAIN)
        node = self._items(
            space.feature_space, path, slots, self._limit(path), space.stack and plain
        )
        if not space.stack or plain:
            return node
        return ConvertedNode(
            path,
            partial(_unstack, space.stacked_feature_space),
            partial(_stack, space.feature_space),
            node,
        )

    def _items(
        self, item: Space[Any], path: str, slots: tuple[int, ...], capacity: int, stacked: bool
    ) -> Node:
        length, mask = self._length(path, slots, capacity)
        child = self.compile(item, join(path, "items"), (*slots, capacity))
        return SequenceNode(path, capacity, length, mask, child, stacked)

    def _graph(self, space: spaces.Graph, path: str, slots: tuple[int, ...]) -> Node:
        """Nodes and edges become sequences; a flag tells no edges from an empty list of them."""
        parts: dict[str, Node] = {"nodes": self._part(space.node_space, join(path, "nodes"), slots)}
        if space.edge_space is not None:
            links = spaces.Box(0, np.iinfo(np.int32).max, (2,), np.int32)
            parts["has_edges"] = self.compile(spaces.Discrete(2), join(path, "has_edges"), slots)
            parts["edges"] = self._part(space.edge_space, join(path, "edges"), slots)
            edges_limit = self._limit(join(path, "edges"))
            parts["links"] = self._items(links, join(path, "links"), slots, edges_limit, True)
        child = DictNode(path, tuple(parts), tuple(parts.values()))
        return ConvertedNode(path, partial(_graph_parts, space), partial(_graph, space), child)

    def _part(self, item: Space[Any], path: str, slots: tuple[int, ...]) -> Node:
        return self._items(item, path, slots, self._limit(path), isinstance(item, _PLAIN))

    def _length(self, path: str, slots: tuple[int, ...], capacity: int) -> tuple[int, int]:
        length = spaces.Discrete(capacity + 1)
        mask = spaces.Box(0, 1, (capacity,), np.int8)
        return (
            self._leaf(join(path, "length"), LENGTH, slots, length),
            self._leaf(join(path, "mask"), _BOOL, (*slots, capacity), mask),
        )

    def _limit(self, path: str) -> int:
        limits = self._limits
        limit = limits.get(path) if isinstance(limits, Mapping) else limits
        self.limited.add(path)
        if limit is None:
            raise SpaceError(
                f"{_place(path)}: given a space without a maximum length; allowed: one with a "
                f"declared maximum. Declare it: limits={{{path!r}: 16}}, or limits=16 for all."
            )
        if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0:
            raise SpaceError(f"{_place(path)}: given the limit {limit!r}; allowed: an int >= 0.")
        return int(limit)

    def _leaf(
        self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...], space: Space[Any]
    ) -> int:
        if dtype not in _SUPPORTED:
            raise SpaceError(
                f"{_place(path)}: given dtype {dtype}; allowed: bool, integers of 8 to 64 bits, "
                "floats of 16 to 64 bits. Declare the space with one of those."
            )
        offset = -(-self.end // dtype.itemsize) * dtype.itemsize
        self.leaves.append(Leaf(path, dtype, shape, offset, space))
        self.end = offset + self.leaves[-1].nbytes
        return offset


def limited_paths(space: Space[Any]) -> set[str]:
    """The paths of a space that need a limit."""
    compiler = Compiler(0)
    compiler.compile(space)
    return compiler.limited


_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def _place(path: str) -> str:
    return f"space at '{path}'" if path else "space"


def _unstack(stacked_space: Space[Any], value: Any, path: str) -> tuple[Any, ...]:
    try:
        return tuple(iterate(stacked_space, value))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        allowed = f"items of {stacked_space} stacked together"
        raise PackError(path, describe(value), allowed) from error


def _stack(item_space: Space[Any], items: tuple[Any, ...]) -> Any:
    out = create_empty_array(item_space, len(items))
    return concatenate(item_space, items, out) if items else out


def _graph_parts(space: spaces.Graph, value: Any, path: str) -> dict[str, Any]:
    """A GraphInstance as the dict that its node packs."""
    if not isinstance(value, spaces.GraphInstance):
        raise PackError(path, describe(value), "a gymnasium GraphInstance")
    parts: dict[str, Any] = {"nodes": _unstacked(space.node_space, value.nodes, path)}
    has_edges = value.edges is not None
    if has_edges != (value.edge_links is not None):
        raise PackError(path, "edges without edge_links, or the reverse", "both or neither")
    if space.edge_space is None:
        if has_edges:
            raise PackError(join(path, "edges"), describe(value.edges), "None: no edge space")
        return parts
    parts["has_edges"] = int(has_edges)
    if not has_edges:
        empty = np.zeros((0, 2), np.int32)
        return parts | {"edges": _no_items(space.edge_space), "links": empty}
    parts["edges"] = _unstacked(space.edge_space, value.edges, path)
    links = np.asarray(value.edge_links)
    if len(links) != len(parts["edges"]):
        given = f"{len(links)} links for {len(parts['edges'])} edges"
        raise PackError(join(path, "links"), given, "as many links as edges")
    if links.size and not (links.min() >= 0 and links.max() < len(parts["nodes"])):
        given = f"links from {links.min()} to {links.max()}"
        raise PackError(join(path, "links"), given, f"indices of its {len(parts['nodes'])} nodes")
    return parts | {"links": links}


def _graph(space: spaces.Graph, parts: dict[str, Any]) -> spaces.GraphInstance:
    """The GraphInstance that `_graph_parts` took apart."""
    nodes = _restacked(space.node_space, parts["nodes"])
    if space.edge_space is None or not parts["has_edges"]:
        return spaces.GraphInstance(nodes, None, None)
    return spaces.GraphInstance(nodes, _restacked(space.edge_space, parts["edges"]), parts["links"])


def _unstacked(item: Space[Any], value: Any, path: str) -> Any:
    if isinstance(item, _PLAIN):
        return np.asarray(value)
    return _unstack(spaces.Sequence(item, stack=True).stacked_feature_space, value, path)


def _restacked(item: Space[Any], items: Any) -> Any:
    return items if isinstance(item, _PLAIN) else _stack(item, items)


def _no_items(item: Space[Any]) -> Any:
    if isinstance(item, _PLAIN):
        return np.zeros((0, *(item.shape or ())), item.dtype)
    return ()
