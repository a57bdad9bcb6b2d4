"""Write a network as ONNX: one graph for any batch, with the greedy action as an output.

Inputs are the leaves of an observation (`observation`, or `observation/path` for each), `state` if
the policy is recurrent, and `mask` if actions have choices. Outputs are `params`, `values`,
`next_state`, and the most probable action (`action`, or `action/path` for each leaf).
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fugu
from fugu.core.errors import MissingExtraError, UsageError
from fugu.export.engine import FACTS, PolicyFacts, leaves_at, named_leaves
from fugu.nets import net as ops
from fugu.nets.net import Net
from fugu.spaces.action_rows import Choices, Numbers
from fugu.spaces.action_sampler import ActionSampler

try:
    import onnx
    from onnx import helper, numpy_helper
except ModuleNotFoundError as error:
    raise MissingExtraError("onnx", "export") from error

OPSET, IR_VERSION = 17, 8  # old enough for most programs that read such files today
VERSION, ENV, GROUP = "fugu.version", "fugu.env", "fugu.group"
MOST_BYTES = 1_900_000_000  # of weights in the file itself, which can hold no more than 2 GiB
REDUCERS = {"sum": "ReduceSum", "mean": "ReduceMean", "largest": "ReduceMax"}


def write_onnx(
    net: Net, path: Path, *, env: str = "", group: str = "", most_bytes: int = MOST_BYTES
) -> list[Path]:
    """Write a network as ONNX, checked, and return the files that were written.

    Args:
        net: The network.
        path: FILE.onnx
        env: The environment that it was trained on, for the metadata.
        group: The group of agents that it acts for, likewise.
        most_bytes: Weights of more bytes are written to FILE.onnx.weights.
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise UsageError(f"out: given {str(path)!r}; allowed: FILE.onnx")
    external = net.num_weights * 4 > most_bytes
    weights = path.with_name(f"{path.name}.weights")
    model = build_onnx(net, env=env, group=group)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        if external:
            options: Any = {"location": weights.name, "size_threshold": 1024}
            onnx.save(model, fresh, save_as_external_data=True, **options)
        else:
            onnx.save(model, fresh)
        onnx.checker.check_model(str(fresh), full_check=True)
        if external:
            os.replace(fresh.with_name(weights.name), weights)
        os.replace(fresh, path)
    return [path, weights] if external else [path]


def build_onnx(net: Net, *, env: str = "", group: str = "") -> onnx.ModelProto:
    """Return a network as a model of ONNX."""
    facts = PolicyFacts.of(net)
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
    _add_actions(graph, params, facts)
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", graph.inputs, graph.outputs, graph.weights),
        producer_name="fugu",
        producer_version=fugu.__version__,
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    metadata = {FACTS: facts.to_json(), VERSION: fugu.__version__, ENV: env, GROUP: group}
    helper.set_model_props(model, metadata)
    return model


class Graph:
    """Nodes, weights, inputs and outputs; methods return the names of what they add."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._known: dict[Any, str] = {}

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node with one output."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def weight(self, array: NDArray[Any], name: str = "") -> str:
        """Add constant numbers; small ones are stored once."""
        array = np.ascontiguousarray(array)
        key = (array.dtype.str, array.shape, array.tobytes()) if array.nbytes <= 512 else None
        if not name and key is not None and key in self._known:
            return self._known[key]
        name = name or f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        if key is not None:
            self._known[key] = name
        return name

    def number(self, number: float, dtype: Any = np.float32) -> str:
        """Add one number."""
        return self.weight(np.array(number, dtype))

    def ints(self, *numbers: int) -> str:
        """Add a list of integers, as for shapes."""
        return self.weight(np.array(numbers, np.int64))

    def input(self, name: str, dtype: Any, shape: Sequence[int], says: str) -> str:
        """Add an input `[batch, *shape]`."""
        self.inputs.append(_info(name, dtype, shape, says))
        return name

    def output(self, name: str, value: str, dtype: Any, shape: Sequence[int], says: str) -> None:
        """Add an output `[batch, *shape]`."""
        self.add("Identity", value, name=name)
        self.outputs.append(_info(name, dtype, shape, says))

    def cast(self, value: str, dtype: Any) -> str:
        """Cast numbers to another type."""
        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, value: str, *shape: int) -> str:
        """Reshape numbers; 0 keeps a side, -1 is inferred."""
        return self.add("Reshape", value, self.ints(*shape))

    def cut(self, value: str, begin: int, end: int) -> str:
        """Take columns."""
        return self.add("Slice", value, self.ints(begin), self.ints(end), self.ints(-1))


def _info(name: str, dtype: Any, shape: Sequence[int], says: str) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, ["batch", *shape], says)


class Writer:
    """Adds a network's operations to a graph.

    A value is `[batch, width]` if it has one row, else `[batch, rows, width]`. A value that does
    not depend on an input has a batch of one.
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
        """Return a value of one row with the whole batch."""
        name = self._values[value]
        return self._repeat(name, value) if value in self._fixed else name

    def _repeat(self, name: str, value: int) -> str:
        """Repeat a value that does not depend on an input for the whole batch."""
        graph = self.graph
        batch = graph.add("Shape", graph.inputs[0].name, start=0, end=1)
        dims = _dims(*self._net.shape(value))
        shape = graph.add("Concat", batch, graph.ints(*dims), axis=0)
        return graph.add("Expand", name, shape)

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
                change = graph.add("Mul", weight, graph.add("Sub", end, start))
                return graph.add("Add", start, change)
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

    def _numbers(self, place: ops.Place, rows: int, width: int) -> str:
        """Return numbers of the observation in the shape of a value, of their own type."""
        graph, dims = self.graph, _dims(rows, width)
        names = leaves_at(self._leaves, place, rows * width)
        if len(names) == 1 and self._leaves[names[0]].shape == dims:
            return names[0]
        flat = [graph.reshape(name, 0, -1) for name in names] if len(names) > 1 else names
        whole = graph.add("Concat", *flat, axis=1) if len(names) > 1 else flat[0]
        ranked = len(names) > 1 or bool(self._leaves[names[0]].shape)
        return graph.reshape(whole, 0 if ranked else -1, *dims)

    def _indices(self, op: ops.OneHot | ops.Embed) -> str:
        """Return integers of the observation, counted from 0, `[batch, (rows,) columns]`."""
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
        column = graph.add("Gather", self._indices(op), graph.weight(columns), axis=-1)
        return graph.cast(graph.add("Equal", column, graph.weight(numbers)), np.float32)

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
            inputs = [self._repeat(x, i) if i in fixed else x for x, i in pairs]
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
        across = graph.add("Transpose", apart[1], perm=[0, 2, 1, 3])
        return graph.reshape(graph.add("MatMul", weights, across), 0, op.width)


def _dims(rows: int, width: int) -> tuple[int, ...]:
    return (width,) if rows == 1 else (rows, width)


def _one(numbers: ops.Floats) -> ops.Floats:
    """Return one number if all are equal."""
    return numbers[:1] if (numbers == numbers[0]).all() else numbers


def _add_actions(graph: Graph, params: str, facts: PolicyFacts) -> None:
    """Add an output for each leaf of the greedy action of `ActionSampler`."""
    sampler = ActionSampler(facts.action, facts.continuous)
    names = {leaf.path: name for name, leaf in named_leaves(facts.action, "action").items()}
    logits = _allowed(graph, params, sampler) if sampler.num_choices else ""
    begin = 0
    for choices in sampler.writer.choices:
        found = _choose(graph, logits, choices, begin)
        begin += sum(choices.counts)
        says = f"The most probable of {choices.leaf.space}"
        _output(graph, names[choices.leaf.path], found, choices, says)
    for numbers in sampler.writer.numbers:
        first = numbers.columns.start - sampler.num_heads + sampler.num_choices
        last = numbers.columns.stop - sampler.num_heads + sampler.num_choices
        found = _bound(graph, graph.cut(params, first, last), numbers)
        says = f"The mean, within {numbers.leaf.space}"
        _output(graph, names[numbers.leaf.path], found, numbers, says)


def _output(graph: Graph, name: str, value: str, part: Choices | Numbers, says: str) -> None:
    leaf = part.leaf
    shaped = graph.reshape(graph.cast(value, leaf.dtype), -1, *leaf.shape)
    graph.output(name, shaped, leaf.dtype, leaf.shape, says[:500])


def _allowed(graph: Graph, params: str, sampler: ActionSampler) -> str:
    """Return the logits, minus infinity for choices that the mask forbids."""
    says = "Which choices are allowed, those of all heads side by side."
    mask = graph.input("mask", np.bool_, (sampler.num_choices,), says)
    logits = graph.cut(params, 0, sampler.num_choices)
    return graph.add("Where", mask, logits, graph.number(-np.inf))


def _choose(graph: Graph, logits: str, choices: Choices, begin: int) -> str:
    """Return the best choice of each head, `[batch, heads]`."""
    counts = choices.counts
    if len(set(counts)) == 1:
        apart = graph.cut(logits, begin, begin + sum(counts))
        apart = graph.reshape(apart, 0, len(counts), counts[0])
        best = graph.add("ArgMax", apart, axis=-1, keepdims=0)
    else:
        found = []
        for count in counts:
            part = graph.cut(logits, begin, begin + count)
            found.append(graph.add("ArgMax", part, axis=-1, keepdims=1))
            begin += count
        best = graph.add("Concat", *found, axis=-1)
    return graph.add("Add", best, graph.weight(choices.start.astype(np.int64)))


def _bound(graph: Graph, means: str, numbers: Numbers) -> str:
    """Scale or squash means and clip them, in double precision as `RowWriter` does."""
    found = graph.cast(means, np.float64)
    if numbers.squashed.any():
        found = graph.add("Where", graph.weight(numbers.squashed), graph.add("Tanh", found), found)
    if not numbers.plain:
        found = graph.add("Mul", found, graph.weight(numbers.scale))
        found = graph.add("Add", found, graph.weight(numbers.shift))
    found = graph.add("Max", found, graph.weight(numbers.low))
    return graph.add("Min", found, graph.weight(numbers.high))
