"""Distributions of actions: any mix of choices and numbers, with exact log-probabilities."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.policies.choices import FORBIDDEN, evaluate_choices, evaluate_normals
from fugu.spaces import Layout
from fugu.spaces.action_rows import Continuous
from fugu.spaces.action_sampler import ActionSampler, Floats, log_slope

Array: TypeAlias = Tensor | NDArray[Any]

NODES = 16  # of the quadrature for the entropy of a squashed normal


class Run(NamedTuple):
    """Discrete heads side by side that have equally many choices, and are treated at once."""

    heads: int
    choices: int
    logits: slice  # of params and masks
    columns: slice  # of samples


class ActionDistribution(nn.Module):
    """The distribution of actions of one layout; its parameters are given with every call.

    A row of `params` holds the logits of all discrete heads, side by side as in a mask, then the
    means of all continuous dimensions, then the logarithms of their standard deviations. A row of
    `samples` holds the index of each head, then the raw number of each dimension: what a normal
    gave, before it is cut off or squashed. `to_rows` makes of it what the environment takes.

    Dimensions with two finite bounds are clipped there ("clipped"), scaled so that a raw number of
    -1 is the lower bound and 1 the upper one, and clipped ("scaled"), or squashed ("tanh":
    `middle + half * tanh(raw)`). Probabilities are those of the raw number; of a squashed one they
    are densities of the action, by the change of variables. All others are plain normals, clipped
    at a bound if there is one.

    Entropies are exact, but for squashed dimensions: the entropy of the normal, plus the expected
    logarithm of the slope of the squashing by a Gauss-Hermite rule of 16 nodes, differentiable as
    all else (off by less than 1e-4 for standard deviations up to 1, and 1e-2 up to 2).

    Attributes:
        num_params: Numbers in a row of params.
        num_outputs: How many of them a network gives: all but the standard deviations.
        num_samples: Numbers in a row of samples.
        num_choices: Logits in a row, which is the width of a mask.
        num_continuous: Continuous dimensions.
        sampler: What draws actions and writes them as rows, without torch.

    >>> from gymnasium import spaces
    >>> layout = Layout.of(spaces.Dict(go=spaces.Discrete(3, start=7), to=spaces.Box(-1, 1, (2,))))
    >>> actions = ActionDistribution(layout)
    >>> params = torch.zeros(1, actions.num_params)
    >>> samples, log_probs = actions.sample(params, None, np.random.default_rng(0), greedy=True)
    >>> layout.unpack(actions.to_rows(samples)[0])
    {'go': np.int64(7), 'to': array([0., 0.], dtype=float32)}
    """

    squashed: Tensor  # [dims]: 1 for squashed dimensions
    nodes: Tensor  # [NODES]
    weights: Tensor

    def __init__(self, layout: Layout, continuous: Continuous = "clipped") -> None:
        super().__init__()
        self.layout = layout
        self.sampler = sampler = ActionSampler(layout, continuous)
        self._runs = _runs(sampler.choices)
        self.num_choices, self.num_heads = sampler.num_choices, sampler.num_heads
        self.num_samples, self.num_continuous = sampler.num_samples, sampler.num_continuous
        self.num_outputs, self.num_params = sampler.num_outputs, sampler.num_params
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        constants = {"nodes": nodes, "weights": weights / weights.sum()}
        for name, values in {**constants, "squashed": sampler.squashed}.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)

    @property
    def choices(self) -> list[int]:
        """How many choices each discrete head has."""
        return self.sampler.choices

    @property
    def squashes(self) -> bool:
        """Whether a dimension is squashed; all are plain normals otherwise."""
        return self.sampler.squashes

    # ------------------------------------------------------------------ acting

    def sample(
        self,
        params: Array,
        masks: Array | None,
        random: np.random.Generator,
        greedy: bool = False,
        live: Array | None = None,
    ) -> tuple[Floats, Floats]:
        """Actions and their log-probabilities: `ActionSampler.sample`, of tensors too."""
        table = _array(params, np.float32)
        allowed = None if masks is None else _array(masks, np.bool_)
        alive = None if live is None else _array(live, np.bool_)
        return self.sampler.sample(table, allowed, random, greedy, alive)

    def to_rows(self, samples: Array) -> NDArray[Any]:
        """What the environment is given, `[batch, layout.size]`, of samples `[batch, numbers]`."""
        return self.sampler.to_rows(_array(samples, np.float32))

    def to_samples(self, rows: NDArray[Any]) -> Floats:
        """Samples `[batch, numbers]` of which `to_rows` makes these rows `[batch, layout.size]`."""
        return self.sampler.to_samples(rows)

    # ------------------------------------------------------------------ learning

    def evaluate(
        self, params: Tensor, samples: Tensor, masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities of samples, and entropies, `[...]`, differentiable.

        What a mask forbids has probability and gradient exactly 0; a head whose mask allows
        nothing (of a row that does not act) counts as 0, whatever its params.

        Args:
            params: `[..., num_params]`
            samples: As `sample` gave them, `[..., num_samples]`.
            masks: `[..., num_choices]`, or None.
        """
        if params.dtype in (torch.float16, torch.bfloat16):
            params = params.float()
        parts = [self._evaluate_run(run, params, samples, masks) for run in self._runs]
        if self.num_continuous:
            parts.append(self._evaluate_numbers(params, samples[..., self.num_heads :]))
        if not parts:
            nothing = params.new_zeros(params.shape[:-1])
            return nothing, nothing
        log_probs, entropies = parts[0]
        for more_log_probs, more_entropies in parts[1:]:
            log_probs, entropies = log_probs + more_log_probs, entropies + more_entropies
        return log_probs, entropies

    def _evaluate_run(
        self, run: Run, params: Tensor, samples: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        heads = (*params.shape[:-1], run.heads, run.choices)
        logits = params[..., run.logits].reshape(heads)
        indices = samples[..., run.columns].long().unsqueeze(-1)
        allowed = None
        if masks is not None:
            allowed = masks[..., run.logits].bool().reshape(heads)
            logits = torch.where(allowed, logits, FORBIDDEN)
        chosen, entropies = evaluate_choices(logits, indices)  # [..., heads]
        if allowed is not None:
            some = allowed.any(-1)
            chosen, entropies = torch.where(some, chosen, 0.0), torch.where(some, entropies, 0.0)
        return chosen.sum(-1), entropies.sum(-1)

    def _evaluate_numbers(self, params: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        means = params[..., self.num_choices : self.num_outputs]
        log_stds = params[..., self.num_outputs :]
        log_probs, entropies = evaluate_normals(means, log_stds, raw)
        if self.squashes:
            softplus = nn.functional.softplus
            slopes = log_slope(raw, softplus)
            log_probs = log_probs - (slopes * self.squashed).sum(-1) - self.sampler.log_scale
            spread = means.unsqueeze(-1) + log_stds.exp().unsqueeze(-1) * self.nodes
            expected = (log_slope(spread, softplus) * self.weights).sum(-1)  # [..., dims]
            entropies = entropies + (expected * self.squashed).sum(-1) + self.sampler.log_scale
        return log_probs, entropies


def _runs(counts: list[int]) -> list[Run]:
    """Heads by equal numbers of choices, as far as they stand side by side.

    >>> [(run.heads, run.choices) for run in _runs([2, 2, 3, 2])]
    [(2, 2), (1, 3), (1, 2)]
    """
    runs, logit, column = [], 0, 0
    for choices, group in groupby(counts):
        heads = len(list(group))
        width = heads * choices
        logits, columns = slice(logit, logit + width), slice(column, column + heads)
        runs.append(Run(heads, choices, logits, columns))
        logit, column = logit + width, column + heads
    return runs


def _array(values: Array, dtype: type[np.generic]) -> NDArray[Any]:
    """As a NumPy array on the CPU; no copy if it is one."""
    if isinstance(values, Tensor):
        values = values.detach()
        values = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    return np.ascontiguousarray(values, dtype)
