"""A network as a list of operations on small tables of float32 numbers, for one observation.

Every engine (NumPy, native, ONNX, JAX, written C) runs these operations, which `fugu.nets.reading`
makes of a policy. A value is a table `[rows, width]`: one row for most, several where an
observation holds several items. Operations refer to their inputs by index in the list; all weights
are float32, row-major.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fugu.spaces import Layout
from fugu.spaces.action_rows import Continuous

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Function = Literal["relu", "gelu", "silu", "tanh", "sigmoid", "symlog", "mingru", "finite"]


@dataclass(frozen=True)
class Operation:
    """The base class: rows and width of the value, and the indices of its inputs."""

    rows: int
    width: int
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Contiguous numbers in the row of an observation, from byte `offset` on."""

    offset: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Read(Operation):
    """Numbers of the observation."""

    place: Place


@dataclass(frozen=True)
class OneHot(Operation):
    """Integers of the observation, each one-hot: `counts[i]` numbers for column i.

    An integer counts from `start[i]`; out of bounds it counts as the nearest.
    """

    place: Place
    start: Ints
    counts: Ints


@dataclass(frozen=True)
class Embed(Operation):
    """Integers of the observation, each a row of the table: that of column i from `offsets[i]`."""

    place: Place
    start: Ints
    counts: Ints
    offsets: Ints
    table: Floats


@dataclass(frozen=True)
class State(Operation):
    """Numbers of the previous state, from `begin` on."""

    begin: int


@dataclass(frozen=True)
class Constant(Operation):
    """Constant numbers, `[rows, width]`."""

    numbers: Floats


@dataclass(frozen=True)
class Scale(Operation):
    """`(x - shift) / divisor` column by column, clipped to -most and most."""

    shift: Floats
    divisor: Floats
    most: float


@dataclass(frozen=True)
class Linear(Operation):
    """`x @ weight.T + bias` for every row; the weight is `[width, inputs]`."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True)
class Apply(Operation):
    """A function of each number.

    gelu is the exact one; silu is `x sigmoid(x)`; symlog is `sign(x) log(1 + |x|)`; mingru is
    `x + 1/2` from 0 on and `sigmoid(x)` below; finite replaces NaN and infinities by 0.
    """

    function: Function


@dataclass(frozen=True)
class Combine(Operation):
    """Two values of one shape, number by number."""

    function: Literal["add", "multiply"]


@dataclass(frozen=True)
class Blend(Operation):
    """`a + weight * (b - a)` of three values `a, b, weight` of one shape."""


@dataclass(frozen=True)
class Join(Operation):
    """Values with equally many rows, side by side."""


@dataclass(frozen=True)
class Cut(Operation):
    """Columns from `begin` on."""

    begin: int


@dataclass(frozen=True)
class Reshape(Operation):
    """The same numbers in another shape."""


@dataclass(frozen=True)
class Permute(Operation):
    """Each row as an array of this shape, its axes permuted."""

    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Convolve(Operation):
    """A convolution of images `[channels, height, width]`, padded with zeros."""

    image: tuple[int, int, int]  # Channels, height and width of the input
    out: tuple[int, int, int]  # The same of the output
    weight: Floats  # `[out channels, channels, kernel, kernel]`
    bias: Floats
    stride: int
    padding: int


@dataclass(frozen=True)
class Pool(Operation):
    """Max pooling; padding is ignored."""

    image: tuple[int, int, int]
    out: tuple[int, int, int]
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class Keep(Operation):
    """Rows of the first value where the second one, of one column, is above 0; zeros elsewhere."""


@dataclass(frozen=True)
class Reduce(Operation):
    """Each `count` consecutive rows, reduced to one."""

    function: Literal["sum", "mean", "largest"]
    count: int


@dataclass(frozen=True)
class Normalise(Operation):
    """A layer norm of each row."""

    weight: Floats
    bias: Floats
    epsilon: float


@dataclass(frozen=True)
class Attend(Operation):
    """One query `[1, width]` over keys and values `[places, width]`, in heads side by side.

    The fourth input is the number of last places that count. `bias[head, age]` is added to a score,
    the last place having age 0; scores are divided by the root of a head's width.
    """

    heads: int
    bias: Floats


@dataclass(frozen=True)
class Recur(Operation):
    """A recurrent cell, of gates that were computed of the inputs.

    Networks that learn have it in place of the operations of one step: it runs whole segments, and
    writes states itself, from `begin` on. A MinGRU has no weights here.
    """

    cell: Literal["lstm", "gru", "mingru"]
    begin: int
    weight: Floats
    bias: Floats


Op = TypeVar("Op", bound=Operation)


@dataclass
class Net:
    """A policy as operations on an observation and a state.

    Attributes:
        operations: Operations in order; their inputs precede them.
    """

    observation: Layout  # Layout of an observation
    action: Layout  # Layout of an action
    continuous: Continuous  # How continuous actions are kept within their bounds; see `RowWriter`
    state_size: int  # Numbers of the state
    operations: list[Operation] = field(default_factory=list)
    params: int = -1  # The value with the params of the actions' distribution, one row
    values: int | None = None  # The value with the critics' values, one row; None without critics
    state: int | None = None  # The value with the next state, one row; None without memory

    def add(self, kind: type[Op], rows: int, width: int, *inputs: int, **parts: Any) -> int:
        """Add an operation; return the index of its value."""
        for name, part in parts.items():
            if isinstance(part, np.ndarray):
                parts[name] = np.ascontiguousarray(part)
        self.operations.append(kind(rows, width, inputs, **parts))
        return len(self.operations) - 1

    def shape(self, value: int) -> tuple[int, int]:
        """Return rows and width of a value."""
        operation = self.operations[value]
        return operation.rows, operation.width

    @property
    def num_weights(self) -> int:
        """The number of float32 weights."""
        parts = (part for op in self.operations for part in vars(op).values())
        return sum(p.size for p in parts if isinstance(p, np.ndarray) and p.dtype == np.float32)
