"""Write the forward pass of a network in C: where values are stored, constants, and calls.

A `Plan` assigns memory to the values of a network, with few copies and little memory. `Forward`
writes one call of `c_parts` for each operation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fugu.export.c_quantize import QuantizedWeight, product_weight
from fugu.export.c_text import array, literal, type_of
from fugu.nets import net as ops
from fugu.nets.net import Net, Operation

ALIGNMENT = 4  # floats
# Operations that may overwrite one of their inputs.
OVERWRITING = (ops.Scale, ops.Apply, ops.Combine, ops.Blend, ops.Keep, ops.Normalise)


class Span(NamedTuple):
    """Contiguous numbers of an array, written in C as `linear_1 + 16`."""

    array: str
    begin: int
    size: int

    def __str__(self) -> str:
        return f"{self.array} + {self.begin}" if self.begin else self.array

    def part(self, begin: int, size: int) -> Span:
        """Return some of the numbers."""
        return Span(self.array, self.begin + begin, size)

    def overlaps(self, other: Span) -> bool:
        """Return whether both share a number."""
        before = self.begin + self.size <= other.begin or other.begin + other.size <= self.begin
        return self.array == other.array and not before


@dataclass
class Buffer:
    """Scratch memory that is used from operation `first` to operation `last`."""

    name: str
    shape: tuple[int, ...]
    first: int
    last: int
    offset: int = 0

    @property
    def size(self) -> int:
        """Floats."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Step:
    """An operation to be run."""

    number: int  # Index of the operation
    name: str  # Prefix of its constants
    operation: Operation  # What is computed
    out: Span  # Where its value is written
    inputs: tuple[Span, ...]  # Its inputs, in the operation's order
    over: int | None  # The input that the value overwrites; None: the value has its own memory
    work: tuple[Span, ...] = ()  # Temporary memory


class Plan:
    """All steps in order, and the memory of every value that is read; views need no step."""

    def __init__(self, net: Net) -> None:
        self.steps: list[Step] = []
        self.buffers: dict[str, Buffer] = {}
        self.spans: dict[int, Span] = {}
        self._readers = _readers(net)
        counts: Counter[str] = Counter()
        for number, op in enumerate(net.operations):
            kind = type(op).__name__.lower()
            counts[kind] += 1
            if self._readers[number]:
                self._add(number, f"{kind}_{counts[kind]}", op)
        _allocate(list(self.buffers.values()))

    @property
    def scratch(self) -> int:
        """Floats of scratch memory."""
        return max((buffer.offset + buffer.size for buffer in self.buffers.values()), default=0)

    def _add(self, number: int, name: str, op: Operation) -> None:
        size = op.rows * op.width
        match op:
            case _ if not size:
                self.spans[number] = self._buffer(name, (0,), number)
            case ops.State():
                self.spans[number] = Span("state", op.begin, size)
            case ops.Constant():
                out = self.spans[number] = Span(name, 0, size)
                self.steps.append(Step(number, name, op, out, (), None))
            case ops.Reshape() | ops.Cut() if _is_view(op):
                self.spans[number] = self.spans[op.inputs[0]].part(_view_begin(op), size)
            case _:
                self._add_step(number, name, op)

    def _add_step(self, number: int, name: str, op: Operation) -> None:
        inputs = tuple(self.spans[i] for i in op.inputs)
        over = self._overwritten(number, op, inputs)
        work: tuple[Span, ...] = ()
        if over is None:
            work = tuple(self._buffer(*part, number) for part in _workspaces(name, op))
            out = self._buffer(name, (op.rows, op.width), number)
        else:
            out = inputs[over]
        for span in (*inputs, *work):
            if span.array in self.buffers:
                self._keep(span, number)
        self.spans[number] = out
        self._keep(out, max(reader for reader, *_ in self._readers[number]))
        self.steps.append(Step(number, name, op, out, inputs, over, work))

    def _buffer(self, name: str, shape: tuple[int, ...], number: int) -> Span:
        self.buffers[name] = buffer = Buffer(name, shape, number, number)
        return Span(name, 0, buffer.size)

    def _keep(self, span: Span, last: int) -> None:
        buffer = self.buffers[span.array]
        buffer.last = max(buffer.last, last)

    def _overwritten(self, number: int, op: Operation, inputs: tuple[Span, ...]) -> int | None:
        """Return the input that is not needed afterwards and may be overwritten."""
        if not isinstance(op, OVERWRITING):
            return None
        for i in range(2 if isinstance(op, ops.Combine) else 1):
            others = (*inputs[:i], *inputs[i + 1 :])
            if inputs[i].array not in self.buffers:
                continue
            if any(inputs[i].overlaps(other) for other in others):
                continue
            if not self._is_needed(inputs[i], number):
                return i
        return None

    def _is_needed(self, span: Span, number: int) -> bool:
        """Return whether an operation after this one reads any of these numbers."""
        return any(
            reader > number and there.part(begin, size).overlaps(span)
            for value, there in self.spans.items()
            if there.overlaps(span)
            for reader, begin, size in self._readers[value]
        )


def _is_view(op: Operation) -> bool:
    return isinstance(op, ops.Reshape) or (isinstance(op, ops.Cut) and op.rows == 1)


def _view_begin(op: Operation) -> int:
    return op.begin if isinstance(op, ops.Cut) else 0


def _readers(net: Net) -> list[list[tuple[int, int, int]]]:
    """Return `(operation, begin, size)` of each read of each value, also through views of it.

    Outputs are read after the last operation.
    """
    end = len(net.operations)
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(end)]
    for output in (net.params, net.values, net.state):
        if output is not None:
            found[output].append((end, 0, math.prod(net.shape(output))))
    for number in range(end - 1, -1, -1):
        op = net.operations[number]
        for i in op.inputs if found[number] else ():
            if _is_view(op):
                first = _view_begin(op)
                found[i] += [(reader, first + begin, size) for reader, begin, size in found[number]]
            else:
                found[i].append((number, 0, math.prod(net.shape(i))))
    return found


def _workspaces(name: str, op: Operation) -> list[tuple[str, tuple[int, ...]]]:
    match op:
        case ops.Convolve():
            channels, kernel = op.image[0], op.weight.shape[-1]
            patch = (f"{name}_patch", (channels, kernel, kernel))
            return [patch, (f"{name}_pixel", (op.out[0],))]
        case ops.Attend():
            return [(f"{name}_scores", (op.bias.shape[1],))]
    return []


def _allocate(buffers: list[Buffer]) -> None:
    """Give each buffer the lowest offset that is free for as long as it is needed."""
    placed: list[Buffer] = []
    for buffer in buffers:
        offset = 0
        for other in sorted(placed, key=lambda other: other.offset):
            apart = other.last < buffer.first or buffer.last < other.first
            if not apart and other.offset < offset + buffer.size:
                offset = max(offset, -(-(other.offset + other.size) // ALIGNMENT) * ALIGNMENT)
        buffer.offset = offset
        placed.append(buffer)


class Forward:
    """Writes the constants and the calls of a network, and counts the bytes of constants.

    `quantized` has the int8 weights of products and tables, by the index of their operation.
    """

    def __init__(self, net: Net, quantized: Mapping[int, QuantizedWeight] | None = None) -> None:
        self.plan = Plan(net)
        self.constants: list[str] = []
        self.calls: list[str] = []
        self.bytes = 0
        self.weight_type = "float" if quantized is None else "int8_t"
        self._net, self._quantized = net, quantized
        for step in self.plan.steps:
            self.calls += self._begin(step)
            self.calls += [f"{call};" for call in self._calls(step)]
        self.calls += self._outputs()

    def _array(self, ctype: str, name: str, numbers: NDArray[Any], comment: str = "") -> str:
        """Add a constant array and return its name."""
        text = array(ctype, name, numbers, comment)
        self.constants += [text] if text else []
        self.bytes += numbers.size * {"int8_t": 1, "int64_t": 8}.get(ctype, 4)
        return name

    def _floats(self, step: Step, part: str, numbers: NDArray[Any], comment: str = "") -> str:
        return self._array("float", f"{step.name}_{part}", numbers, comment)

    def _weight(self, step: Step, comment: str) -> str:
        """Add the weights of a product, inputs first, and return their name."""
        weight = product_weight(step.operation)
        assert weight is not None
        numbers: NDArray[Any] = weight
        if self._quantized is not None:
            part = self._quantized[step.number]
            numbers = part.integers
            self._floats(step, "scale", part.scale, "of each output")
        flat = numbers.reshape(len(numbers), -1).T
        return self._array(self.weight_type, f"{step.name}_weight", flat, comment)

    def _begin(self, step: Step) -> list[str]:
        """Return a copy, where a value that is overwritten is needed again."""
        if step.over is None and isinstance(step.operation, OVERWRITING):
            return [f"copy({step.inputs[0]}, {step.out.size}, {step.out});"]
        return []

    def _calls(self, step: Step) -> Iterator[str]:
        op, y, rows, width = step.operation, step.out, step.operation.rows, step.operation.width
        x = step.inputs[0] if step.inputs else y
        match op:
            case ops.Read():
                kind = type_of(op.place.dtype)
                read = "fugu_policy_take_halves" if kind == "half" else f"read_{kind}"
                yield f"{read}({_at(op.place)}, {y.size}, {y})"
            case ops.OneHot() | ops.Embed():
                yield from self._categories(step, op)
            case ops.Constant():
                self._array("float", step.name, op.numbers, f"[{rows}][{width}]")
            case ops.Scale():
                yield from self._scale(step, op)
            case ops.Linear():
                yield from self._linear(step, op)
            case ops.Apply():
                name = "hyperbolic_tangent" if op.function == "tanh" else op.function
                yield f"{name}({y}, {y.size})"
            case ops.Combine():
                other = step.inputs[0] if step.over == 1 else step.inputs[1]
                yield f"{op.function}({y}, {other}, {y.size})"
            case ops.Blend():
                yield f"blend({y}, {step.inputs[1]}, {step.inputs[2]}, {y.size})"
            case ops.Join():
                yield from _join(step)
            case ops.Cut():
                whole = x.size // rows
                yield f"take_columns({x.part(op.begin, 0)}, {rows}, {width}, {whole}, {y})"
            case ops.Permute():
                yield self._permute(step, op)
            case ops.Convolve():
                yield from self._convolve(step, op)
            case ops.Pool():
                windows = self._windows(step, op, op.kernel)
                yield f"pool({x}, {rows}, &{windows}, {y})"
            case ops.Keep():
                yield f"keep_rows({y}, {rows}, {width}, {step.inputs[1]})"
            case ops.Reduce():
                yield from _reduce(step, op)
            case ops.Normalise():
                weight = self._floats(step, "weight", op.weight)
                bias = self._floats(step, "bias", op.bias)
                epsilon = literal(op.epsilon)
                yield f"normalise({y}, {rows}, {width}, {weight}, {bias}, {epsilon})"
            case ops.Attend():
                yield self._attend(step, op)
            case _:
                raise NotImplementedError(type(op).__name__)

    def _categories(self, step: Step, op: ops.OneHot | ops.Embed) -> Iterator[str]:
        columns, kind = len(op.counts), type_of(op.place.dtype)
        if not columns:
            return
        alike = isinstance(op, ops.OneHot) and len({*zip(op.start, op.counts, strict=True)}) == 1
        kept = slice(1 if alike else columns)
        start = self._array("int64_t", f"{step.name}_start", op.start[kept])
        counts = self._array("int32_t", f"{step.name}_counts", op.counts[kept])
        given = f"{_at(op.place)}, {op.rows}, {columns}, {start}, {counts}"
        if isinstance(op, ops.OneHot):
            yield f"one_hot_{kind}({given}, {0 if alike else 1}, {step.out})"
            return
        total, width = op.table.shape
        offsets = self._array("int32_t", f"{step.name}_offsets", op.offsets)
        # The table's outputs are its columns, so that it stands row by row.
        weight = self._weight(step, f"[{total}][{width}]")
        yield f"embed_{kind}({given}, {offsets}, {weight}, {width}, {step.out})"
        if self._quantized is not None:
            rows = step.out.size // width
            yield f"multiply_columns({step.out}, {rows}, {width}, {step.name}_scale)"

    def _scale(self, step: Step, op: ops.Scale) -> Iterator[str]:
        y = step.out
        if len({*zip(op.shift, op.divisor, strict=True)}) == 1:
            shift, divisor = literal(op.shift[0]), literal(op.divisor[0])
            yield f"rescale_all({y}, {y.size}, {shift}, {divisor})"
        else:
            shift = self._floats(step, "shift", op.shift)
            divisor = self._floats(step, "divisor", op.divisor)
            yield f"rescale({y}, {op.rows}, {op.width}, {shift}, {divisor})"
        if math.isfinite(op.most):
            yield f"limit({y}, {y.size}, {literal(op.most)})"

    def _linear(self, step: Step, op: ops.Linear) -> Iterator[str]:
        outputs, inputs = op.weight.shape
        weight = self._weight(step, f"[{inputs} inputs][{outputs} outputs]")
        x, y, shape = step.inputs[0], step.out, f"{op.rows}, {inputs}, {outputs}"
        yield f"product({x}, {shape}, {weight}, {y})"
        if self._quantized is not None:
            yield f"multiply_columns({y}, {op.rows}, {outputs}, {step.name}_scale)"
            part = self._quantized[step.number]
            if len(part.inputs):
                which = self._array("int", f"{step.name}_kept_inputs", part.inputs)
                kept = self._floats(step, "kept", part.kept, "weights that are not rounded")
                yield f"add_inputs({x}, {shape}, {len(part.inputs)}, {which}, {kept}, {y})"
        if op.bias.any():
            bias = self._floats(step, "bias", op.bias)
            yield f"add_columns({y}, {op.rows}, {outputs}, {bias})"

    def _permute(self, step: Step, op: ops.Permute) -> str:
        steps = [math.prod(op.shape[axis + 1 :]) for axis in op.order]
        sizes = np.array([op.shape[axis] for axis in op.order])
        counts = self._array("int", f"{step.name}_sizes", sizes)
        moves = self._array("int", f"{step.name}_steps", np.array(steps))
        given = f"{step.inputs[0]}, {op.rows}, {op.width}, {len(steps)}"
        return f"permute({given}, {counts}, {moves}, {step.out})"

    def _convolve(self, step: Step, op: ops.Convolve) -> Iterator[str]:
        out, channels, kernel, _ = op.weight.shape
        weight = self._weight(step, f"[{channels}][{kernel}][{kernel}][{out} outputs]")
        windows = self._windows(step, op, kernel)
        patch, pixel = step.work
        images = f"{step.inputs[0]}, {op.rows}, &{windows}"
        yield f"convolve({images}, {weight}, {patch}, {pixel}, {step.out})"
        planes = f"{step.out}, {op.rows}, {out}, {math.prod(op.out[1:])}"
        if self._quantized is not None:
            yield f"multiply_planes({planes}, {step.name}_scale)"
        yield f"add_planes({planes}, {self._floats(step, 'bias', op.bias)})"

    def _windows(self, step: Step, op: ops.Convolve | ops.Pool, kernel: int) -> str:
        """Add the shapes of a sliding window and return their name."""
        sides = ("channels", "height", "width")
        names = (*sides, *(f"out_{side}" for side in sides))
        parts = dict(zip(names, op.image + op.out, strict=True))
        parts |= {"kernel": kernel, "stride": op.stride, "padding": op.padding}
        body = "".join(f"    .{name} = {size},\n" for name, size in parts.items())
        self.constants.append(f"static const Windows {step.name}_windows = {{\n{body}}};\n")
        self.bytes += 4 * len(parts)
        return f"{step.name}_windows"

    def _attend(self, step: Step, op: ops.Attend) -> str:
        query, keys, values, count = step.inputs
        places, each = op.bias.shape[1], op.width // op.heads
        bias = self._floats(step, "bias", op.bias, f"[{op.heads} heads][{places} ages]")
        shape = f"{places}, {op.heads}, {each}, {literal(math.sqrt(each))}"
        given = f"{query}, {keys}, {values}, {count.array}[{count.begin}], {shape}"
        return f"attend({given}, {bias}, {step.work[0]}, {step.out})"

    def _outputs(self) -> list[str]:
        net, calls = self._net, []
        for name, value in (("params", net.params), ("values", net.values), ("state", net.state)):
            span = None if value is None else self.plan.spans[value]
            # A state that was not changed is in place already.
            if span is not None and span.size and span.array != name:
                calls.append(f"copy({span}, {span.size}, {name});")
        return calls


def _at(place: ops.Place) -> str:
    return f"row + {place.offset}" if place.offset else "row"


def _join(step: Step) -> Iterator[str]:
    rows, whole, begin = step.operation.rows, step.operation.width, 0
    for x in step.inputs:
        width = x.size // rows
        to = step.out.part(begin, 0)
        begin += width
        if rows == 1:
            yield f"copy({x}, {width}, {to})"
        else:
            yield f"put_columns({x}, {rows}, {width}, {whole}, {to})"


def _reduce(step: Step, op: ops.Reduce) -> Iterator[str]:
    name = "largest_rows" if op.function == "largest" else "sum_rows"
    yield f"{name}({step.inputs[0]}, {op.rows}, {op.count}, {op.width}, {step.out})"
    if op.function == "mean":
        yield f"rescale_all({step.out}, {step.out.size}, 0.0f, {literal(op.count)})"
