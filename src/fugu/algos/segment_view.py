"""The segments of one update, from which minibatches of segments or steps are drawn."""

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

MOST_STEPS, MOST_BYTES = 32_768, 64 * 2**20  # of a microbatch, and of its observations


@dataclass(frozen=True)
class Minibatch:
    """Segments as tensors `[segments, horizon, ...]`, or steps as segments of length 1."""

    observations: Tensor
    samples: Tensor
    masks: Tensor | None
    states: Tensor  # [segments, state]
    resets: Tensor
    old_log_probabilities: Tensor
    old_values: Tensor  # [segments, horizon, critics]
    advantages: Tensor
    returns: Tensor  # [segments, horizon, critics]
    weights: Tensor  # 0 where a step does not count


@dataclass(frozen=True)
class MinibatchIndices:
    """What one step of the optimizer learns from."""

    chosen: NDArray[np.int64]  # segments or steps of the view
    weights: NDArray[np.float32]  # weight of each of them
    normalized: NDArray[np.float32]  # their advantages as the loss takes them, [length, chosen]
    advantages: NDArray[np.float32]  # of the whole view, [critics, length, count]
    count: int  # valid steps of the minibatch


@dataclass(frozen=True)
class Places:
    """Where the segments or steps of a minibatch stand."""

    rows: NDArray[np.int64]  # of the segments
    own: NDArray[np.int64]  # the same segments, among those of the update
    times: NDArray[np.int64] | None  # of the steps, if each is drawn for itself


@dataclass(frozen=True)
class CriticTarget:
    """Per-step signal whose discounted return a critic predicts."""

    numbers: NDArray[np.float32]  # [horizon, segments]
    gamma: float
    lambda_: float


def side_by_side(rows: NDArray[np.int64]) -> Any:
    """Return the slice that rows are if each follows the one before, else the rows.

    >>> side_by_side(np.array([3, 4, 5])), side_by_side(np.array([3, 5]))
    (slice(3, 6, None), array([3, 5]))
    """
    follow = len(rows) and (np.diff(rows) == 1).all()
    return slice(int(rows[0]), int(rows[-1]) + 1) if follow else rows


class SegmentView:
    """The segments of one update, or their steps; numbers are time-major, `[length, count]`.

    Args:
        segments: The buffer.
        rows: Its segments that the update is made of; all of them are complete.
        targets: The target of each critic.
        clips: V-trace's rho_clip and c_clip; None: GAE, whose ratios are 1 throughout.
        threads: Threads that compute advantages; 0: as many as cores.
        by_steps: Whether each step is drawn on its own, for policies without memory: the length is
            1 then, and the count that of all steps.

    Attributes:
        segments: The buffer.
        valid: Whether a step counts, `[length, count]`.
        whole: Whether all do.
        ratios: New over old probabilities of the actions, `[length, count]`; the learner keeps
            them up to date.
        length: Steps of what is drawn.
        count: How many there are to draw from.
        critics: Number of critics.
    """

    def __init__(
        self,
        segments: Segments,
        rows: NDArray[np.int64],
        targets: list[CriticTarget],
        clips: tuple[float, float] | None,
        threads: int = 0,
        *,
        by_steps: bool = False,
    ) -> None:
        self.segments, self._rows, self._targets = segments, rows, targets
        self._clips, self._threads, self._by_steps = clips, threads, by_steps
        self._gae: NDArray[np.float32] | None = None
        self.critics, own = len(targets), side_by_side(rows)  # a slice is not copied
        self._valid = segments.valid[:, own]
        self._values = segments.values[: self.critics, :, own]
        self._final_values = segments.final_values[: self.critics, :, own]
        self._terminations = segments.terminations[:, own]
        self._truncations = segments.truncations[:, own]
        self.valid: NDArray[np.bool_] = self._valid.reshape(1, -1) if by_steps else self._valid
        self.length, self.count = int(self.valid.shape[0]), int(self.valid.shape[1])
        self.whole = bool(self.valid.all())
        self.ratios = np.ones(self.valid.shape, np.float32)
        table = segments.observations.table
        self._row_bytes = max(1, table.shape[-1] * table.element_size())
        self._predicted = self._values[:, :-1].reshape(self.critics, self.length, self.count)

    def microbatch(self, steps: int = 0) -> int:
        """Return how many segments or steps torch computes at a time.

        Args:
            steps: Steps that the settings ask for; 0: fewer if observations are large.
        """
        steps = steps or max(1, min(MOST_STEPS, MOST_BYTES // self._row_bytes))
        return max(1, steps // self.length)

    def advantages(self, ratios: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the advantages of all segments or steps, `[critics, length, count]`.

        Args:
            ratios: Probability ratios for V-trace, `[length, count]`; GAE does not use them.
        """
        if self._gae is not None:  # the same for every minibatch of the update
            return self._gae
        rho_clip, c_clip = self._clips or (1.0, 1.0)
        out = np.empty((self.critics, *self._valid.shape), np.float32)
        for i, target in enumerate(self._targets):
            compute_advantages(
                target.numbers,
                self._values[i],
                self._final_values[i],
                self._terminations,
                self._truncations,
                gamma=target.gamma,
                lambda_=target.lambda_,
                rho_clip=rho_clip,
                c_clip=c_clip,
                ratios=None if self._clips is None else ratios.reshape(self._valid.shape),
                valid=self._valid,
                out=out[i],
                threads=self._threads,
            )
        found = out.reshape(self.critics, self.length, self.count)
        self._gae = found if self._clips is None else None
        return found

    def places(self, chosen: NDArray[np.int64]) -> Places:
        """Return where segments or steps stand."""
        if not self._by_steps:
            return Places(self._rows[chosen], chosen, None)
        own = chosen % max(1, len(self._rows))
        return Places(self._rows[own], own, chosen // max(1, len(self._rows)))

    def minibatch(self, indices: MinibatchIndices, part: slice) -> Minibatch:
        """Return a part of a minibatch as tensors."""
        segments, chosen = self.segments, indices.chosen[part]
        at, tables = self.places(chosen), self._segment_major
        rows: Any = at.rows if at.times is None else (at.rows[:, None], at.times[:, None])
        own: Any = at.own if at.times is None else (at.own[:, None], at.times[:, None])
        masks = segments.masks[rows] if segments.masks.shape[-1] else None
        if masks is not None and masks.all():
            masks = None
        valid, values, samples = tables["valid"][own], tables["values"][own], segments.samples[rows]
        observations = segments.observations.read(at.rows, at.times)
        if not valid.all():  # 0 times a NaN would reach the weights
            samples[~valid] = 0
            observations[torch.from_numpy(~valid)] = 0
        arrays = {
            "samples": samples,
            "states": segments.states[at.rows],
            "old_log_probabilities": tables["log_probabilities"][own],
            "old_values": values,
            "advantages": np.ascontiguousarray(indices.normalized[:, part].T, np.float32),
            "returns": indices.advantages[:, :, chosen].T + values,
            "weights": valid * indices.weights[part, None],
        }
        if masks is not None:
            arrays["masks"] = masks
        tensors: dict[str, Any] = {"masks": None, "resets": torch.from_numpy(tables["resets"][own])}
        for name, array in arrays.items():
            tensors[name] = torch.from_numpy(array).to(observations.device, non_blocking=True)
        return Minibatch(observations=observations, **tensors)

    @cached_property
    def _segment_major(self) -> dict[str, NDArray[Any]]:
        """Numbers segment by segment, as minibatches of torch take them."""
        log_probabilities = self.segments.log_probabilities[:, side_by_side(self._rows)]
        return {
            "valid": np.ascontiguousarray(self._valid.T),
            "resets": self.segments.resets(self._rows),
            "log_probabilities": np.ascontiguousarray(log_probabilities.T),
            "values": np.ascontiguousarray(self._values[:, :-1].T),  # critics last
        }

    def targets(self, indices: MinibatchIndices) -> NDArray[np.float32]:
        """Return what the critics should predict of a minibatch, `[critics, length, chosen]`."""
        chosen = indices.chosen
        return indices.advantages.take(chosen, -1) + self._predicted.take(chosen, -1)

    def observations(self) -> Tensor:
        """Return the observations of all steps that count, `[steps, size]`."""
        seen = self.segments.observations.read(self._rows)
        return seen[torch.from_numpy(self._segment_major["valid"]).to(seen.device)]

    def returns(self) -> NDArray[np.float32]:
        """Return what each critic should have predicted, `[critics, length, count]`."""
        ones = np.ones(self.valid.shape, np.float32)
        found: NDArray[np.float32] = self.advantages(ones) + self._predicted
        return found

    def explained_variances(
        self, returns: NDArray[np.float32], ranks: Ranks = SINGLE_PROCESS
    ) -> list[float]:
        """Return how much of the returns each critic predicted; 1: all, 0: only their mean."""
        found = []
        for critic, values in zip(returns, self._predicted, strict=True):
            inside = critic[self.valid]
            variance = float(ranks.moments(moments_of(inside)).variance)
            error = float(ranks.moments(moments_of(inside - values[self.valid])).variance)
            found.append(1 - error / variance if variance > 1e-12 else math.nan)
        return found
