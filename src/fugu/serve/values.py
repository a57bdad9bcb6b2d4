"""Values of a layout's space from JSON; what does not fit is named by its field."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from fugu.native.packing_reference import fit_text
from fugu.serve.arrays import read_numbers
from fugu.serve.fields import FieldError, name_below, read_keys, read_list, show
from fugu.spaces import Layout


def read_row(layout: Layout, value: Any, field: str, row: NDArray[Any]) -> None:
    """Write what a client sent for a value of the layout's space into a row.

    >>> from gymnasium import spaces
    >>> layout = Layout.of(spaces.Dict(position=spaces.Box(-1, 1, (2,))))
    >>> read_row(layout, {"position": [0.5, float("nan")]}, "observation", layout.zeros())
    Traceback (most recent call last):
    fugu.serve.fields.FieldError: observation.position[1]: given NaN; allowed: a finite number.
    """
    try:
        layout.pack(_read(layout.root, value, field), row)
    except PackError as error:  # what only the packer knows, such as links between nodes
        place = name_below(field, *filter(None, error.path.split("/")))
        raise FieldError(place, error.given, error.allowed) from None


def _read(node: Node, value: Any, field: str) -> Any:
    match node:
        case ArrayNode():
            return read_numbers(node.dtype, node.shape, (node.low, node.high), value, field)
        case ScalarNode():
            low, high = np.array([node.low]), np.array([node.high])
            return int(read_numbers(np.dtype(np.int64), (), (low, high), value, field))
        case TextNode():
            return _read_text(node, value, field)
        case DictNode():
            return _read_dict(node, value, field)
        case TupleNode():
            items = read_list(value, field, len(node.children), len(node.children))
            parts = zip(node.children, items, strict=True)
            return tuple(_read(child, v, f"{field}[{i}]") for i, (child, v) in enumerate(parts))
        case SequenceNode():
            return _read_sequence(node, value, field)
        case OneOfNode():
            index = read_keys(value, field, ("index", "value"))["index"]
            most = np.array([len(node.children) - 1])
            chosen = int(read_numbers(most.dtype, (), (most * 0, most), index, f"{field}.index"))
            return chosen, _read(node.children[chosen], value["value"], f"{field}.value")
        case ConvertedNode():
            child = node.child
            if isinstance(child, DictNode):
                return node.restore(_read_graph(child, value, field))
            return node.restore(_read(child, value, field))


def _read_text(node: TextNode, value: Any, field: str) -> str:
    try:
        fit_text(node, value)
    except PackError as error:
        raise FieldError(field, show(value), error.allowed) from None
    text: str = value
    return text


def _read_dict(node: DictNode, value: Any, field: str) -> dict[Any, Any]:
    names = [str(key) for key in node.keys]
    found = read_keys(value, field, names)
    parts = zip(node.keys, names, node.children, strict=True)
    return {key: _read(child, found[name], name_below(field, name)) for key, name, child in parts}


def _read_sequence(node: SequenceNode, value: Any, field: str) -> Any:
    items = read_list(value, field, 0, node.capacity)
    found = tuple(_read(node.child, item, f"{field}[{i}]") for i, item in enumerate(items))
    if not node.stacked:
        return found
    child = node.child
    assert isinstance(child, ArrayNode | ScalarNode)
    shape = child.shape if isinstance(child, ArrayNode) else ()
    return np.array(found, child.dtype).reshape(len(found), *shape)


def _read_graph(node: DictNode, value: Any, field: str) -> dict[str, Any]:
    """Nodes, and edges with the nodes that they link, both or neither."""
    parts = {str(key): child for key, child in zip(node.keys, node.children, strict=True)}
    optional = ("edges", "edge_links") if "edges" in parts else ()
    found = read_keys(value, field, ("nodes",), optional)
    read = {"nodes": _read(parts["nodes"], found["nodes"], f"{field}.nodes"), "has_edges": 0}
    edges, links = found.get("edges"), found.get("edge_links")
    if edges is None and links is None:
        return read
    if edges is None or links is None:
        missing = "edges" if edges is None else "edge_links"
        raise FieldError(f"{field}.{missing}", "null", "edges and edge_links, or neither")
    for name, key, given in (("edges", "edges", edges), ("links", "edge_links", links)):
        read[name] = _read(parts[name], given, f"{field}.{key}")
    return read | {"has_edges": 1}
