"""Round weights to int8, adjust biases to the rounding errors, and measure what that changes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.nets import net as ops
from fugu.nets.net import Floats, Ints, Net, Operation
from fugu.nets.reference import run_reference
from fugu.spaces.action_sampler import ActionSampler

LIMIT = 127  # largest magnitude of an int8
OUTLIER = 2.0  # Inputs with weights above so many medians are not rounded,
OUTLIER_SHARE = 8  # but at most one in so many.
MAX_SAMPLES = 4096  # observations that estimate the inputs of layers
MAX_PATCHES = 16_384  # image patches, for a convolution
TOLERANCE = 0.01  # of the range of an action, within which two actions count as equal


@dataclass(frozen=True)
class QuantizedWeight:
    """Weights as integers `[outputs, ...]`, with a scale for each output."""

    integers: NDArray[np.int8]  # 0 for inputs that are kept
    scale: Floats  # `[outputs]`
    inputs: Ints  # Inputs of a linear layer whose weights stay float32
    kept: Floats  # Their weights, `[inputs, outputs]`

    @property
    def weight(self) -> Floats:
        """The float32 numbers that the integers represent."""
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
class Quantized:
    """A network with int8 weights.

    Attributes:
        parts: The int8 weights, by the index of their operation.
    """

    net: Net  # The network with the float32 numbers that the weights represent, and adjusted biases
    parts: dict[int, QuantizedWeight] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples:
    """Observations `[count, size]` and the states before them `[count, state_size]`."""

    rows: NDArray[Any]
    states: Floats


def quantize(net: Net, samples: Samples | None = None) -> Quantized:
    """Round the weights of products and tables, layer by layer.

    Args:
        net: The trained network.
        samples: Observations that it meets; biases are then corrected by the mean rounding error,
            which is most of the error where inputs are mostly alike.
    """
    out = Quantized(replace(net, operations=list(net.operations)))
    for number, op in enumerate(net.operations):
        weight = product_weight(op)
        if weight is not None:
            part = out.parts[number] = quantize_weight(weight, isinstance(op, ops.Linear))
            mean = None if samples is None else _mean_inputs(out.net, op, samples)
            out.net.operations[number] = _with(op, part, mean)
    return out


def product_weight(op: Operation) -> Floats | None:
    """Return the weights that are worth rounding, outputs first; None if there are none."""
    match op:
        case ops.Linear() | ops.Convolve():
            return op.weight
        case ops.Embed():
            return op.table.T
    return None


def quantize_weight(weight: Floats, keep_outliers: bool = False) -> QuantizedWeight:
    """Round weights `[outputs, ...]` to integers.

    Inputs with much larger weights than most can be left as they are: they would make the steps of
    all others coarse, and matter most themselves.

    >>> rounded = quantize_weight(np.float32([[1.0, -0.5], [0.0, 0.0]]))
    >>> rounded.integers.tolist(), (rounded.scale * LIMIT).tolist()
    ([[127, -64], [0, 0]], [1.0, 127.0])
    """
    rows = weight.reshape(len(weight), -1).copy()
    inputs = _outliers(rows) if keep_outliers else np.zeros(0, np.int64)
    kept = np.ascontiguousarray(rows[:, inputs].T)
    rows[:, inputs] = 0.0
    largest = np.abs(rows).max(1, initial=0.0)
    scale = np.where(largest > 0, largest / LIMIT, 1.0).astype(np.float32)
    integers = np.rint(rows / scale[:, None]).clip(-LIMIT, LIMIT).astype(np.int8)
    return QuantizedWeight(integers.reshape(weight.shape), scale, inputs, kept)


def _outliers(rows: Floats) -> Ints:
    """Return the inputs with much larger weights than most, in order."""
    largest = np.abs(rows).max(0, initial=0.0)
    first = np.argsort(-largest, kind="stable")[: -(-len(largest) // OUTLIER_SHARE)]
    return np.sort(first[largest[first] > OUTLIER * np.median(largest)]).astype(np.int64)


def _with(op: Operation, part: QuantizedWeight, mean: NDArray[np.float64] | None) -> Operation:
    """Return the operation with rounded weights, and a bias that fits its mean inputs."""
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


def _mean_inputs(net: Net, op: Operation, samples: Samples) -> NDArray[np.float64] | None:
    """Return the mean of what weights are multiplied with, `[inputs]`; None for tables."""
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
    """Return a value of the network for all samples, `[samples, numbers]`."""
    rows, width = net.shape(number)
    flat = ops.Reshape(1, rows * width, (number,))
    until = [*net.operations[: number + 1], flat]
    part = replace(net, operations=until, params=number + 1, values=None, state=None)
    return run_reference(part, samples.rows, samples.states)[0]


def _patches(op: ops.Convolve, images: Floats) -> Floats:
    """Return patches from all over the images, `[patches, channels * kernel * kernel]`."""
    kernel, edge = op.weight.shape[-1], (op.padding, op.padding)
    some = _evenly(images.reshape(-1, *op.image), max(1, MAX_PATCHES // math.prod(op.out[1:])))
    padded = np.pad(some, ((0, 0), (0, 0), edge, edge))
    windows = sliding_window_view(padded, (kernel, kernel), (2, 3))
    windows = windows[:, :, :: op.stride, :: op.stride].transpose(0, 2, 3, 1, 4, 5)
    return np.ascontiguousarray(windows).reshape(-1, op.weight[0].size)


def _evenly(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Return at most so many rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64)]


# ---------------------------------------------------------------------- observations


def as_steps(net: Net, rows: NDArray[Any]) -> NDArray[Any]:
    """Return `[steps, batch, size]`; observations `[count, size]` are first steps of episodes."""
    size = net.observation.size
    steps = rows[None] if rows.ndim == 2 else rows
    if steps.ndim != 3 or steps.shape[-1] != size or not steps.size:
        raise UsageError(
            f"observations: given an array of shape {rows.shape}; allowed: (count, {size}), each "
            f"the first of an episode, or (steps, batch, {size})."
        )
    if steps.dtype != net.observation.dtype:
        raise UsageError(
            f"observations: given {steps.dtype}; allowed: {net.observation.dtype}, as the layout "
            "packs them."
        )
    return steps


def split(steps: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Split observations into half to fit and half to measure: by batch, or one episode's steps."""
    if steps.shape[1] > 1:
        return steps[:, ::2], steps[:, 1::2]
    half = max(1, len(steps) // 2)
    return steps[:half], steps[half:] if len(steps) > 1 else steps


def gather(net: Net, steps: NDArray[Any]) -> Samples:
    """Return samples of steps `[steps, batch, size]`, with the states that precede them."""
    state = np.zeros((steps.shape[1], net.state_size), np.float32)
    states = []
    for rows in steps:
        states.append(state)
        if net.state is not None:
            state = run_reference(net, rows, state)[2]
    flat = steps.reshape(-1, steps.shape[-1])
    return Samples(_evenly(flat, MAX_SAMPLES), _evenly(np.concatenate(states), MAX_SAMPLES))


# ---------------------------------------------------------------------- what rounding changes


@dataclass(frozen=True)
class Loss:
    """What rounding changes on some observations.

    Attributes:
        agreement: The share of observations that lead to the same greedy action. Numbers count as
            the same within a hundredth of the way between their bounds, or of their standard
            deviation where they have none.
    """

    observations: int  # How many
    largest_error: float  # Of a parameter of the actions' distribution
    agreement: float


def measure(net: Net, other: Net, steps: NDArray[Any]) -> Loss:
    """Compare two networks over steps of episodes, `[steps, batch, size]`."""
    sampler = ActionSampler(net.action, net.continuous)
    states = [np.zeros((steps.shape[1], net.state_size), np.float32) for _ in range(2)]
    largest, equal = 0.0, 0
    for rows in steps:
        (mine, _, first), (its, _, second) = (
            run_reference(each, rows, state)
            for each, state in zip((net, other), states, strict=True)
        )
        states = [first, second]
        largest = max(largest, float(np.abs(mine - its).max(initial=0.0)))
        equal += int(_equal_actions(sampler, mine, its).sum())
    count = steps.shape[0] * steps.shape[1]
    return Loss(count, largest, equal / count)


def _equal_actions(sampler: ActionSampler, params: Floats, others: Floats) -> NDArray[np.bool_]:
    """Return which rows lead to the same greedy action, `[batch]`."""
    random, heads = np.random.default_rng(0), sampler.num_heads  # nothing is drawn
    one, other = (sampler.sample(each, None, random, greedy=True)[0] for each in (params, others))
    equal: NDArray[np.bool_] = (one[:, :heads] == other[:, :heads]).all(1)
    deviations = np.exp(params[:, sampler.num_outputs :].astype(np.float64))
    raw = [sampler.to_rows(each).view(np.uint8) for each in (one, other)]
    first = 0
    for numbers in sampler.writer.numbers:
        leaf, own = numbers.leaf, slice(first, first + len(numbers.low))
        first = own.stop
        span = numbers.high - numbers.low
        unbounded = span >= float(np.finfo(leaf.dtype).max)
        scale = np.where(unbounded, deviations[:, own], span)
        place = slice(leaf.offset, leaf.offset + leaf.nbytes)
        mine, its = (rows[:, place].view(leaf.dtype).astype(np.float64) for rows in raw)
        equal &= (np.abs(mine - its) <= TOLERANCE * scale).all(1)
    return equal
