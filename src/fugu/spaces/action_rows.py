"""Rows of an action layout from samples: what the environment is given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import SpaceError
from fugu.spaces import Layout, Leaf

Floats = NDArray[np.float32]
Continuous: TypeAlias = Literal["clipped", "scaled", "tanh"]
MOST_CHOICES = 2**24  # samples are float32, which holds no larger integers exactly
WIDEST = 1e6  # half the distance of bounds that samples are scaled to; wider ones mean none
INSIDE = 1.0 - 1e-6  # of the bounds, where a tanh comes from a finite number


@dataclass(frozen=True)
class Choices:
    """Discrete heads of one leaf: `columns` of the samples, counted from `start`."""

    leaf: Leaf
    columns: slice
    counts: tuple[int, ...]
    start: NDArray[Any]  # [heads], of the leaf's dtype


@dataclass(frozen=True)
class Numbers:
    """Continuous dimensions of one leaf: `columns` of the samples, and their finite bounds.

    An action is `shift + scale * sample`, or `shift + scale * tanh(sample)` where it is squashed,
    clipped to the bounds.

    Attributes:
        low: Lower bounds, `[dims]`.
        high: Upper bounds.
        squashed: Dimensions whose samples go through a tanh.
        shift: The middle of the bounds if the dimension is scaled or squashed, else 0.
        scale: Half the distance between the bounds if it is scaled or squashed, else 1.
    """

    leaf: Leaf
    columns: slice
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    squashed: NDArray[np.bool_]
    shift: NDArray[np.float64]
    scale: NDArray[np.float64]

    @cached_property
    def plain(self) -> bool:
        """Whether every action is its sample, clipped to the bounds."""
        changed = self.squashed | (self.shift != 0) | (self.scale != 1)
        return not changed.any()


class RowWriter:
    """Takes an action layout apart, and writes samples as its rows.

    The samples of all discrete heads stand first, then those of all continuous dimensions, each in
    the order of the leaves.

    Args:
        layout: Layout of the actions.
        continuous: How samples become numbers between two finite bounds: "clipped" (the sample is
            the number), "scaled" (a sample of -1 is the lower bound and 1 the upper one) or "tanh"
            (scaled after a tanh).

    Attributes:
        choices: The discrete leaves.
        numbers: The continuous leaves.
        num_heads: Discrete heads of all of them.
        num_samples: Columns of the samples.
    """

    def __init__(self, layout: Layout, continuous: Continuous) -> None:
        check_action_space(layout.space)
        self._layout = layout
        self.choices: list[Choices] = []
        self.numbers: list[Numbers] = []
        discrete = [leaf for leaf in layout.leaves if not isinstance(leaf.space, spaces.Box)]
        column = 0
        for leaf in discrete:
            counts, start = _heads(leaf)
            self.choices.append(Choices(leaf, _columns(column, len(counts)), counts, start))
            column += len(counts)
        self.num_heads = column
        for leaf in layout.leaves:
            if isinstance(leaf.space, spaces.Box):
                count = int(np.prod(leaf.shape, dtype=np.int64))
                self.numbers.append(_numbers(leaf, leaf.space, _columns(column, count), continuous))
                column += count
        self.num_samples = column

    def write(self, samples: Floats) -> NDArray[Any]:
        """The rows, `[batch, size]`, of samples `[batch, num_samples]`."""
        rows = np.zeros((len(samples), self._layout.size), self._layout.dtype)
        raw = rows.view(np.uint8)
        for choice in self.choices:
            place, dtype = _view(raw, choice.leaf), choice.leaf.dtype
            np.add(samples[:, choice.columns].astype(dtype), choice.start, out=place)
        for numbers in self.numbers:
            given: NDArray[Any] = samples[:, numbers.columns]
            if not numbers.plain:
                given = given.astype(np.float64)
                given = np.where(numbers.squashed, np.tanh(given), given)
                given = numbers.shift + numbers.scale * given
            _view(raw, numbers.leaf)[...] = np.clip(given, numbers.low, numbers.high)
        return rows

    def read(self, rows: NDArray[Any]) -> Floats:
        """Samples that give these rows; of a squashed number at a bound, one that is very near."""
        raw = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
        samples = np.zeros((len(rows), self.num_samples), np.float32)
        for choice in self.choices:
            samples[:, choice.columns] = _view(raw, choice.leaf) - choice.start
        for numbers in self.numbers:
            given = _view(raw, numbers.leaf).astype(np.float64)
            if not numbers.plain:
                given = (given - numbers.shift) / numbers.scale
                inside = np.where(numbers.squashed, given.clip(-INSIDE, INSIDE), 0.0)
                given = np.where(numbers.squashed, np.arctanh(inside), given)
            samples[:, numbers.columns] = given
        return samples


def check_action_space(space: Space[Any], path: str = "") -> None:
    """Raise unless a policy can act in `space`."""
    match space:
        case spaces.Dict():
            for key, item in space.spaces.items():
                check_action_space(item, f"{path}/{key}")
        case spaces.Tuple():
            for index, item in enumerate(space.spaces):
                check_action_space(item, f"{path}/{index}")
        case spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            most = int(np.max(getattr(space, "nvec", getattr(space, "n", 2)), initial=0))
            if isinstance(space, spaces.MultiBinary):
                most = 2
            if most > MOST_CHOICES:
                raise _refused(path, f"a head of {most} choices", f"heads of up to {MOST_CHOICES}")
        case spaces.Box() if np.dtype(space.dtype).kind == "f":
            pass
        case spaces.Box():
            advice = "Declare integers that are chosen as a MultiDiscrete."
            raise _refused(path, f"a Box of {space.dtype}", "a Box of floats", advice)
        case _:
            allowed = "Discrete, MultiDiscrete, MultiBinary, Box, and Dict and Tuple of them"
            advice = "Convert the action in a wrapper."
            raise _refused(path, type(space).__name__, allowed, advice)


def _refused(path: str, given: str, allowed: str, advice: str = "") -> SpaceError:
    place = f"action space at '{path.lstrip('/')}'" if path else "action space"
    return SpaceError(f"{place}: given {given}; allowed: {allowed}. {advice}".strip())


def _heads(leaf: Leaf) -> tuple[tuple[int, ...], NDArray[Any]]:
    """Choices of each head of a discrete leaf, and what each is counted from."""
    space = leaf.space
    match space:
        case spaces.Discrete():
            counts, start = [int(space.n)], np.array([space.start])
        case spaces.MultiDiscrete():
            counts = [int(count) for count in space.nvec.reshape(-1)]
            start = np.asarray(getattr(space, "start", np.zeros_like(space.nvec))).reshape(-1)
        case _:
            counts = [2] * int(np.prod(leaf.shape, dtype=np.int64))
            start = np.zeros(len(counts))
    return tuple(counts), start.astype(leaf.dtype)


def _numbers(leaf: Leaf, space: spaces.Box, columns: slice, continuous: Continuous) -> Numbers:
    # Bounds are finite at last, since a float16 overflows where a float32 sample does not.
    most = float(np.finfo(leaf.dtype).max)
    low, high = (bound.reshape(-1).astype(np.float64) for bound in (space.low, space.high))
    bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
    low, high = low.clip(-most, most), high.clip(-most, most)
    squashed = bounded & (continuous == "tanh")
    half = high / 2 - low / 2
    changed = squashed | (bounded & (continuous == "scaled") & (half <= WIDEST))
    shift = np.where(changed, low / 2 + high / 2, 0.0)
    return Numbers(leaf, columns, low, high, squashed, shift, np.where(changed, half, 1.0))


def _columns(first: int, count: int) -> slice:
    return slice(first, first + count)


def _view(raw: NDArray[np.uint8], leaf: Leaf) -> NDArray[Any]:
    """The leaf's numbers in all rows, `[batch, numbers]`."""
    return raw[:, leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype)
