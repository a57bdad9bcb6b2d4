"""The JSON types of a layout's values: arrays of numbers, texts, and trees of them."""

from __future__ import annotations

import base64
from functools import partial
from itertools import chain
from math import isfinite, prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from fugu.core.errors import PackError
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
from fugu.native.packing import fit_text
from fugu.serve.errors import RequestError, mismatch, show, subfield
from fugu.serve.json_types import (
    JsonType,
    Schema,
    converted,
    integer,
    list_of,
    null,
    object_of,
    one_of,
    tuple_of,
    tuple_schema,
)
from fugu.spaces import Layout


def row_of(layout: Layout) -> JsonType:
    """Return the type of a layout's values that are packed into a row once they have been read.

    >>> layout = Layout.of(spaces.Dict(position=spaces.Box(-1, 1, (2,))))
    >>> row_of(layout).read({"position": [0.5, float("nan")]}, "observation")
    Traceback (most recent call last):
    fugu.serve.errors.RequestError: observation.position[1]: expected a finite number of type \
float32; got NaN.
    """
    kind = value_of(layout)

    def read(value: Any, field: str) -> NDArray[Any]:
        row = layout.zeros()
        try:
            layout.pack(kind.read(value, field), row)
        except PackError as error:  # what only the packer checks, such as links between nodes
            for key in filter(None, error.path.split("/")):
                field = subfield(field, key)
            raise mismatch(field, error.allowed, error.given) from None
        return row

    return JsonType(read, kind.schema, kind.example, kind.size)


def value_of(layout: Layout, *, packed: bool = True) -> JsonType:
    """Return the type of a layout's values.

    Args:
        layout: Layout of a space.
        packed: Whether arrays may also be base64 of their bytes.
    """
    return _Types(layout, packed).of(layout.root)


class _Types:
    def __init__(self, layout: Layout, packed: bool) -> None:
        self._packed = packed
        self._spaces = {leaf.path: leaf.space for leaf in layout.leaves}

    def of(self, node: Node) -> JsonType:
        """Return the type of a node's values."""
        match node:
            case ArrayNode():
                options: Any = {"packed": self._packed, "note": self._note(node)}
                return Array(node.dtype, node.shape, node.low, node.high, **options).type
            case ScalarNode():
                return integer(node.low, node.high)
            case TextNode():
                return _text(node)
            case DictNode():
                return object_of(dict(zip(node.keys, map(self.of, node.children), strict=True)))
            case TupleNode():
                return tuple_of([self.of(child) for child in node.children])
            case SequenceNode():
                items = list_of(self.of(node.child), 0, node.capacity)
                return converted(items, partial(_stack, node.child) if node.stacked else tuple)
            case OneOfNode():
                return one_of([self.of(child) for child in node.children])
            case ConvertedNode():
                if isinstance(node.child, DictNode):
                    return self._graph(node, node.child)
                return converted(self.of(node.child), node.restore)

    def _note(self, node: ArrayNode) -> str:
        """Describe the bounds of a Box, which are not enforced: environments overstep them too."""
        space = self._spaces.get(node.path)
        if not isinstance(space, spaces.Box) or not space.low.size:
            return ""
        low, high = space.low.min().item(), space.high.max().item()
        usual = f", usually {low:g} to {high:g}" if isfinite(low) and isfinite(high) else ""
        return f"{node.dtype}{usual}"

    def _graph(self, node: ConvertedNode, parts: DictNode) -> JsonType:
        """Return the type of graphs: nodes, and edges with the nodes that they link, or neither."""
        kinds = dict(zip(map(str, parts.keys), map(self.of, parts.children), strict=True))
        nodes, edges = kinds["nodes"], kinds.get("edges")
        if edges is None:
            return converted(object_of({"nodes": nodes}), node.restore)
        none = null("a graph has both edges and edge_links, or neither")
        bare = object_of({"nodes": nodes, "edges": none, "edge_links": none})
        linked = object_of({"nodes": nodes, "edges": edges, "edge_links": kinds["links"]})

        def read(value: Any, field: str) -> Any:
            given = isinstance(value, dict) and any(
                value.get(k) is not None for k in ("edges", "edge_links")
            )
            found = (linked if given else bare).read(value, field)
            return node.restore({**found, "has_edges": given, "links": found["edge_links"]})

        schema = {"anyOf": [linked.schema, bare.schema]}
        return JsonType(read, schema, bare.example, linked.size)


def _text(node: TextNode) -> JsonType:
    def read(value: Any, field: str) -> str:
        try:
            fit_text(node, value)
        except PackError as error:
            raise mismatch(field, error.allowed, show(value)) from None
        return value  # type: ignore[no-any-return]

    schema = {"type": "string", "minLength": node.min_length, "maxLength": node.capacity}
    if node.alphabet is None:
        schema["description"] = f"At most {node.capacity} bytes of UTF-8."
    else:
        letters = "".join(f"\\{c}" if c in "\\]^-[" else c for c in node.alphabet)
        schema["pattern"] = f"^[{letters}]*$" if letters else "^$"
    shortest = (node.alphabet or " ")[:1] * node.min_length
    size = len('"", ') + node.capacity * len("\\ud83d\\ude00")  # a character as an escaped pair
    return JsonType(read, schema, shortest, size)


def _stack(item: Node, found: list[Any]) -> NDArray[Any]:
    assert isinstance(item, ArrayNode | ScalarNode)
    shape = item.shape if isinstance(item, ArrayNode) else ()
    return np.array(found, item.dtype).reshape(len(found), *shape)


# ---------------------------------------------------------------------- arrays

Numbers = list[Any] | NDArray[Any]
_FLOAT = len("-1.7976931348623157e+308, ")
_WIDE: dict[str, Any] = {"f": (np.float64, {int, float}), "b": (np.int64, {int, bool})}
_LIMITS: dict[str, Any] = {"f": np.finfo, "b": lambda dtype: SimpleNamespace(min=0, max=1)}


class Array:
    """Arrays of a dtype and a shape: nested lists of numbers, or base64 of their bytes.

    Booleans may also be 0 and 1.

    Args:
        dtype: Type of the numbers.
        shape: Shape of the arrays.
        low: Smallest values, flat; by default those of the type.
        high: Largest values.
        packed: Whether base64 is taken as well.
        note: Description of the values.

    Attributes:
        type: Their JSON type.
    """

    def __init__(
        self,
        dtype: Any,
        shape: tuple[int, ...] = (),
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        *,
        packed: bool = True,
        note: str = "",
    ) -> None:
        self._dtype, self._shape, self._packed = np.dtype(dtype), shape, packed and bool(shape)
        limits: Any = _LIMITS.get(self._dtype.kind, np.iinfo)(self._dtype)
        # Numbers are compared with their bounds in a wide type, before they are rounded.
        self._wide, self._types = _WIDE.get(self._dtype.kind, (self._dtype, {int}))
        self._bounded = low is not None or self._dtype.kind in "iu"
        self._low, self._high = (
            np.full(shape, limit, self._wide) if bound is None else np.reshape(bound, shape)
            for bound, limit in ((low, limits.min), (high, limits.max))
        )
        nearest = np.clip(np.zeros(shape, self._wide), self._low, self._high).astype(dtype)
        bounds = (self._low.min(initial=0), self._high.max(initial=0))
        digits = _FLOAT if self._dtype.kind == "f" else max(len(f"{n}.0, ") for n in bounds)
        lists = sum(prod(shape[:axis]) for axis in range(len(shape)))
        size = prod(shape) * digits + lists * len("[], ")
        self.type = JsonType(self._read, self._schema(note), nearest.tolist(), size)

    def _read(self, value: Any, field: str) -> NDArray[Any]:
        packed = isinstance(value, str) and self._packed
        flat = self._unpack(value, field) if packed else self._flatten(value, field)
        numbers = self._convert(flat)
        if numbers is None or not ((numbers >= self._low) & (numbers <= self._high)).all():
            raise self._first_wrong(flat, field)
        return numbers.astype(self._dtype)

    def _unpack(self, value: str, field: str) -> NDArray[Any]:
        count, size = prod(self._shape), prod(self._shape) * self._dtype.itemsize
        expected = f"base64 of the {size} bytes of {count} {self._dtype}, little-endian"
        try:
            raw = base64.b64decode(value, validate=True)
        except ValueError as error:
            raise mismatch(field, expected, f"{show(value)} ({error})") from None
        if len(raw) != size:
            raise mismatch(field, expected, f"base64 of {len(raw)} bytes")
        stored = "u1" if self._dtype.kind == "b" else self._dtype.newbyteorder("<")
        return np.frombuffer(raw, stored)

    def _flatten(self, value: Any, field: str) -> list[Any]:
        """Return the numbers of nested lists, in order."""
        flat = [value]
        for axis, side in enumerate(self._shape):
            if not ({*map(type, flat)} <= {list} and {*map(len, flat)} <= {side}):
                at = next(i for i, v in enumerate(flat) if type(v) is not list or len(v) != side)
                sides = " x ".join(map(str, self._shape[axis:]))
                base = ", or base64 of their bytes" if self._packed and not axis else ""
                place = _place(field, at, self._shape[:axis])
                raise mismatch(place, f"a list of {sides} numbers{base}", show(flat[at]))
            flat = list(chain.from_iterable(flat))
        return flat

    def _convert(self, flat: Numbers) -> NDArray[Any] | None:
        """Return the array of these numbers; None if one has another type or is far too large."""
        if isinstance(flat, np.ndarray):
            return flat.reshape(self._shape)
        types = {*map(type, flat)}
        if float in types and float not in self._types:
            flat = [int(n) if _is_whole(n) else n for n in flat]
            types = {*map(type, flat)}
        try:
            return np.array(flat, self._wide).reshape(self._shape) if types <= self._types else None
        except OverflowError:
            return None

    def _first_wrong(self, flat: Numbers, field: str) -> RequestError:
        given = flat.tolist() if isinstance(flat, np.ndarray) else flat
        bounds = zip(self._low.ravel().tolist(), self._high.ravel().tolist(), strict=True)
        at, number, low, high = next(
            (at, number, low, high)
            for at, (number, (low, high)) in enumerate(zip(given, bounds, strict=True))
            if not (type(number) in self._types or _is_whole(number)) or not low <= number <= high
        )
        kind = "a number" if self._dtype.kind == "f" else "an integer"
        expected = f"{kind} from {low} to {high}"
        if not self._bounded:
            boolean = self._dtype.kind == "b"
            expected = "true or false" if boolean else f"a finite number of type {self._dtype}"
        return mismatch(_place(field, at, self._shape), expected, show(number))

    def _schema(self, note: str) -> Schema:
        lists = self._lists(self._low, self._high) | ({"description": note} if note else {})
        if not self._packed:
            return lists
        length = -(-prod(self._shape) * self._dtype.itemsize // 3) * 4
        packed = {
            "type": "string",
            "contentEncoding": "base64",
            "minLength": length,
            "maxLength": length,
            "description": f"The bytes of {self._dtype} {list(self._shape)}, little-endian.",
        }
        return {"anyOf": [lists, packed]}

    def _lists(self, low: NDArray[Any], high: NDArray[Any]) -> Schema:
        """Return the schema of nested lists; where bounds differ, each place has its own."""
        if not low.ndim:
            return self._number(low.item(), high.item())
        if len(low) and not ((low == low[0]).all() and (high == high[0]).all()):
            return tuple_schema([self._lists(*pair) for pair in zip(low, high, strict=True)])
        items = self._lists(low[0], high[0]) if len(low) else {}
        return {"type": "array", "items": items, "minItems": len(low), "maxItems": len(low)}

    def _number(self, low: Any, high: Any) -> Schema:
        if self._dtype.kind == "b":
            return {"enum": [True, False, 1, 0]}
        if self._dtype.kind != "f":
            return integer(low, high).schema
        bounds = {"minimum": low, "maximum": high} if self._bounded else {}
        return {"type": "number"} | {n: bound for n, bound in bounds.items() if np.isfinite(bound)}


def _is_whole(number: Any) -> bool:
    return type(number) is float and number.is_integer()


def _place(field: str, index: int, shape: tuple[int, ...]) -> str:
    places = np.unravel_index(index, shape) if shape else ()
    return field + "".join(f"[{i}]" for i in places)
