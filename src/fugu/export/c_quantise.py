"""Weights as int8: which are rounded, how, and biases that make up for what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fugu.nets import net as ops
from fugu.nets.net import Floats, Ints, Net, Operation
from fugu.nets.reference import run_reference

MOST = 127  # of an int8, either way
OUTLYING = 2.0  # times the median of inputs' largest weights: such inputs are not rounded,
SHARE = 8  # but one in so many at most
SAMPLES = 4096  # observations that tell what inputs are like
PATCHES = 16_384  # of images, for a convolution


@dataclass(frozen=True)
class Rounded:
    """Weights as integers `[outputs, ...]`, with a scale for each output.

    Attributes:
        integers: 0 for inputs that are kept.
        scale: `[outputs]`
        inputs: Those of a linear layer whose weights are kept as they are.
        kept: Their weights, `[inputs, outputs]`.
    """

    integers: NDArray[np.int8]
    scale: Floats
    inputs: Ints
    kept: Floats

    @property
    def weight(self) -> Floats:
        """The numbers that they stand for."""
        each = self.scale.reshape(-1, *(1 for _ in self.integers.shape[1:]))
        found = np.ascontiguousarray(self.integers * each, np.float32)
        if len(self.inputs):
            found[:, self.inputs] = self.kept.T
        return found

    @property
    def saved(self) -> int:
        """Bytes that are saved."""
        return 3 * self.integers.size - 4 * (self.scale.size + self.inputs.size + self.kept.size)


@dataclass
class Quantised:
    """A network with int8 weights.

    Attributes:
        net: The same with the numbers that they stand for, and biases that fit them.
        parts: The weights, by the number of their operation.
    """

    net: Net
    parts: dict[int, Rounded] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples:
    """Observations `[count, size]` and the states that they were met in `[count, state_size]`."""

    rows: NDArray[Any]
    states: Floats


def quantise(net: Net, samples: Samples | None = None) -> Quantised:
    """Round the weights of products and tables, layer by layer.

    Args:
        net: As it was trained.
        samples: What it meets; biases are then changed by what rounding costs on average, which
            is most of it where inputs are mostly alike.
    """
    out = Quantised(replace(net, operations=list(net.operations)))
    for number, op in enumerate(net.operations):
        weight = product_weight(op)
        if weight is not None:
            part = out.parts[number] = round_weight(weight, isinstance(op, ops.Linear))
            mean = None if samples is None else _mean_inputs(out.net, op, samples)
            out.net.operations[number] = _with(op, part, mean)
    return out


def product_weight(op: Operation) -> Floats | None:
    """The weights that are worth rounding, outputs first; None if an operation has none."""
    match op:
        case ops.Linear() | ops.Convolve():
            return op.weight
        case ops.Embed():
            return op.table.T
    return None


def round_weight(weight: Floats, keep: bool = False) -> Rounded:
    """Rows of weights, one for each output, as integers.

    Args:
        weight: `[outputs, ...]`
        keep: Leave inputs alone that have much larger weights than most: they would make the
            steps of all others coarse, and matter most themselves.

    >>> rounded = round_weight(np.float32([[1.0, -0.5], [0.0, 0.0]]))
    >>> rounded.integers.tolist(), (rounded.scale * MOST).tolist()
    ([[127, -64], [0, 0]], [1.0, 127.0])
    """
    rows = weight.reshape(len(weight), -1).copy()
    inputs = _outlying(rows) if keep else np.zeros(0, np.int64)
    kept = np.ascontiguousarray(rows[:, inputs].T)
    rows[:, inputs] = 0.0
    most = np.abs(rows).max(1, initial=0.0)
    scale = np.where(most > 0, most / MOST, 1.0).astype(np.float32)
    integers = np.rint(rows / scale[:, None]).clip(-MOST, MOST).astype(np.int8)
    return Rounded(integers.reshape(weight.shape), scale, inputs, kept)


def _outlying(rows: Floats) -> Ints:
    """Inputs with much larger weights than most, in order."""
    largest = np.abs(rows).max(0, initial=0.0)
    most = -(-len(largest) // SHARE)
    first = np.argsort(-largest, kind="stable")[:most]
    return np.sort(first[largest[first] > OUTLYING * np.median(largest)]).astype(np.int64)


def _with(op: Operation, part: Rounded, mean: NDArray[np.float64] | None) -> Operation:
    """The operation with rounded weights, and a bias that fits its mean inputs."""
    match op:
        case ops.Linear() | ops.Convolve():
            bias = op.bias
            if mean is not None:
                lost = (op.weight - part.weight).reshape(len(bias), -1) @ mean
                bias = (bias + lost).astype(np.float32)
            return replace(op, weight=part.weight, bias=bias)
        case ops.Embed():
            return replace(op, table=np.ascontiguousarray(part.weight.T))
    return op


# ---------------------------------------------------------------------- what inputs are like


def _mean_inputs(net: Net, op: Operation, samples: Samples) -> NDArray[np.float64] | None:
    """What weights are multiplied with on average, `[inputs]`; None for tables."""
    match op:
        case ops.Linear():
            found = _values(net, op.inputs[0], samples).reshape(-1, op.weight.shape[1])
        case ops.Convolve():
            found = _patches(op, _values(net, op.inputs[0], samples))
        case _:
            return None
    mean: NDArray[np.float64] = found.mean(0, dtype=np.float64)
    return mean


def _values(net: Net, number: int, samples: Samples) -> Floats:
    """A value of the network for all samples, `[samples, numbers]`."""
    rows, width = net.shape(number)
    flat = ops.Reshape(1, rows * width, (number,))
    until = [*net.operations[: number + 1], flat]
    part = replace(net, operations=until, params=number + 1, values=None, state=None)
    return run_reference(part, samples.rows, samples.states)[0]


def _patches(op: ops.Convolve, images: Floats) -> Floats:
    """What windows see, `[windows, channels * kernel * kernel]`, from all over the images."""
    kernel, edge = op.weight.shape[-1], (op.padding, op.padding)
    seen = math.prod(op.out[1:])
    some = _spread(images.reshape(-1, *op.image), max(1, PATCHES // seen))
    padded = np.pad(some, ((0, 0), (0, 0), edge, edge))
    windows = sliding_window_view(padded, (kernel, kernel), (2, 3))
    windows = windows[:, :, :: op.stride, :: op.stride].transpose(0, 2, 3, 1, 4, 5)
    return np.ascontiguousarray(windows).reshape(-1, op.weight[0].size)


def _spread(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """At most so many, taken evenly."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]


def gather(net: Net, steps: NDArray[Any]) -> Samples:
    """Samples from steps of episodes, `[steps, batch, size]`, with the states that lead to them."""
    state = np.zeros((steps.shape[1], net.state_size), np.float32)
    states = []
    for seen in steps:
        states.append(state)
        if net.state is not None:
            state = run_reference(net, seen, state)[2]
    rows = steps.reshape(-1, steps.shape[-1])
    return Samples(_spread(rows, SAMPLES), _spread(np.concatenate(states), SAMPLES))
