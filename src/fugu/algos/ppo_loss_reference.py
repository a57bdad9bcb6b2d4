"""PPO's loss as plain torch: the definition that the fused kernel is held to.

It runs on any device and in float64 too, and serves wherever the kernel cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from fugu.native.arrays import refuse

ValueLoss = Literal["clipped", "huber", "huber_clipped", "mse"]
Evaluate = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class PpoLossConfig:
    """Settings of the loss `policy + value_coefficient * value - entropy_coefficient * entropy`."""

    clip: float = 0.2
    """How far a ratio may leave 1 before it gains nothing more."""
    value_loss: ValueLoss = "clipped"
    """clipped: half the larger square, of the new value and of one near the old; huber;
    huber_clipped: the larger Huber loss of these two; mse: half the square."""
    value_clip: float = 0.2
    """How far a value may leave its old one; used by the clipped ones."""
    huber_delta: float = 1.0
    """Errors beyond this count linearly; used by the Huber losses."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        if self.value_loss not in (kinds := get_args(ValueLoss)):
            raise refuse("value_loss", f"{self.value_loss!r}", f"one of {', '.join(kinds)}")
        for name in ("clip", "value_clip", "huber_delta"):
            if not getattr(self, name) >= 0.0:
                raise refuse(name, f"{getattr(self, name)}", "0 or more")


class PpoLoss(NamedTuple):
    """What the loss of some rows gives."""

    loss: Tensor
    """The scalar to call `backward` on."""
    ratios: Tensor
    """New over old probabilities [rows], without gradient; 1 where the weight is 0."""
    metrics: dict[str, Tensor]
    """Float64 sums over the rows whose weight is not 0: weighted ones `policy_loss`, `value_loss`
    and `entropy` (divide by the normaliser), and plain ones `approx_kl` (k3) and `clip_fraction`
    (divide by `rows`, how many they are). Sums of microbatches add up to those of the batch."""


def ppo_loss_reference(
    params: Tensor,
    values: Tensor,
    *,
    choices: Sequence[int],
    continuous: int = 0,
    samples: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    old_values: Tensor,
    returns: Tensor,
    weights: Tensor,
    normaliser: float | Tensor,
    masks: Tensor | None = None,
    cfg: PpoLossConfig | None = None,
    threads: int = 0,
    evaluate: Evaluate | None = None,
) -> PpoLoss:
    """As `fugu.algos.ppo_loss.fused_ppo_loss`, by torch's own operations.

    `evaluate` gives the log-probabilities and entropies of samples, for distributions that are no
    plain categoricals and normals.
    """
    del threads  # torch has its own
    cfg = cfg or PpoLossConfig()
    dtype = torch.float64 if params.dtype == torch.float64 else torch.float32
    counts = weights != 0.0  # whatever the others hold is replaced before it meets a number

    def rows(tensor: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (tensor.ndim - 1)
        return torch.where(counts.view(shape), tensor, 0.0).to(dtype)

    params, values, samples = rows(params), rows(values), rows(samples)
    advantages, old_values, returns = rows(advantages), rows(old_values), rows(returns)
    if masks is not None:
        masks = masks.bool() | ~counts[:, None]
    if evaluate is None:
        log_probs, entropies = _evaluate(params, samples, masks, choices, continuous)
    else:
        log_probs, entropies = evaluate(params, samples, masks)

    log_ratios = torch.where(counts, log_probs - rows(old_log_probs), 0.0)
    ratios = log_ratios.exp()
    clipped_ratios = ratios.clamp(1.0 - cfg.clip, 1.0 + cfg.clip)
    policy_losses = -torch.minimum(advantages * ratios, advantages * clipped_ratios)
    value_losses = _value_losses(values, old_values, returns, cfg)

    weights = weights.to(dtype)
    policy_loss, value_loss = (weights * policy_losses).sum(), (weights * value_losses).sum()
    entropy = (weights * entropies).sum()
    loss = policy_loss + cfg.value_coefficient * value_loss - cfg.entropy_coefficient * entropy
    with torch.no_grad():
        outside = (ratios < 1.0 - cfg.clip) | (ratios > 1.0 + cfg.clip)
        sums = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": (ratios - 1.0 - log_ratios).sum(),
            "clip_fraction": outside.sum(),
            "rows": counts.sum(),
        }
        metrics = {name: tensor.detach().double() for name, tensor in sums.items()}
    return PpoLoss(loss / normaliser, ratios.detach(), metrics)


def _evaluate(
    params: Tensor, samples: Tensor, masks: Tensor | None, choices: Sequence[int], continuous: int
) -> tuple[Tensor, Tensor]:
    """The log-probabilities of the samples and the entropies, both [rows]."""
    log_probs = params.new_zeros(len(params))
    entropies = params.new_zeros(len(params))
    width = sum(choices)
    logits = params[:, :width]
    if masks is not None:
        logits = logits.masked_fill(~masks, -math.inf)
    end = 0
    for head, count in enumerate(choices):
        begin, end = end, end + count
        head_logits = logits[:, begin:end]
        all_log_probs = head_logits.log_softmax(1)
        index = samples[:, head].long()[:, None]
        log_probs = log_probs + all_log_probs.gather(1, index)[:, 0]
        never = head_logits == -math.inf  # 0 times minus infinity would be no number
        entropies = entropies - (all_log_probs.exp() * all_log_probs.masked_fill(never, 0.0)).sum(1)
    if continuous:
        means, log_stds = params[:, width : width + continuous], params[:, width + continuous :]
        noise = (samples[:, len(choices) :] - means) * (-log_stds).exp()
        constant = 0.5 * math.log(2.0 * math.pi)
        log_probs = log_probs + (-0.5 * noise.square() - log_stds - constant).sum(1)
        entropies = entropies + (0.5 + constant + log_stds).sum(1)
    return log_probs, entropies


def _value_losses(values: Tensor, old: Tensor, returns: Tensor, cfg: PpoLossConfig) -> Tensor:
    """The value loss of each row, summed over its critics: [rows]."""

    def fit(found: Tensor) -> Tensor:
        if cfg.value_loss in ("huber", "huber_clipped"):
            return _huber(found, returns, cfg.huber_delta)
        return 0.5 * (found - returns).square()

    losses = fit(values)
    if cfg.value_loss in ("clipped", "huber_clipped"):
        near = old + (values - old).clamp(-cfg.value_clip, cfg.value_clip)
        losses = torch.maximum(losses, fit(near))
    return losses if losses.ndim == 1 else losses.sum(1)


def _huber(values: Tensor, returns: Tensor, delta: float) -> Tensor:
    if delta == 0.0:
        return torch.zeros_like(values)
    return huber_loss(values, returns, reduction="none", delta=delta)
