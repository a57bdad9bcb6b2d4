"""Encoders: flat rows of an observation layout to one hidden vector each."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.policies.config import PolicyConfig
from fugu.policies.features import Images, has_images, make_features
from fugu.policies.scale import RunningScale
from fugu.policies.unpack import unpack
from fugu.spaces import Layout

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


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
        """`[batch, inputs]` of any number type to `[batch, hidden_size]`."""
        hidden = observations.to(torch.float32)  # no copy if it is that already
        for module in self:
            hidden = module(hidden)
        return hidden


class AutoEncoder(nn.Module):
    """Any observation layout: features of each leaf by its kind, side by side into an MLP.

    - floats, MultiBinary and booleans: as they are, as float32;
    - Discrete and MultiDiscrete: one-hot up to 64 categories, then rows of a learned table, and
      above 65,536 categories one number in [0, 1];
    - images (uint8, three axes, or four with frames first, both sides 16 or more, more than 16
      values): a convolutional network;
    - other integers: 0 and 1 as they are; one-hot if their bounds span at most 16 values (and the
      array is not large); scaled to [0, 1] by their bounds; sign(x) log(1 + |x|) if those are wider
      than 65,536;
    - texts, sequences and graphs: sums of embedded items, as far as they are there; a OneOf: the
      features of what it is, the others zero.

    With `normalise`, floats and integers that are not categories are scaled by what was seen.

    Categories out of their bounds count as the nearest within, so that zeroed rows are harmless.
    """

    def __init__(
        self,
        layout: Layout,
        hidden_size: int,
        layers: int = 1,
        activation: str = "gelu",
        images: Images = "auto",
        normalise: bool = False,
    ) -> None:
        super().__init__()
        self._layout = layout
        self.features = make_features(layout, images, normalise)
        if images in ("nature", "impala") and not has_images(self.features):
            raise UsageError(
                f"encoder: given {images!r} for {layout.space}; allowed: a space with an image "
                "(uint8, both sides 16 pixels or more). Take 'auto'."
            )
        initialise(self.features)
        self.mlp = MlpEncoder(max(self.features.width, 1), hidden_size, layers, activation)

    def forward(self, observations: Tensor) -> Tensor:
        """`[batch, size]` in the layout's dtype to `[batch, hidden_size]`."""
        if not self.features.width:  # a space of nothing: there is only the bias to learn
            constant = torch.ones(len(observations), 1, device=observations.device)
            nothing: Tensor = self.mlp(constant)
            return nothing
        hidden: Tensor = self.mlp(self.features(unpack(self._layout, observations)))
        return hidden


def make_encoder(layout: Layout, cfg: PolicyConfig) -> nn.Module:
    """The encoder that a config asks for."""
    floats = layout.dtype.kind == "f" and all(
        isinstance(leaf.space, spaces.Box) and np.dtype(leaf.dtype).kind == "f"
        for leaf in layout.leaves
    )
    if floats and layout.size and cfg.encoder in ("auto", "mlp"):
        return MlpEncoder(layout.size, cfg.hidden_size, cfg.layers, cfg.activation, cfg.normalise)
    images: Images = "flat" if cfg.encoder == "mlp" else cfg.encoder
    return AutoEncoder(layout, cfg.hidden_size, cfg.layers, cfg.activation, images, cfg.normalise)


def initialise(module: nn.Module, gain: float = math.sqrt(2)) -> None:
    """Orthogonal weights and zero biases, for every linear layer and convolution inside."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
