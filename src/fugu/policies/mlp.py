"""Linear layers: rows of numbers to hidden vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fugu.policies.scale import RunningScale

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


class MlpEncoder(nn.Sequential):
    """Linear layers, each followed by an activation; rows of float32 go in as they are."""

    def __init__(
        self, inputs: int, hidden_size: int, layers: int, activation: str, normalise: bool = False
    ) -> None:
        modules: list[nn.Module] = [RunningScale(inputs)] if normalise else []
        for _ in range(layers):
            modules += [nn.Linear(inputs, hidden_size), ACTIVATIONS[activation]()]
            inputs = hidden_size
        super().__init__(*modules)
        initialise(self)

    def forward(self, observations: Tensor) -> Tensor:
        """`[..., inputs]` of any number type to `[..., hidden_size]`."""
        hidden = observations.to(torch.float32)  # no copy if it is that already
        for module in self:
            hidden = module(hidden)
        return hidden


def initialise(module: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Orthogonal weights and zero biases, for every linear layer and convolution inside."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
