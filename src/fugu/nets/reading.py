"""Read the torch modules of a policy as operations of a `Net`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.nets import net as ops
from fugu.nets.net import Net, Place
from fugu.policies import encoders as feats
from fugu.policies.central import CentralPolicy
from fugu.policies.cores import GruCore, LstmCore, MinGruCore, NoCore, TransformerCore
from fugu.policies.encoders import AutoEncoder
from fugu.policies.images import Convolution, Feature, ResidualBlock
from fugu.policies.layers import MlpEncoder, RunningScale
from fugu.policies.policy import Policy, SeparateCore, SeparateEncoder, SeparateHead
from fugu.spaces import Layout

FUNCTIONS: dict[type[nn.Module], ops.Function] = {
    nn.ReLU: "relu",
    nn.GELU: "gelu",
    nn.SiLU: "silu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
}
# Layers whose forward is known; one of a user that derives from them may do something else.
LAYERS: tuple[type[nn.Module], ...] = (
    nn.Sequential, MlpEncoder, nn.Linear, RunningScale, nn.LayerNorm, nn.Identity, nn.Flatten,
    nn.Conv2d, nn.MaxPool2d, ResidualBlock, *FUNCTIONS,
)  # fmt: skip
FORWARDS = {kind.forward for kind in LAYERS}
Image = tuple[int, int, int]


def read_policy(policy: Policy, layout: Layout, reads: type[Reader] | None = None) -> Net:
    """Return a policy as a network, by default with copies of its weights.

    Args:
        policy: The policy.
        layout: The layout of its observations.
        reads: The class that reads it; `Reader` by default.

    Raises:
        UsageError: If it has a part whose operations are not known.
    """
    if isinstance(policy, CentralPolicy):
        return _read_actor(policy, layout)
    if type(policy) is not Policy:
        raise _unknown(policy)
    sampler = policy.distribution.sampler
    net = Net(layout, sampler.layout, sampler.continuous, policy.state_size)
    reader = (reads or Reader)(net)
    hidden = reader.encode(policy.encoder, layout)
    hidden, state = reader.recur(policy.core, hidden, 0)
    outputs = reader.decode(policy.decoder, hidden)
    params = reader.cut(outputs, 0, sampler.num_outputs)
    if policy.log_std is not None:
        params = reader.join(params, reader.constant(policy.log_std))
    net.params, net.state = params, state
    if policy.num_critics:
        net.values = reader.cut(outputs, sampler.num_outputs, policy.num_critics)
    return net


def _read_actor(policy: CentralPolicy, layout: Layout) -> Net:
    """Read the actor of a central policy, if it reads observations alone."""
    if len(policy.actors) > 1 or policy.reads_agents:
        raise UsageError(
            "policy: given one that knows who an agent is (train.agent_ids, or one network for "
            "each); allowed: one network for all, or the engines torch and compile."
        )
    actor = policy.actors[0]
    assert isinstance(actor, Policy)
    return read_policy(actor, layout)


@dataclass(frozen=True)
class Spot:
    """The place of a leaf in a row, with all outer axes."""

    place: Place
    shape: tuple[int, ...]

    def split(self, rank: int) -> tuple[int, int]:
        """Return rows and width, if the last `rank` axes form one row."""
        cut = len(self.shape) - rank
        return math.prod(self.shape[:cut]), math.prod(self.shape[cut:])


class Reader:
    """Adds the operations of modules to a net; methods return the index of the value."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def floats(self, tensor: Tensor) -> ops.Floats:
        """Return a copy of the numbers of a tensor."""
        found: ops.Floats = tensor.detach().cpu().double().numpy().astype(np.float32)
        return found

    def cut(self, value: int, begin: int, width: int) -> int:
        """Take columns of a value."""
        rows, whole = self.net.shape(value)
        if (begin, width) == (0, whole):
            return value
        return self.net.add(ops.Cut, rows, width, value, begin=begin)

    def join(self, *values: int) -> int:
        """Join values side by side."""
        if len(values) == 1:
            return values[0]
        shapes = [self.net.shape(value) for value in values]
        return self.net.add(ops.Join, shapes[0][0], sum(width for _, width in shapes), *values)

    def constant(self, numbers: Tensor) -> int:
        """Add weights as a value, `[rows, width]` or `[width]`."""
        table = self.floats(numbers).reshape(-1, numbers.shape[-1])
        return self.net.add(ops.Constant, *table.shape, numbers=table)

    def apply(self, function: ops.Function, value: int) -> int:
        """Apply a function to each number."""
        return self.net.add(ops.Apply, *self.net.shape(value), value, function=function)

    def combine(self, function: str, one: int, other: int) -> int:
        """Combine two values, number by number."""
        return self.net.add(ops.Combine, *self.net.shape(one), one, other, function=function)

    def linear(self, layer: nn.Linear, value: int) -> int:
        """Add a linear layer."""
        bias = np.zeros(layer.out_features, np.float32)
        parts = self.floats(layer.weight), bias if layer.bias is None else self.floats(layer.bias)
        return self._product(value, *parts)

    def _product(self, value: int, weight: ops.Floats, bias: ops.Floats) -> int:
        rows = self.net.shape(value)[0]
        return self.net.add(ops.Linear, rows, len(weight), value, weight=weight, bias=bias)

    def scale(self, scale: RunningScale, value: int) -> int:
        """Add a running normalization."""
        deviation = scale.variance.clamp_min(1e-8).sqrt()
        moments = self.floats(scale.mean), self.floats(deviation)
        return self._scaled(value, *moments, float(scale.limit))

    def _scaled(self, value: int, shift: Any, divisor: Any, most: float = math.inf) -> int:
        rows, width = self.net.shape(value)
        both = (np.broadcast_to(np.asarray(n, np.float32), width) for n in (shift, divisor))
        parts = dict(zip(("shift", "divisor"), both, strict=True))
        return self.net.add(ops.Scale, rows, width, value, **parts, most=most)

    def layers(
        self, module: nn.Module, value: int, image: Image | None = None
    ) -> tuple[int, Image | None]:
        """Add the plain layers of a module; return the value, and its shape if it is an image."""
        add, (rows, width) = self.net.add, self.net.shape(value)
        if type(module).forward not in FORWARDS:
            raise _unknown(module)
        match module:
            case nn.Sequential():
                for layer in module:
                    value, image = self.layers(layer, value, image)
                return value, image
            case nn.Linear():
                return self.linear(module, value), None
            case RunningScale():
                return self.scale(module, value), None
            case nn.LayerNorm() if module.weight is not None and module.bias is not None:
                parts = {"weight": self.floats(module.weight), "bias": self.floats(module.bias)}
                found = add(ops.Normalise, rows, width, value, **parts, epsilon=module.eps)
                return found, image
            case nn.Identity() | nn.Flatten():
                return value, image
            case nn.Conv2d() if image is not None:
                return self._convolve(module, value, image)
            case nn.MaxPool2d() if image is not None:
                return self._pool(module, value, image)
            case ResidualBlock():
                inner, _ = self._convolve(module.first, self.apply("relu", value), image)
                inner, _ = self._convolve(module.second, self.apply("relu", inner), image)
                return self.combine("add", value, inner), image
        function = FUNCTIONS.get(type(module))
        if function is None or getattr(module, "approximate", "none") != "none":
            raise _unknown(module)
        return self.apply(function, value), image

    def _convolve(self, layer: nn.Conv2d, value: int, image: Image | None) -> tuple[int, Image]:
        assert image is not None
        assert isinstance(layer.padding, tuple)
        size, stride, padding = layer.kernel_size[0], layer.stride[0], layer.padding[0]
        out = (layer.out_channels, *_sides(image, size, stride, padding))
        plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.bias is not None
        alike = all(len(set(p)) == 1 for p in (layer.kernel_size, layer.stride, layer.padding))
        if not (plain and alike) or layer.bias is None:
            raise _unknown(layer)
        rows = self.net.shape(value)[0]
        parts: dict[str, Any] = {
            "weight": self.floats(layer.weight),
            "bias": self.floats(layer.bias),
        }
        parts |= {"image": image, "out": out, "stride": stride, "padding": padding}
        return self.net.add(ops.Convolve, rows, math.prod(out), value, **parts), out

    def _pool(self, layer: nn.MaxPool2d, value: int, image: Image) -> tuple[int, Image]:
        size, stride, padding = layer.kernel_size, layer.stride, layer.padding
        if not (isinstance(size, int) and isinstance(stride, int) and isinstance(padding, int)):
            raise _unknown(layer)
        if layer.ceil_mode or layer.dilation != 1:
            raise _unknown(layer)
        out = (image[0], *_sides(image, size, stride, padding))
        rows = self.net.shape(value)[0]
        parts = {"image": image, "out": out, "kernel": size, "stride": stride, "padding": padding}
        return self.net.add(ops.Pool, rows, math.prod(out), value, **parts), out

    # ------------------------------------------------------------------ encoders

    def encode(self, encoder: nn.Module, layout: Layout) -> int:
        """Add an encoder."""
        match encoder:
            case SeparateEncoder():
                return self.join(*(self.encode(e, layout) for e in (encoder.actor, encoder.critic)))
            case AutoEncoder() if not encoder.features.width:
                one = self.net.add(ops.Constant, 1, 1, numbers=np.ones((1, 1), np.float32))
                return self.layers(encoder.mlp, one)[0]
            case AutoEncoder():
                tree = layout.tree(lambda offset, dtype, shape: Spot(Place(offset, dtype), shape))
                return self.layers(encoder.mlp, self.feature(encoder.features, tree))[0]
        if layout.dtype.kind != "f":  # rows of bytes mean nothing to layers
            raise _unknown(encoder)
        place = Place(0, layout.dtype)
        return self.layers(encoder, self.net.add(ops.Read, 1, layout.size, place=place))[0]

    def feature(self, feature: nn.Module, tree: Any) -> int:
        """Add the features of a part of an observation."""
        match feature:
            case feats.Numbers():
                return self._numbers(feature, tree)
            case feats.OneHot():
                rows, _ = tree.split(feature.rank)
                parts = {"start": _ints(feature.start), "counts": _ints(feature.counts)}
                return self.net.add(ops.OneHot, rows, feature.width, place=tree.place, **parts)
            case feats.Embedded():
                rows, _ = tree.split(feature.rank)
                names = ("start", "counts", "offsets")
                parts = {name: _ints(getattr(feature, name)) for name in names}
                table = self.floats(feature.table.weight)
                return self.net.add(
                    ops.Embed, rows, feature.width, place=tree.place, table=table, **parts
                )
            case feats.Branches():
                children = zip(feature.keys, feature.features, strict=True)
                return self.join(*(self.feature(child, tree[key]) for key, child in children))
            case feats.Items():
                return self._items(feature, tree)
            case feats.Options():
                return self._options(feature, tree)
            case feats.Pooled():
                read = self.layers(feature.mlp, self.feature(feature.item, tree))[0]
                assert isinstance(feature.item, feats.Numbers | feats.OneHot | feats.Embedded)
                items = tree.shape[-1 - feature.item.rank]
                return self.join(*(self._reduce(f, read, items) for f in ("mean", "largest")))
            case Convolution():
                return self._image(feature, tree)
        raise _unknown(feature)

    def _numbers(self, feature: feats.Numbers, spot: Spot) -> int:
        rows, width = spot.split(feature.rank)
        value = self.net.add(ops.Read, rows, width, place=spot.place)
        if feature.wide:
            value = self.apply("symlog", value)
        elif not feature.plain:
            value = self._scaled(value, self.floats(feature.low), self.floats(feature.span))
        return value if feature.scale is None else self.layers(feature.scale, value)[0]

    def _reduce(self, function: str, value: int, count: int) -> int:
        rows, width = self.net.shape(value)
        parts = {"function": function, "count": count}
        return self.net.add(ops.Reduce, rows // count, width, value, **parts)

    def _items(self, feature: feats.Items, tree: Any) -> int:
        spot: Spot = tree["mask"]
        rows, capacity = spot.split(1)
        mask = self.net.add(ops.Read, rows * capacity, 1, place=spot.place)
        places = np.tile(self.floats(feature.places), (rows, 1))
        items = self.net.add(ops.Constant, *places.shape, numbers=places)
        if feature.item.width:
            embedded = self.linear(feature.embed, self.feature(feature.item, tree[feature.key]))
            items = self.combine("add", embedded, items)
        items, shape = self.apply("relu", items), self.net.shape(items)
        kept = self.net.add(ops.Keep, *shape, items, mask)
        scale = 1.0 / max(capacity, 1)
        parts = [self._reduce("sum", value, capacity) for value in (kept, mask)]
        divisors = (1 / math.sqrt(scale), 1 / scale)
        scaled = (self._scaled(part, 0, by) for part, by in zip(parts, divisors, strict=True))
        return self.join(*scaled)

    def _options(self, feature: feats.Options, tree: Any) -> int:
        chosen = self.feature(feature.index, tree["index"])
        parts = [chosen]
        for i, option in enumerate(feature.options):
            assert isinstance(option, Feature)
            if option.width:
                value = self.feature(option, tree["options"][i])
                there = self.cut(chosen, i, 1)
                parts.append(self.net.add(ops.Keep, *self.net.shape(value), value, there))
        return self.join(*parts)

    def _image(self, feature: Convolution, spot: Spot) -> int:
        image = feature.image
        rows, width = spot.split(len(image.shape))
        value = self.net.add(ops.Read, rows, width, place=spot.place)
        if image.order != tuple(range(len(image.order))):
            parts = {"shape": image.shape, "order": image.order}
            value = self.net.add(ops.Permute, rows, width, value, **parts)
        value = self._scaled(value, 0, 255)
        return self.layers(feature.network, value, (image.channels, *image.sides))[0]

    # ------------------------------------------------------------------ cores

    def recur(self, core: nn.Module, hidden: int, begin: int) -> tuple[int, int | None]:
        """Add a core; return its output and its state, which is stored from `begin` on."""
        match core:
            case NoCore():
                return hidden, None
            case SeparateCore():
                return self._separate(core, hidden, begin)
            case LstmCore():
                return self._lstm(core, hidden, begin)
            case GruCore():
                return self._gru(core, hidden, begin)
            case MinGruCore():
                return self._mingru(core, hidden, begin)
            case TransformerCore():
                return self._window(core, hidden, begin)
        raise _unknown(core)

    def _state(self, begin: int, width: int) -> int:
        return self.net.add(ops.State, 1, width, begin=begin)

    def _separate(self, core: SeparateCore, hidden: int, begin: int) -> tuple[int, int | None]:
        half = self.net.shape(hidden)[1] // 2
        actor, state = self.recur(core.actor, self.cut(hidden, 0, half), begin)
        begin += core.actor.state_size
        critic, critic_state = self.recur(core.critic, self.cut(hidden, half, half), begin)
        if state is None or critic_state is None:
            return self.join(actor, critic), None
        return self.join(actor, critic), self.join(state, critic_state)

    def _gates(self, core: LstmCore | GruCore, hidden: int, before: int) -> tuple[int, int]:
        inputs, recurrents, input_bias, recurrent_bias = map(
            self.floats, core.network.all_weights[0]
        )
        present = self._product(hidden, inputs, input_bias)
        return present, self._product(before, recurrents, recurrent_bias)

    def _lstm(self, core: LstmCore, hidden: int, begin: int) -> tuple[int, int | None]:
        size = core.output_size
        before, cell = self._state(begin, size), self._state(begin + size, size)
        gates = self.combine("add", *self._gates(core, hidden, before))
        take, forget, new, output = (self.cut(gates, i * size, size) for i in range(4))
        take, forget, output = (self.apply("sigmoid", gate) for gate in (take, forget, output))
        kept = self.combine("multiply", forget, cell)
        cell = self.combine("add", kept, self.combine("multiply", take, self.apply("tanh", new)))
        out = self.combine("multiply", output, self.apply("tanh", cell))
        return out, self.join(out, cell)

    def _gru(self, core: GruCore, hidden: int, begin: int) -> tuple[int, int | None]:
        size = core.output_size
        before = self._state(begin, size)
        present, past = self._gates(core, hidden, before)
        reset, update, new = (self.cut(present, i * size, size) for i in range(3))
        old_reset, old_update, old_new = (self.cut(past, i * size, size) for i in range(3))
        reset = self.apply("sigmoid", self.combine("add", reset, old_reset))
        update = self.apply("sigmoid", self.combine("add", update, old_update))
        new = self.combine("add", new, self.combine("multiply", reset, old_new))
        out = self.net.add(ops.Blend, 1, size, self.apply("tanh", new), before, update)
        return out, out

    def _mingru(self, core: MinGruCore, hidden: int, begin: int) -> tuple[int, int | None]:
        size = core.output_size
        gates = self.linear(core.gates, hidden)
        gate = self.apply("sigmoid", self.cut(gates, 0, size))
        candidate = self.apply("mingru", self.cut(gates, size, size))
        out = self.net.add(ops.Blend, 1, size, self._state(begin, size), candidate, gate)
        return out, out

    def _window(self, core: TransformerCore, hidden: int, begin: int) -> tuple[int, int]:
        size, places, add = core.hidden_size, core.window, self.net.add
        present, _ = self.layers(core.project, hidden)
        older = self._state(begin + size, (places - 1) * size)
        window = self.join(older, present) if places > 1 else present
        count = self._state(begin + places * size, 1)
        count = self._scaled(count, -1, 1, float(places))
        context = self.apply("finite", add(ops.Reshape, places, size, window))
        queries = self.linear(core.queries, self.layers(core.attention_norm, present)[0])
        both = self.linear(core.keys_values, self.layers(core.attention_norm, context)[0])
        keys, values = self.cut(both, 0, size), self.cut(both, size, size)
        parts = {"heads": core.heads, "bias": self.floats(core.bias)}
        seen = add(ops.Attend, 1, size, queries, keys, values, count, **parts)
        present = self.combine("add", present, self.linear(core.merge, seen))
        more, _ = self.layers(core.mlp, self.layers(core.mlp_norm, present)[0])
        return self.combine("add", present, more), self.join(window, count)

    # ------------------------------------------------------------------ heads

    def decode(self, decoder: nn.Module, hidden: int) -> int:
        """Add a head: outputs for the actions, then values."""
        if not isinstance(decoder, SeparateHead):
            return self.layers(decoder, hidden)[0]
        half = self.net.shape(hidden)[1] // 2
        mine = self.layers(decoder.actor, self.cut(hidden, 0, half))[0]
        return self.join(mine, self.layers(decoder.critic, self.cut(hidden, half, half))[0])


def _sides(image: Image, size: int, stride: int, padding: int) -> tuple[int, int]:
    height, width = ((side + 2 * padding - size) // stride + 1 for side in image[1:])
    return height, width


def _ints(tensor: Tensor) -> NDArray[np.int64]:
    found: NDArray[np.int64] = tensor.cpu().numpy().astype(np.int64)
    return found


def _unknown(module: nn.Module) -> UsageError:
    known = "the parts that fugu's policies are made of, and sequences of torch's plain layers"
    return UsageError(
        f"policy: given a part that cannot be taken apart: {type(module).__name__}; allowed: "
        f"{known}. Use the engine torch or compile for it."
    )
