"""Convert spaces and layouts to plain JSON and back, without pickles: reading runs no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import SpaceError
from fugu.spaces.layout import Layout

Tree = dict[str, Any]
_WORDS = {"inf": np.inf, "-inf": -np.inf}  # numbers that JSON lacks
_KINDS = (
    spaces.Box,
    spaces.Discrete,
    spaces.MultiDiscrete,
    spaces.MultiBinary,
    spaces.Text,
    spaces.Dict,
    spaces.Tuple,
    spaces.Sequence,
    spaces.OneOf,
    spaces.Graph,
)


class OpenText(Space[str]):
    """Strings of any length and alphabet."""

    def __init__(self) -> None:
        super().__init__((), np.str_)

    def contains(self, x: Any) -> bool:
        """Return whether a value is a string."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenText)

    def __hash__(self) -> int:
        return hash(OpenText)

    def __repr__(self) -> str:
        return "OpenText()"


def space_to_json(space: Space[Any]) -> Tree:
    """Return a space as JSON; one of a subclass is written as its base.

    >>> space_to_json(spaces.Dict(go=spaces.Discrete(4), by=spaces.Box(-1, np.inf, (2,))))["items"]
    ... # doctest: +NORMALIZE_WHITESPACE
    [['go', {'kind': 'Discrete', 'dtype': 'int64', 'n': 4, 'start': 0}],
     ['by', {'kind': 'Box', 'dtype': 'float32', 'shape': [2], 'low': -1.0, 'high': 'inf'}]]

    Raises:
        SpaceError: If layouts do not support it.
    """
    for kind in type(space).__mro__:
        if kind in _KINDS:
            return {"kind": kind.__name__, **_fields(space)}
    if space.dtype is not None and np.dtype(space.dtype).kind == "U":
        return {"kind": "OpenText"}
    known = ", ".join(kind.__name__ for kind in _KINDS)
    raise SpaceError(
        f"space: given {type(space).__name__}; allowed: {known} and subclasses of them, and spaces "
        "of dtype str."
    )


def _fields(space: Space[Any]) -> Tree:
    """Return the fields of a space's JSON, except its kind."""
    dtype = "" if space.dtype is None else np.dtype(space.dtype).name
    shape = [int(side) for side in space.shape or ()]
    match space:
        case spaces.Box():
            bounds = {"low": _numbers(space.low), "high": _numbers(space.high)}
            return {"dtype": dtype, "shape": shape, **bounds}
        case spaces.Discrete():
            return {"dtype": dtype, "n": int(space.n), "start": int(space.start)}
        case spaces.MultiDiscrete():
            start = getattr(space, "start", np.zeros_like(space.nvec))
            counts = {"nvec": _numbers(space.nvec), "start": _numbers(start)}
            return {"dtype": dtype, "shape": shape, **counts}
        case spaces.MultiBinary():
            return {"n": int(space.n) if isinstance(space.n, int | np.integer) else shape}
        case spaces.Text():
            lengths = {"min": int(space.min_length), "max": int(space.max_length)}
            return {**lengths, "characters": "".join(sorted(space.character_set))}
        case spaces.Dict():
            for key in space.spaces:
                if isinstance(key, bool) or not isinstance(key, str | int):
                    raise SpaceError(
                        f"space: given the key {key!r}; allowed: keys of text or integers."
                    )
            return {"items": [[key, space_to_json(item)] for key, item in space.spaces.items()]}
        case spaces.Tuple() | spaces.OneOf():
            return {"items": [space_to_json(item) for item in space.spaces]}
        case spaces.Sequence():
            return {"item": space_to_json(space.feature_space), "stack": bool(space.stack)}
        case spaces.Graph():
            edges = None if space.edge_space is None else space_to_json(space.edge_space)
            return {"nodes": space_to_json(space.node_space), "edges": edges}
    raise AssertionError(f"no kind of space: {space}")


def space_from_json(tree: Any) -> Space[Any]:
    """Return the space that `space_to_json` wrote; SpaceError for anything else."""
    try:
        return _read(tree)
    except SpaceError:
        raise
    except (
        KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError, MemoryError,
        RecursionError,
    ) as error:  # fmt: skip
        shown = repr(tree)
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        known = ", ".join([*(kind.__name__ for kind in _KINDS), "OpenText"])
        raise SpaceError(
            f"space: given {shown} ({type(error).__name__}: {error}); allowed: what "
            f"space_to_json writes, of the kinds {known}."
        ) from error


def _read(tree: Tree) -> Space[Any]:
    def arrays(*names: str) -> list[NDArray[Any]]:
        return [_array(tree[name], tree["shape"], np.dtype(tree["dtype"])) for name in names]

    match tree["kind"]:
        case "Box":
            low, high = arrays("low", "high")
            return spaces.Box(low, high, tuple(tree["shape"]), np.dtype(tree["dtype"]).type)
        case "Discrete":
            # Only newer versions of Gymnasium know other types.
            kind: Tree = {}
            if tree["dtype"] != "int64":
                kind = {"dtype": np.dtype(tree["dtype"]).type}
            return spaces.Discrete(tree["n"], start=tree["start"], **kind)
        case "MultiDiscrete":
            nvec, start = arrays("nvec", "start")
            return spaces.MultiDiscrete(nvec, tree["dtype"], start=start)
        case "MultiBinary":
            return spaces.MultiBinary(tree["n"])
        case "Text":
            lengths = {"min_length": tree["min"]}
            return spaces.Text(tree["max"], **lengths, charset=frozenset(tree["characters"]))
        case "Dict":
            return spaces.Dict([(key, space_from_json(item)) for key, item in tree["items"]])
        case "Tuple":
            return spaces.Tuple([space_from_json(item) for item in tree["items"]])
        case "Sequence":
            return spaces.Sequence(space_from_json(tree["item"]), stack=tree["stack"])
        case "OneOf":
            return spaces.OneOf([space_from_json(item) for item in tree["items"]])
        case "Graph":
            edges: Any = None if tree["edges"] is None else space_from_json(tree["edges"])
            nodes: Any = space_from_json(tree["nodes"])
            return spaces.Graph(nodes, edges)
        case "OpenText":
            return OpenText()
    raise KeyError(tree["kind"])


def layout_to_json(layout: Layout) -> Tree:
    """Return a layout as JSON."""
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
    """Return the layout that `layout_to_json` wrote; SpaceError for anything else."""
    if not isinstance(tree, dict) or "space" not in tree:
        raise SpaceError(f"layout: given {tree!r:.200}; allowed: what layout_to_json writes.")
    limits = tree.get("limits")
    if limits is not None and not isinstance(limits, int | dict):
        raise SpaceError(
            f"layout: given the limits {limits!r:.200}; allowed: a number, or by path."
        )
    options = {name: bool(tree.get(name)) for name in ("strict", "plain")}
    return Layout.of(space_from_json(tree["space"]), limits=limits, **options)


def _number(number: Any) -> Any:
    plain = number.item()
    if isinstance(plain, float) and np.isinf(plain):
        return "inf" if plain > 0 else "-inf"
    return plain


def _numbers(array: Any) -> Any:
    """Return one number if all are equal, else all, in order."""
    flat = np.asarray(array).reshape(-1)
    if flat.size and (flat == flat[0]).all():
        return _number(flat[0])
    return [_number(number) for number in flat]


def _array(numbers: Any, shape: list[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    if not isinstance(numbers, list):
        return np.full(shape, _WORDS.get(numbers, numbers), dtype)
    return np.array([_WORDS.get(n, n) for n in numbers], dtype).reshape(shape)
