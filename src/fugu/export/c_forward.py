"""The forward pass of a network in C: its constants, and one call for each operation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.export.c_plan import OVERWRITING, Plan, Step, make_plan
from fugu.export.c_quantise import Rounded, product_weight
from fugu.export.c_text import array, literal, type_of
from fugu.nets import net as ops
from fugu.nets.net import Net

FUNCTIONS: dict[ops.Function, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "tanh": "hyperbolic_tangent",
    "sigmoid": "sigmoid",
    "symlog": "symlog",
    "mingru": "mingru",
    "finite": "finite",
}


class Forward:
    """Writes a network.

    Args:
        net: What it does.
        rounded: Its weights of products and tables as int8, by the numbers of their operations.

    Attributes:
        constants: C arrays of the weights.
        calls: Statements, in order.
        bytes: Of the constants.
        plan: Where values stand.
        weight_type: Of the weights of products and tables, in C.
    """

    def __init__(self, net: Net, rounded: Mapping[int, Rounded] | None = None) -> None:
        self.plan: Plan = make_plan(net)
        self.constants: list[str] = []
        self.calls: list[str] = []
        self.bytes = 0
        self.weight_type = "float" if rounded is None else "int8_t"
        self._net, self._rounded = net, rounded
        for step in self.plan.steps:
            self.calls += self._begin(step)
            self.calls += [f"{call};" for call in self._calls(step)]
        self.calls += self._outputs()

    # ------------------------------------------------------------------ constants

    def _array(self, ctype: str, name: str, numbers: NDArray[Any], comment: str = "") -> str:
        """Add an array; its name."""
        text = array(ctype, name, numbers, comment)
        self.constants += [text] if text else []
        self.bytes += numbers.size * {"int8_t": 1, "int64_t": 8}.get(ctype, 4)
        return name

    def _floats(self, step: Step, part: str, numbers: NDArray[Any], comment: str = "") -> str:
        return self._array("float", f"{step.name}_{part}", numbers, comment)

    def _weight(self, step: Step, comment: str) -> str:
        """Add the weights of a product, inputs first; their name."""
        weight = product_weight(step.operation)
        assert weight is not None
        numbers: NDArray[Any] = weight
        if self._rounded is not None:
            part = self._rounded[step.number]
            numbers = part.integers
            self._floats(step, "scale", part.scale, "of each output")
        flat = numbers.reshape(len(numbers), -1).T
        return self._array(self.weight_type, f"{step.name}_weight", flat, comment)

    # ------------------------------------------------------------------ statements

    def _begin(self, step: Step) -> list[str]:
        """A copy, where a value that is to be written over is needed again."""
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
                yield f"{FUNCTIONS[op.function]}({y}, {y.size})"
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
        if self._rounded is not None:
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
        if self._rounded is not None:
            yield f"multiply_columns({y}, {op.rows}, {outputs}, {step.name}_scale)"
            part = self._rounded[step.number]
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
        told = self._array("int", f"{step.name}_sizes", sizes)
        moves = self._array("int", f"{step.name}_steps", np.array(steps))
        given = f"{step.inputs[0]}, {op.rows}, {op.width}, {len(steps)}"
        return f"permute({given}, {told}, {moves}, {step.out})"

    def _convolve(self, step: Step, op: ops.Convolve) -> Iterator[str]:
        out, channels, kernel, _ = op.weight.shape
        weight = self._weight(step, f"[{channels}][{kernel}][{kernel}][{out} outputs]")
        windows = self._windows(step, op, kernel)
        patch, pixel = step.work
        images = f"{step.inputs[0]}, {op.rows}, &{windows}"
        yield f"convolve({images}, {weight}, {patch}, {pixel}, {step.out})"
        planes = f"{step.out}, {op.rows}, {out}, {math.prod(op.out[1:])}"
        if self._rounded is not None:
            yield f"multiply_planes({planes}, {step.name}_scale)"
        yield f"add_planes({planes}, {self._floats(step, 'bias', op.bias)})"

    def _windows(self, step: Step, op: ops.Convolve | ops.Pool, kernel: int) -> str:
        """Add what slides over which image; its name."""
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

    # ------------------------------------------------------------------ outputs

    def _outputs(self) -> list[str]:
        net, calls = self._net, []
        for name, value in (("params", net.params), ("values", net.values), ("state", net.state)):
            spot = None if value is None else self.plan.spots[value]
            # A state that nothing has changed stands where it is to be.
            if spot is not None and spot.size and spot.array != name:
                calls.append(f"copy({spot}, {spot.size}, {name});")
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
