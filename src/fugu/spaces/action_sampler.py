"""Actions of a layout: sampled from the params of their distribution, and written as rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import SpaceError
from fugu.native.sampling import sample_categorical, sample_normal
from fugu.spaces.compile import Leaf
from fugu.spaces.layout import Layout

Floats = NDArray[np.float32]
Continuous: TypeAlias = Literal["clipped", "scaled", "tanh"]
MOST_CHOICES = 2**24  # samples are float32, which holds no larger integers exactly
WIDEST = 1e6  # half the distance of bounds that samples are scaled to; wider ones mean none
INSIDE = 1.0 - 1e-6  # of the bounds, where a tanh comes from a finite number


@dataclass(frozen=True)
class Choices:
    """Discrete heads of one leaf: `columns` of the samples; values begin at `start`."""

    leaf: Leaf
    columns: slice
    counts: tuple[int, ...]
    start: NDArray[Any]  # [heads], of the leaf's dtype


@dataclass(frozen=True)
class Numbers:
    """Continuous dimensions of one leaf: `columns` of the samples, and their finite bounds.

    An action is `shift + scale * sample`, or `shift + scale * tanh(sample)` where it is squashed,
    clipped to the bounds. All arrays are `[dims]`.
    """

    leaf: Leaf
    columns: slice
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    squashed: NDArray[np.bool_]  # whether samples go through a tanh
    shift: NDArray[np.float64]  # the middle of the bounds if scaled or squashed, else 0
    scale: NDArray[np.float64]  # half the distance of the bounds if scaled or squashed, else 1

    @cached_property
    def plain(self) -> bool:
        """Whether every action is its sample, clipped to the bounds."""
        changed = self.squashed | (self.shift != 0) | (self.scale != 1)
        return not changed.any()


class RowWriter:
    """Writes samples of actions as rows of a layout, and reads them.

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
        """Return the rows, `[batch, size]`, of samples `[batch, num_samples]`."""
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
        """Return samples that give these rows; at the bound of a squashed number, nearly so."""
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
    """Return the number of choices of each head of a discrete leaf, and its first value."""
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
    # The clipping bounds are finite, since a float16 overflows where a float32 sample does not.
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
    """Return the leaf's numbers in all rows, `[batch, numbers]`."""
    return raw[:, leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype)


class ActionSampler:
    """Samples actions of one layout; `fugu.policies.ActionDistribution` describes the params.

    Attributes:
        continuous: How samples become numbers between two finite bounds; see `RowWriter`.
        choices: Number of choices of each discrete head.
        squashed: Which continuous dimensions are squashed.
        log_scale: Sum of the logarithms of their scales.
    """

    def __init__(self, layout: Layout, continuous: Continuous) -> None:
        self.layout, self.writer = layout, RowWriter(layout, continuous)
        self.continuous = continuous
        self.choices = [count for choice in self.writer.choices for count in choice.counts]
        self._counts = np.array(self.choices, np.int64)
        self.num_choices, self.num_heads = sum(self.choices), len(self.choices)
        self.num_samples = self.writer.num_samples
        self.num_continuous = self.num_samples - self.num_heads
        self.num_outputs = self.num_choices + self.num_continuous
        self.num_params = self.num_outputs + self.num_continuous
        numbers = self.writer.numbers
        self.squashed = np.concatenate([np.zeros(0, np.bool_), *(n.squashed for n in numbers)])
        self.log_scale = float(sum(np.log(n.scale[n.squashed]).sum() for n in numbers))

    @property
    def squashes(self) -> bool:
        """Whether a dimension is squashed; otherwise all are plain normals."""
        return bool(self.squashed.any())

    def sample(
        self,
        params: Floats,
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        greedy: bool = False,
        live: NDArray[np.bool_] | None = None,
    ) -> tuple[Floats, Floats]:
        """Return actions and their log-probabilities.

        The same generator gives the same actions, and row i's depend on nothing but row i.

        Args:
            params: `[batch, num_params]`; UsageError if those of a live row are not finite.
            masks: Allowed choices, `[batch, num_choices]`, at least one of each head.
            random: Random number generator.
            greedy: Take the most probable choices, and the means.
            live: Rows that act, `[batch]`; others are ignored and get zeros.

        Returns:
            Samples `[batch, num_samples]` and log-probabilities `[batch]`.
        """
        batch, choices, outputs = len(params), self.num_choices, self.num_outputs
        samples = np.zeros((batch, self.num_samples), np.float32)
        log_probs = np.zeros(batch, np.float32)
        if not batch:  # the kernels take no empty arrays
            return samples, log_probs
        if self.num_heads:
            uniforms = None if greedy else random.random((batch, self.num_heads), np.float32)
            logits = np.ascontiguousarray(params[:, :choices])
            chosen = sample_categorical(logits, self._counts, uniforms, masks=masks, live=live)
            samples[:, : self.num_heads] = chosen.actions
            log_probs += chosen.log_probabilities
        if self.num_continuous:
            means, log_stds = params[:, choices:outputs], params[:, outputs:]
            noise = None if greedy else random.standard_normal(means.shape, np.float32)
            means, log_stds = np.ascontiguousarray(means), np.ascontiguousarray(log_stds)
            drawn = sample_normal(means, log_stds, noise, live=live)
            samples[:, self.num_heads :] = drawn.actions
            log_probs += drawn.log_probabilities
            if self.squashes:
                slopes = log_slope(drawn.actions[:, self.squashed].astype(np.float64), _softplus)
                slope = slopes.sum(-1) + self.log_scale
                log_probs -= (slope if live is None else slope * live).astype(np.float32)
        return samples, log_probs

    def to_rows(self, samples: Floats) -> NDArray[Any]:
        """Return the rows `[batch, layout.size]` of samples `[batch, numbers]`."""
        return self.writer.write(samples)

    def to_samples(self, rows: NDArray[Any]) -> Floats:
        """Return the samples `[batch, numbers]` of rows `[batch, layout.size]`."""
        return self.writer.read(rows)


def log_slope(raw: Any, softplus: Callable[[Any], Any]) -> Any:
    """Return log(1 - tanh(raw)^2), exactly even where the tanh rounds to 1."""
    return 2.0 * (math.log(2.0) - raw - softplus(-2.0 * raw))


def _softplus(numbers: NDArray[Any]) -> NDArray[Any]:
    out: NDArray[Any] = np.logaddexp(0.0, numbers)
    return out
