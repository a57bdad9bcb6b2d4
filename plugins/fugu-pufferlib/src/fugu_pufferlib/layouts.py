"""Layouts as PufferLib's scripts see them: flat spaces, structured dtypes, 32-bit choices."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from copy import copy
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from fugu.core.errors import SpaceError
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout


def narrow(space: Space[Any], *, binary: bool = False) -> Space[Any]:
    """The space with all choices of 32 bits, as PufferLib stores them; MultiBinary if asked for.

    >>> Layout.of(narrow(spaces.Dict(gear=spaces.Discrete(5), position=spaces.Box(-1, 1, (2,)))))
    Layout(12 x uint8: gear int32 @0, position float32[2] @4)
    """
    match space:
        case spaces.Discrete():
            short = copy(space)  # not every Gymnasium lets one choose the dtype
            short.dtype = np.dtype(np.int32)
            return short
        case spaces.MultiDiscrete():
            return spaces.MultiDiscrete(space.nvec, dtype=np.int32, start=space.start)
        case spaces.MultiBinary() if binary:
            return spaces.MultiDiscrete(np.full(space.shape, 2), dtype=np.int32)
        case spaces.Dict():
            parts = ((key, narrow(part, binary=binary)) for key, part in space.items())
            return spaces.Dict(OrderedDict(parts))
        case spaces.Tuple():
            return spaces.Tuple([narrow(part, binary=binary) for part in space])
        case _:
            return space


def observation_layout(space: Space[Any]) -> Layout:
    """How observations stand in rows."""
    return Layout.of(narrow(space))


def action_layout(space: Space[Any]) -> Layout:
    """How actions stand in rows; those out of bounds are refused."""
    return Layout.of(narrow(space, binary=True), strict=True, plain=True)


def flat_observation_space(space: Space[Any]) -> Space[Any]:
    """A Box as it is; of all others, the Box of their rows.

    >>> flat_observation_space(spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(5))).shape
    (12,)
    """
    if isinstance(space, spaces.Box):
        return space
    layout = observation_layout(space)
    dtype = layout.dtype
    if dtype.kind == "b":
        return spaces.Box(0, 1, (layout.size,), dtype.type)
    ends: Any = np.finfo(np.float32) if dtype.kind == "f" else np.iinfo(dtype)
    return spaces.Box(ends.min, ends.max, (layout.size,), dtype.type)


def flat_action_space(space: Space[Any]) -> Space[Any]:
    """A Box, a Discrete and a MultiDiscrete of rank 1 as they are; of trees, a MultiDiscrete.

    >>> parts = {"go": spaces.Discrete(3), "look": spaces.MultiBinary(2)}
    >>> flat_action_space(spaces.Dict(parts))
    MultiDiscrete([3 2 2])
    """
    if isinstance(space, spaces.Box | spaces.Discrete):
        return space
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return space
    counts, starts = [], []
    for leaf in action_layout(space).leaves:
        if not isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete):
            raise SpaceError(
                f"action space: given {space}, of which {leaf.path!r} is a "
                f"{type(leaf.space).__name__}; allowed: trees of choices alone. fugu.make and "
                "fugu.train take mixed ones."
            )
        count = leaf.space.n if isinstance(leaf.space, spaces.Discrete) else leaf.space.nvec
        counts.append(np.reshape(count, -1))
        starts.append(np.reshape(leaf.space.start, -1))
    return spaces.MultiDiscrete(np.concatenate(counts), start=np.concatenate(starts))


def group_of(env: Any) -> AgentGroup:
    """The agents of a PufferLib environment, as vectors need to know them."""
    return AgentGroup(
        "agents",
        tuple(range(env.num_agents)),
        observation_layout(env.single_observation_space),
        action_layout(env.single_action_space),
    )


def struct_dtype(layout: Layout) -> np.dtype[Any]:
    """The structured dtype of a layout's rows: every leaf where it is.

    >>> inner = spaces.Dict(x=spaces.Box(-1, 1, (1,)), y=spaces.Box(0, 255, (1,), np.uint8))
    >>> tree = spaces.Dict(inner=inner, z=spaces.Box(0, 255, (1,), np.uint8))
    >>> found = struct_dtype(Layout.of(tree))
    >>> found.itemsize, found.fields["z"][1], found["inner"].fields["y"][1]
    (8, 5, 4)
    """
    found, _, _ = _struct(layout.tree(lambda *place: place))
    if found.fields is None:
        return found
    names = list(found.names or ())
    formats, offsets = zip(*(found.fields[name][:2] for name in names), strict=True)
    return _fields(names, formats, offsets, layout.nbytes)


def _struct(tree: Any) -> tuple[np.dtype[Any], int, int]:
    """The dtype of a part, and its first byte and the one behind its last."""
    if _is_place(tree):
        offset, dtype, shape = tree
        leaf = np.dtype((dtype, shape))
        return leaf, offset, offset + leaf.itemsize
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    prefix = "" if isinstance(tree, dict) else "f"
    parts = {f"{prefix}{key}": _struct(part) for key, part in items}
    begin = min((first for _, first, _ in parts.values()), default=0)
    end = max((last for _, _, last in parts.values()), default=0)
    formats = [dtype for dtype, _, _ in parts.values()]
    offsets = [first - begin for _, first, _ in parts.values()]
    return _fields(parts, formats, offsets, end - begin), begin, end


def _fields(
    names: Iterable[str], formats: Iterable[Any], offsets: Iterable[int], itemsize: int
) -> np.dtype[Any]:
    parts: Any = {"names": list(names), "formats": list(formats), "offsets": list(offsets)}
    whole: Any = np.dtype(parts | {"itemsize": itemsize})
    made: np.dtype[Any] = whole
    return made


def _is_place(tree: Any) -> bool:
    return isinstance(tree, tuple) and len(tree) == 3 and isinstance(tree[1], np.dtype)
