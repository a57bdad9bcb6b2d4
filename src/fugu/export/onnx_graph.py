"""Graphs of ONNX, node by node."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError

try:
    import onnx
    from onnx import helper, numpy_helper
except ModuleNotFoundError as error:
    raise MissingExtraError("onnx", "export") from error

OPSET, IR_VERSION = 17, 8  # old enough for most that read such files today
BATCH = "batch"


class Graph:
    """Nodes, weights, inputs and outputs; methods give the names of what they add."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._known: dict[Any, str] = {}

    def add(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A node with one output."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def weight(self, array: NDArray[Any], name: str = "") -> str:
        """Numbers that are always the same; small ones are kept once."""
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
        """One number."""
        return self.weight(np.array(number, dtype))

    def ints(self, *numbers: int) -> str:
        """A list of integers, as for shapes."""
        return self.weight(np.array(numbers, np.int64))

    def input(self, name: str, dtype: Any, shape: Sequence[int], says: str) -> str:
        """What is given, `[batch, *shape]`."""
        self.inputs.append(_info(name, dtype, shape, says))
        return name

    def output(self, name: str, value: str, dtype: Any, shape: Sequence[int], says: str) -> None:
        """What is given back, `[batch, *shape]`."""
        self.add("Identity", value, name=name)
        self.outputs.append(_info(name, dtype, shape, says))

    def cast(self, value: str, dtype: Any) -> str:
        """Numbers of another type."""
        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshape(self, value: str, *shape: int) -> str:
        """The same numbers in another shape; 0 keeps a side, -1 is what is left."""
        return self.add("Reshape", value, self.ints(*shape))

    def cut(self, value: str, begin: int, end: int) -> str:
        """Columns."""
        return self.add("Slice", value, self.ints(begin), self.ints(end), self.ints(-1))

    def model(self, name: str, version: str, metadata: dict[str, str]) -> onnx.ModelProto:
        """All of it."""
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.weights)
        made = helper.make_model(
            graph,
            producer_name="fugu",
            producer_version=version,
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        helper.set_model_props(made, metadata)
        return made


def _info(name: str, dtype: Any, shape: Sequence[int], says: str) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, [BATCH, *shape], says)


def save(model: onnx.ModelProto, path: Path, weights: Path | None) -> None:
    """Write a model, checked, whole or not at all; its weights into a file beside it, if named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=path.parent) as folder:
        fresh = Path(folder) / path.name
        if weights is None:
            onnx.save(model, fresh)
        else:
            options: Any = {"location": weights.name, "size_threshold": 1024}
            onnx.save(model, fresh, save_as_external_data=True, **options)
        onnx.checker.check_model(str(fresh), full_check=True)
        if weights is not None:
            os.replace(fresh.with_name(weights.name), weights)
        os.replace(fresh, path)
