"""Layers that encoders share: linear layers, and a running normalization of observations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fugu.core.ranks import SINGLE_PROCESS, Moments, Ranks

SCALED_LIMIT = 10.0  # standard deviations, at which scaled numbers are clipped
LARGEST = torch.finfo(torch.float32).max
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class MlpEncoder(nn.Sequential):
    """Linear layers, each followed by an activation."""

    def __init__(
        self, inputs: int, hidden_size: int, layers: int, activation: str, normalise: bool = False
    ) -> None:
        modules: list[nn.Module] = [RunningScale(inputs)] if normalise else []
        for _ in range(layers):
            modules += [nn.Linear(inputs, hidden_size), ACTIVATIONS[activation]()]
            inputs = hidden_size
        super().__init__(*modules)
        initialize(self)

    def forward(self, observations: Tensor) -> Tensor:
        """Map `[..., inputs]` of any number type to `[..., hidden_size]`."""
        hidden = observations.to(torch.float32)  # no copy if it is that already
        for module in self:
            hidden = module(hidden)
        return hidden


def initialize(module: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Set orthogonal weights and zero biases in every linear layer and convolution."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class RunningScale(nn.Module):
    """Normalizes numbers by the running mean and deviation of those that were noted.

    The moments are buffers, so they are saved with the policy. They change only while `noting`,
    which training sets between updates: within one, actor and learner use the same moments.

    Attributes:
        noting: Whether inputs update the moments.
        ranks: The processes that share the moments.

    >>> scale = RunningScale(1)
    >>> scale(torch.tensor([[300.0]])).item()
    300.0
    >>> scale.noting = True
    >>> _ = scale(torch.tensor([[1.0], [3.0]]))
    >>> scale(torch.tensor([[3.0], [1.0]])).flatten().round(decimals=3).tolist()
    [1.0, -1.0]
    """

    count: Tensor
    mean: Tensor
    variance: Tensor
    ranks: Ranks

    def __init__(self, width: int) -> None:
        super().__init__()
        self.noting, self.ranks = False, SINGLE_PROCESS
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(width, dtype=torch.float64))

    @property
    def limit(self) -> Tensor:
        """Return the largest scaled number, `[]`: none is clipped before any was noted."""
        return torch.where(self.count > 0, SCALED_LIMIT, LARGEST)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return `numbers` `[..., width]` scaled, or unchanged before any was noted."""
        if self.noting:
            self._note(numbers.detach().reshape(-1, numbers.shape[-1]))
        deviation = self.variance.clamp_min(1e-8).sqrt().to(numbers.dtype)
        most = self.limit.to(numbers.dtype)
        return ((numbers - self.mean.to(numbers.dtype)) / deviation).clamp(-most, most)

    def _note(self, rows: Tensor) -> None:
        found = self.ranks.moments(_moments(rows.to(self.mean.dtype)))
        if not found.count:
            return
        mean = torch.as_tensor(found.mean, device=self.mean.device)
        variance = torch.as_tensor(found.variance, device=self.mean.device)
        total = self.count + found.count
        share, shift = found.count / total, mean - self.mean
        spread = self.variance if bool(self.count) else torch.zeros_like(variance)
        spread = spread * (1 - share) + variance * share + shift.square() * share * (1 - share)
        self.variance.copy_(spread)
        self.mean.add_(shift * share)
        self.count.copy_(total)


def _moments(rows: Tensor) -> Moments:
    if not len(rows):
        nothing = torch.zeros(rows.shape[1:], dtype=rows.dtype).numpy()
        return Moments(0, nothing, nothing)
    variance, mean = torch.var_mean(rows, 0, correction=0)
    return Moments(len(rows), mean.cpu().numpy(), variance.cpu().numpy())
