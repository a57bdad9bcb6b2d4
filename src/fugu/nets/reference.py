"""Run a network in NumPy, operation by operation: slow, and the definition of its meaning."""

from __future__ import annotations

import math
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
    for operation in net.operations:
        inputs = [found[i] for i in operation.inputs]
        value = np.asarray(_value(operation, inputs, raw, state), np.float32)
        found.append(np.broadcast_to(value, (len(rows), operation.rows, operation.width)))
    nothing = np.zeros((len(rows), 0), np.float32)
    values = nothing if net.values is None else found[net.values][:, 0]
    after = nothing if net.state is None else found[net.state][:, 0]
    return found[net.params][:, 0], values, after


def _value(
    op: ops.Operation, inputs: list[Floats], raw: NDArray[np.uint8], state: Floats
) -> NDArray[Any]:
    """Return the value of an operation, `[batch, rows, width]`, of inputs with the same axes."""
    batch = len(raw)
    match op:
        case ops.Read():
            return _read(raw, op.place, op.rows, op.width)
        case ops.OneHot():
            indices = _indices(raw, op, op.start, op.counts)
            ones = [np.eye(count, dtype=np.float32) for count in op.counts]
            return np.concatenate([one[indices[..., i]] for i, one in enumerate(ones)], -1)
        case ops.Embed():
            indices = _indices(raw, op, op.start, op.counts) + op.offsets
            return op.table[indices].reshape(batch, op.rows, op.width)
        case ops.State():
            return state[:, None, op.begin : op.begin + op.width]
        case ops.Constant():
            return op.numbers[None]
        case ops.Scale():
            return ((inputs[0] - op.shift) / op.divisor).clip(-op.most, op.most)
        case ops.Linear():
            return inputs[0] @ op.weight.T + op.bias
        case ops.Apply():
            return _apply(op.function, inputs[0])
        case ops.Combine():
            return inputs[0] + inputs[1] if op.function == "add" else inputs[0] * inputs[1]
        case ops.Blend():
            start, end, weight = inputs
            return start + weight * (end - start)
        case ops.Join():
            return np.concatenate(inputs, -1)
        case ops.Cut():
            return inputs[0][..., op.begin : op.begin + op.width]
        case ops.Reshape():
            return inputs[0].reshape(batch, op.rows, op.width)
        case ops.Permute():
            array = inputs[0].reshape(batch, op.rows, *op.shape)
            axes = (0, 1, *(axis + 2 for axis in op.order))
            return array.transpose(axes).reshape(batch, op.rows, op.width)
        case ops.Convolve() | ops.Pool():
            return _windows(op, inputs[0]).reshape(batch, op.rows, op.width)
        case ops.Keep():
            return np.where(inputs[1] > 0, inputs[0], np.float32(0))
        case ops.Reduce():
            grouped = inputs[0].reshape(batch, op.rows, op.count, op.width)
            found: NDArray[Any] = getattr(grouped, REDUCED[op.function])(2)
            return found
        case ops.Normalise():
            centered = inputs[0] - inputs[0].mean(-1, keepdims=True)
            deviation = np.sqrt(np.square(centered).mean(-1, keepdims=True) + op.epsilon)
            return np.asarray(centered / deviation * op.weight + op.bias)
        case ops.Attend():
            return _attend(op, *inputs)
    raise NotImplementedError(type(op).__name__)


def _read(raw: NDArray[np.uint8], place: ops.Place, rows: int, width: int) -> NDArray[Any]:
    size = rows * width * place.dtype.itemsize
    numbers = raw[:, place.offset : place.offset + size].copy().view(place.dtype)
    return numbers.reshape(len(raw), rows, width)


def _indices(
    raw: NDArray[np.uint8], op: ops.OneHot | ops.Embed, start: ops.Ints, counts: ops.Ints
) -> NDArray[np.int64]:
    numbers = _read(raw, op.place, op.rows, len(counts)).astype(np.int64)
    return (numbers - start).clip(0, counts - 1)


def _apply(function: ops.Function, x: Floats) -> NDArray[Any]:
    match function:
        case "relu":
            return np.maximum(x, 0)
        case "gelu":
            erf = np.vectorize(math.erf, otypes=[np.float64])
            return np.asarray(x * 0.5 * (1 + erf(x / math.sqrt(2))))
        case "silu":
            return np.asarray(x * _sigmoid(x))
        case "tanh":
            return np.tanh(x)
        case "sigmoid":
            return _sigmoid(x)
        case "symlog":
            return np.sign(x) * np.log1p(np.abs(x))
        case "mingru":
            return np.where(x >= 0, x + 0.5, _sigmoid(x))
        case "finite":
            return np.where(np.isfinite(x), x, 0)


def _sigmoid(x: Floats) -> NDArray[Any]:
    return np.exp(-np.logaddexp(0, -x.astype(np.float64)))


def _windows(op: ops.Convolve | ops.Pool, x: Floats) -> NDArray[Any]:
    """Convolve or pool, window by window: `[batch * rows, channels, height, width]`."""
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
    return out


def _attend(
    op: ops.Attend, query: Floats, keys: Floats, values: Floats, count: Floats
) -> NDArray[Any]:
    batch, places, width = keys.shape
    each = width // op.heads
    ages = np.arange(places - 1, -1, -1)
    out = np.zeros((batch, 1, width), np.float32)
    for head in range(op.heads):
        own = slice(head * each, (head + 1) * each)
        scores = np.einsum("bi,bpi->bp", query[:, 0, own], keys[:, :, own]) / math.sqrt(each)
        scores = np.where(ages < count[:, 0], scores + op.bias[head, ages], -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[:, 0, own] = np.einsum("bp,bpi->bi", weights, values[:, :, own])
    return out
