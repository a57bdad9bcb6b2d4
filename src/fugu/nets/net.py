"""A network as a list of operations on small tables of float32 numbers, one list an observation.

Every engine (NumPy, the native one, ONNX, JAX, written C) knows these operations and nothing else,
so that a policy is taken apart once, in `fugu.nets.reading`. A value is a table `[rows, width]`:
one row for most, one for each item where an observation holds several. Operations name the values
that they take by their place in the list; all weights are float32, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fugu.spaces import Layout
from fugu.spaces.action_sampler import Continuous

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Function = Literal["relu", "gelu", "silu", "tanh", "sigmoid", "symlog", "mingru", "finite"]


@dataclass(frozen=True)
class Operation:
    """What all have.

    Attributes:
        rows: Of the value that it gives.
        width: Numbers of each row.
        inputs: The values that it takes.
    """

    rows: int
    width: int
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Numbers in the row of an observation, side by side from a byte on."""

    offset: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Read(Operation):
    """Numbers of the observation, as they are."""

    place: Place


@dataclass(frozen=True)
class OneHot(Operation):
    """Integers of the observation, each one-hot: `counts[i]` numbers for column i.

    An integer counts from `start[i]`; one that is out of bounds is taken for the nearest.
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
    """Numbers of the state before, from `begin` on."""

    begin: int


@dataclass(frozen=True)
class Constant(Operation):
    """Always the same, `[rows, width]`."""

    numbers: Floats


@dataclass(frozen=True)
class Scale(Operation):
    """`(x - shift) / divisor` column by column, cut off at `most` either way."""

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
    `x + 1/2` from 0 on and `sigmoid(x)` below; finite puts 0 in place of what is no finite number.
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
    """The same numbers in the same order, in another shape."""


@dataclass(frozen=True)
class Permute(Operation):
    """The numbers of each row as an array of this shape, its axes put in this order."""

    shape: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class Convolve(Operation):
    """A convolution of images `[channels, height, width]`, padded with zeros.

    Attributes:
        image: Channels, height and width of what it takes.
        out: The same of what it gives.
        weight: `[out channels, channels, kernel, kernel]`
    """

    image: tuple[int, int, int]
    out: tuple[int, int, int]
    weight: Floats
    bias: Floats
    stride: int
    padding: int


@dataclass(frozen=True)
class Pool(Operation):
    """The largest number of each window; padding counts for nothing."""

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
    """Rows that follow each other, as many as `count`, made one."""

    function: Literal["sum", "mean", "largest"]
    count: int


@dataclass(frozen=True)
class Normalise(Operation):
    """Each row with mean 0 and variance 1, then `weight * x + bias`: a layer norm."""

    weight: Floats
    bias: Floats
    epsilon: float


@dataclass(frozen=True)
class Attend(Operation):
    """One query `[1, width]` over keys and values `[places, width]`, in heads side by side.

    The fourth input is how many of the last places count. `bias[head, age]` is added to a score,
    the last place having age 0; scores are divided by the root of a head's width.
    """

    heads: int
    bias: Floats


@dataclass(frozen=True)
class Recur(Operation):
    """What is remembered, of gates that the weights made of the inputs.

    Networks that learn have it in place of the operations that one step is made of: it serves
    whole segments, and writes states itself, from `begin` on. A MinGRU has no weights here.
    """

    cell: Literal["lstm", "gru", "mingru"]
    begin: int
    weight: Floats
    bias: Floats


Op = TypeVar("Op", bound=Operation)


@dataclass
class Net:
    """A policy: what its observations and state lead to.

    Attributes:
        observation: Layout of an observation.
        action: Layout of an action.
        continuous: How continuous actions come within their bounds; see `RowWriter`.
        state_size: Numbers of the state.
        operations: In order; each takes values of those before it.
        params: Of the actions' distribution, a value of one row.
        values: What critics say, a value of one row; None if there are none.
        state: The state afterwards, a value of one row; None if nothing is remembered.
    """

    observation: Layout
    action: Layout
    continuous: Continuous
    state_size: int
    operations: list[Operation] = field(default_factory=list)
    params: int = -1
    values: int | None = None
    state: int | None = None

    def add(self, kind: type[Op], rows: int, width: int, *inputs: int, **parts: Any) -> int:
        """Add an operation; the place of its value."""
        for name, part in parts.items():
            if isinstance(part, np.ndarray):
                parts[name] = np.ascontiguousarray(part)
        self.operations.append(kind(rows, width, inputs, **parts))
        return len(self.operations) - 1

    def shape(self, value: int) -> tuple[int, int]:
        """Rows and width of a value."""
        operation = self.operations[value]
        return operation.rows, operation.width

    @property
    def num_weights(self) -> int:
        """Learned numbers."""
        parts = (part for op in self.operations for part in vars(op).values())
        return sum(p.size for p in parts if isinstance(p, np.ndarray) and p.dtype == np.float32)
