"""A network as ONNX: one graph for any batch, with the greedy action beside what it follows from.

Inputs are the leaves of an observation (`observation`, or `observation/path` for each), `state` if
the policy remembers anything, and `mask` if actions have choices. Outputs are `params`, `values`,
`next_state`, and the most probable action (`action`, or `action/path` for each leaf).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fugu
from fugu.core.errors import UsageError
from fugu.export.engine import FACTS, PolicyFacts
from fugu.export.leaves import leaves_at, named_leaves
from fugu.export.onnx_actions import add_actions
from fugu.export.onnx_graph import Graph, save
from fugu.nets import net as ops
from fugu.nets.net import Net

if TYPE_CHECKING:
    import onnx

VERSION, ENV, GROUP = "fugu.version", "fugu.env", "fugu.group"
MOST_BYTES = 1_900_000_000  # of weights in the file itself, which can hold no more than 2 GiB
REDUCERS = {"sum": "ReduceSum", "mean": "ReduceMean", "largest": "ReduceMax"}


def write_onnx(
    net: Net, path: Path, *, env: str = "", group: str = "", most_bytes: int = MOST_BYTES
) -> list[Path]:
    """Write a network as ONNX, checked; the files that were written.

    Args:
        net: The network.
        path: FILE.onnx
        env: What it was trained on, for the metadata.
        group: Whose policy it is, likewise.
        most_bytes: With more bytes of weights, they go into FILE.onnx.weights beside it.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise UsageError(f"out: given {str(path)!r}; allowed: FILE.onnx")
    beside = path.with_name(f"{path.name}.weights")
    external = net.num_weights * 4 > most_bytes
    save(build_onnx(net, env=env, group=group), path, beside if external else None)
    return [path, beside] if external else [path]


def build_onnx(net: Net, *, env: str = "", group: str = "") -> onnx.ModelProto:
    """A network as a model of ONNX."""
    facts = PolicyFacts.of(net)
    metadata = {FACTS: facts.to_json(), VERSION: fugu.__version__, ENV: env, GROUP: group}
    writer = Writer(net)
    graph = writer.graph
    params = writer.output(net.params)
    width = net.shape(net.params)[1]
    graph.output("params", params, np.float32, (width,), "Of the actions' distribution.")
    if net.values is not None:
        values = writer.output(net.values)
        graph.output("values", values, np.float32, (facts.num_critics,), "What critics expect.")
    if net.state is not None:
        state = writer.output(net.state)
        says = "What to give as state with the next observation."
        graph.output("next_state", state, np.float32, (net.state_size,), says)
    add_actions(graph, params, facts)
    return graph.model("policy", fugu.__version__, metadata)


class Writer:
    """Adds a network's operations to a graph.

    A value is `[batch, width]` if it has one row, else `[batch, rows, width]`. One that does not
    depend on what is given has a batch of one.
    """

    def __init__(self, net: Net) -> None:
        self._net, self.graph = net, Graph()
        self._leaves = named_leaves(net.observation, "observation")
        for name, leaf in self._leaves.items():
            says = f"{leaf.path or 'The observation'}: {leaf.space}"
            self.graph.input(name, leaf.dtype, leaf.shape, says[:500])
        if net.state is not None:
            says = "What next_state was with the observation before; zeros begin an episode."
            self.graph.input("state", np.float32, (net.state_size,), says)
        if not self.graph.inputs:
            raise UsageError(
                "policy: given one that sees nothing and remembers nothing; allowed: one with "
                "inputs, which tell the batch."
            )
        self._values: list[str] = []
        self._fixed: set[int] = set()  # values with a batch of one
        for i, op in enumerate(net.operations):
            outside = isinstance(op, ops.Read | ops.OneHot | ops.Embed | ops.State)
            if not outside and self._fixed.issuperset(op.inputs):
                self._fixed.add(i)
            self._values.append(self._add(op, [self._values[j] for j in op.inputs]))

    def output(self, value: int) -> str:
        """A value of one row with the whole batch."""
        name = self._values[value]
        return self._spread(name, value) if value in self._fixed else name

    def _spread(self, name: str, value: int) -> str:
        """A value that does not depend on the batch, for each of it."""
        graph = self.graph
        batch = graph.add("Shape", graph.inputs[0].name, start=0, end=1)
        shape = graph.add("Concat", batch, graph.ints(*self._dims(value)), axis=0)
        return graph.add("Expand", name, shape)

    def _dims(self, value: int) -> tuple[int, ...]:
        return _dims(*self._net.shape(value))

    def _add(self, op: ops.Operation, inputs: list[str]) -> str:
        graph, dims = self.graph, _dims(op.rows, op.width)
        match op:
            case ops.Read():
                return graph.cast(self._numbers(op.place, op.rows, op.width), np.float32)
            case ops.OneHot():
                return self._one_hot(op)
            case ops.Embed():
                indices = graph.add("Add", self._indices(op), graph.weight(op.offsets))
                found = graph.add("Gather", graph.weight(op.table), indices, axis=0)
                return graph.reshape(found, 0, *dims)
            case ops.State():
                return graph.cut("state", op.begin, op.begin + op.width)
            case ops.Constant():
                return graph.weight(op.numbers.reshape(1, *dims))
            case ops.Scale():
                return self._scale(op, *inputs)
            case ops.Linear():
                return self._linear(op, *inputs)
            case ops.Apply():
                return self._apply(op.function, *inputs)
            case ops.Combine():
                return graph.add("Add" if op.function == "add" else "Mul", *inputs)
            case ops.Blend():
                start, end, weight = inputs
                way = graph.add("Mul", weight, graph.add("Sub", end, start))
                return graph.add("Add", start, way)
            case ops.Join():
                return self._join(op, inputs)
            case ops.Cut():
                return graph.cut(inputs[0], op.begin, op.begin + op.width)
            case ops.Reshape():
                return graph.reshape(inputs[0], 0, *dims)
            case ops.Permute():
                apart = graph.reshape(inputs[0], 0, op.rows, *op.shape)
                order = [0, 1, *(axis + 2 for axis in op.order)]
                return graph.reshape(graph.add("Transpose", apart, perm=order), 0, *dims)
            case ops.Convolve() | ops.Pool():
                return self._window(op, *inputs)
            case ops.Keep():
                there = graph.add("Greater", inputs[1], graph.number(0))
                return graph.add("Where", there, inputs[0], graph.number(0))
            case ops.Reduce():
                return self._reduce(op, *inputs)
            case ops.Normalise():
                parts = graph.weight(op.weight), graph.weight(op.bias)
                options: dict[str, Any] = {"axis": -1, "epsilon": op.epsilon}
                return graph.add("LayerNormalization", *inputs, *parts, **options)
            case ops.Attend():
                return self._attend(op, *inputs)
        raise NotImplementedError(type(op).__name__)

    # ------------------------------------------------------------------ what is given

    def _numbers(self, place: ops.Place, rows: int, width: int) -> str:
        """Numbers of the observation in the shape of a value, of the type that they have."""
        graph, dims = self.graph, _dims(rows, width)
        names = leaves_at(self._leaves, place, rows * width)
        if len(names) == 1 and self._leaves[names[0]].shape == dims:
            return names[0]
        flat = [graph.reshape(name, 0, -1) for name in names] if len(names) > 1 else names
        whole = graph.add("Concat", *flat, axis=1) if len(names) > 1 else flat[0]
        return graph.reshape(whole, *((0,) if self._ranked(names) else (-1,)), *dims)

    def _ranked(self, names: list[str]) -> bool:
        return len(names) > 1 or bool(self._leaves[names[0]].shape)

    def _indices(self, op: ops.OneHot | ops.Embed) -> str:
        """Integers of the observation from 0 on, `[batch, (rows,) columns]`."""
        graph = self.graph
        numbers = graph.cast(self._numbers(op.place, op.rows, len(op.counts)), np.int64)
        if op.start.any():
            numbers = graph.add("Sub", numbers, graph.weight(op.start))
        low = graph.add("Max", numbers, graph.number(0, np.int64))
        return graph.add("Min", low, graph.weight(op.counts - 1))

    def _one_hot(self, op: ops.OneHot) -> str:
        graph = self.graph
        columns = np.repeat(np.arange(len(op.counts)), op.counts)
        numbers = np.concatenate([np.arange(count) for count in op.counts])
        spread = graph.add("Gather", self._indices(op), graph.weight(columns), axis=-1)
        return graph.cast(graph.add("Equal", spread, graph.weight(numbers)), np.float32)

    # ------------------------------------------------------------------ layers

    def _scale(self, op: ops.Scale, x: str) -> str:
        graph = self.graph
        if op.shift.any():
            x = graph.add("Sub", x, graph.weight(_one(op.shift)))
        if (op.divisor != 1).any():
            x = graph.add("Div", x, graph.weight(_one(op.divisor)))
        if math.isfinite(op.most):
            x = graph.add("Clip", x, graph.number(-op.most), graph.number(op.most))
        return x

    def _linear(self, op: ops.Linear, x: str) -> str:
        graph = self.graph
        if op.rows == 1:
            return graph.add("Gemm", x, graph.weight(op.weight), graph.weight(op.bias), transB=1)
        product = graph.add("MatMul", x, graph.weight(op.weight.T))
        return graph.add("Add", product, graph.weight(op.bias))

    def _apply(self, function: ops.Function, x: str) -> str:
        graph = self.graph
        add, number = graph.add, graph.number
        match function:
            case "relu" | "tanh" | "sigmoid":
                return add(function.capitalize(), x)
            case "gelu":
                part = add("Erf", add("Mul", x, number(math.sqrt(0.5))))
                half = add("Mul", x, number(0.5))
                return add("Mul", half, add("Add", part, number(1)))
            case "silu":
                return add("Mul", x, add("Sigmoid", x))
            case "symlog":
                return add("Mul", add("Sign", x), add("Log", add("Add", add("Abs", x), number(1))))
            case "mingru":
                above = add("GreaterOrEqual", x, number(0))
                return add("Where", above, add("Add", x, number(0.5)), add("Sigmoid", x))
            case "finite":
                lost = add("Or", add("IsNaN", x), add("IsInf", x))
                return add("Where", lost, number(0), x)

    def _join(self, op: ops.Operation, inputs: list[str]) -> str:
        fixed = self._fixed.intersection(op.inputs)
        if len(fixed) < len(set(op.inputs)):
            pairs = zip(inputs, op.inputs, strict=True)
            inputs = [self._spread(x, i) if i in fixed else x for x, i in pairs]
        return self.graph.add("Concat", *inputs, axis=-1)

    def _window(self, op: ops.Convolve | ops.Pool, x: str) -> str:
        graph = self.graph
        images = graph.reshape(x, -1, *op.image)
        options: dict[str, Any] = {"strides": [op.stride] * 2, "pads": [op.padding] * 4}
        if isinstance(op, ops.Pool):
            found = graph.add("MaxPool", images, kernel_shape=[op.kernel] * 2, **options)
        else:
            parts = graph.weight(op.weight), graph.weight(op.bias)
            found = graph.add("Conv", images, *parts, **options)
        return graph.reshape(found, -1, *_dims(op.rows, op.width))

    def _reduce(self, op: ops.Reduce, x: str) -> str:
        graph = self.graph
        grouped = graph.reshape(x, 0, op.rows, op.count, op.width)
        if op.function == "sum":  # whose axes are an input, in this version of ONNX
            found = graph.add("ReduceSum", grouped, graph.ints(2), keepdims=0)
        else:
            found = graph.add(REDUCERS[op.function], grouped, axes=[2], keepdims=0)
        return graph.reshape(found, 0, op.width) if op.rows == 1 else found

    def _attend(self, op: ops.Attend, query: str, keys: str, values: str, count: str) -> str:
        graph, heads = self.graph, op.heads
        places, each = self._net.shape(op.inputs[1])[0], op.width // op.heads
        ages = np.arange(places - 1, -1, -1)
        asked = graph.reshape(query, 0, heads, 1, each)
        apart = [graph.reshape(x, 0, places, heads, each) for x in (keys, values)]
        across = graph.add("Transpose", apart[0], perm=[0, 2, 3, 1])
        scores = graph.add("MatMul", asked, across)  # [batch, heads, 1, places]
        scores = graph.add("Div", scores, graph.number(math.sqrt(each)))
        bias = op.bias[:, ages].reshape(1, heads, 1, places)
        scores = graph.add("Add", scores, graph.weight(bias))
        old = graph.weight(ages.astype(np.float32).reshape(1, 1, 1, places))
        seen = graph.add("Less", old, graph.reshape(count, 0, 1, 1, 1))
        scores = graph.add("Where", seen, scores, graph.number(-np.inf))
        weights = graph.add("Softmax", scores, axis=-1)
        told = graph.add("Transpose", apart[1], perm=[0, 2, 1, 3])
        return graph.reshape(graph.add("MatMul", weights, told), 0, op.width)


def _dims(rows: int, width: int) -> tuple[int, ...]:
    return (width,) if rows == 1 else (rows, width)


def _one(numbers: ops.Floats) -> ops.Floats:
    """One number if all are alike."""
    return numbers[:1] if (numbers == numbers[0]).all() else numbers
