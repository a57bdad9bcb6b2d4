"""Run networks by the native core: one call per batch, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.arrays import describe, refuse
from fugu.nets import net as ops
from fugu.nets.net import Floats, Net

if TYPE_CHECKING or native.available:
    from fugu import _native

Outputs = tuple[Floats, Floats, Floats]
Core: TypeAlias = "_native.NetRunner | _native.NetLearner"


def targets() -> dict[str, int]:
    """Return the supported kinds of processor and their vector widths, the best last.

    Without the core there are none.
    """
    return dict(_native.net_targets()) if native.available else {}


def work_of(net: Net) -> int:
    """Return the multiplications of layers for one observation."""
    found = 0
    for op in net.operations:
        match op:
            case ops.Linear():
                found += op.rows * op.weight.size
            case ops.Convolve():
                found += op.rows * op.out[1] * op.out[2] * op.weight.size
    return found


def check_target(target: str | None) -> str:
    """Return a kind of processor, by default the best one; raise if it is not supported."""
    known = list(targets())
    if not known:
        raise UsageError(f"native networks: the core is not built ({native.reason}).")
    if target is not None and target not in known:
        raise refuse("target", repr(target), f"{', '.join(known)} on this processor")
    return known[-1] if target is None else target


class NativeNet:
    """Runs a network; the outputs of a row are the same bits in any batch.

    Weights are copied. Threads may share it: one call runs at a time, without the GIL. Update it
    while none runs.
    """

    def __init__(self, net: Net, target: str | None = None) -> None:
        self.target = check_target(target)
        layout, kind = net.observation, code_of(net.observation.dtype)
        self._runner = _native.NetRunner(kind, layout.size, net.state_size, self.target)
        self._forward = self._runner.forward
        self.update(net)

    def update(self, net: Net) -> None:
        """Take the weights of a network of the same operations."""
        try:
            NetworkBuilder(net, self._runner).build()
        except ValueError as error:
            raise UsageError(
                f"update: given a network of other operations ({error}); allowed: those it was "
                "made with, and other weights. Make a new NativeNet for it."
            ) from None
        self.net = net

    def forward(self, rows: NDArray[Any], state: Floats, out: Outputs | None = None) -> Outputs:
        """Return params, values and the new states of a batch.

        Args:
            rows: Observations as the layout packs them, `[batch, size]`.
            state: `[batch, state_size]`
            out: Where to write the three results; its state may be `state`.

        Returns:
            `out`, or new arrays; without critics or memory, some have no columns.
        """
        try:
            found: Outputs = self._forward(rows, state, out)
        except ValueError as error:
            raise self._refusal(str(error), rows, state, out) from None
        return found

    def _refusal(self, name: str, rows: Any, state: Any, out: Any) -> UsageError:
        layout, size = self.net.observation, self.net.state_size
        if name == "rows":
            allowed = f"a C-contiguous {layout.dtype} array [batch, {layout.size}]"
            return refuse("rows", describe(rows), allowed)
        if name == "state":
            return refuse("state", describe(state), f"a C-contiguous float32 array [batch, {size}]")
        if name == "out":
            parts = ", ".join(map(describe, out)) if isinstance(out, tuple) else describe(out)
            allowed = (
                f"three C-contiguous float32 arrays of {len(rows)} rows: params, values, state"
            )
            return refuse("out", parts, allowed)
        return UsageError(f"{name}. Update it with a network of the operations it was made with.")


@dataclass(frozen=True)
class _Value:
    """A value of the native network.

    Attributes:
        image: Channels, height and width of an image that is stored channels-last.
    """

    number: int  # Its number there
    image: tuple[int, int, int] | None = None
    divisor: float = 1.0  # What its numbers must still be divided by


class NetworkBuilder:
    """Builds a native network of a `Net`.

    Images stay channels-last from one convolution to the next. A divisor of all numbers becomes
    part of the weights that follow, unless those are learned.
    """

    def __init__(self, net: Net, runner: Core, learns: bool = False) -> None:
        self._net, self._runner, self._learns = net, runner, learns
        self._values: list[_Value] = []

    def build(self) -> None:
        """Add all operations and outputs."""
        self._runner.begin()
        for operation in self._net.operations:
            self._values.append(self._add(operation))
        outputs = self._net.params, self._net.values, self._net.state
        self._runner.end([-1 if value is None else self._plain(value) for value in outputs])

    def _add(self, op: ops.Operation) -> _Value:
        match op:
            case ops.Linear():
                return self._linear(op)
            case ops.Convolve():
                return self._convolve(op)
            case ops.Pool():
                return self._pool(op)
            case ops.Scale():
                return self._scale(op)
            case ops.Permute(shape=(_, _, _), order=(2, 0, 1)):
                height, width, channels = op.shape
                return _Value(self._plain(op.inputs[0]), (channels, height, width))
            case ops.Apply():
                (only,) = self._matched(op)
                return _Value(self._runner.apply(only.number, op.function), only.image)
            case ops.Combine():
                one, other = self._matched(op)
                number = self._runner.combine(one.number, other.number, op.function)
                return _Value(number, one.image)
        return _Value(self._add_plain(op, [self._plain(i) for i in op.inputs]))

    def _add_plain(self, op: ops.Operation, inputs: list[int]) -> int:
        runner = self._runner
        match op:
            case ops.Read():
                return runner.read(op.rows, op.width, *_place(op.place))
            case ops.OneHot():
                choices = op.start.tolist(), op.counts.tolist()
                return runner.one_hot(op.rows, *_place(op.place), *choices)
            case ops.Embed():
                entries = op.start.tolist(), op.counts.tolist(), op.offsets.tolist()
                return runner.embed(op.rows, *_place(op.place), *entries, op.table)
            case ops.State():
                return runner.state(op.begin, op.width)
            case ops.Constant():
                return runner.constant(op.numbers)
            case ops.Blend():
                return runner.blend(inputs[0], inputs[1], inputs[2])
            case ops.Join():
                return runner.join(inputs)
            case ops.Cut():
                return runner.cut(inputs[0], op.begin, op.width)
            case ops.Reshape():
                return runner.reshape(inputs[0], op.rows, op.width)
            case ops.Permute():
                return runner.permute(inputs[0], list(op.shape), list(op.order))
            case ops.Keep():
                return runner.keep(inputs[0], inputs[1])
            case ops.Reduce():
                return runner.reduce(inputs[0], op.function, op.count)
            case ops.Normalise():
                return runner.normalise(inputs[0], op.weight, op.bias, op.epsilon)
            case ops.Attend():
                query, keys, values, count = inputs
                return runner.attend(query, keys, values, count, op.heads, op.bias)
            case ops.Recur():
                return runner.recur(inputs[0], op.cell, op.begin, op.weight, op.bias)
        raise NotImplementedError(type(op).__name__)

    def _linear(self, op: ops.Linear) -> _Value:
        given = self._values[op.inputs[0]]
        weight = op.weight
        if given.image is not None:
            order = weight.reshape(-1, *given.image).transpose(0, 2, 3, 1)
            weight = order.reshape(weight.shape)
        return _Value(self._runner.linear(given.number, _divided(weight, given), op.bias))

    def _convolve(self, op: ops.Convolve) -> _Value:
        given = self._values[op.inputs[0]]
        last = given.image is not None
        weight = op.weight.transpose(0, 2, 3, 1) if last else op.weight
        weight = _divided(weight.reshape(len(weight), -1), given)
        sides = op.image, op.out, op.weight.shape[-1], op.stride, op.padding
        return _Value(self._runner.convolve(given.number, *sides, last, weight, op.bias), op.out)

    def _pool(self, op: ops.Pool) -> _Value:
        given = self._settled(op.inputs[0])
        number = given.number
        if given.image is None:
            number = self._runner.permute(number, list(op.image), [1, 2, 0])
        sides = op.image, op.out, op.kernel, op.stride, op.padding
        return _Value(self._runner.pool(number, *sides), op.out)

    def _scale(self, op: ops.Scale) -> _Value:
        given = self._settled(op.inputs[0])
        shift, divisor = op.shift, op.divisor
        uniform = not shift.any() and np.isposinf(op.most) and (divisor == divisor[:1]).all()
        if uniform and not self._learns:
            return _Value(given.number, given.image, float(divisor[0]))
        if given.image is not None:
            shift, divisor = (_channels_last(part, given.image) for part in (shift, divisor))
        return _Value(self._runner.scale(given.number, shift, divisor, op.most), given.image)

    def _matched(self, op: ops.Operation) -> list[_Value]:
        """Return the inputs in one order: that of images, if all are images."""
        given = [self._settled(value) for value in op.inputs]
        if len({value.image for value in given}) == 1:
            return given
        return [_Value(self._plain(value)) for value in op.inputs]

    def _settled(self, value: int) -> _Value:
        """Return a value whose divisor was applied."""
        found = self._values[value]
        if found.divisor != 1.0:
            width = self._net.shape(value)[1]
            parts = np.zeros(width, np.float32), np.full(width, found.divisor, np.float32)
            found = _Value(self._runner.scale(found.number, *parts, np.inf), found.image)
            self._values[value] = found
        return found

    def _plain(self, value: int) -> int:
        """Return the number of a value in the order of the net."""
        found = self._settled(value)
        if found.image is not None:
            channels, height, width = found.image
            shape = [height, width, channels]
            found = _Value(self._runner.permute(found.number, shape, [2, 0, 1]))
            self._values[value] = found
        return found.number


def code_of(dtype: np.dtype[Any]) -> str:
    """Return the core's name of a dtype."""
    return f"{dtype.kind}{dtype.itemsize}"


def _place(place: ops.Place) -> tuple[int, str]:
    return place.offset, code_of(place.dtype)


def _divided(weight: Floats, given: _Value) -> Floats:
    if given.divisor == 1.0:  # learned weights must stay in place
        return np.ascontiguousarray(weight, np.float32)
    return np.ascontiguousarray(weight / np.float32(given.divisor), np.float32)


def _channels_last(numbers: Floats, image: tuple[int, int, int]) -> Floats:
    return np.ascontiguousarray(numbers.reshape(image).transpose(1, 2, 0).ravel())
