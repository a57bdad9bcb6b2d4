"""Actions of a layout: drawn from params of their distribution, and written as rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.native.sampling import sample_categorical, sample_normal
from fugu.spaces.action_rows import Continuous, RowWriter
from fugu.spaces.layout import Layout

Floats = NDArray[np.float32]


class ActionSampler:
    """Draws actions of one layout; `fugu.policies.ActionDistribution` says what params are.

    Args:
        layout: Layout of the actions.
        continuous: How samples become numbers between two finite bounds; see `RowWriter`.

    Attributes:
        continuous: As given.
        choices: How many each discrete head has.
        squashed: Which continuous dimensions are squashed.
        log_scale: The sum of the logarithms of how far those reach.
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
        """Whether a dimension is squashed; all are plain normals otherwise."""
        return bool(self.squashed.any())

    def sample(
        self,
        params: Floats,
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        greedy: bool = False,
        live: NDArray[np.bool_] | None = None,
    ) -> tuple[Floats, Floats]:
        """Actions and their log-probabilities.

        The same generator gives the same actions, and row i's depend on nothing but row i.

        Args:
            params: `[batch, num_params]`
            masks: Which choices are allowed, `[batch, num_choices]`; all, if missing.
            random: Where chance comes from.
            greedy: Take the most probable choices, and the means.
            live: Rows that act, `[batch]`; others are not looked at and get zeros.

        Returns:
            samples `[batch, num_samples]` and log-probabilities `[batch]`.

        Raises:
            UsageError: If a live row has params that are not finite, or a mask that allows nothing.
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
        """What the environment is given, `[batch, layout.size]`, of samples `[batch, numbers]`."""
        return self.writer.write(samples)

    def to_samples(self, rows: NDArray[Any]) -> Floats:
        """Samples `[batch, numbers]` of which `to_rows` makes these rows `[batch, layout.size]`."""
        return self.writer.read(rows)


def log_slope(raw: Any, softplus: Callable[[Any], Any]) -> Any:
    """log(1 - tanh(raw)^2), with no loss where the tanh is 1 to the last bit."""
    return 2.0 * (math.log(2.0) - raw - softplus(-2.0 * raw))


def _softplus(numbers: NDArray[Any]) -> NDArray[Any]:
    out: NDArray[Any] = np.logaddexp(0.0, numbers)
    return out
