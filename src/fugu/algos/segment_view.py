"""Views of the segments of one update, from which minibatches of segments or steps are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fugu.core.ranks import SINGLE_PROCESS, Ranks, moments_of
from fugu.data.segments import Segments
from fugu.native.advantage import advantages as compute_advantages

MOST_STEPS, MOST_BYTES = 32_768, 64 * 2**20  # of a microbatch, and of what it sees


@dataclass(frozen=True)
class Minibatch:
    """SegmentView of segments as tensors, `[rows, horizon, ...]`."""

    observations: Tensor
    samples: Tensor
    masks: Tensor | None
    states: Tensor  # [rows, state]
    resets: Tensor
    old_log_probabilities: Tensor
    old_values: Tensor  # [rows, horizon, critics]
    advantages: Tensor
    returns: Tensor  # [rows, horizon, critics]
    weights: Tensor  # 0 where a step does not count


@dataclass(frozen=True)
class MinibatchIndices:
    """What one step of the optimizer learns from."""

    chosen: NDArray[np.int64]  # segments or steps of the view
    weights: NDArray[np.float32]  # weight of each of them
    normalized: NDArray[np.float32]  # their advantages as the loss takes them, [horizon, chosen]
    advantages: NDArray[np.float32]  # of the whole view, [critics, horizon, rows]
    count: int  # valid steps of the whole minibatch

    def part(self, begin: int, end: int) -> MinibatchIndices:
        """Some of the rows."""
        part = slice(begin, end)
        own = self.chosen[part], self.weights[part], self.normalized[:, part]
        return MinibatchIndices(*own, self.advantages, self.count)


@dataclass(frozen=True)
class Places:
    """Where rows, or steps of them, stand that were drawn."""

    rows: NDArray[np.int64]  # of the segments
    own: NDArray[np.int64]  # the same rows, among those of the update
    times: NDArray[np.int64] | None  # of the steps, if each is drawn for itself


@dataclass(frozen=True)
class CriticTarget:
    """Per-step signal whose discounted return a critic predicts."""

    numbers: NDArray[np.float32]  # [horizon, rows]
    gamma: float
    lambda_: float


def side_by_side(rows: NDArray[np.int64]) -> Any:
    """The slice that rows are if each follows the one before, else themselves.

    >>> side_by_side(np.array([3, 4, 5])), side_by_side(np.array([3, 5]))
    (slice(3, 6, None), array([3, 5]))
    """
    follow = len(rows) and (np.diff(rows) == 1).all()
    return slice(int(rows[0]), int(rows[-1]) + 1) if follow else rows


class SegmentView:
    """The rows of one update; numbers stand time by time, `[horizon, rows]`.

    Args:
        segments: Whose.
        rows: Which; all of them are complete.
        signals: Of the critics.
        clips: V-trace's rho_clip and c_clip; None: GAE, whose ratios are 1 throughout.
        threads: That may compute advantages; 0: as many as cores.

    Attributes:
        segments: Whose.
        valid: StepView that count.
        whole: Whether all do.
        ratios: How probable actions have become, to be kept up to date by who learns.
    """

    def __init__(
        self,
        segments: Segments,
        rows: NDArray[np.int64],
        signals: list[CriticTarget],
        clips: tuple[float, float] | None,
        threads: int = 0,
    ) -> None:
        self.segments, self._rows, self._signals = segments, rows, signals
        self._clips, self._threads = clips, threads
        self._gae: NDArray[np.float32] | None = None
        own = side_by_side(rows)  # nothing is copied then
        self._valid = segments.valid[:, own]
        self._values = segments.values[: len(signals), :, own]
        self._final_values = segments.final_values[: len(signals), :, own]
        self._terminations = segments.terminations[:, own]
        self._truncations = segments.truncations[:, own]
        self.valid: NDArray[np.bool_] = self._as_drawn(self._valid)
        self.whole = bool(self.valid.all())
        self.ratios = np.ones(self.valid.shape, np.float32)

    @property
    def length(self) -> int:
        """StepView of what is drawn."""
        return int(self.valid.shape[0])

    @property
    def count(self) -> int:
        """How many there are to draw from."""
        return int(self.valid.shape[1])

    @property
    def critics(self) -> int:
        """How many there are."""
        return len(self._signals)

    @property
    def steps_at_once(self) -> int:
        """StepView that are worth computing together; fewer if they see much, for memory's sake."""
        table = self.segments.observations.table
        seen = table.shape[-1] * table.element_size()
        return max(1, min(MOST_STEPS, MOST_BYTES // max(1, seen)))

    def advantages(self, ratios: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the advantages of every segment, `[critics, horizon, rows]`.

        Args:
            ratios: Probability ratios for V-trace `[horizon, rows]`; GAE does not look at them.
        """
        if self._clips is not None:
            return self._advantages(ratios, *self._clips)
        if self._gae is None:  # the same for every minibatch of the update
            self._gae = self._advantages(None, 1.0, 1.0)
        return self._gae

    def _advantages(
        self, ratios: NDArray[np.float32] | None, rho_clip: float, c_clip: float
    ) -> NDArray[np.float32]:
        out = np.empty((self.critics, *self._valid.shape), np.float32)
        for i, signal in enumerate(self._signals):
            compute_advantages(
                signal.numbers,
                self._values[i],
                self._final_values[i],
                self._terminations,
                self._truncations,
                gamma=signal.gamma,
                lambda_=signal.lambda_,
                rho_clip=rho_clip,
                c_clip=c_clip,
                ratios=None if ratios is None else ratios.reshape(self._valid.shape),
                valid=self._valid,
                out=out[i],
                threads=self._threads,
            )
        return self._as_drawn(out)

    def places(self, chosen: NDArray[np.int64]) -> Places:
        """Where some of the rows stand."""
        own, times = self._own_places(chosen)
        return Places(self._rows[own], own, times)

    def minibatch(self, draw: MinibatchIndices) -> Minibatch:
        """Some of the rows as tensors."""
        segments, at = self.segments, self.places(draw.chosen)
        rows, times = at.rows, at.times
        masks = _at(segments.masks, rows, times) if segments.masks.shape[-1] else None
        if masks is not None and masks.all():
            masks = None
        values = _at(self._value_rows, at.own, times)
        samples = _at(segments.samples, rows, times)
        valid = _at(self._valid_rows, at.own, times)
        observations = segments.observations.read(rows, times)
        if not valid.all():  # what is no number there must not reach a weight as 0 times itself
            samples[~valid] = 0
            observations[torch.from_numpy(~valid)] = 0
        device = observations.device

        def there(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return Minibatch(
            observations=observations,
            samples=there(samples),
            masks=None if masks is None else there(masks),
            states=there(segments.states[rows]),
            resets=torch.from_numpy(_at(self._reset_rows, at.own, times)),
            old_log_probabilities=there(_at(self._log_rows, at.own, times)),
            old_values=there(values),
            advantages=there(np.ascontiguousarray(draw.normalized.T, np.float32)),
            returns=there(draw.advantages[:, :, draw.chosen].T + values),
            weights=there(valid * draw.weights[:, None]),
        )

    # Row by row, as minibatches of torch take them.

    @cached_property
    def _valid_rows(self) -> NDArray[np.bool_]:
        return np.ascontiguousarray(self._valid.T)

    @cached_property
    def _reset_rows(self) -> NDArray[np.bool_]:
        return self.segments.resets(self._rows)

    @cached_property
    def _log_rows(self) -> NDArray[np.float32]:
        own = side_by_side(self._rows)
        return np.ascontiguousarray(self.segments.log_probabilities[:, own].T)

    @cached_property
    def _value_rows(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self._values[:, :-1].T)  # critics last

    def targets(self, draw: MinibatchIndices) -> NDArray[np.float32]:
        """What the critics should say of some rows, `[critics, horizon, chosen]`."""
        return draw.advantages.take(draw.chosen, -1) + self._said.take(draw.chosen, -1)

    def observations(self) -> Tensor:
        """Of all steps that count, `[steps, size]`."""
        seen = self.segments.observations.read(self._rows)
        return seen[torch.from_numpy(self._valid_rows).to(seen.device)]

    def returns(self) -> NDArray[np.float32]:
        """What each critic should have said, `[critics, horizon, rows]`."""
        ones = np.ones(self.valid.shape, np.float32)
        found: NDArray[np.float32] = self.advantages(ones) + self._said
        return found

    def explained_variances(
        self, returns: NDArray[np.float32], ranks: Ranks = SINGLE_PROCESS
    ) -> list[float]:
        """How much of the returns each critic told; 1: all, 0: no more than their mean."""
        found = []
        for critic, values in zip(returns, self._said, strict=True):
            inside = critic[self.valid]
            spread = float(ranks.moments(moments_of(inside)).variance)
            error = float(ranks.moments(moments_of(inside - values[self.valid])).variance)
            found.append(1 - error / spread if spread > 1e-12 else math.nan)
        return found

    # ------------------------------------------------------------------ what is drawn

    @property
    def _said(self) -> NDArray[np.float32]:
        """What critics said, `[critics, horizon, rows]`."""
        return self._as_drawn(self._values[:, :-1])

    def _as_drawn(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Numbers `[..., horizon, rows]` as `[..., length, count]`."""
        return numbers

    def _own_places(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], Any]:
        """Which rows of these were chosen, and which of their steps; None: all."""
        return chosen, None


class StepView(SegmentView):
    """The same steps, each drawn on its own: for policies without memory."""

    def _as_drawn(self, numbers: NDArray[Any]) -> NDArray[Any]:
        return numbers.reshape(*numbers.shape[:-2], 1, -1)

    def _own_places(self, chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], Any]:
        rows = max(1, len(self._rows))
        return chosen % rows, chosen // rows


def _at(table: NDArray[Any], rows: NDArray[np.int64], times: Any) -> NDArray[Any]:
    """What a table `[rows, horizon, ...]` has there, `[chosen, length, ...]`."""
    found: NDArray[Any] = table[rows] if times is None else table[rows, times][:, None]
    return found
