"""Encoders: rows of an observation layout to hidden vectors, by features of each kind of leaf."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.core.errors import UsageError
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
from fugu.policies.config import PolicyConfig
from fugu.policies.images import Convolution, Feature, ImageShape, make_convolution
from fugu.policies.layers import MlpEncoder, RunningScale, initialize
from fugu.policies.unpack import unpack
from fugu.spaces import Layout, Leaf

Images = Literal["auto", "flat", "nature", "impala"]

MOST_VALUES = 16  # values of an integer array that is one-hot
MOST_ONE_HOT = 16_384  # numbers of a one-hot array
MOST_CATEGORIES = 64  # of a Discrete that is one-hot; more are embedded
MOST_EMBEDDED = 65_536  # rows of a table; more categories are one scaled number
EMBEDDING = 32  # numbers of an embedded category, character or item


class Numbers(Feature):
    """An array as it is, or scaled to [0, 1], or (for integers of a wide range) its symlog."""

    low: Tensor
    span: Tensor
    scale: nn.Module | None

    def __init__(self, shape: tuple[int, ...], low: Any = 0, span: Any = 1, wide: bool = False):
        super().__init__(math.prod(shape))
        self.scale = None
        self.rank, self.wide = len(shape), wide
        bounds = {"low": np.asarray(low, np.float64).reshape(-1)}
        bounds["span"] = np.maximum(np.asarray(span, np.float64).reshape(-1), 1.0)
        self.plain = not bounds["low"].any() and bool((bounds["span"] == 1.0).all())
        for name, values in bounds.items():
            flat = torch.tensor(values, dtype=torch.float32)
            self.register_buffer(name, flat, persistent=False)

    def forward(self, tree: Tensor) -> Tensor:
        """Map `[..., *shape]` to `[..., numbers]`."""
        flat = flatten(tree, self.rank).to(torch.float32)
        if self.wide:
            flat = flat.sign() * flat.abs().log1p()
        elif not self.plain:
            flat = (flat - self.low) / self.span
        return flat if self.scale is None else self.scale(flat)


class Categories(Feature):
    """Integers of an array, counted from `start`; out of bounds they count as the nearest value."""

    start: Tensor
    counts: Tensor

    def __init__(self, shape: tuple[int, ...], start: Any, counts: Any, width: int) -> None:
        super().__init__(width)
        self.rank = len(shape)
        self._register("start", _each(shape, start))
        self._register("counts", _each(shape, counts))

    def _register(self, name: str, numbers: NDArray[np.int64]) -> None:
        self.register_buffer(name, torch.tensor(numbers, dtype=torch.int64), persistent=False)

    def indices(self, tree: Tensor) -> Tensor:
        """Map `[..., *shape]` to indices from 0 on, `[..., numbers]`."""
        indices = flatten(tree, self.rank).to(torch.int64) - self.start
        return torch.minimum(indices.clamp_min(0), self.counts - 1)


class OneHot(Categories):
    """Categories, each one-hot."""

    owners: Tensor
    values: Tensor

    def __init__(self, shape: tuple[int, ...], start: Any, counts: Any) -> None:
        every = _each(shape, counts)
        super().__init__(shape, start, counts, int(every.sum()))
        self.uniform = bool((every == every[:1]).all())
        # Each output is 1 if one number, its owner, has its value.
        self._register("owners", np.repeat(np.arange(len(every)), every))
        self._register("values", np.concatenate([np.zeros(0, np.int64), *map(np.arange, every)]))

    def forward(self, tree: Tensor) -> Tensor:
        """Map `[..., *shape]` to `[..., sum of counts]`."""
        indices = self.indices(tree)
        if self.uniform and self.width:
            equal = indices.unsqueeze(-1) == self.values[: self.width // indices.shape[-1]]
            return equal.flatten(-2).to(torch.float32)
        return (indices[..., self.owners] == self.values).to(torch.float32)


class Embedded(Categories):
    """Categories, each a row of a learned table."""

    offsets: Tensor

    def __init__(self, shape: tuple[int, ...], start: Any, counts: Any) -> None:
        every = _each(shape, counts)
        super().__init__(shape, start, counts, len(every) * EMBEDDING)
        self._register("offsets", np.cumsum(every) - every)
        self.table = nn.Embedding(int(every.sum()), EMBEDDING)

    def forward(self, tree: Tensor) -> Tensor:
        """Map `[..., *shape]` to `[..., numbers * EMBEDDING]`."""
        embedded: Tensor = self.table(self.indices(tree) + self.offsets)
        return embedded.flatten(-2)


def _each(shape: tuple[int, ...], numbers: Any) -> NDArray[np.int64]:
    """Return numbers for every element of an array, `[size]`."""
    return np.broadcast_to(np.asarray(numbers, np.int64).reshape(-1), math.prod(shape))


class Branches(Feature):
    """A dict or tuple: its children's features side by side."""

    def __init__(self, keys: list[Any], children: list[Feature]) -> None:
        super().__init__(sum(child.width for child in children))
        self.keys = keys
        self.features = nn.ModuleList(children)

    def forward(self, tree: Any) -> Tensor:
        """Map a tree of `[..., *shape]` to `[..., width]`."""
        parts = [child(tree[key]) for key, child in zip(self.keys, self.features, strict=True)]
        return torch.cat(parts, -1) if parts else torch.empty(0)


class Items(Feature):
    """A sequence: the sum of its items, each embedded with its place.

    The sum is divided by the root of the capacity; the share of places taken is one more feature.
    """

    def __init__(self, key: str, item: Feature, capacity: int) -> None:
        super().__init__(EMBEDDING + 1)
        self.key, self.capacity = key, capacity
        self.item = item
        self.embed = nn.Linear(max(item.width, 1), EMBEDDING)
        self.places = nn.Parameter(torch.randn(capacity, EMBEDDING) / math.sqrt(EMBEDDING))

    def forward(self, tree: Any) -> Tensor:
        """Map `mask` [..., capacity] and items [..., capacity, *shape] to [..., width]."""
        mask = tree["mask"]
        if self.item.width:
            items = self.embed(self.item(tree[self.key])) + self.places
        else:
            items = self.places.expand(*mask.shape, EMBEDDING)
        items = torch.where(mask.unsqueeze(-1), torch.relu(items), 0.0)
        scale = 1.0 / max(self.capacity, 1)
        share = mask.to(torch.float32).sum(-1, keepdim=True) * scale
        return torch.cat([items.sum(-2) * math.sqrt(scale), share], -1)


class Options(Feature):
    """A OneOf: its index, one-hot, and the features of all options, zero but for the chosen one."""

    def __init__(self, children: list[Feature]) -> None:
        super().__init__(len(children) + sum(child.width for child in children))
        self.index = OneHot((), 0, len(children))
        self.options = nn.ModuleList(children)

    def forward(self, tree: Any) -> Tensor:
        """Map `index` [...] and the options' trees to [..., width]."""
        chosen = self.index(tree["index"])
        parts = [chosen]
        for i, option in enumerate(self.options):
            there = chosen[..., i : i + 1] > 0
            if option.width:
                parts.append(torch.where(there, option(tree["options"][i]), 0.0))
        return torch.cat(parts, -1)


def flatten(tensor: Tensor, rank: int) -> Tensor:
    """Flatten the last `rank` axes."""
    return tensor.flatten(-rank) if rank else tensor.unsqueeze(-1)


class Pooled(Feature):
    """Items along an array's first axis: one network reads each, then their mean and maximum."""

    def __init__(self, item: Feature, hidden_size: int, layers: int, activation: str) -> None:
        super().__init__(2 * hidden_size)
        self.item = item
        self.mlp = MlpEncoder(item.width, hidden_size, layers, activation)

    def forward(self, tree: Tensor) -> Tensor:
        """Map `[..., items, *shape]` to `[..., width]`."""
        read = self.mlp(self.item(tree))
        return torch.cat([read.mean(-2), read.amax(-2)], -1)


@dataclass(frozen=True)
class Reading:
    """How arrays are read.

    Attributes:
        sets: Settings of the network that reads items of sets; None: arrays are not sets.
    """

    images: Images = "auto"  # The network that reads images
    sets: PolicyConfig | None = None

    @classmethod
    def of(cls, cfg: PolicyConfig) -> Reading:
        """Return how a policy's settings read arrays."""
        if cfg.encoder == "set":
            return cls(sets=cfg)
        return cls("flat" if cfg.encoder == "mlp" else cfg.encoder)


AUTO, FLAT = Reading(), Reading("flat")


def make_features(layout: Layout, reading: Reading = AUTO, normalize: bool = False) -> Feature:
    """Make the features of a whole observation layout."""
    leaves = {leaf.path: leaf for leaf in layout.leaves}
    feature = _feature(layout.root, leaves, reading)
    if normalize:
        _normalize(feature)
    return feature


def _normalize(feature: Feature) -> None:
    """Scale numbers that are always present; missing ones of a sequence or a OneOf would be 0."""
    if isinstance(feature, Numbers):
        feature.scale = RunningScale(feature.width)
    elif isinstance(feature, Pooled):
        _normalize(feature.item)
    elif isinstance(feature, Branches):
        for child in feature.features:
            assert isinstance(child, Feature)
            _normalize(child)


def _feature(node: Node, leaves: dict[str, Leaf], reading: Reading) -> Feature:
    match node:
        case ArrayNode():
            return _array_feature(leaves[node.path], node.shape, reading)
        case ScalarNode():
            return _categories((), node.low, node.high - node.low + 1)
        case DictNode():
            return _branches(list(node.keys), node.children, leaves, reading)
        case TupleNode():
            return _branches(list(range(len(node.children))), node.children, leaves, reading)
        case OneOfNode():
            return Options([_feature(child, leaves, FLAT) for child in node.children])
        case SequenceNode():
            return Items("items", _feature(node.child, leaves, FLAT), node.capacity)
        case TextNode():
            space = leaves[join(node.path, "characters")].space
            assert isinstance(space, spaces.Discrete)
            return Items("characters", Embedded((), 0, int(space.n)), node.capacity)
        case ConvertedNode():
            return _feature(node.child, leaves, reading)


def _branches(
    keys: list[Any], nodes: tuple[Node, ...], leaves: dict[str, Leaf], reading: Reading
) -> Feature:
    built = [(key, _feature(node, leaves, reading)) for key, node in zip(keys, nodes, strict=True)]
    kept = [(key, feature) for key, feature in built if feature.width]
    return Branches([key for key, _ in kept], [feature for _, feature in kept])


def _array_feature(leaf: Leaf, shape: tuple[int, ...], reading: Reading) -> Feature:
    whole = _plain_feature(leaf.space, shape, reading.images)
    sets = reading.sets
    if sets is None or len(shape) < 2 or 0 in shape or isinstance(whole, Convolution):
        return whole
    item = _plain_feature(_item_space(leaf.space), shape[1:], "flat")
    return Pooled(item, sets.hidden_size, sets.layers, sets.activation)


def _item_space(space: Any) -> Any:
    """Return the space of any item: its categories are those of all items."""
    if not isinstance(space, spaces.MultiDiscrete):
        return space
    start = getattr(space, "start", np.zeros_like(space.nvec))
    low, high = start.min(0), (start + space.nvec).max(0)
    return spaces.MultiDiscrete(high - low, start=low)


def _plain_feature(space: Any, shape: tuple[int, ...], images: Images) -> Feature:
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return _categories(shape, start, space.nvec)
    if not isinstance(space, spaces.Box) or np.dtype(space.dtype).kind in "fb":
        return Numbers(shape)
    low, high = int(space.low.min(initial=0)), int(space.high.max(initial=0))
    count = high - low + 1
    if images != "flat" and count > MOST_VALUES and space.dtype == np.uint8:
        image = ImageShape.of(shape, named=images != "auto")
        if image is not None:
            return make_convolution(image, images)
    if count <= 2:
        return Numbers(shape, low)
    if count <= MOST_VALUES and count * math.prod(shape) <= MOST_ONE_HOT:
        return OneHot(shape, low, count)
    return Numbers(shape, low, high - low, wide=count > MOST_EMBEDDED)


def _categories(shape: tuple[int, ...], start: Any, counts: Any) -> Feature:
    """Return one-hot features for few categories, a table for many, scaled numbers for more."""
    every = _each(shape, counts)
    total = int(every.sum())
    if every.max(initial=0) <= MOST_CATEGORIES and total <= MOST_ONE_HOT:
        return OneHot(shape, start, counts)
    if total <= MOST_EMBEDDED:
        return Embedded(shape, start, counts)
    return Numbers(shape, start, np.asarray(counts) - 1)


def has_images(feature: Feature) -> bool:
    """Return whether a convolution is among the features."""
    return any(isinstance(module, Convolution) for module in feature.modules())


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
    - texts, sequences and graphs: sums of their embedded items; a OneOf: the features of the chosen
      option, the others zero.

    The encoder "set" reads arrays of two axes or more that are not images as items along the first
    axis: one MLP reads each item, and the mean and the maximum of its outputs are the features.

    With `normalise`, floats and integers that are not categories are scaled by running moments.

    Categories out of bounds count as the nearest within, so that zeroed rows are harmless.
    """

    def __init__(self, layout: Layout, cfg: PolicyConfig) -> None:
        super().__init__()
        self.layout = layout
        self.features = make_features(layout, Reading.of(cfg), cfg.normalise)
        self._check(cfg.encoder)
        initialize(self.features)
        width = max(self.features.width, 1)
        self.mlp = MlpEncoder(width, cfg.hidden_size, cfg.layers, cfg.activation)

    def forward(self, observations: Tensor) -> Tensor:
        """Map `[batch, size]` in the layout's dtype to `[batch, hidden_size]`."""
        if not self.features.width:  # an empty space: only the bias is learned
            constant = torch.ones(len(observations), 1, device=observations.device)
            nothing: Tensor = self.mlp(constant)
            return nothing
        hidden: Tensor = self.mlp(self.features(unpack(self.layout, observations)))
        return hidden

    def _check(self, name: str) -> None:
        """Raise if the space has nothing that the encoder of this name reads."""
        if name in ("nature", "impala") and not has_images(self.features):
            allowed = "a space with an image (uint8, both sides 16 pixels or more)"
        elif name == "set" and not any(isinstance(m, Pooled) for m in self.features.modules()):
            allowed = "a space with an array of two axes or more, the first of which counts items"
        else:
            return
        given = f"{name!r} for {self.layout.space}"
        raise UsageError(f"encoder: given {given}; allowed: {allowed}. Take 'auto'.")


def make_encoder(layout: Layout, cfg: PolicyConfig) -> nn.Module:
    """Make the encoder of a config."""
    floats = layout.dtype.kind == "f" and all(
        isinstance(leaf.space, spaces.Box) and np.dtype(leaf.dtype).kind == "f"
        for leaf in layout.leaves
    )
    if floats and layout.size and cfg.encoder in ("auto", "mlp"):
        return MlpEncoder(layout.size, cfg.hidden_size, cfg.layers, cfg.activation, cfg.normalise)
    return AutoEncoder(layout, cfg)
