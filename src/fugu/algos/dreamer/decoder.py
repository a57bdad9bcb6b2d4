"""The decoder: predictions of every leaf of an observation, each by its own kind of loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu.algos.dreamer.config import DreamerPolicyConfig
from fugu.algos.dreamer.maths import symexp, symlog
from fugu.algos.dreamer.networks import ImageDecoder, Mlp
from fugu.algos.dreamer.rssm import make_linear
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
from fugu.policies.encoders import MOST_EMBEDDED, MOST_ONE_HOT, MOST_VALUES
from fugu.policies.images import ImageShape
from fugu.policies.unpack import unpack
from fugu.spaces import Layout, Leaf

Kind = Literal["numbers", "categories", "flags", "image"]


@dataclass(frozen=True)
class Part:
    """One array of an observation, and how it is predicted.

    Attributes:
        name: Its path.
        kind: By which its loss is chosen.
        shape: Slots of sequences first.
        start: The least category of each entry.
        counts: Categories of each entry.
        image: How it stands in its array, if it is one.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    start: int = 0
    counts: int = 0
    image: ImageShape | None = None

    @property
    def outputs(self) -> int:
        """Numbers that predict it; none of an image, which has a network of its own."""
        if self.kind == "image":
            return 0
        return math.prod(self.shape) * max(self.counts, 1)


@dataclass(frozen=True)
class Prediction:
    """What a decoder says of one part, and what it was.

    Attributes:
        part: Which one.
        output: Of the network.
    """

    part: Part
    output: Tensor

    def loss(self, truth: Tensor, there: Tensor | None) -> Tensor:
        """`[...]`, summed over the part; only entries that are `there` count."""
        rank = len(self.part.shape)
        match self.part.kind:
            case "numbers":
                errors = (self.output - symlog(truth.to(torch.float32))).square()
            case "image":
                errors = (self.output - truth.to(torch.float32) * (1.0 / 255.0)).square()
            case "flags":
                wanted = truth.to(torch.float32)
                errors = nn.functional.binary_cross_entropy_with_logits(
                    self.output, wanted, reduction="none"
                )
            case "categories":
                index = (truth.long() - self.part.start).clamp(0, self.part.counts - 1)
                logs = self.output.log_softmax(-1)
                errors = -logs.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        if there is not None:
            padded = there.reshape(*there.shape, *[1] * (errors.dim() - there.dim()))
            errors = torch.where(padded, errors, 0.0)
        return errors.sum(tuple(range(-rank, 0))) if rank else errors

    def best(self) -> Tensor:
        """The most probable value, `[..., *shape]`; images from 0 to 255."""
        match self.part.kind:
            case "numbers":
                return symexp(self.output)
            case "image":
                return self.output * 255.0
            case "flags":
                return (self.output > 0).to(torch.float32)
            case "categories":
                return self.output.argmax(-1) + self.part.start


class Decoder(nn.Module):
    """Latent states to predictions of all parts of an observation.

    Numbers are predicted as symlogs under a squared loss, categories and flags under
    cross-entropy, images by their pixels under a squared loss. What a sequence or a OneOf lacks is
    not trained.

    Attributes:
        parts: What is predicted, in order.
    """

    def __init__(self, inputs: int, layout: Layout, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self._layout = layout
        leaves = {leaf.path: leaf for leaf in layout.leaves}
        self.parts = [part for part in _parts(layout.root, leaves, ()) if math.prod(part.shape)]
        self._widths = [part.outputs for part in self.parts if part.kind != "image"]
        self.trunk = self.output = None
        if self._widths:
            self.trunk = Mlp(inputs, cfg.units, cfg.layers)
            self.output = make_linear(cfg.units, sum(self._widths))
        self.images = nn.ModuleList(
            ImageDecoder(inputs, part.image, cfg) for part in self.parts if part.image is not None
        )

    def forward(self, features: Tensor) -> list[Prediction]:
        """Of latent states `[..., features]`."""
        flat: list[Tensor] = []
        if self.trunk is not None and self.output is not None:
            flat = list(self.output(self.trunk(features)).split(self._widths, -1))
        images = [network(features) for network in self.images]
        found = []
        for part in self.parts:
            if part.kind == "image":
                found.append(Prediction(part, images.pop(0)))
                continue
            shape = (*part.shape, part.counts) if part.counts else part.shape
            found.append(Prediction(part, flat.pop(0).reshape(*features.shape[:-1], *shape)))
        return found

    def loss(self, features: Tensor, observations: Tensor) -> Tensor:
        """`[...]`, of latent states and what was seen, `[..., size]` in the layout's dtype."""
        total = features.new_zeros(features.shape[:-1])
        truths = self.truths(observations)
        for prediction, (truth, there) in zip(self(features), truths, strict=True):
            total = total + prediction.loss(truth, there)
        return total

    def truths(self, observations: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """Each part's true values, and which of their entries are there (None: all)."""
        tree, depth = unpack(self._layout, observations), observations.dim() - 1
        walked = _truths(self._layout.root, tree, None)
        return [pair for pair in walked if math.prod(pair[0].shape[depth:])]


# ---------------------------------------------------------------------- the tree of a layout


def _parts(node: Node, leaves: dict[str, Leaf], slots: tuple[int, ...]) -> Iterator[Part]:
    """The parts of a node, in the order of `_truths`; inside a sequence they have slots."""
    match node:
        case ArrayNode():
            yield _array_part(leaves[node.path], slots, node.shape)
        case ScalarNode():
            yield _categories(node.path, slots, node.low, node.high - node.low + 1)
        case TextNode():
            shape = (*slots, node.capacity)
            yield Part(join(node.path, "mask"), "flags", shape)
            space = leaves[join(node.path, "characters")].space
            assert isinstance(space, spaces.Discrete)
            yield _categories(join(node.path, "characters"), shape, 0, int(space.n))
        case SequenceNode():
            shape = (*slots, node.capacity)
            yield Part(join(node.path, "mask"), "flags", shape)
            yield from _parts(node.child, leaves, shape)
        case OneOfNode():
            yield _categories(join(node.path, "index"), slots, 0, len(node.children))
            for child in node.children:
                yield from _parts(child, leaves, slots)
        case DictNode() | TupleNode():
            for child in node.children:
                yield from _parts(child, leaves, slots)
        case ConvertedNode():
            yield from _parts(node.child, leaves, slots)


def _truths(node: Node, tree: Any, there: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    match node:
        case ArrayNode() | ScalarNode():
            yield tree, there
        case TextNode():
            yield tree["mask"], there
            yield tree["characters"], _both(there, tree["mask"])
        case SequenceNode():
            yield tree["mask"], there
            yield from _truths(node.child, tree["items"], _both(there, tree["mask"]))
        case OneOfNode():
            yield tree["index"], there
            for i, child in enumerate(node.children):
                yield from _truths(child, tree["options"][i], _both(there, tree["index"] == i))
        case DictNode():
            for key, child in zip(node.keys, node.children, strict=True):
                yield from _truths(child, tree[key], there)
        case TupleNode():
            for i, child in enumerate(node.children):
                yield from _truths(child, tree[i], there)
        case ConvertedNode():
            yield from _truths(node.child, tree, there)


def _both(outer: Tensor | None, inner: Tensor) -> Tensor:
    if outer is None:
        return inner.bool()
    return outer.reshape(*outer.shape, *[1] * (inner.dim() - outer.dim())) & inner.bool()


def _array_part(leaf: Leaf, slots: tuple[int, ...], shape: tuple[int, ...]) -> Part:
    space, whole = leaf.space, slots + shape
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
        low, high = int(start.min(initial=0)), int((start + space.nvec).max(initial=1))
        return _categories(leaf.path, whole, low, high - low)
    if isinstance(space, spaces.MultiBinary):
        return Part(leaf.path, "flags", whole)
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind == "f":
        return Part(leaf.path, "numbers", whole)
    if np.dtype(space.dtype).kind == "b":
        return Part(leaf.path, "flags", whole)
    low, high = int(space.low.min(initial=0)), int(space.high.max(initial=0))
    count = high - low + 1
    if not slots and count > MOST_VALUES and space.dtype == np.uint8:
        image = ImageShape.of(shape)
        if image is not None:
            return Part(leaf.path, "image", whole, image=image)
    if count <= MOST_VALUES and count * math.prod(whole) <= MOST_ONE_HOT:
        return _categories(leaf.path, whole, low, count)
    return Part(leaf.path, "numbers", whole)


def _categories(path: str, shape: tuple[int, ...], start: int, counts: int) -> Part:
    """Categories, or numbers if there are too many of them."""
    if counts * math.prod(shape) > MOST_EMBEDDED:
        return Part(path, "numbers", shape)
    return Part(path, "categories", shape, start, counts)
