"""Encoders: flat rows of an observation layout to one hidden vector each."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.policies.config import PolicyConfig
from fugu.policies.features import Pooled, Reading, has_images, make_features
from fugu.policies.mlp import MlpEncoder, initialise
from fugu.policies.unpack import unpack
from fugu.spaces import Layout


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

    The encoder "set" takes arrays of two axes or more, which are no images, for items along the
    first axis: one MLP reads each of them, and the mean and the maximum of what it gives stand for
    all, in whichever order they come.

    With `normalise`, floats and integers that are not categories are scaled by what was seen.

    Categories out of their bounds count as the nearest within, so that zeroed rows are harmless.
    """

    def __init__(self, layout: Layout, cfg: PolicyConfig) -> None:
        super().__init__()
        self.layout = layout
        self.features = make_features(layout, Reading.of(cfg), cfg.normalise)
        self._check(cfg.encoder)
        initialise(self.features)
        width = max(self.features.width, 1)
        self.mlp = MlpEncoder(width, cfg.hidden_size, cfg.layers, cfg.activation)

    def forward(self, observations: Tensor) -> Tensor:
        """`[batch, size]` in the layout's dtype to `[batch, hidden_size]`."""
        if not self.features.width:  # a space of nothing: there is only the bias to learn
            constant = torch.ones(len(observations), 1, device=observations.device)
            nothing: Tensor = self.mlp(constant)
            return nothing
        hidden: Tensor = self.mlp(self.features(unpack(self.layout, observations)))
        return hidden

    def _check(self, name: str) -> None:
        """An error, if nothing is there that the encoder of this name is for."""
        if name in ("nature", "impala") and not has_images(self.features):
            allowed = "a space with an image (uint8, both sides 16 pixels or more)"
        elif name == "set" and not any(isinstance(m, Pooled) for m in self.features.modules()):
            allowed = "a space with an array of two axes or more, the first of which counts items"
        else:
            return
        given = f"{name!r} for {self.layout.space}"
        raise UsageError(f"encoder: given {given}; allowed: {allowed}. Take 'auto'.")


def make_encoder(layout: Layout, cfg: PolicyConfig) -> nn.Module:
    """The encoder that a config asks for."""
    floats = layout.dtype.kind == "f" and all(
        isinstance(leaf.space, spaces.Box) and np.dtype(leaf.dtype).kind == "f"
        for leaf in layout.leaves
    )
    if floats and layout.size and cfg.encoder in ("auto", "mlp"):
        return MlpEncoder(layout.size, cfg.hidden_size, cfg.layers, cfg.activation, cfg.normalise)
    return AutoEncoder(layout, cfg)
