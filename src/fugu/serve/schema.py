"""JSON Schema (2020-12) of a layout's values, an example of one, and actions as JSON."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

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
)
from fugu.spaces import Layout

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MOST_EXAMPLE = 2000  # characters; a longer one is no example
Schema = dict[str, Any]


def value_schema(layout: Layout, *, packed: bool = True) -> Schema:
    """What a value of the layout's space looks like.

    Args:
        layout: Whose.
        packed: Whether arrays may also be base64 of their bytes.

    >>> value_schema(Layout.of(spaces.Discrete(3)))
    {'type': 'integer', 'minimum': 0, 'maximum': 2}
    """
    return _Writer(layout, packed).schema(layout.root)


class _Writer:
    def __init__(self, layout: Layout, packed: bool) -> None:
        self._packed = packed
        self._spaces = {leaf.path: leaf.space for leaf in layout.leaves}

    def schema(self, node: Node) -> Schema:
        match node:
            case ArrayNode():
                return self._array(node)
            case ScalarNode():
                return _integer(node.low, node.high)
            case TextNode():
                return _text(node)
            case DictNode():
                names = map(str, node.keys)
                return _object(dict(zip(names, map(self.schema, node.children), strict=True)))
            case TupleNode():
                return _tuple([self.schema(child) for child in node.children])
            case SequenceNode():
                items = self.schema(node.child)
                return {"type": "array", "items": items, "maxItems": node.capacity}
            case OneOfNode():
                options = enumerate(map(self.schema, node.children))
                return {"oneOf": [_object({"index": {"const": i}, "value": o}) for i, o in options]}
            case ConvertedNode():
                if isinstance(node.child, DictNode):
                    return self._graph(node.child)
                return self.schema(node.child)

    def _array(self, node: ArrayNode) -> Schema:
        low, high = (None if b is None else b.reshape(node.shape) for b in (node.low, node.high))
        lists = _lists(node.dtype, node.shape, low, high)
        if (usual := self._usual(node)) is not None:
            lists["description"] = usual
        if not (self._packed and node.shape):
            return lists
        length = -(-int(np.prod(node.shape)) * node.dtype.itemsize // 3) * 4
        packed = {
            "type": "string",
            "contentEncoding": "base64",
            "minLength": length,
            "maxLength": length,
            "description": f"The bytes of {node.dtype} {list(node.shape)}, little-endian.",
        }
        return {"anyOf": [lists, packed]}

    def _usual(self, node: ArrayNode) -> str | None:
        """What its space says of it, which is not enforced: environments overstep it too."""
        space = self._spaces.get(node.path)
        if not isinstance(space, spaces.Box):
            return None
        name = f"{node.dtype}"
        if not space.low.size:
            return name
        low, high = space.low.min().item(), space.high.max().item()
        return f"{name}, usually {low:g} to {high:g}" if np.isfinite([low, high]).all() else name

    def _graph(self, node: DictNode) -> Schema:
        parts = {str(key): child for key, child in zip(node.keys, node.children, strict=True)}
        nodes = self.schema(parts["nodes"])
        if "edges" not in parts:
            return _object({"nodes": nodes})
        edges, links = self.schema(parts["edges"]), self.schema(parts["links"])
        both = _object({"nodes": nodes, "edges": edges, "edge_links": links})
        null = {"type": "null"}
        neither = _object({"nodes": nodes, "edges": null, "edge_links": null}, ["nodes"])
        return {"anyOf": [both, neither]}


def _object(properties: Schema, required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _tuple(items: list[Schema]) -> Schema:
    count = len(items)
    schema: Schema = {"type": "array", "minItems": count, "maxItems": count}
    return schema | ({"prefixItems": items, "items": False} if items else {})


def _text(node: TextNode) -> Schema:
    schema = {"type": "string", "minLength": node.min_length, "maxLength": node.capacity}
    if node.alphabet is None:
        return schema | {"description": f"At most {node.capacity} bytes of UTF-8."}
    letters = "".join(f"\\{c}" if c in "\\]^-[" else c for c in node.alphabet)
    return schema | {"pattern": f"^[{letters}]*$" if letters else "^$"}


def _integer(low: Any, high: Any) -> Schema:
    return {"type": "integer", "minimum": int(low), "maximum": int(high)}


def _lists(
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    low: NDArray[Any] | None,
    high: NDArray[Any] | None,
) -> Schema:
    """Nested lists; where bounds differ from place to place, each has its own."""
    if not shape:
        return _number(dtype, low, high)
    if low is not None and high is not None and low.size:
        if not ((low == low[0]).all() and (high == high[0]).all()):
            pairs = zip(low, high, strict=True)
            return _tuple([_lists(dtype, shape[1:], *pair) for pair in pairs])
        low, high = low[0], high[0]
    items = _lists(dtype, shape[1:], low, high)
    return {"type": "array", "items": items, "minItems": shape[0], "maxItems": shape[0]}


def _number(dtype: np.dtype[Any], low: Any, high: Any) -> Schema:
    if dtype.kind == "b":
        return {"type": "boolean"}
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return _integer(*(info.min, info.max) if low is None else (low, high))
    schema: Schema = {"type": "number"}
    if low is not None:
        bounds = {"minimum": float(low), "maximum": float(high)}
        schema |= {name: bound for name, bound in bounds.items() if np.isfinite(bound)}
    return schema


# ---------------------------------------------------------------------- values


def example(layout: Layout) -> Any:
    """A value of the layout's space, as plain as can be, as a client would send it."""
    return _example(layout.root)


def _example(node: Node) -> Any:
    match node:
        case ArrayNode():
            zeros = np.zeros(node.shape, node.dtype)
            if node.low is None or node.high is None:
                return zeros.tolist()
            return zeros.clip(node.low.reshape(node.shape), node.high.reshape(node.shape)).tolist()
        case ScalarNode():
            return min(max(0, node.low), node.high)
        case TextNode():
            return (node.alphabet or " ")[:1] * node.min_length
        case DictNode():
            names = map(str, node.keys)
            return dict(zip(names, map(_example, node.children), strict=True))
        case TupleNode():
            return [_example(child) for child in node.children]
        case SequenceNode():
            return []
        case OneOfNode():
            return {"index": 0, "value": _example(node.children[0])}
        case ConvertedNode():
            return {"nodes": []} if isinstance(node.child, DictNode) else []


def to_plain(value: Any) -> Any:
    """An action, as `Layout.unpack` gives it, as what JSON has."""
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def write_state(state: NDArray[np.float32]) -> str:
    """A state as base64 of its float32 numbers, little-endian."""
    return base64.b64encode(state.astype("<f4").tobytes()).decode()
