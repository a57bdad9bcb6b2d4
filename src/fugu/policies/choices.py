"""Log-probabilities and entropies of choices, in few passes over the logits, and of normals."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

HALF_LOG_TAU = math.log(2 * math.pi) / 2
# The logit of what a mask forbids: so low that its probability is exactly 0, and finite, so that
# probability times logarithm is 0 and not a NaN.
FORBIDDEN = -1e9
CHUNK = 1 << 18  # logits that are treated at once, so that what lies between stays in the cache


def evaluate_choices(logits: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of one choice of each head, and each head's entropy, `[...]`.

    Args:
        logits: `[..., choices]`
        indices: Of what was chosen, `[..., 1]`.

    >>> chosen, entropies = evaluate_choices(torch.zeros(1, 4), torch.tensor([[2]]))
    >>> round(chosen.exp().item(), 4), round(entropies.exp().item(), 4)
    (0.25, 4.0)
    """
    found: tuple[Tensor, Tensor] = _Choices.apply(logits, indices)  # type: ignore[no-untyped-call]
    return found


def evaluate_normals(means: Tensor, log_stds: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-density of numbers `[..., dims]`, and the entropy of their normals, `[...]`.

    >>> zeros = torch.zeros(1, 2)
    >>> [round(found.item(), 4) for found in evaluate_normals(zeros, zeros, zeros)]
    [-1.8379, 2.8379]
    """
    deviations = (raw - means) * torch.exp(-log_stds)
    log_probs = (-0.5 * deviations.square() - log_stds - HALF_LOG_TAU).sum(-1)
    return log_probs, (log_stds + (0.5 + HALF_LOG_TAU)).sum(-1)


class _Choices(torch.autograd.Function):
    """Keeps the probabilities alone, and takes both gradients from them."""

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
