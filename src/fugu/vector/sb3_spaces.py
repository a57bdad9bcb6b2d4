"""Any layout in the forms that Stable-Baselines3 can take, and back.

It takes Box, Discrete, MultiDiscrete and MultiBinary, and for observations one Dict of those. So an
observation becomes one Dict of its layout's leaves, and an action one array of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import PackError, UsageError
from fugu.envs.masks import mask_heads
from fugu.native.nodes import join
from fugu.native.packing import describe
from fugu.spaces import Layout, Leaf

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
Array = NDArray[Any]


def leaf_of(leaf: Leaf, rows: Array) -> Array:
    """The view of one leaf in flat rows, `[..., *leaf.shape]`."""
    raw = rows.view(np.uint8)[..., leaf.offset : leaf.offset + leaf.nbytes]
    return raw.view(leaf.dtype).reshape((*rows.shape[:-1], *leaf.shape))


# ------------------------------------------------------------------ observations


@dataclass(frozen=True)
class OfferedLeaf:
    """A leaf of an observation, and the space in which it is offered.

    Choices are offered from 0 on, whatever the environment counts from.
    """

    leaf: Leaf
    space: Space[Any]
    start: Array | int = 0
    last: Array | int | None = None  # choice; None if it is not one

    def take(self, rows: Array) -> Array:
        """A copy of it from flat rows, in its space."""
        values = leaf_of(self.leaf, rows)
        shape = (*rows.shape[:-1], *(self.space.shape or ()))
        values = values.reshape(shape)
        if self.last is not None:
            # What only fills up a sequence is 0, which need not be one of its choices.
            values = np.clip(values - self.start, 0, self.last)
        return values.astype(self.space.dtype)


class ObservationForm:
    """How observations are offered.

    Spaces that Stable-Baselines3 knows stay as they are. Any other becomes one Dict of the
    layout's leaves by their paths, "outer/inner"; texts and sequences have their lengths, masks
    and items.

    >>> tree = spaces.Dict(a=spaces.Dict(b=spaces.Discrete(3, start=5)), c=spaces.Box(0, 1, ()))
    >>> ObservationForm(Layout.of(tree)).space
    Dict('a/b': Discrete(3), 'c': Box(0.0, 1.0, (1,), float32))
    """

    def __init__(self, layout: Layout) -> None:
        self._single = isinstance(layout.space, _ARRAYS)
        prefix = "" if isinstance(layout.space, spaces.Dict | spaces.Tuple) else "observation/"
        leaves = {f"{prefix}{leaf.path}": leaf for leaf in layout.leaves if leaf.nbytes}
        if not leaves:
            raise UsageError(f"observation: given {layout.space}, which is empty; allowed: a leaf.")
        self._leaves = {key: _offer(leaf) for key, leaf in leaves.items()}
        self.space: Space[Any]
        if self._single:
            (self._only,) = self._leaves.values()
            self.space = self._only.space
        else:
            self.space = spaces.Dict({key: one.space for key, one in self._leaves.items()})

    def take(self, rows: Array) -> Any:
        """Copies of flat rows, or of one row, in the space that is offered."""
        if self._single:
            return self._only.take(rows)
        return {key: leaf.take(rows) for key, leaf in self._leaves.items()}


def _offer(leaf: Leaf) -> OfferedLeaf:
    space, shape = leaf.space, leaf.shape
    match space:
        case spaces.Discrete() if not shape:
            count = int(space.n)
            return OfferedLeaf(leaf, spaces.Discrete(count), int(space.start), count - 1)
        case spaces.Discrete():  # one for each slot of a sequence
            counts = np.full(int(np.prod(shape)), int(space.n))
            return OfferedLeaf(leaf, spaces.MultiDiscrete(counts), int(space.start), counts - 1)
        case spaces.MultiDiscrete():
            counts = np.broadcast_to(space.nvec, shape).reshape(-1)
            start = np.broadcast_to(space.start, shape).reshape(-1)
            return OfferedLeaf(leaf, spaces.MultiDiscrete(counts), start, counts - 1)
        case spaces.Box() if leaf.dtype != np.bool_:
            low = np.broadcast_to(space.low, shape).reshape(shape or (1,))
            high = np.broadcast_to(space.high, shape).reshape(shape or (1,))
            return OfferedLeaf(leaf, spaces.Box(low, high, dtype=leaf.dtype.type))
        case spaces.MultiBinary() if space.shape == shape:
            return OfferedLeaf(leaf, space)
        case _:
            return OfferedLeaf(leaf, spaces.MultiBinary(list(shape or (1,))))


# ------------------------------------------------------------------ actions


@dataclass(frozen=True)
class Columns:
    """Where the numbers of one leaf of an action stand among those that are offered.

    What comes is scaled: a choice `c` becomes `low + step * c`, a continuous number stays.
    """

    leaf: Leaf
    begin: int
    counts: Array | None  # choices of each number; None for continuous ones
    low: Array | float = 0.0
    step: Array | float = 1.0

    def put(self, numbers: Array, rows: Array) -> None:
        """Write them into flat rows."""
        out = leaf_of(self.leaf, rows).reshape(len(rows), -1)
        chosen = numbers[:, self.begin : self.begin + out.shape[1]]
        values = chosen if self.counts is None else self.low + self.step * chosen
        out[...] = np.rint(values) if self.leaf.dtype.kind in "iub" else values


class ActionForm:
    """How actions are offered.

    Spaces that Stable-Baselines3 knows stay as they are, their choices counted from 0. A tree of
    choices becomes one MultiDiscrete, a tree of continuous numbers one Box. It knows no action with
    both; `bins` makes choices of the continuous ones, that many evenly spaced values each.

    >>> tree = spaces.Dict(turn=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,)))
    >>> ActionForm(Layout.of(tree), bins=5).space
    MultiDiscrete([3 5 5])
    """

    def __init__(self, layout: Layout, bins: int | None = None) -> None:
        _refuse_variable(layout.space, "")
        if bins is not None and (isinstance(bins, bool) or not isinstance(bins, int) or bins < 2):
            raise UsageError(
                f"action_bins: given {bins!r}; allowed: an integer from 2 on, or None."
            )
        self._layout = layout
        self._columns: list[Columns] = []
        end = 0
        for leaf in layout.leaves:
            self._columns.append(_columns_of(leaf, end, bins))
            end += int(np.prod(leaf.shape))
        self._width = end
        _refuse_mixed(self._columns)
        self.space: Space[Any] = self._offer()

    def rows(self, actions: Any, count: int) -> Array:
        """Flat rows of the actions of `count` environments."""
        given = np.asarray(actions)
        shape = (count, *(self.space.shape or ()))
        if given.shape != shape or given.dtype.kind not in "iufb":
            raise PackError("", f"as actions, {describe(given)}", f"numbers of shape {shape}")
        if not np.isfinite(given).all():
            raise PackError("", "actions that are not numbers", f"numbers of {self.space}")
        rows = self._layout.zeros(count)
        for columns in self._columns:
            columns.put(given.reshape(count, self._width), rows)
        return rows

    def _offer(self) -> Space[Any]:
        space = self._layout.space
        counts = [columns.counts for columns in self._columns]
        if counts[0] is None:
            if isinstance(space, spaces.Box):
                return space
            boxes: list[Any] = [columns.leaf.space for columns in self._columns]
            low = np.concatenate([box.low.reshape(-1) for box in boxes])
            high = np.concatenate([box.high.reshape(-1) for box in boxes])
            return spaces.Box(low.astype(np.float32), high.astype(np.float32))
        if isinstance(space, spaces.Discrete):
            return spaces.Discrete(int(space.n))
        if isinstance(space, spaces.MultiBinary):
            return spaces.MultiBinary(self._width)
        return spaces.MultiDiscrete(np.concatenate(counts))  # type: ignore[arg-type]


def _columns_of(leaf: Leaf, begin: int, bins: int | None) -> Columns:
    space = leaf.space
    match space:
        case spaces.Box():
            return Columns(leaf, begin, None) if bins is None else _bins(leaf, space, begin, bins)
        case spaces.Discrete() | spaces.MultiDiscrete():
            counts = np.array(mask_heads(Layout.of(space)))
            return Columns(leaf, begin, counts, np.asarray(space.start).reshape(-1))
        case _:
            return Columns(leaf, begin, np.full(int(np.prod(leaf.shape)), 2))


def _bins(leaf: Leaf, space: spaces.Box, begin: int, bins: int) -> Columns:
    low = space.low.reshape(-1).astype(np.float64)
    high = space.high.reshape(-1).astype(np.float64)
    if not np.isfinite([low, high]).all():
        raise UsageError(
            f"action leaf '{leaf.path}': given {space}, which is unbounded; allowed with "
            "action_bins: finite bounds. Bound it in a wrapper (RescaleAction)."
        )
    return Columns(leaf, begin, np.full(len(low), bins), low, (high - low) / (bins - 1))


def _refuse_variable(space: Space[Any], path: str) -> None:
    """Raise, with its name, if a part of an action is none of the arrays that SB3 can give."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, item in items:
            _refuse_variable(item, join(path, key))
    elif not isinstance(space, _ARRAYS):
        raise UsageError(
            f"action leaf '{path}': given {space}; allowed: Box, Discrete, MultiDiscrete and "
            "MultiBinary, alone or in dicts and tuples, since Stable-Baselines3 gives no other "
            "actions. Convert it in a wrapper."
        )


def _refuse_mixed(columns: list[Columns]) -> None:
    if not columns:
        raise UsageError("action: given a space with no leaf; allowed: at least one.")
    continuous = [one.leaf.path for one in columns if one.counts is None]
    if continuous and len(continuous) < len(columns):
        raise UsageError(
            f"action leaf '{continuous[0]}': given continuous numbers beside choices; allowed: one "
            "kind, since Stable-Baselines3 gives no mixed actions. Make choices of them, for "
            "example 5 values each: to_sb3(..., action_bins=5)."
        )
