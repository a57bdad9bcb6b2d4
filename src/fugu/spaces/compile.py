"""Compile a space, once, into nodes (for the packers) and leaves (for everybody else)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

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

Limits = int | Mapping[str, int] | None
Slots = tuple[int, ...]
_BOOL = np.dtype(np.bool_)
_KINDS = "Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict, Tuple, Sequence, OneOf, Graph"
_SUPPORTED = {np.dtype(name) for name in "?bBhHiIqQlLefd"}


@dataclass(frozen=True)
class Leaf:
    """One typed array at a fixed offset in every row of a layout."""

    path: str  # keys and indices from the top, joined by slashes; empty if the space is one leaf
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # beginning with the slots of enclosing sequences
    offset: int  # in bytes, a multiple of the type's size
    space: Space[Any]  # of one item, or a synthetic one for a length, a mask or an index

    @property
    def nbytes(self) -> int:
        """Bytes of the leaf in a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Compiler:
    """Lays out the leaves of one space one after another, each naturally aligned."""

    def __init__(self, limits: Limits, *, strict: bool = False, plain: bool = False) -> None:
        self.leaves: list[Leaf] = []
        self.end = 0
        self.limited: set[str] = set()  # paths that needed a limit
        self._limits, self._strict, self._plain = limits, strict, plain

    @property
    def unused(self) -> set[str]:
        """Limits declared for paths that need none."""
        return set(self._limits) - self.limited if isinstance(self._limits, Mapping) else set()

    def compile(self, space: Space[Any], path: str = "", slots: Slots = ()) -> Node:
        """Return the node of `space`, and append its leaves to `leaves`."""
        match space:
            case spaces.Box():
                strict = self._strict
                return self._array(space, path, slots, *((space.low, space.high) if strict else ()))
            case spaces.MultiDiscrete():
                start = getattr(space, "start", np.zeros_like(space.nvec))
                return self._array(space, path, slots, start, start + space.nvec - 1)
            case spaces.MultiBinary():
                low = np.zeros(int(np.prod(space.shape)), np.int64)
                return self._array(space, path, slots, low, low + 1)
            case spaces.Discrete():
                dtype, first, count = np.dtype(space.dtype), int(space.start), int(space.n)
                offset = self._leaf(path, dtype, slots, space)
                return ScalarNode(path, dtype, offset, first, first + count - 1, self._plain)
            case spaces.Dict():
                return self._dict(space, path, slots)
            case spaces.Tuple():
                return TupleNode(path, self._children(space.spaces, path, slots))
            case spaces.OneOf():
                index = spaces.Discrete(len(space.spaces))
                offset = self._leaf(join(path, "index"), INDEX, slots, index)
                return OneOfNode(path, offset, self._children(space.spaces, path, slots))
            case spaces.Text():
                # Sorted, since the order of the set that a Text keeps differs between processes.
                alphabet = "".join(sorted(space.character_set))
                dtype = np.dtype(np.min_scalar_type(max(len(alphabet) - 1, 0)))
                lengths = space.min_length, space.max_length
                return self._characters(path, slots, alphabet, *lengths, dtype)
            case spaces.Sequence():
                return self._sequence(space, path, slots)
            case spaces.Graph():
                return self._graph(space, path, slots)
            case Space() if space.dtype is not None and np.dtype(space.dtype).kind == "U":
                # Strings without a declared alphabet, such as MiniGrid's missions: UTF-8.
                limit = self._limit(path)
                return self._characters(path, slots, None, 0, limit, np.dtype(np.uint8))
            case Space():
                raise SpaceError(
                    f"{_place(path)}: given {type(space).__name__}; allowed: {_KINDS} and "
                    "subclasses of them, and spaces of dtype str. Describe it with those, or "
                    "convert it in a wrapper."
                )
        raise SpaceError(f"{_place(path)}: given {space!r}; allowed: a gymnasium Space.")

    def _array(
        self, space: Space[Any], path: str, slots: Slots, low: Any = None, high: Any = None
    ) -> Node:
        dtype, shape = np.dtype(space.dtype), tuple(map(int, space.shape or ()))
        offset = self._leaf(path, dtype, slots + shape, space)
        bounds = (None if bound is None else bound.reshape(-1) for bound in (low, high))
        return ArrayNode(path, dtype, shape, offset, *bounds)

    def _dict(self, space: spaces.Dict, path: str, slots: Slots) -> Node:
        keys = tuple(space.spaces)
        names = [join(path, key) for key in keys]
        if len(set(names)) < len(names):
            raise SpaceError(
                f"{_place(path)}: given the keys {list(keys)}, some alike once written as text; "
                "allowed: keys that differ as text. Rename one."
            )
        named = zip(space.spaces.values(), names, strict=True)
        return DictNode(path, keys, tuple(self.compile(item, name, slots) for item, name in named))

    def _children(
        self, children: tuple[Space[Any], ...], path: str, slots: Slots
    ) -> tuple[Node, ...]:
        return tuple(self.compile(child, join(path, i), slots) for i, child in enumerate(children))

    # ------------------------------------------------------------------ variable lengths

    def _characters(
        self,
        path: str,
        slots: Slots,
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

    def _sequence(self, space: spaces.Sequence, path: str, slots: Slots) -> Node:
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
        self, item: Space[Any], path: str, slots: Slots, capacity: int, stacked: bool
    ) -> Node:
        length, mask = self._length(path, slots, capacity)
        child = self.compile(item, join(path, "items"), (*slots, capacity))
        return SequenceNode(path, capacity, length, mask, child, stacked)

    def _graph(self, space: spaces.Graph, path: str, slots: Slots) -> Node:
        """Make sequences of nodes and edges; a flag tells no edges from an empty list of them."""
        parts: dict[str, Node] = {"nodes": self._part(space.node_space, join(path, "nodes"), slots)}
        if space.edge_space is not None:
            links = spaces.Box(0, np.iinfo(np.int32).max, (2,), np.int32)
            parts["has_edges"] = self.compile(spaces.Discrete(2), join(path, "has_edges"), slots)
            parts["edges"] = self._part(space.edge_space, join(path, "edges"), slots)
            edges_limit = self._limit(join(path, "edges"))
            parts["links"] = self._items(links, join(path, "links"), slots, edges_limit, True)
        child = DictNode(path, tuple(parts), tuple(parts.values()))
        return ConvertedNode(path, partial(_graph_parts, space), partial(_graph, space), child)

    def _part(self, item: Space[Any], path: str, slots: Slots) -> Node:
        return self._items(item, path, slots, self._limit(path), isinstance(item, _PLAIN))

    def _length(self, path: str, slots: Slots, capacity: int) -> tuple[int, int]:
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
    """Return the paths of a space that need a limit."""
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
    """Return a GraphInstance as the dict that its node packs."""
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
    """Return the GraphInstance that `_graph_parts` took apart."""
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
