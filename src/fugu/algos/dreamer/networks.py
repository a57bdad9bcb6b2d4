"""Dreamer's networks: the recurrent state-space model, the encoder, the decoder, and the heads.

A latent state is `deter`, which a recurrent unit of blocks makes of the state and the action
before, and `stoch`, one-hot categories drawn from a prior (of `deter` alone) or from a posterior
(of `deter` and the observation). Tensors of sequences have time first, `[time, batch, ...]`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, pairwise
from operator import getitem
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu.algos.dreamer.config import DreamerPolicyConfig
from fugu.native.nodes import (
    ArrayNode,
    ConvertedNode,
    DictNode,
    Node,
    OneOfNode,
    ScalarNode,
    SequenceNode,
    TextNode,
    TupleNode,
    join,
)
from fugu.policies.distribution import ActionDistribution
from fugu.policies.encoders import (
    MOST_EMBEDDED,
    MOST_ONE_HOT,
    MOST_VALUES,
    Numbers,
    make_features,
)
from fugu.policies.images import Convolution, Feature, ImageShape
from fugu.policies.unpack import unpack
from fugu.spaces import Layout, Leaf
from fugu.spaces.action_sampler import RowWriter

EPSILON = 1e-4  # of norms
TRUNCATED_STD = 0.87962566103423978  # of a standard normal that is cut off at two deviations
BIN_RANGE = 20.0  # symlog of the largest bin
CHANNEL_MULTIPLES = (2, 3, 4, 4)  # of the depth, stage by stage
KERNEL = 5
LARGEST_SIDE, SMALLEST_SIDE = 16, 3  # of an image after all stages


# ---------------------------------------------------------------------- numbers


def symlog(numbers: Tensor) -> Tensor:
    """Compress large numbers: sign(x) log(1 + |x|).

    >>> [round(x, 4) for x in symlog(torch.tensor([-1.0, 0.0, 100.0])).tolist()]
    [-0.6931, 0.0, 4.6151]
    """
    return numbers.sign() * numbers.abs().log1p()


def symexp(numbers: Tensor) -> Tensor:
    """Undo `symlog`: sign(x) (exp(|x|) - 1)."""
    return numbers.sign() * numbers.abs().expm1()


def make_bins(count: int) -> Tensor:
    """Return an odd number of bins from symexp(-20) to symexp(20), exactly symmetric.

    >>> make_bins(3).tolist()[1], make_bins(5).sum().item()
    (0.0, 0.0)
    """
    half = symexp(torch.linspace(-BIN_RANGE, 0.0, count // 2 + 1, dtype=torch.float64)).float()
    half[-1] = 0.0
    return torch.cat([half, -half[:-1].flip(0)])


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """Return the means of distributions with logits `[..., bins]`; exactly 0 for equal logits.

    Each bin is taken together with its negative, since a sum from left to right would leave the
    rounding errors of numbers as large as 4e8.
    """
    probabilities = logits.softmax(-1)
    half = bins.shape[0] // 2
    balance = probabilities[..., half + 1 :] - probabilities[..., :half].flip(-1)
    return (balance * bins[half + 1 :]).sum(-1)


def two_hot(targets: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the index of the bin below each target, and the weight of the bin above it.

    The mean of the two bins by their weights is the target, clipped to the range of the bins.

    >>> below, weight = two_hot(torch.tensor([0.5, 7.0]), torch.tensor([-2.0, 0.0, 2.0]))
    >>> below.tolist(), weight.tolist()
    ([1, 1], [0.25, 1.0])
    """
    above = torch.searchsorted(bins, targets.contiguous(), right=True)
    below = above.clamp(1, bins.shape[0] - 1) - 1
    low, high = bins[below], bins[below + 1]
    return below, ((targets - low) / (high - low)).clamp(0.0, 1.0)


def two_hot_loss(log_probabilities: Tensor, targets: Tensor, bins: Tensor) -> Tensor:
    """Return the cross-entropy of targets `[...]` and log-probabilities `[..., bins]`."""
    below, weight = two_hot(targets, bins)
    chosen = log_probabilities.gather(-1, torch.stack([below, below + 1], -1))
    return -torch.lerp(chosen[..., 0], chosen[..., 1], weight)


# ---------------------------------------------------------------------- layers


def fill(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Draw weights from a normal cut off at two deviations, with variance `scale^2 / fan_in`."""
    deviation = scale / TRUNCATED_STD / math.sqrt(max(fan_in, 1))
    if deviation:
        nn.init.trunc_normal_(weight, 0.0, deviation, -2.0 * deviation, 2.0 * deviation)
    else:
        nn.init.zeros_(weight)


def make_linear(
    inputs: int, outputs: int, *, bias: bool = True, scale: float = 1.0, fan_in: int = 0
) -> nn.Linear:
    """Return a linear layer with weights of `fill`, and biases of zero."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    fill(layer.weight, fan_in or inputs, scale)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Norm(nn.Module):
    """RMS norm with a learned scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, numbers: Tensor) -> Tensor:
        """Normalize vectors `[..., width]`."""
        return nn.functional.rms_norm(numbers, self.scale.shape, self.scale, EPSILON)


class Dense(nn.Sequential):
    """A linear layer, a norm, and a SiLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(make_linear(inputs, outputs), Norm(outputs), nn.SiLU())


class Mlp(nn.Sequential):
    """Dense layers, followed by a linear one if there are outputs."""

    def __init__(self, inputs: int, units: int, layers: int, outputs: int = 0, scale: float = 1.0):
        parts: list[nn.Module] = [Dense(*pair) for pair in pairwise([inputs] + [units] * layers)]
        if outputs:
            parts.append(make_linear(units, outputs, scale=scale))
        super().__init__(*parts)


class BlockLinear(nn.Module):
    """A linear layer of blocks: each part of the inputs reaches its own part of the outputs."""

    def __init__(self, inputs: int, outputs: int, blocks: int, bias: bool, fan_in: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, outputs // blocks)) if bias else None
        fill(self.weight, fan_in or inputs // blocks)

    def forward(self, blocks: Tensor) -> Tensor:
        """Map `[blocks, batch, inputs of a block]` to `[blocks, batch, outputs of a block]`."""
        if self.bias is None:
            return torch.bmm(blocks, self.weight)
        return torch.baddbmm(self.bias, blocks, self.weight)


class TwoHotHead(nn.Module):
    """Predicts a number as logits `[..., bins]`; at first all are zero, and so is the number."""

    bins: Tensor

    def __init__(self, inputs: int, layers: int, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self.network = Mlp(inputs, cfg.units, layers, cfg.bins, scale=0.0)
        self.register_buffer("bins", make_bins(cfg.bins), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits `[..., bins]`."""
        logits: Tensor = self.network(features)
        return logits

    def mean(self, logits: Tensor) -> Tensor:
        """Return the predicted number."""
        return two_hot_mean(logits, self.bins)


# ---------------------------------------------------------------------- recurrent model


@dataclass(frozen=True)
class Latents:
    """Latent states of a sequence."""

    deter: Tensor  # [time, batch, deter]
    stoch: Tensor  # one-hot, [time, batch, classes * stoch]
    posterior: Tensor  # probabilities that it was drawn from, [time, batch, classes, stoch]

    @property
    def features(self) -> Tensor:
        """The input of all heads, `[time, batch, deter + classes * stoch]`."""
        return torch.cat([self.deter, self.stoch], -1)


class Rssm(nn.Module):
    """The recurrent state-space model, one step at a time or whole sequences.

    Classes come before variables, `[..., classes, stoch]`: sums over classes then run along rows
    of memory, which is many times as fast. `num_features` is the size of a latent state.
    """

    def __init__(self, num_actions: int, num_tokens: int, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self.deter, self.stoch, self.classes = cfg.deter, cfg.stoch, cfg.classes
        logits = cfg.stoch * cfg.classes
        self.num_features = cfg.deter + logits
        self._blocks, self._unimix = cfg.blocks, cfg.unimix
        self.from_deter = Dense(cfg.deter, cfg.hidden)
        self.from_stoch = Dense(logits, cfg.hidden)
        self.from_action = Dense(num_actions, cfg.hidden)
        # Every block sees its own part of deter and all inputs: the latter is one dense layer.
        fan_in = cfg.deter // cfg.blocks + 3 * cfg.hidden
        self.mix_deter = BlockLinear(cfg.deter, cfg.deter, cfg.blocks, False, fan_in)
        self.mix_inputs = make_linear(3 * cfg.hidden, cfg.deter, fan_in=fan_in)
        self.mix_norm = Norm(cfg.deter)
        self.gates = BlockLinear(cfg.deter, 3 * cfg.deter, cfg.blocks, True)
        self.prior_head = Mlp(cfg.deter, cfg.hidden, 2, logits)
        # A linear layer of deter and tokens side by side, in two parts: tokens are known before.
        fan_in = cfg.deter + num_tokens
        self.see_deter = make_linear(cfg.deter, cfg.hidden, bias=False, fan_in=fan_in)
        self.see_tokens = make_linear(num_tokens, cfg.hidden, fan_in=fan_in)
        self.posterior_head = nn.Sequential(
            Norm(cfg.hidden), nn.SiLU(), make_linear(cfg.hidden, logits)
        )

    # ------------------------------------------------------------------ one step

    def advance(self, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        """Return the next deter, of a state and an embedded action `[batch, hidden]`."""
        batch, width = deter.shape
        blocks = deter.view(batch, self._blocks, -1).transpose(0, 1)
        inputs = torch.cat([self.from_deter(deter), self.from_stoch(stoch), action], -1)
        mixed = self.mix_deter(blocks).transpose(0, 1).reshape(batch, width)
        mixed = nn.functional.silu(self.mix_norm(mixed + self.mix_inputs(inputs)))
        gates = self.gates(mixed.view(batch, self._blocks, -1).transpose(0, 1))
        reset, candidate, update = gates.chunk(3, -1)  # [blocks, batch, deter of a block]
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        after = torch.lerp(blocks, candidate, torch.sigmoid(update - 1.0))
        return after.transpose(0, 1).reshape(batch, width)

    def prior(self, deter: Tensor) -> Tensor:
        """Return the probabilities of stoch given deter alone, `[..., classes, stoch]`."""
        return self._mix(self.prior_head(deter))

    def posterior(self, deter: Tensor, seen: Tensor) -> Tensor:
        """Return the probabilities of stoch given `see_tokens` of the observation too."""
        return self._mix(self.posterior_head(self.see_deter(deter) + seen))

    def draw(self, probabilities: Tensor, uniforms: Tensor | None) -> Tensor:
        """Draw one-hot categories `[..., classes * stoch]`; without uniforms, the most probable.

        Gradients go straight through to the probabilities.
        """
        with torch.no_grad():
            if uniforms is None:
                index = probabilities.argmax(-2, keepdim=True)
            else:
                index = (probabilities.cumsum(-2) < uniforms).sum(-2, keepdim=True)
                index = index.clamp_max(self.classes - 1)
            chosen = torch.zeros_like(probabilities).scatter_(-2, index, 1.0)
        if probabilities.requires_grad:
            chosen = chosen + (probabilities - probabilities.detach())
        return chosen.flatten(-2)

    def uniforms(self, *lead: int, random: torch.Generator) -> Tensor:
        """Return random numbers for `draw`, `[*lead, 1, stoch]`."""
        return torch.rand(*lead, 1, self.stoch, generator=random, device=random.device)

    def split(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Split latent states `[..., features]` into deter and stoch."""
        return features[..., : self.deter], features[..., self.deter :]

    def categories(self, stoch: Tensor) -> Tensor:
        """Return the classes `[..., stoch]` of one-hot ones `[..., classes * stoch]`."""
        return self._shape(stoch).argmax(-2)

    def one_hot(self, categories: Tensor) -> Tensor:
        """Undo `categories`."""
        shape = (*categories.shape[:-1], self.classes, self.stoch)
        empty = torch.zeros(shape, device=categories.device)
        return empty.scatter_(-2, categories.unsqueeze(-2), 1.0).flatten(-2)

    def embed_actions(self, actions: Tensor) -> Tensor:
        """Embed encoded actions `[..., actions]` for `advance`."""
        embedded: Tensor = self.from_action(actions / actions.detach().abs().clamp_min(1.0))
        return embedded

    # ------------------------------------------------------------------ sequences

    def observe(
        self,
        tokens: Tensor,
        actions: Tensor,
        first: Tensor,
        deter: Tensor,
        stoch: Tensor,
        uniforms: Tensor,
    ) -> Latents:
        """Return the latent states of observed sequences.

        Args:
            tokens: Encoded observations, `[time, batch, tokens]`.
            actions: Encoded actions before each, `[time, batch, actions]`.
            first: Where episodes begin, and states and actions before are zeroed, `[time, batch]`.
            deter: Before the first step, `[batch, deter]`.
            stoch: Before the first step, `[batch, classes * stoch]`.
            uniforms: Random numbers from [0, 1), `[time, batch, 1, stoch]`.
        """
        seen = self.see_tokens(tokens)
        embedded = self.embed_actions(torch.where(first.unsqueeze(-1), 0.0, actions))
        states: list[tuple[Tensor, Tensor, Tensor]] = []
        for time, any_first in enumerate(first.any(1).tolist()):
            if any_first:
                begin = first[time].unsqueeze(-1)
                deter, stoch = torch.where(begin, 0.0, deter), torch.where(begin, 0.0, stoch)
            deter = self.advance(deter, stoch, embedded[time])
            posterior = self.posterior(deter, seen[time])
            stoch = self.draw(posterior, uniforms[time])
            states.append((deter, stoch, posterior))
        return Latents(*map(torch.stack, zip(*states, strict=True)))

    def divergences(self, latents: Latents, free_nats: float) -> tuple[Tensor, Tensor]:
        """Return the KL of posterior and prior, `[time, batch]`, to train one and the other."""
        prior, posterior = self.prior(latents.deter), latents.posterior
        dynamics = divergence(posterior.detach(), prior).clamp_min(free_nats)
        representation = divergence(posterior, prior.detach()).clamp_min(free_nats)
        return dynamics, representation

    def _shape(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], self.classes, self.stoch)

    def _mix(self, logits: Tensor) -> Tensor:
        return self._shape(logits).softmax(-2) * (1.0 - self._unimix) + self._unimix / self.classes


def divergence(left: Tensor, right: Tensor) -> Tensor:
    """Return the KL divergence of categories `[..., classes, stoch]`, summed over variables."""
    return (left * (left.log() - right.log())).sum((-2, -1))


# ---------------------------------------------------------------------- images


class ChannelNorm(nn.Module):
    """RMS norm over the channels of each pixel, with a learned scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """Normalize images `[batch, channels, height, width]`."""
        return pixels * (pixels.square().mean(1, keepdim=True) + EPSILON).rsqrt() * self.scale


class ImageStages(NamedTuple):
    """Height and width before each stage of an image network and after the last, and channels."""

    sides: list[tuple[int, int]]
    channels: list[int]


def make_stages(image: ImageShape, depth: int) -> ImageStages:
    """Halve sides until the longer one is 16 or less, but keep the shorter one at 3 or more.

    >>> make_stages(ImageShape.of((64, 64, 3)), 16)
    ImageStages(sides=[(64, 64), (32, 32), (16, 16), (8, 8), (4, 4)], channels=[3, 32, 48, 64, 64])
    """
    sides, channels = [image.sides], [image.channels]
    while len(sides) <= len(CHANNEL_MULTIPLES) or max(sides[-1]) > LARGEST_SIDE:
        height, width = -(-sides[-1][0] // 2), -(-sides[-1][1] // 2)
        if min(height, width) < SMALLEST_SIDE:
            break
        sides.append((height, width))
        stage = min(len(sides) - 2, len(CHANNEL_MULTIPLES) - 1)
        channels.append(depth * CHANNEL_MULTIPLES[stage])
    return ImageStages(sides, channels)


class ImageEncoder(nn.Module):
    """Convolutions that halve an image stage by stage, flattened at the end."""

    def __init__(self, image: ImageShape, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for before, after in pairwise(make_stages(image, cfg.depth).channels):
            layer = nn.Conv2d(before, after, KERNEL, 2 if cfg.strided else 1, KERNEL // 2)
            _fill_convolution(layer, before * KERNEL * KERNEL)
            pool = [] if cfg.strided else [nn.MaxPool2d(2, ceil_mode=True)]
            parts += [layer, *pool, ChannelNorm(after), nn.SiLU()]
        self.stages = nn.Sequential(*parts, nn.Flatten())

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode pixels from 0 to 1, `[batch, channels, height, width]`."""
        flat: Tensor = self.stages(pixels - 0.5)
        return flat


class ImageDecoder(nn.Module):
    """Predicts an image from a latent state, by convolutions that double it stage by stage."""

    def __init__(self, inputs: int, image: ImageShape, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self.image, self._strided = image, cfg.strided
        stages = make_stages(image, cfg.depth)
        self._sides, channels = stages.sides[::-1], stages.channels[::-1]
        self._first = (channels[0], *self._sides[0])
        self.start = make_linear(inputs, math.prod(self._first))
        self.norms = nn.ModuleList(ChannelNorm(count) for count in channels[:-1])
        self.layers = nn.ModuleList()
        for before, after in pairwise(channels):
            fan_in = before * KERNEL * KERNEL
            if cfg.strided:  # a pixel is reached by a quarter of the kernel
                spread = nn.ConvTranspose2d(before, after, KERNEL, 2, KERNEL // 2)
                self.layers.append(_fill_convolution(spread, fan_in // 4))
            else:
                plain = nn.Conv2d(before, after, KERNEL, 1, KERNEL // 2)
                self.layers.append(_fill_convolution(plain, fan_in))

    def forward(self, features: Tensor) -> Tensor:
        """Map `[..., features]` to pixels from 0 to 1, `[..., *shape]`."""
        pixels = self.start(features.flatten(0, -2)).view(-1, *self._first)
        for norm, layer, side in zip(self.norms, self.layers, self._sides[1:], strict=True):
            pixels = nn.functional.silu(norm(pixels))
            if self._strided:
                pixels = layer(pixels, output_size=side)
            else:
                pixels = layer(nn.functional.interpolate(pixels, side))
        order, shape = self.image.order, self.image.shape
        placed = torch.sigmoid(pixels).view(-1, *(shape[axis] for axis in order))
        back = np.argsort(order) + 1
        return placed.permute(0, *back.tolist()).reshape(*features.shape[:-1], *shape)


def _fill_convolution(layer: nn.Conv2d | nn.ConvTranspose2d, fan_in: int) -> nn.Module:
    fill(layer.weight, fan_in)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


# ---------------------------------------------------------------------- encoder


class Symlog(nn.Module):
    """`symlog` as a module."""

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the symlog of each number."""
        return symlog(numbers)


class Encoder(nn.Module):
    """Flat observations to tokens: the features of every leaf, numbers as symlogs, into an MLP.

    Observations that are one image are convolved only. `num_tokens` is the size of the result.
    """

    def __init__(self, layout: Layout, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self._layout = layout
        self.features = _with_image_encoders(make_features(layout), cfg)
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
        """Map `[..., size]` in the layout's dtype to `[..., tokens]`."""
        if not self.features.width:  # an empty space
            tokens = torch.zeros(*observations.shape[:-1], 1, device=observations.device)
        else:
            tokens = self.features(unpack(self._layout, observations))
        if self.mlp is None:
            return tokens
        encoded: Tensor = self.mlp(tokens)
        return encoded


def _with_image_encoders(feature: Feature, cfg: DreamerPolicyConfig) -> Feature:
    """Replace the network of every image by Dreamer's."""
    if isinstance(feature, Convolution):
        return Convolution(feature.image, ImageEncoder(feature.image, cfg))
    children = getattr(feature, "features", None)
    if isinstance(children, nn.ModuleList):
        feature.width = 0
        for i, child in enumerate(children):
            assert isinstance(child, Feature)
            children[i] = replaced = _with_image_encoders(child, cfg)
            feature.width += replaced.width
    return feature


# ---------------------------------------------------------------------- decoder

Keys = tuple[Hashable, ...]  # lead to a part of an unpacked observation


@dataclass(frozen=True)
class Part:
    """One array of an observation, and how it is predicted.

    Conditions are the masks of sequences (with None), and the indices of OneOfs with the value that
    they must have: where one does not hold, there is nothing to predict.
    """

    name: str  # its path in the layout
    kind: Literal["numbers", "categories", "flags", "image"]  # chooses its loss
    shape: tuple[int, ...]  # of the array; slots of sequences come first
    start: int = 0  # the lowest category of each entry
    counts: int = 0  # categories of each entry
    image: ImageShape | None = None  # how an image lies in its array
    keys: Keys = ()  # where it is in an unpacked observation
    conditions: tuple[tuple[Keys, int | None], ...] = ()

    @property
    def outputs(self) -> int:
        """Outputs that predict it; 0 for an image, which has a network of its own."""
        return 0 if self.kind == "image" else math.prod(self.shape) * max(self.counts, 1)

    def read(self, tree: Any) -> tuple[Tensor, Tensor | None]:
        """Return its values in unpacked observations, and which entries exist (None: all)."""
        exists: Tensor | None = None
        for keys, value in self.conditions:
            found = reduce(getitem, keys, tree)
            holds = found.bool() if value is None else found == value
            exists = holds if exists is None else _expand(exists, holds.dim()) & holds
        return reduce(getitem, self.keys, tree), exists

    def loss(self, output: Tensor, truth: Tensor, exists: Tensor | None) -> Tensor:
        """Return the loss `[...]` of a prediction, summed over the entries that exist."""
        match self.kind:
            case "numbers":
                errors = (output - symlog(truth.to(torch.float32))).square()
            case "image":
                errors = (output - truth.to(torch.float32) * (1.0 / 255.0)).square()
            case "flags":
                errors = nn.functional.binary_cross_entropy_with_logits(
                    output, truth.to(torch.float32), reduction="none"
                )
            case "categories":
                index = (truth.long() - self.start).clamp(0, self.counts - 1)
                errors = -output.log_softmax(-1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        if exists is not None:
            errors = torch.where(_expand(exists, errors.dim()), errors, 0.0)
        return errors.sum(tuple(range(-len(self.shape), 0))) if self.shape else errors

    def best(self, output: Tensor) -> Tensor:
        """Return the most probable value, `[..., *shape]`; images from 0 to 255."""
        match self.kind:
            case "numbers":
                return symexp(output)
            case "image":
                return output * 255.0
            case "flags":
                return (output > 0).to(torch.float32)
            case "categories":
                return output.argmax(-1) + self.start


ROOT = Part("", "numbers", ())


class Decoder(nn.Module):
    """Latent states to predictions of all parts of an observation.

    Numbers are predicted as symlogs with a squared loss, categories and flags with cross-entropy,
    images by their pixels with a squared loss. `parts` are predicted in that order.
    """

    def __init__(self, inputs: int, layout: Layout, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self._layout = layout
        leaves = {leaf.path: leaf for leaf in layout.leaves}
        self.parts = [part for part in _parts(layout.root, leaves) if math.prod(part.shape)]
        self._widths = [part.outputs for part in self.parts if part.kind != "image"]
        self.trunk = self.output = None
        if self._widths:
            self.trunk = Mlp(inputs, cfg.units, cfg.layers)
            self.output = make_linear(cfg.units, sum(self._widths))
        self.images = nn.ModuleList(
            ImageDecoder(inputs, part.image, cfg) for part in self.parts if part.image is not None
        )

    def forward(self, features: Tensor) -> list[Tensor]:
        """Return a prediction of each part, for latent states `[..., features]`."""
        flat: Iterator[Tensor] = iter(())
        if self.trunk is not None and self.output is not None:
            flat = iter(self.output(self.trunk(features)).split(self._widths, -1))
        images = iter([network(features) for network in self.images])
        found = []
        for part in self.parts:
            if part.kind == "image":
                found.append(next(images))
                continue
            shape = (*part.shape, part.counts) if part.counts else part.shape
            found.append(next(flat).reshape(*features.shape[:-1], *shape))
        return found

    def loss(self, features: Tensor, observations: Tensor) -> Tensor:
        """Return the losses `[...]` of latent states, given observations `[..., size]`."""
        total = features.new_zeros(features.shape[:-1])
        tree = unpack(self._layout, observations)
        for part, output in zip(self.parts, self(features), strict=True):
            total = total + part.loss(output, *part.read(tree))
        return total

    def truths(self, observations: Tensor) -> list[Tensor]:
        """Return the true values of all parts."""
        tree = unpack(self._layout, observations)
        return [part.read(tree)[0] for part in self.parts]


def _expand(flags: Tensor, rank: int) -> Tensor:
    return flags.reshape(*flags.shape, *[1] * (rank - flags.dim()))


def _parts(node: Node, leaves: dict[str, Leaf], at: Part = ROOT) -> Iterator[Part]:
    """Yield the parts of a node; `at` has the slots, keys and conditions of what surrounds it."""
    match node:
        case ArrayNode():
            yield _array_part(at, leaves[node.path], node.shape)
        case ScalarNode():
            yield _categories(at, node.path, node.low, node.high - node.low + 1)
        case TextNode() | SequenceNode():
            mask = (*at.keys, "mask")
            slots = replace(at, shape=(*at.shape, node.capacity))
            yield replace(slots, name=join(node.path, "mask"), kind="flags", keys=mask)
            inside = replace(slots, conditions=(*at.conditions, (mask, None)))
            if isinstance(node, SequenceNode):
                yield from _parts(node.child, leaves, replace(inside, keys=(*at.keys, "items")))
                return
            path = join(node.path, "characters")
            space = leaves[path].space
            assert isinstance(space, spaces.Discrete)
            inside = replace(inside, keys=(*at.keys, "characters"))
            yield _categories(inside, path, 0, int(space.n))
        case OneOfNode():
            index = (*at.keys, "index")
            path, count = join(node.path, "index"), len(node.children)
            yield _categories(replace(at, keys=index), path, 0, count)
            for i, child in enumerate(node.children):
                keys, conditions = (*at.keys, "options", i), (*at.conditions, (index, i))
                yield from _parts(child, leaves, replace(at, keys=keys, conditions=conditions))
        case DictNode():
            for key, child in zip(node.keys, node.children, strict=True):
                yield from _parts(child, leaves, replace(at, keys=(*at.keys, key)))
        case TupleNode():
            for i, child in enumerate(node.children):
                yield from _parts(child, leaves, replace(at, keys=(*at.keys, i)))
        case ConvertedNode():
            yield from _parts(node.child, leaves, at)


def _array_part(at: Part, leaf: Leaf, shape: tuple[int, ...]) -> Part:
    space, slots = leaf.space, at.shape
    part = replace(at, name=leaf.path, shape=slots + shape)
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
        low, high = int(start.min(initial=0)), int((start + space.nvec).max(initial=1))
        return _categories(part, leaf.path, low, high - low)
    if isinstance(space, spaces.MultiBinary) or space.dtype == np.bool_:
        return replace(part, kind="flags")
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind == "f":
        return part
    low, high = int(space.low.min(initial=0)), int(space.high.max(initial=0))
    count = high - low + 1
    if not slots and count > MOST_VALUES and space.dtype == np.uint8:
        image = ImageShape.of(shape)
        if image is not None:
            return replace(part, kind="image", image=image)
    if count <= MOST_VALUES and count * math.prod(part.shape) <= MOST_ONE_HOT:
        return _categories(part, leaf.path, low, count)
    return part


def _categories(at: Part, path: str, start: int, counts: int) -> Part:
    """Return a part of categories, or of numbers if there are too many categories."""
    if counts * math.prod(at.shape) > MOST_EMBEDDED:
        return replace(at, name=path)
    return replace(at, name=path, kind="categories", start=start, counts=counts)


# ---------------------------------------------------------------------- actor


class HeadGroup(NamedTuple):
    """Discrete heads side by side that have equally many choices."""

    number: int
    choices: int
    logits: slice
    columns: slice

    def split(self, flat: Tensor) -> Tensor:
        """Return their part of `[..., all choices]` as `[..., heads, choices]`."""
        own = flat[..., self.logits]
        return own.reshape(*own.shape[:-1], self.number, self.choices)


class ActionEncoder(nn.Module):
    """Encodes actions for the recurrent model: one-hot choices, and numbers in units of bounds.

    Its `size` is that of an encoded action.
    """

    middle: Tensor  # between the bounds of each number, [dims]; 0 where it is unbounded
    reach: Tensor  # half the distance of the bounds; 1 where it is unbounded
    bounded: Tensor  # 1 where a number has two bounds

    def __init__(self, layout: Layout, distribution: ActionDistribution) -> None:
        super().__init__()
        self.heads = _group_heads(distribution.choices)
        self.num_heads, self.size = distribution.num_heads, distribution.num_outputs
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
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Map samples of the distribution `[..., numbers]` to `[..., size]`."""
        parts = [
            nn.functional.one_hot(samples[..., group.columns].long(), group.choices).flatten(-2)
            for group in self.heads
        ]
        parts.append((samples[..., self.num_heads :] - self.middle) / self.reach)
        return torch.cat([part.to(torch.float32) for part in parts], -1)


def _group_heads(choices: list[int]) -> list[HeadGroup]:
    heads, logit, column = [], 0, 0
    for count, group in groupby(choices):
        number = len(list(group))
        logits, columns = slice(logit, logit + number * count), slice(column, column + number)
        heads.append(HeadGroup(number, count, logits, columns))
        logit, column = logits.stop, columns.stop
    return heads


class DreamerActor(nn.Module):
    """Latent states to the parameters of the distribution of actions.

    Choices are mixed with the uniform distribution. Numbers are normals whose mean a tanh keeps
    within the bounds, with deviations from 0.1 to 1 times half the distance of the bounds.
    """

    def __init__(
        self,
        inputs: int,
        encoder: ActionEncoder,
        distribution: ActionDistribution,
        cfg: DreamerPolicyConfig,
    ) -> None:
        super().__init__()
        self.code, self._unimix = encoder, cfg.unimix
        self._sizes = [distribution.num_choices] + [distribution.num_continuous] * 2
        self.network = Mlp(inputs, cfg.units, cfg.layers, sum(self._sizes), scale=0.01)

    def forward(self, features: Tensor) -> Tensor:
        """Map `[..., features]` to parameters as `ActionDistribution` takes them."""
        logits, means, deviations = self.network(features).split(self._sizes, -1)
        parts = [self._mix(group, logits) for group in self.code.heads]
        if self._sizes[1]:
            code = self.code
            bounded = code.middle + code.reach * torch.tanh(means)
            parts.append(torch.where(code.bounded > 0, bounded, means))
            spread = 0.9 * torch.sigmoid(deviations + 2.0) + 0.1
            parts.append((spread * code.reach).log())
        return torch.cat(parts, -1)

    def draw(self, params: Tensor, masks: Tensor | None, random: torch.Generator) -> Tensor:
        """Draw samples on the device of the parameters `[batch, params]`."""
        parts: list[Tensor] = []
        options: dict[str, Any] = {"generator": random, "device": params.device}
        for group in self.code.heads:
            probabilities = group.split(params).exp()
            if masks is not None:
                probabilities = torch.where(group.split(masks), probabilities, 0.0)
            cumulative = probabilities.cumsum(-1)
            uniforms = torch.rand((*cumulative.shape[:-1], 1), **options) * cumulative[..., -1:]
            index = (cumulative <= uniforms).sum(-1).clamp_max(group.choices - 1)
            parts.append(index.to(torch.float32))
        if self._sizes[1]:
            means, log_stds = params[..., self._sizes[0] :].chunk(2, -1)
            parts.append(means + log_stds.exp() * torch.randn(means.shape, **options))
        return torch.cat(parts, -1)

    def _mix(self, group: HeadGroup, logits: Tensor) -> Tensor:
        # Choices first, since torch sums over short rows of memory slowly.
        probabilities = group.split(logits).movedim(-1, 0).softmax(0)
        mixed = probabilities * (1.0 - self._unimix) + self._unimix / group.choices
        return mixed.log().movedim(0, -1).flatten(-2)
