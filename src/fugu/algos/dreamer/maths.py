"""Dreamer's formulas: symlog, two-hot numbers, lambda-returns, the scale of returns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

REACH = 20.0  # of the bins, as a symlog


def symlog(numbers: Tensor) -> Tensor:
    """The same numbers, large ones squeezed: sign(x) log(1 + |x|).

    >>> [round(x, 4) for x in symlog(torch.tensor([-1.0, 0.0, 100.0])).tolist()]
    [-0.6931, 0.0, 4.6151]
    """
    return numbers.sign() * numbers.abs().log1p()


def symexp(numbers: Tensor) -> Tensor:
    """sign(x) (exp(|x|) - 1), which undoes `symlog`."""
    return numbers.sign() * numbers.abs().expm1()


def make_bins(count: int) -> Tensor:
    """An odd number of bins from symexp(-20) to symexp(20), each the exact negative of another.

    >>> make_bins(3).tolist()[1], make_bins(5).sum().item()
    (0.0, 0.0)
    """
    half = symexp(torch.linspace(-REACH, 0.0, count // 2 + 1, dtype=torch.float64)).float()
    half[-1] = 0.0
    return torch.cat([half, -half[:-1].flip(0)])


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """The mean of what logits `[..., bins]` say; of equal ones exactly 0.

    Each bin is taken together with its negative, for a sum from left to right would leave the
    rounding errors of numbers as large as 4e8.
    """
    probabilities = logits.softmax(-1)
    half = bins.shape[0] // 2
    balance = probabilities[..., half + 1 :] - probabilities[..., :half].flip(-1)
    return (balance * bins[half + 1 :]).sum(-1)


def two_hot(targets: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """The bin below each target, and the share of the one above it.

    The mean of the two bins by their shares is the target; one out of reach is the last bin.

    >>> below, share = two_hot(torch.tensor([0.5, 7.0]), torch.tensor([-2.0, 0.0, 2.0]))
    >>> below.tolist(), share.tolist()
    ([1, 1], [0.25, 1.0])
    """
    above = torch.searchsorted(bins, targets.contiguous(), right=True)
    below = above.clamp(1, bins.shape[0] - 1) - 1
    low, high = bins[below], bins[below + 1]
    return below, ((targets - low) / (high - low)).clamp(0.0, 1.0)


def two_hot_loss(log_probabilities: Tensor, targets: Tensor, bins: Tensor) -> Tensor:
    """Cross-entropy of targets `[...]` under log-probabilities `[..., bins]`."""
    below, share = two_hot(targets, bins)
    pair = torch.stack([below, below + 1], -1)
    chosen = log_probabilities.gather(-1, pair)
    return -torch.lerp(chosen[..., 0], chosen[..., 1], share)


def lambda_returns(rewards: Tensor, values: Tensor, discounts: Tensor, traces: Tensor) -> Tensor:
    """What follows each step but the last, `[time - 1, ...]`, of tensors `[time, ...]`.

    `R_t = r_{t+1} + d_{t+1} ((1 - l_{t+1}) v_{t+1} + l_{t+1} R_{t+1})`, and at the end the value.

    Args:
        rewards: That came with each step.
        values: Of each step.
        discounts: What a step's value and all behind it count for; 0 where it is the end.
        traces: How far it is what follows that counts, and not the value; 0 at a last step.
    """
    fixed = torch.addcmul(rewards, discounts * (1.0 - traces), values)
    kept = discounts * traces
    found = torch.empty_like(rewards[1:])
    following = values[-1]
    for time in range(rewards.shape[0] - 1, 0, -1):
        following = torch.addcmul(fixed[time], kept[time], following)
        found[time - 1] = following
    return found


class ReturnScale(nn.Module):
    """The distance of two percentiles of returns, as a moving mean.

    >>> scale = ReturnScale()
    >>> scale(torch.linspace(0.0, 100.0, 101), (0.05, 0.95), rate=0.5, limit=1.0).item()
    45.0
    """

    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @torch.no_grad()
    def forward(
        self, returns: Tensor, shares: tuple[float, float], rate: float, limit: float
    ) -> Tensor:
        """The scale after these returns count too, at least the limit."""
        between = torch.tensor(shares, device=returns.device)
        low, high = torch.quantile(returns.flatten(), between)
        self.low.lerp_(low, rate)
        self.high.lerp_(high, rate)
        return (self.high - self.low).clamp_min(limit)
