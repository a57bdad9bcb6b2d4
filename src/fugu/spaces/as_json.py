"""Spaces and layouts as plain JSON, and back: nothing is pickled, so reading runs no code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import SpaceError
from fugu.spaces.layout import Layout

Tree = dict[str, Any]
_WORDS = {"inf": np.inf, "-inf": -np.inf}  # numbers that JSON lacks


class OpenText(Space[str]):
    """Strings of which no more is known."""

    def __init__(self) -> None:
        super().__init__((), np.str_)

    def contains(self, x: Any) -> bool:
        """Whether it is a string."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenText)

    def __hash__(self) -> int:
        return hash(OpenText)

    def __repr__(self) -> str:
        return "OpenText()"


def space_to_json(space: Space[Any]) -> Tree:
    """A space as what JSON has; one of a subclass is written as what it is a kind of.

    >>> space_to_json(spaces.Dict(go=spaces.Discrete(4), by=spaces.Box(-1, np.inf, (2,))))["items"]
    ... # doctest: +NORMALIZE_WHITESPACE
    [['go', {'kind': 'Discrete', 'dtype': 'int64', 'n': 4, 'start': 0}],
     ['by', {'kind': 'Box', 'dtype': 'float32', 'shape': [2], 'low': -1.0, 'high': 'inf'}]]

    Raises:
        SpaceError: If it is of no kind that layouts know.
    """
    for kind in type(space).__mro__:
        if kind in _WRITERS:
            return {"kind": kind.__name__, **_WRITERS[kind](space)}
    if space.dtype is not None and np.dtype(space.dtype).kind == "U":
        return {"kind": "OpenText"}
    known = ", ".join(kind.__name__ for kind in _WRITERS)
    raise SpaceError(
        f"space: given {type(space).__name__}; allowed: {known} and subclasses of them, and spaces "
        "of dtype str."
    )


def space_from_json(tree: Any) -> Space[Any]:
    """The space that `space_to_json` wrote.

    Raises:
        SpaceError: If it is none.
    """
    try:
        return _READERS[tree["kind"]](tree)
    except SpaceError:
        raise
    except (
        KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError, MemoryError,
        RecursionError,
    ) as error:  # fmt: skip
        shown = repr(tree)
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        raise SpaceError(
            f"space: given {shown} ({type(error).__name__}: {error}); allowed: what "
            f"space_to_json writes, of the kinds {', '.join(_READERS)}."
        ) from error


def layout_to_json(layout: Layout) -> Tree:
    """A layout as what JSON has."""
    limits, strict, plain = layout.options
    if isinstance(limits, Mapping):
        limits = {path: int(limit) for path, limit in limits.items()}
    elif limits is not None:
        limits = int(limits)
    return {
        "space": space_to_json(layout.space),
        "limits": limits,
        "strict": bool(strict),
        "plain": bool(plain),
    }


def layout_from_json(tree: Any) -> Layout:
    """The layout that `layout_to_json` wrote.

    Raises:
        SpaceError: If it is none.
    """
    if not isinstance(tree, dict) or "space" not in tree:
        raise SpaceError(f"layout: given {tree!r:.200}; allowed: what layout_to_json writes.")
    limits = tree.get("limits")
    if limits is not None and not isinstance(limits, int | dict):
        raise SpaceError(
            f"layout: given the limits {limits!r:.200}; allowed: a number, or by path."
        )
    options = {name: bool(tree.get(name)) for name in ("strict", "plain")}
    return Layout.of(space_from_json(tree["space"]), limits=limits, **options)


# ---------------------------------------------------------------------- numbers


def _number(number: Any) -> Any:
    plain = number.item()
    if isinstance(plain, float) and np.isinf(plain):
        return "inf" if plain > 0 else "-inf"
    return plain


def _numbers(array: Any) -> Any:
    """One number if all are alike, else all, in order."""
    flat = np.asarray(array).reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return _number(flat[0])
    return [_number(number) for number in flat]


def _array(numbers: Any, shape: list[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    if not isinstance(numbers, list):
        return np.full(shape, _WORDS.get(numbers, numbers), dtype)
    return np.array([_WORDS.get(n, n) for n in numbers], dtype).reshape(shape)


# ---------------------------------------------------------------------- kinds


def _write_box(space: spaces.Box) -> Tree:
    bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
    return {"dtype": np.dtype(space.dtype).name, "shape": _shape(space), **bounds}


def _read_box(tree: Tree) -> Space[Any]:
    dtype, shape = np.dtype(tree["dtype"]), tree["shape"]
    low, high = (_array(tree[name], shape, dtype) for name in ("low", "high"))
    return spaces.Box(low, high, tuple(shape), dtype.type)


def _write_discrete(space: spaces.Discrete) -> Tree:
    return {"dtype": np.dtype(space.dtype).name, "n": int(space.n), "start": int(space.start)}


def _read_discrete(tree: Tree) -> Space[Any]:
    # Only newer versions of Gymnasium know other types.
    kind: Tree = {} if tree["dtype"] == "int64" else {"dtype": np.dtype(tree["dtype"]).type}
    return spaces.Discrete(tree["n"], start=tree["start"], **kind)


def _write_multi_discrete(space: spaces.MultiDiscrete) -> Tree:
    start = getattr(space, "start", np.zeros_like(space.nvec))
    return {
        "dtype": np.dtype(space.dtype).name,
        "shape": _shape(space),
        "nvec": _numbers(space.nvec),
        "start": _numbers(start),
    }


def _read_multi_discrete(tree: Tree) -> Space[Any]:
    dtype, shape = np.dtype(tree["dtype"]), tree["shape"]
    nvec, start = (_array(tree[name], shape, dtype) for name in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, tree["dtype"], start=start)


def _write_multi_binary(space: spaces.MultiBinary) -> Tree:
    return {"n": int(space.n) if isinstance(space.n, int | np.integer) else _shape(space)}


def _write_text(space: spaces.Text) -> Tree:
    characters = "".join(sorted(space.character_set))
    return {"min": int(space.min_length), "max": int(space.max_length), "characters": characters}


def _read_text(tree: Tree) -> Space[Any]:
    lengths = {"min_length": tree["min"]}
    return spaces.Text(tree["max"], **lengths, charset=frozenset(tree["characters"]))


def _write_dict(space: spaces.Dict) -> Tree:
    for key in space.spaces:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise SpaceError(f"space: given the key {key!r}; allowed: keys of text or integers.")
    return {"items": [[key, space_to_json(item)] for key, item in space.spaces.items()]}


def _read_dict(tree: Tree) -> Space[Any]:
    return spaces.Dict([(key, space_from_json(item)) for key, item in tree["items"]])


def _write_options(space: spaces.Tuple | spaces.OneOf) -> Tree:
    return {"items": [space_to_json(item) for item in space.spaces]}


def _write_sequence(space: spaces.Sequence) -> Tree:
    return {"item": space_to_json(space.feature_space), "stack": bool(space.stack)}


def _write_graph(space: spaces.Graph) -> Tree:
    edges = None if space.edge_space is None else space_to_json(space.edge_space)
    return {"nodes": space_to_json(space.node_space), "edges": edges}


def _read_graph(tree: Tree) -> Space[Any]:
    edges: Any = None if tree["edges"] is None else space_from_json(tree["edges"])
    nodes: Any = space_from_json(tree["nodes"])
    return spaces.Graph(nodes, edges)


def _shape(space: Space[Any]) -> list[int]:
    return [int(side) for side in space.shape or ()]


_WRITERS: dict[type[Space[Any]], Callable[[Any], Tree]] = {
    spaces.Box: _write_box,
    spaces.Discrete: _write_discrete,
    spaces.MultiDiscrete: _write_multi_discrete,
    spaces.MultiBinary: _write_multi_binary,
    spaces.Text: _write_text,
    spaces.Dict: _write_dict,
    spaces.Tuple: _write_options,
    spaces.Sequence: _write_sequence,
    spaces.OneOf: _write_options,
    spaces.Graph: _write_graph,
}
_READERS: dict[str, Callable[[Tree], Space[Any]]] = {
    "Box": _read_box,
    "Discrete": _read_discrete,
    "MultiDiscrete": _read_multi_discrete,
    "MultiBinary": lambda tree: spaces.MultiBinary(tree["n"]),
    "Text": _read_text,
    "Dict": _read_dict,
    "Tuple": lambda tree: spaces.Tuple([space_from_json(item) for item in tree["items"]]),
    "Sequence": lambda tree: spaces.Sequence(space_from_json(tree["item"]), stack=tree["stack"]),
    "OneOf": lambda tree: spaces.OneOf([space_from_json(item) for item in tree["items"]]),
    "Graph": _read_graph,
    "OpenText": lambda tree: OpenText(),
}
