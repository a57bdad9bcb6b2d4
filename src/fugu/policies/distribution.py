"""Distributions of actions: any mix of choices and numbers, with exact log-probabilities."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.spaces import Layout
from fugu.spaces.action_sampler import ActionSampler, Continuous, Floats, log_slope

Array: TypeAlias = Tensor | NDArray[Any]

HALF_LOG_TAU = math.log(2 * math.pi) / 2
# The logit of masked choices: so low that their probability is exactly 0, and finite, so that
# probability times logarithm is 0 and not NaN.
FORBIDDEN = -1e9
NODES = 16  # of the quadrature for the entropy of a squashed normal
CHUNK = 1 << 18  # logits that are treated at once, so that intermediate values stay in the cache


class Run(NamedTuple):
    """Adjacent discrete heads with equally many choices, which are treated at once."""

    heads: int
    choices: int
    logits: slice  # of params and masks
    columns: slice  # of samples


class ActionDistribution(nn.Module):
    """The distribution of actions of one layout; its parameters are given with every call.

    A row of `params` holds the logits of all discrete heads, side by side as in a mask, then the
    means of all continuous dimensions, then the logarithms of their standard deviations. A row of
    `samples` holds the index of each head, then the raw number of each dimension: a sample of a
    normal, before it is clipped or squashed. `to_rows` makes the environment's action of it.

    Dimensions with two finite bounds are clipped there ("clipped"), scaled so that a raw number of
    -1 is the lower bound and 1 the upper one, and clipped ("scaled"), or squashed ("tanh":
    `middle + half * tanh(raw)`). Probabilities are those of the raw number; of a squashed one they
    are densities of the action, by the change of variables. All others are plain normals, clipped
    at a bound if there is one.

    Entropies are exact, but for squashed dimensions: the entropy of the normal, plus the expected
    logarithm of the slope of the squashing by a Gauss-Hermite rule of 16 nodes, differentiable
    (error below 1e-4 for standard deviations up to 1, and 1e-2 up to 2).

    Attributes:
        num_params: Numbers in a row of params.
        num_outputs: Outputs of a network: all params but the standard deviations.
        num_samples: Numbers in a row of samples.
        num_choices: Logits in a row, which is the width of a mask.
        num_continuous: Continuous dimensions.
        sampler: Draws actions and writes them as rows, without torch.

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
        """Choices of each discrete head."""
        return self.sampler.choices

    @property
    def squashes(self) -> bool:
        """Whether a dimension is squashed; otherwise all are plain normals."""
        return self.sampler.squashes

    def sample(
        self,
        params: Array,
        masks: Array | None,
        random: np.random.Generator,
        greedy: bool = False,
        live: Array | None = None,
    ) -> tuple[Floats, Floats]:
        """Draw actions and their log-probabilities: `ActionSampler.sample`, also of tensors."""
        table = _array(params, np.float32)
        allowed = None if masks is None else _array(masks, np.bool_)
        alive = None if live is None else _array(live, np.bool_)
        return self.sampler.sample(table, allowed, random, greedy, alive)

    def to_rows(self, samples: Array) -> NDArray[Any]:
        """Return the environment's actions `[batch, layout.size]` of samples `[batch, numbers]`."""
        return self.sampler.to_rows(_array(samples, np.float32))

    def to_samples(self, rows: NDArray[Any]) -> Floats:
        """Invert `to_rows`: samples `[batch, numbers]` of rows `[batch, layout.size]`."""
        return self.sampler.to_samples(rows)

    def evaluate(
        self, params: Tensor, samples: Tensor, masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of samples, and entropies, `[...]`, differentiable.

        Masked choices have probability and gradient exactly 0; a head whose mask allows nothing (of
        a row that does not act) counts as 0, whatever its params.

        Args:
            params: `[..., num_params]`
            samples: Samples of `sample`, `[..., num_samples]`.
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
            points = means.unsqueeze(-1) + log_stds.exp().unsqueeze(-1) * self.nodes
            expected = (log_slope(points, softplus) * self.weights).sum(-1)  # [..., dims]
            entropies = entropies + (expected * self.squashed).sum(-1) + self.sampler.log_scale
        return log_probs, entropies


def _runs(counts: list[int]) -> list[Run]:
    """Group adjacent heads with equally many choices.

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


def evaluate_normals(means: Tensor, log_stds: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-density of numbers `[..., dims]`, and the entropy of their normals, `[...]`.

    >>> zeros = torch.zeros(1, 2)
    >>> [round(found.item(), 4) for found in evaluate_normals(zeros, zeros, zeros)]
    [-1.8379, 2.8379]
    """
    deviations = (raw - means) * torch.exp(-log_stds)
    log_probs = (-0.5 * deviations.square() - log_stds - HALF_LOG_TAU).sum(-1)
    return log_probs, (log_stds + (0.5 + HALF_LOG_TAU)).sum(-1)


def evaluate_choices(logits: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of one choice of each head, and each head's entropy, `[...]`.

    Few passes over the logits are made, and the gradient needs the probabilities alone.

    Args:
        logits: `[..., choices]`
        indices: The choices, `[..., 1]`.

    >>> chosen, entropies = evaluate_choices(torch.zeros(1, 4), torch.tensor([[2]]))
    >>> round(chosen.exp().item(), 4), round(entropies.exp().item(), 4)
    (0.25, 4.0)
    """
    found: tuple[Tensor, Tensor] = _Choices.apply(logits, indices)  # type: ignore[no-untyped-call]
    return found


class _Choices(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        count = logits.shape[-1]
        rows, places = logits.reshape(-1, count), indices.reshape(-1, 1)
        probabilities = torch.empty_like(rows)
        chosen, entropies = rows.new_empty(len(rows), 1), rows.new_empty(len(rows))
        step = max(1, CHUNK // max(1, count))
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            logs = torch.log_softmax(rows[part], -1)
            torch.gather(logs, -1, places[part], out=chosen[part])
            torch.exp(logs, out=probabilities[part])
            torch.sum(logs.mul_(probabilities[part]), -1, out=entropies[part])
        entropies.neg_()
        ctx.save_for_backward(probabilities, places, entropies)
        ctx.shape = logits.shape
        lead = logits.shape[:-1]
        return chosen.view(lead), entropies.view(lead)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        of_chosen, of_entropies = (None if g is None else g.reshape(-1, 1) for g in grads)
        probabilities, places, entropies = ctx.saved_tensors
        found: Tensor | None = None
        if of_entropies is not None:
            tiny = torch.finfo(probabilities.dtype).tiny  # 0 times its logarithm is 0
            found = probabilities.clamp_min(tiny).log_().add_(entropies.unsqueeze(-1))
            found.mul_(-of_entropies)
        if of_chosen is not None:
            found = -of_chosen if found is None else found.sub_(of_chosen)
        if found is None:
            return None, None
        found = probabilities * found
        if of_chosen is not None:
            found.scatter_add_(-1, places, of_chosen)
        return found.view(ctx.shape), None


def _array(values: Array, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a NumPy array on the CPU, without a copy if it is one."""
    if isinstance(values, Tensor):
        values = values.detach()
        values = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    return np.ascontiguousarray(values, dtype)
