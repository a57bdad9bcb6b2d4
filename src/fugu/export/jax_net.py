"""A network as a pure function of JAX, and the engine that runs it.

>>> import numpy as np
>>> from gymnasium import spaces
>>> from fugu.nets.net import Linear, Place, Read
>>> from fugu.spaces import Layout
>>> layouts = Layout.of(spaces.Box(-1, 1, (3,))), Layout.of(spaces.Discrete(2))
>>> net = Net(*layouts, continuous="clipped", state_size=0)
>>> seen = net.add(Read, 1, 3, place=Place(0, np.dtype(np.float32)))
>>> layer = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
>>> net.params = net.add(Linear, 1, 2, seen, **layer)
>>> forward, weights = jax_function(net)
>>> seen, state = {"observation": jnp.ones((5, 3))}, jnp.zeros((5, 0))
>>> params, values, state = batched(forward)(weights, seen, state)
>>> params.shape, values.shape
((5, 2), (5, 0))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, UsageError
from fugu.export.engine import NamedLeaves, PolicyFacts, leaves_at, named_leaves, split_rows
from fugu.nets import net as ops
from fugu.nets.net import Floats, Net

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise MissingExtraError("jax", "jax") from error

Array: TypeAlias = jax.Array
Given: TypeAlias = Array | NDArray[Any]
Leaves: TypeAlias = Mapping[str, Given]
Weights: TypeAlias = dict[str, dict[str, Array]]
Forward: TypeAlias = Callable[[Weights, Leaves, Given], tuple[Array, Array, Array]]
EXACT = jax.lax.Precision.HIGHEST  # float32 on every device
MAX_INT = 2**31 - 1  # JAX has integers of 32 bits by default
REDUCERS: dict[str, Callable[..., Array]] = {"sum": jnp.sum, "mean": jnp.mean, "largest": jnp.max}
IMAGES = ("NCHW", "OIHW", "NCHW")


def jax_function(net: Net) -> tuple[Forward, Weights]:
    """Return a network as `forward(weights, leaves, state)`, and its weights.

    The function is of one agent; `batched` makes one of a batch. It can be compiled and mapped, and
    its gradients by the weights are exact.

    Returns:
        forward: A function of the weights, the leaves of one observation by name (`observation`,
            or `observation/path` for each; `jax_leaves` makes them of rows), and the state
            `[state_size]`. It returns params `[num_params]`, values `[num_critics]` and the new
            state.
        weights: The arrays of each operation.

    Raises:
        UsageError: If an observation holds integers that JAX cannot count with.
    """
    weights: Weights = {}
    for i, op in enumerate(net.operations):
        if isinstance(op, ops.OneHot | ops.Embed) and _beyond_32_bits(op):
            raise UsageError(
                "policy: given choices beyond 32 bits; allowed: less far from 0, or another engine."
            )
        parts = {
            name: jnp.asarray(part)
            for name, part in vars(op).items()
            if isinstance(part, np.ndarray) and part.dtype == np.float32
        }
        if parts:
            weights[_name(i, op)] = parts
    leaves = named_leaves(net.observation, "observation")

    def forward(weights: Weights, given: Leaves, state: Given) -> tuple[Array, Array, Array]:
        found: list[Array] = []
        for i, op in enumerate(net.operations):
            inputs = [found[j] for j in op.inputs]
            if isinstance(op, ops.Read | ops.OneHot | ops.Embed):
                count = op.width if isinstance(op, ops.Read) else len(op.counts)
                inputs = [_numbers(leaves, given, op.place, op.rows, count)]
            elif isinstance(op, ops.State):
                inputs = [jnp.asarray(state)]
            value = _value(op, weights.get(_name(i, op), {}), inputs)
            found.append(value.reshape(op.rows, op.width))
        nothing = jnp.zeros(0, jnp.float32)
        values = nothing if net.values is None else found[net.values][0]
        after = nothing if net.state is None else found[net.state][0]
        return found[net.params][0], values, after

    return forward, weights


def batched(forward: Forward) -> Forward:
    """Return the same function of a batch, compiled for each batch size."""
    found: Forward = jax.jit(jax.vmap(forward, in_axes=(None, 0, 0)))
    return found


def jax_leaves(net: Net, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the leaves of rows `[batch, size]` by name, in types of 32 bits or less."""
    leaves = named_leaves(net.observation, "observation")
    return {
        name: _narrow(array, net.observation.leaves[i].space)
        for i, (name, array) in enumerate(split_rows(leaves, rows).items())
    }


def _narrow(array: NDArray[Any], space: Any) -> NDArray[Any]:
    if array.dtype.itemsize < 8:
        return array
    if array.dtype.kind == "f" or hasattr(space, "low"):
        return array.astype(np.float32)
    return array.clip(-MAX_INT, MAX_INT).astype(np.int32)


def _beyond_32_bits(op: ops.OneHot | ops.Embed) -> bool:
    return bool((np.abs(op.start.astype(np.float64)) + op.counts > MAX_INT).any())


def _name(number: int, op: ops.Operation) -> str:
    return f"{number:03d}_{type(op).__name__.lower()}"


def _numbers(leaves: NamedLeaves, given: Leaves, place: ops.Place, rows: int, width: int) -> Array:
    names = leaves_at(leaves, place, rows * width)
    parts = [jnp.asarray(given[name]).reshape(-1) for name in names]
    flat = jnp.concatenate(parts) if parts else jnp.zeros(0)
    return flat.reshape(rows, width)


def _value(op: ops.Operation, parts: dict[str, Array], inputs: list[Array]) -> Array:
    """Return the value of an operation, of inputs `[rows, width]`."""
    match op:
        case ops.Read():
            return inputs[0].astype(jnp.float32)
        case ops.OneHot():
            columns = np.repeat(np.arange(len(op.counts)), op.counts)
            numbers = np.concatenate([np.arange(count) for count in op.counts])
            return (_indices(op, inputs[0])[:, columns] == numbers).astype(jnp.float32)
        case ops.Embed():
            return parts["table"][_indices(op, inputs[0]) + op.offsets.astype(np.int32)]
        case ops.State():
            return inputs[0][op.begin : op.begin + op.width]
        case ops.Constant():
            return parts["numbers"]
        case ops.Scale():
            scaled = (inputs[0] - parts["shift"]) / parts["divisor"]
            return scaled.clip(-op.most, op.most) if math.isfinite(op.most) else scaled
        case ops.Linear():
            return jnp.matmul(inputs[0], parts["weight"].T, precision=EXACT) + parts["bias"]
        case ops.Apply():
            return _apply(op.function, inputs[0])
        case ops.Combine():
            return inputs[0] + inputs[1] if op.function == "add" else inputs[0] * inputs[1]
        case ops.Blend():
            start, end, weight = inputs
            return start + weight * (end - start)
        case ops.Join():
            return jnp.concatenate(inputs, -1)
        case ops.Cut():
            return inputs[0][:, op.begin : op.begin + op.width]
        case ops.Reshape():
            return inputs[0]
        case ops.Permute():
            order = (0, *(axis + 1 for axis in op.order))
            return inputs[0].reshape(op.rows, *op.shape).transpose(order)
        case ops.Convolve() | ops.Pool():
            return _window(op, parts, inputs[0])
        case ops.Keep():
            return jnp.where(inputs[1] > 0, inputs[0], 0.0)
        case ops.Reduce():
            return REDUCERS[op.function](inputs[0].reshape(op.rows, op.count, op.width), axis=1)
        case ops.Normalise():
            centred = inputs[0] - inputs[0].mean(-1, keepdims=True)
            spread = jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + op.epsilon)
            return centred / spread * parts["weight"] + parts["bias"]
        case ops.Attend():
            return _attend(op, parts["bias"], *inputs)
    raise NotImplementedError(type(op).__name__)


def _indices(op: ops.OneHot | ops.Embed, numbers: Array) -> Array:
    start, last = op.start.astype(np.int32), (op.counts - 1).astype(np.int32)
    return (numbers.astype(jnp.int32) - start).clip(0, last)


def _apply(function: ops.Function, x: Array) -> Array:
    match function:
        case "relu":
            return jax.nn.relu(x)
        case "gelu":
            return jax.nn.gelu(x, approximate=False)
        case "silu":
            return jax.nn.silu(x)
        case "tanh":
            return jnp.tanh(x)
        case "sigmoid":
            return jax.nn.sigmoid(x)
        case "symlog":
            return jnp.sign(x) * jnp.log1p(jnp.abs(x))
        case "mingru":
            return jnp.where(x >= 0, x + 0.5, jax.nn.sigmoid(x))
        case "finite":
            return jnp.where(jnp.isfinite(x), x, 0.0)


def _window(op: ops.Convolve | ops.Pool, parts: dict[str, Array], x: Array) -> Array:
    images, strides = x.reshape(-1, *op.image), (op.stride, op.stride)
    edges = ((op.padding, op.padding),) * 2
    if isinstance(op, ops.Convolve):
        found = jax.lax.conv_general_dilated(
            images, parts["weight"], strides, edges, dimension_numbers=IMAGES, precision=EXACT
        )
        return found + parts["bias"][:, None, None]
    kernel, none = (1, 1, op.kernel, op.kernel), ((0, 0), (0, 0))
    largest: Array = jax.lax.reduce_window(
        images, -jnp.inf, jax.lax.max, kernel, (1, 1, *strides), (*none, *edges)
    )
    return largest


def _attend(
    op: ops.Attend, bias: Array, query: Array, keys: Array, values: Array, count: Array
) -> Array:
    places, each = len(keys), op.width // op.heads
    ages = np.arange(places - 1, -1, -1)
    keys, values = (x.reshape(places, op.heads, each) for x in (keys, values))
    scores = jnp.einsum("hi,phi->hp", query.reshape(op.heads, each), keys, precision=EXACT)
    scores = scores / math.sqrt(each) + bias[:, ages]
    weights = jax.nn.softmax(jnp.where(ages < count[0], scores, -jnp.inf), axis=-1)
    return jnp.einsum("hp,phi->hi", weights, values, precision=EXACT)


class JaxEngine:
    """Runs a network by JAX; batches are padded to powers of two, each of which is compiled.

    Attributes:
        function: `forward(weights, leaves, state)` of one agent; see `jax_function`.
        weights: Its first argument.
    """

    def __init__(self, net: Net) -> None:
        self.facts, self._net = PolicyFacts.of(net), net
        self.function, self.weights = jax_function(net)
        self._batched = batched(self.function)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Run one pass; see `Engine.forward`."""
        batch = len(rows)
        missing = (1 << (batch - 1).bit_length()) - batch
        if missing:
            rows, state = (np.pad(part, ((0, missing), (0, 0))) for part in (rows, state))
        found = self._batched(self.weights, jax_leaves(self._net, rows), state)
        params, values, after = (np.array(part[:batch]) for part in found)
        return params, values, after


def make_engine(net: Net) -> JaxEngine:
    """Make an engine for a network."""
    return JaxEngine(net)
