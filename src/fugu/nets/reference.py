"""Run a network operation by operation: slow in NumPy, and the definition of its meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.nets import net as ops
from fugu.nets.net import Floats, Net

Outputs = tuple[Floats, Floats, Floats]
REDUCED = {"sum": "sum", "mean": "mean", "largest": "max"}  # as NumPy calls them


def run_reference(net: Net, rows: NDArray[Any], state: Floats) -> Outputs:
    """Return params, values and the new state of observations `[batch, size]`.

    Without critics, values have no columns.
    """
    raw = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
    found: list[Floats] = []
    for op in net.operations:
        inputs: list[NDArray[Any]] = [found[i] for i in op.inputs]
        match op:
            case ops.Read():
                inputs = [_read(raw, op.place, op.rows, op.width)]
            case ops.OneHot() | ops.Embed():
                numbers = _read(raw, op.place, op.rows, len(op.counts)).astype(np.int64)
                inputs = [(numbers - op.start).clip(0, op.counts - 1)]
            case ops.State():
                inputs = [state]
        is_window = isinstance(op, ops.Convolve | ops.Pool)
        value = _windows(op, inputs[0]) if is_window else compute(op, inputs)
        shape = (len(rows), op.rows, op.width)
        found.append(np.broadcast_to(np.asarray(value, np.float32), shape))
    nothing = np.zeros((len(rows), 0), np.float32)
    values = nothing if net.values is None else found[net.values][:, 0]
    after = nothing if net.state is None else found[net.state][:, 0]
    return found[net.params][:, 0], values, after


def compute(op: ops.Operation, inputs: Sequence[Any], xp: Any = np) -> Any:
    """Return the value `[..., rows, width]` of any operation but convolutions and poolings.

    Args:
        op: The operation.
        inputs: Its inputs. Read has numbers `[..., rows, width]`, State the state `[..., size]`,
            OneHot and Embed indices from 0 on `[..., rows, columns]`.
        xp: `numpy` or `jax.numpy`, whose arrays the weights of `op` are.
    """
    match op:
        case ops.Read() | ops.Reshape():
            return inputs[0].reshape(*inputs[0].shape[:-2], op.rows, op.width)
        case ops.OneHot():
            columns = np.repeat(np.arange(len(op.counts)), op.counts)
            numbers = np.concatenate([np.arange(count) for count in op.counts])
            return (inputs[0][..., columns] == numbers).astype(np.float32)
        case ops.Embed():
            lead = inputs[0].shape[:-2]
            return op.table[inputs[0] + op.offsets].reshape(*lead, op.rows, op.width)
        case ops.State():
            return inputs[0][..., None, op.begin : op.begin + op.width]
        case ops.Constant():
            return op.numbers
        case ops.Scale():
            return ((inputs[0] - op.shift) / op.divisor).clip(-op.most, op.most)
        case ops.Linear():
            return inputs[0] @ op.weight.T + op.bias
        case ops.Apply():
            return _apply(op.function, inputs[0], xp)
        case ops.Combine():
            return inputs[0] + inputs[1] if op.function == "add" else inputs[0] * inputs[1]
        case ops.Blend():
            start, end, weight = inputs
            return start + weight * (end - start)
        case ops.Join():
            return xp.concatenate(inputs, -1)
        case ops.Cut():
            return inputs[0][..., op.begin : op.begin + op.width]
        case ops.Permute():
            axes = inputs[0].ndim - 1
            array = inputs[0].reshape(*inputs[0].shape[:-1], *op.shape)
            order = (*range(axes), *(axis + axes for axis in op.order))
            return array.transpose(order).reshape(inputs[0].shape)
        case ops.Keep():
            return xp.where(inputs[1] > 0, inputs[0], np.float32(0))
        case ops.Reduce():
            lead = inputs[0].shape[:-2]
            grouped = inputs[0].reshape(*lead, op.rows, op.count, op.width)
            return getattr(grouped, REDUCED[op.function])(-2)
        case ops.Normalise():
            centered = inputs[0] - inputs[0].mean(-1, keepdims=True)
            deviation = xp.sqrt(xp.square(centered).mean(-1, keepdims=True) + op.epsilon)
            return centered / deviation * op.weight + op.bias
        case ops.Attend():
            return _attend(op, xp, *inputs)
    raise NotImplementedError(type(op).__name__)


def _read(raw: NDArray[np.uint8], place: ops.Place, rows: int, width: int) -> NDArray[Any]:
    size = rows * width * place.dtype.itemsize
    numbers = raw[:, place.offset : place.offset + size].copy().view(place.dtype)
    return numbers.reshape(len(raw), rows, width)


def _apply(function: ops.Function, x: Any, xp: Any) -> Any:
    match function:
        case "relu":
            return xp.maximum(x, 0)
        case "gelu":
            erf = np.vectorize(math.erf, otypes=[np.float64])
            return x * 0.5 * (1 + erf(x / math.sqrt(2)))
        case "silu":
            return x * _sigmoid(x, xp)
        case "tanh":
            return xp.tanh(x)
        case "sigmoid":
            return _sigmoid(x, xp)
        case "symlog":
            return xp.sign(x) * xp.log1p(xp.abs(x))
        case "mingru":
            return xp.where(x >= 0, x + 0.5, _sigmoid(x, xp))
        case "finite":
            return xp.where(xp.isfinite(x), x, 0)


def _sigmoid(x: Any, xp: Any) -> Any:
    wide = x.astype(np.float64) if xp is np else x
    return xp.exp(-xp.logaddexp(0, -wide))


def _attend(op: ops.Attend, xp: Any, query: Any, keys: Any, values: Any, count: Any) -> Any:
    places, size = keys.shape[-2], op.width // op.heads
    ages = np.arange(places - 1, -1, -1)
    found = []
    for head in range(op.heads):
        own = slice(head * size, (head + 1) * size)
        scores = xp.einsum("...i,...pi->...p", query[..., 0, own], keys[..., own])
        scores = scores / math.sqrt(size) + op.bias[head, ages]
        scores = xp.where(ages < count[..., 0], scores, -np.inf)
        weights = xp.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found.append(xp.einsum("...p,...pi->...i", weights, values[..., own]))
    return xp.concatenate(found, -1)[..., None, :]


def _windows(op: ops.Operation, x: Floats) -> NDArray[Any]:
    """Convolve or pool, window by window: `[batch, rows, channels * height * width]`."""
    assert isinstance(op, ops.Convolve | ops.Pool)
    lost = -np.inf if isinstance(op, ops.Pool) else 0.0
    kernel = op.kernel if isinstance(op, ops.Pool) else op.weight.shape[-1]
    images = x.reshape(-1, *op.image)
    edge = (op.padding, op.padding)
    images = np.pad(images, ((0, 0), (0, 0), edge, edge), constant_values=lost)
    out = np.zeros((len(images), *op.out), np.float32)
    for i in range(op.out[1]):
        for j in range(op.out[2]):
            top, left = i * op.stride, j * op.stride
            window = images[:, :, top : top + kernel, left : left + kernel]
            if isinstance(op, ops.Pool):
                out[:, :, i, j] = window.max((-2, -1))
            else:
                out[:, :, i, j] = np.einsum("bchw,ochw->bo", window, op.weight) + op.bias
    return out.reshape(len(x), op.rows, op.width)
