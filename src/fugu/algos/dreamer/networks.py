"""Dreamer's networks around the recurrent model: encoder, image networks, heads, actor."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu.algos.dreamer.config import DreamerPolicyConfig
from fugu.algos.dreamer.maths import make_bins, symlog, two_hot_mean
from fugu.algos.dreamer.rssm import EPSILON, Dense, fill, make_linear
from fugu.policies.distribution import ActionDistribution
from fugu.policies.encoders import Numbers, make_features
from fugu.policies.images import Convolution, Feature, ImageShape
from fugu.policies.unpack import unpack
from fugu.spaces import Layout
from fugu.spaces.action_rows import RowWriter

MULTIPLES = (2, 3, 4, 4)  # of the depth, stage by stage
KERNEL = 5
LARGEST, SMALLEST = 16, 3  # side of an image behind all stages


class Mlp(nn.Sequential):
    """Dense layers, and a linear one at the end if it has outputs."""

    def __init__(self, inputs: int, units: int, layers: int, outputs: int = 0, scale: float = 1.0):
        widths = [inputs] + [units] * layers
        parts: list[nn.Module] = [Dense(*pair) for pair in pairwise(widths)]
        if outputs:
            parts.append(make_linear(units, outputs, scale=scale))
        super().__init__(*parts)


class TwoHotHead(nn.Module):
    """A number as logits of bins; nothing but zeros at first, so that it says 0."""

    bins: Tensor

    def __init__(self, inputs: int, layers: int, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self.network = Mlp(inputs, cfg.units, layers, cfg.bins, scale=0.0)
        self.register_buffer("bins", make_bins(cfg.bins), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Logits `[..., bins]`."""
        logits: Tensor = self.network(features)
        return logits

    def mean(self, logits: Tensor) -> Tensor:
        """The number that they say."""
        return two_hot_mean(logits, self.bins)


# ---------------------------------------------------------------------- encoder


class Symlog(nn.Module):
    """Large numbers squeezed."""

    def forward(self, numbers: Tensor) -> Tensor:
        """The symlog of each."""
        return symlog(numbers)


class Encoder(nn.Module):
    """Flat observations to tokens: the features of every leaf, numbers as symlogs, into an MLP.

    Observations that are one image are convolved only.

    Attributes:
        num_tokens: Numbers of an encoded observation.
    """

    def __init__(self, layout: Layout, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self._layout = layout
        self.features = _with_images(make_features(layout), cfg)
        for module in self.features.modules():
            if isinstance(module, Numbers):
                module.scale = Symlog()
            elif isinstance(module, nn.Linear):
                fill(module.weight, module.in_features)
                nn.init.zeros_(module.bias)
        width = self.features.width
        whole = isinstance(self.features, Convolution)
        self.mlp = None if whole else Mlp(max(width, 1), cfg.units, cfg.layers)
        self.num_tokens = width if whole else cfg.units

    def forward(self, observations: Tensor) -> Tensor:
        """`[..., size]` in the layout's dtype to `[..., tokens]`."""
        if not self.features.width:  # a space of nothing
            tokens = torch.zeros(*observations.shape[:-1], 1, device=observations.device)
        else:
            tokens = self.features(unpack(self._layout, observations))
        if self.mlp is None:
            return tokens
        encoded: Tensor = self.mlp(tokens)
        return encoded


def _with_images(feature: Feature, cfg: DreamerPolicyConfig) -> Feature:
    """The same features with Dreamer's network for every image."""
    if isinstance(feature, Convolution):
        return Convolution(feature.image, ImageEncoder(feature.image, cfg))
    children = getattr(feature, "features", None)
    if isinstance(children, nn.ModuleList):
        width = 0
        for i, child in enumerate(children):
            assert isinstance(child, Feature)
            children[i] = replaced = _with_images(child, cfg)
            width += replaced.width
        feature.width = width
    return feature


class ChannelNorm(nn.Module):
    """Channels of each pixel divided by their root mean square, times a learned scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Of images `[batch, channels, height, width]`."""
        return pixels * (pixels.square().mean(1, keepdim=True) + EPSILON).rsqrt() * self.scale


class Stages(NamedTuple):
    """The stages of an image network: sides before each and behind the last, and channels."""

    sides: list[tuple[int, int]]
    channels: list[int]


def make_stages(image: ImageShape, depth: int) -> Stages:
    """As many halvings as bring the longer side to 16 or less and keep the shorter at 3 or more.

    >>> make_stages(ImageShape.of((64, 64, 3)), 16)
    Stages(sides=[(64, 64), (32, 32), (16, 16), (8, 8), (4, 4)], channels=[3, 32, 48, 64, 64])
    """
    sides, channels = [image.sides], [image.channels]
    while len(sides) <= len(MULTIPLES) or max(sides[-1]) > LARGEST:
        height, width = -(-sides[-1][0] // 2), -(-sides[-1][1] // 2)
        if min(height, width) < SMALLEST:
            break
        sides.append((height, width))
        channels.append(depth * MULTIPLES[min(len(sides) - 2, len(MULTIPLES) - 1)])
    return Stages(sides, channels)


class ImageEncoder(nn.Module):
    """Convolutions that halve an image stage by stage; flat in the end."""

    def __init__(self, image: ImageShape, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        stages = make_stages(image, cfg.depth)
        parts: list[nn.Module] = []
        for before, after in pairwise(stages.channels):
            stride = 2 if cfg.strided else 1
            layer = nn.Conv2d(before, after, KERNEL, stride, KERNEL // 2)
            _fill_convolution(layer, before * KERNEL * KERNEL)
            pool = [] if cfg.strided else [nn.MaxPool2d(2, ceil_mode=True)]
            parts += [layer, *pool, ChannelNorm(after), nn.SiLU()]
        self.stages = nn.Sequential(*parts, nn.Flatten())

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 1, `[batch, channels, height, width]`."""
        flat: Tensor = self.stages(pixels - 0.5)
        return flat


class ImageDecoder(nn.Module):
    """A latent state to an image, by convolutions that double it stage by stage."""

    def __init__(self, inputs: int, image: ImageShape, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self.image = image
        stages = make_stages(image, cfg.depth)
        self._sides = stages.sides[::-1]
        channels = stages.channels[::-1]
        self._first = (channels[0], *self._sides[0])
        self.start = make_linear(inputs, int(np.prod(self._first)))
        self.norms = nn.ModuleList(ChannelNorm(count) for count in channels[:-1])
        self.layers = nn.ModuleList()
        self._strided = cfg.strided
        for before, after in pairwise(channels):
            fan_in = before * KERNEL * KERNEL
            if cfg.strided:  # a pixel is reached by a quarter of the kernel
                spread = nn.ConvTranspose2d(before, after, KERNEL, 2, KERNEL // 2)
                self.layers.append(_fill_convolution(spread, fan_in // 4))
            else:
                plain = nn.Conv2d(before, after, KERNEL, 1, KERNEL // 2)
                self.layers.append(_fill_convolution(plain, fan_in))

    def forward(self, features: Tensor) -> Tensor:
        """`[..., features]` to pixels from 0 to 1, `[..., *shape]`."""
        lead = features.shape[:-1]
        pixels = self.start(features.flatten(0, -2)).view(-1, *self._first)
        for norm, layer, side in zip(self.norms, self.layers, self._sides[1:], strict=True):
            pixels = nn.functional.silu(norm(pixels))
            if self._strided:
                pixels = layer(pixels, output_size=side)
            else:
                pixels = layer(nn.functional.interpolate(pixels, side))
        order = self.image.order
        shape = [self.image.shape[axis] for axis in order]
        placed = torch.sigmoid(pixels).view(-1, *shape)
        back = np.argsort(order) + 1
        return placed.permute(0, *back.tolist()).reshape(*lead, *self.image.shape)


def _fill_convolution(layer: nn.Conv2d | nn.ConvTranspose2d, fan_in: int) -> nn.Module:
    fill(layer.weight, fan_in)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


# ---------------------------------------------------------------------- actor


class Heads(NamedTuple):
    """Discrete heads side by side that have equally many choices."""

    number: int
    choices: int
    logits: slice
    columns: slice

    def split(self, flat: Tensor) -> Tensor:
        """Their part of `[..., all choices]` as `[..., heads, choices]`."""
        own = flat[..., self.logits]
        return own.reshape(*own.shape[:-1], self.number, self.choices)


class ActionCode(nn.Module):
    """Actions as the recurrent model sees them: one-hot choices, and numbers in units of bounds.

    Attributes:
        size: Numbers of an encoded action.
        middle: Half way between the bounds of each number, `[dims]`; 0 where it has none.
        reach: Half the distance between them; 1 where it has none.
        bounded: 1 where a number has two bounds.
    """

    middle: Tensor
    reach: Tensor
    bounded: Tensor

    def __init__(self, layout: Layout, distribution: ActionDistribution) -> None:
        super().__init__()
        self.heads = _group_heads(distribution.choices)
        self.num_heads = distribution.num_heads
        self.size = distribution.num_outputs
        low, high = [np.zeros(0)], [np.zeros(0)]
        for part in RowWriter(layout, "clipped").numbers:
            assert isinstance(part.leaf.space, spaces.Box)
            low.append(part.leaf.space.low.reshape(-1).astype(np.float64))
            high.append(part.leaf.space.high.reshape(-1).astype(np.float64))
        lows, highs = np.concatenate(low), np.concatenate(high)
        bounded = np.isfinite(lows) & np.isfinite(highs) & (lows < highs)
        lows, highs = np.where(bounded, lows, -1.0), np.where(bounded, highs, 1.0)
        columns = {"middle": lows / 2 + highs / 2, "reach": highs / 2 - lows / 2}
        for name, values in {**columns, "bounded": bounded}.items():
            flat = torch.tensor(values, dtype=torch.float32)
            self.register_buffer(name, flat, persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Samples of the distribution `[..., numbers]` to `[..., size]`."""
        parts = [
            nn.functional.one_hot(samples[..., run.columns].long(), run.choices).flatten(-2)
            for run in self.heads
        ]
        parts.append((samples[..., self.num_heads :] - self.middle) / self.reach)
        return torch.cat([part.to(torch.float32) for part in parts], -1)


class Actor(nn.Module):
    """Latent states to params of the actions' distribution.

    Choices have a share of the uniform distribution; numbers are normals whose mean a tanh keeps
    within the bounds, with deviations from 0.1 to 1 times half their distance.
    """

    def __init__(
        self,
        inputs: int,
        code: ActionCode,
        distribution: ActionDistribution,
        cfg: DreamerPolicyConfig,
    ) -> None:
        super().__init__()
        self.code = code
        self._unimix = cfg.unimix
        self._sizes = [distribution.num_choices] + [distribution.num_continuous] * 2
        self.network = Mlp(inputs, cfg.units, cfg.layers, sum(self._sizes), scale=0.01)

    def forward(self, features: Tensor) -> Tensor:
        """`[..., features]` to params as `ActionDistribution` takes them."""
        logits, means, deviations = self.network(features).split(self._sizes, -1)
        parts = [self._mix(run, logits) for run in self.code.heads]
        if self._sizes[1]:
            code = self.code
            bounded = code.middle + code.reach * torch.tanh(means)
            parts.append(torch.where(code.bounded > 0, bounded, means))
            spread = 0.9 * torch.sigmoid(deviations + 2.0) + 0.1
            parts.append((spread * code.reach).log())
        return torch.cat(parts, -1)

    def draw(self, params: Tensor, masks: Tensor | None, random: torch.Generator) -> Tensor:
        """Samples of params `[batch, params]`, all on the device of the params."""
        parts: list[Tensor] = []
        options: dict[str, Any] = {"generator": random, "device": params.device}
        for run in self.code.heads:
            chances = run.split(params).exp()
            if masks is not None:
                chances = torch.where(run.split(masks), chances, 0.0)
            chances = chances.cumsum(-1)
            uniforms = torch.rand((*chances.shape[:-1], 1), **options) * chances[..., -1:]
            index = (chances <= uniforms).sum(-1).clamp_max(run.choices - 1)
            parts.append(index.to(torch.float32))
        if self._sizes[1]:
            means, log_stds = params[..., self._sizes[0] :].chunk(2, -1)
            noise = torch.randn(means.shape, **options)
            parts.append(means + log_stds.exp() * noise)
        return torch.cat(parts, -1)

    def _mix(self, run: Heads, logits: Tensor) -> Tensor:
        # Choices first, since torch sums over short rows of memory slowly.
        chances = run.split(logits).movedim(-1, 0).softmax(0)
        mixed = chances * (1.0 - self._unimix) + self._unimix / run.choices
        return mixed.log().movedim(0, -1).flatten(-2)


def _group_heads(choices: list[int]) -> list[Heads]:
    heads, logit, column = [], 0, 0
    for count, group in groupby(choices):
        number = len(list(group))
        logits, columns = slice(logit, logit + number * count), slice(column, column + number)
        heads.append(Heads(number, count, logits, columns))
        logit, column = logits.stop, columns.stop
    return heads
