"""A network as a pure function of JAX, and the engine that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, UsageError
from fugu.export.engine import NamedLeaves, PolicyFacts, leaves_at, named_leaves, split_rows
from fugu.nets import net as ops
from fugu.nets.net import Floats, Net
from fugu.nets.reference import compute

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
MAX_INT = 2**31 - 1  # JAX has integers of 32 bits by default


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
        with jax.default_matmul_precision("highest"):  # float32 on every device
            for i, plain in enumerate(net.operations):
                parts: dict[str, Any] = {**weights.get(_name(i, plain), {})}
                op = replace(plain, **parts)
                inputs = [found[j] for j in op.inputs]
                if isinstance(op, ops.Read | ops.OneHot | ops.Embed):
                    inputs = [_numbers(leaves, given, op)]
                elif isinstance(op, ops.State):
                    inputs = [jnp.asarray(state)]
                found.append(_value(op, inputs).reshape(op.rows, op.width))
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


def _numbers(leaves: NamedLeaves, given: Leaves, op: ops.Read | ops.OneHot | ops.Embed) -> Array:
    """Return numbers of the observation, or indices from 0 on, `[rows, columns]`."""
    columns = op.width if isinstance(op, ops.Read) else len(op.counts)
    names = leaves_at(leaves, op.place, op.rows * columns)
    parts = [jnp.asarray(given[name]).reshape(-1) for name in names]
    numbers = (jnp.concatenate(parts) if parts else jnp.zeros(0)).reshape(op.rows, columns)
    if isinstance(op, ops.Read):
        return numbers.astype(jnp.float32)
    start, last = op.start.astype(np.int32), (op.counts - 1).astype(np.int32)
    return (numbers.astype(jnp.int32) - start).clip(0, last)


def _value(op: ops.Operation, inputs: list[Array]) -> Array:
    """Return the value of an operation, of inputs `[rows, width]`."""
    match op:
        case ops.Embed():
            table: Array = jnp.asarray(op.table)
            return table[inputs[0] + op.offsets.astype(np.int32)]
        case ops.Apply(function="gelu"):
            return jax.nn.gelu(inputs[0], approximate=False)
        case ops.Convolve() | ops.Pool():
            return _window(op, inputs[0])
    value: Array = compute(op, inputs, jnp)
    return value


def _window(op: ops.Convolve | ops.Pool, x: Array) -> Array:
    images, strides = x.reshape(-1, *op.image), (op.stride, op.stride)
    edges = ((op.padding, op.padding),) * 2
    if isinstance(op, ops.Convolve):
        weight, shape = jnp.asarray(op.weight), ("NCHW", "OIHW", "NCHW")
        found = jax.lax.conv_general_dilated(
            images, weight, strides, edges, dimension_numbers=shape
        )
        return found + op.bias[:, None, None]
    kernel, none = (1, 1, op.kernel, op.kernel), ((0, 0), (0, 0))
    largest: Array = jax.lax.reduce_window(
        images, -jnp.inf, jax.lax.max, kernel, (1, 1, *strides), (*none, *edges)
    )
    return largest


class JaxEngine:
    """Runs a network by JAX; batches are padded to powers of two, each of which is compiled."""

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
