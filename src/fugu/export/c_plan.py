"""Where the values of a network stand while written C runs: as few copies, as little memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fugu.nets import net as ops
from fugu.nets.net import Net, Operation

ALIGNMENT = 4  # floats
# These may write over one of the values that they take.
OVERWRITING = (ops.Scale, ops.Apply, ops.Combine, ops.Blend, ops.Keep, ops.Normalise)


@dataclass(frozen=True)
class Spot:
    """Numbers that stand side by side in an array, as C says it: `linear_1 + 16`."""

    array: str
    begin: int
    size: int

    def __str__(self) -> str:
        return f"{self.array} + {self.begin}" if self.begin else self.array

    def part(self, begin: int, size: int) -> Spot:
        """Some of them."""
        return Spot(self.array, self.begin + begin, size)

    def overlaps(self, other: Spot) -> bool:
        """Whether they share a number."""
        before = self.begin + self.size <= other.begin or other.begin + other.size <= self.begin
        return self.array == other.array and not before


@dataclass
class Buffer:
    """Scratch memory of values, from the operation that begins it to the last that reads it."""

    name: str
    shape: tuple[int, ...]
    first: int
    last: int
    place: int = 0

    @property
    def size(self) -> int:
        """Floats."""
        size = 1
        for side in self.shape:
            size *= side
        return size


@dataclass(frozen=True)
class Step:
    """An operation to be run.

    Attributes:
        number: Of the operation.
        name: Of its constants.
        operation: What is done.
        out: Where its value goes.
        inputs: What it takes, in the operation's order.
        over: Which input the value is written over; None: into memory of its own.
        work: Memory that it needs meanwhile.
    """

    number: int
    name: str
    operation: Operation
    out: Spot
    inputs: tuple[Spot, ...]
    over: int | None
    work: tuple[Spot, ...] = ()


@dataclass
class Plan:
    """All steps in order, and where everything is.

    Attributes:
        steps: Without operations that only look at a value in another way.
        buffers: In the order in which they are begun.
        spots: Of each value that something reads.
        names: Of each operation.
    """

    steps: list[Step] = field(default_factory=list)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    spots: dict[int, Spot] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    @property
    def scratch(self) -> int:
        """Floats of scratch memory."""
        return max((buffer.place + buffer.size for buffer in self.buffers.values()), default=0)


@dataclass(frozen=True)
class Reading:
    """An operation, by its number, reads some of the numbers of a value."""

    by: int
    begin: int
    size: int


def make_plan(net: Net) -> Plan:
    """Lay a network's values out."""
    return Planner(net).run()


class Planner:
    """Goes through the operations once, and knows who reads what afterwards."""

    def __init__(self, net: Net) -> None:
        self.net, self.plan = net, Plan(names=_names(net))
        self.readings = _readings(net)

    def run(self) -> Plan:
        """The plan."""
        for number, op in enumerate(self.net.operations):
            if self.readings[number]:
                self._place(number, op)
        _allocate(list(self.plan.buffers.values()))
        return self.plan

    def _place(self, number: int, op: Operation) -> None:
        plan, size = self.plan, op.rows * op.width
        match op:
            case _ if not size:
                plan.spots[number] = self._buffer(plan.names[number], (0,), number, number)
            case ops.State():
                plan.spots[number] = Spot("state", op.begin, size)
            case ops.Constant():
                plan.spots[number] = Spot(plan.names[number], 0, size)
                out = plan.spots[number]
                plan.steps.append(Step(number, plan.names[number], op, out, (), None))
            case ops.Reshape() | ops.Cut() if _is_view(op):
                plan.spots[number] = plan.spots[op.inputs[0]].part(_view_begin(op), size)
            case _:
                self._run(number, op)

    def _run(self, number: int, op: Operation) -> None:
        plan, name = self.plan, self.plan.names[number]
        inputs = tuple(plan.spots[i] for i in op.inputs)
        over = self._overwritten(number, op, inputs)
        if over is None:
            work = tuple(self._buffer(*part, number, number) for part in _workspaces(name, op))
            out = self._buffer(name, (op.rows, op.width), number, number)
        else:
            work, out = (), inputs[over]
        for spot in (*inputs, *work):
            if spot.array in plan.buffers:
                plan.buffers[spot.array].last = max(plan.buffers[spot.array].last, number)
        plan.spots[number] = out
        last = max(reading.by for reading in self.readings[number])
        plan.buffers[out.array].last = max(plan.buffers[out.array].last, last)
        plan.steps.append(Step(number, name, op, out, inputs, over, work))

    def _buffer(self, name: str, shape: tuple[int, ...], first: int, last: int) -> Spot:
        self.plan.buffers[name] = buffer = Buffer(name, shape, first, last)
        return Spot(name, 0, buffer.size)

    def _overwritten(self, number: int, op: Operation, inputs: tuple[Spot, ...]) -> int | None:
        """The input that nobody needs any more and that the value may be written over."""
        if not isinstance(op, OVERWRITING):
            return None
        for i in range(2 if isinstance(op, ops.Combine) else 1):
            others = (*inputs[:i], *inputs[i + 1 :])
            if inputs[i].array not in self.plan.buffers:
                continue
            if any(inputs[i].overlaps(other) for other in others):
                continue
            if not self._is_needed(inputs[i], number):
                return i
        return None

    def _is_needed(self, spot: Spot, number: int) -> bool:
        """Whether an operation after this one reads any of these numbers."""
        for value, there in self.plan.spots.items():
            if not there.overlaps(spot):
                continue
            for reading in self.readings[value]:
                part = there.part(reading.begin, reading.size)
                if reading.by > number and part.overlaps(spot):
                    return True
        return False


def _is_view(op: Operation) -> bool:
    return isinstance(op, ops.Reshape) or (isinstance(op, ops.Cut) and op.rows == 1)


def _view_begin(op: Operation) -> int:
    return op.begin if isinstance(op, ops.Cut) else 0


def _names(net: Net) -> list[str]:
    """`linear_1`, `linear_2` and so on."""
    counts: Counter[str] = Counter()
    names = []
    for op in net.operations:
        kind = type(op).__name__.lower()
        counts[kind] += 1
        names.append(f"{kind}_{counts[kind]}")
    return names


def _readings(net: Net) -> list[list[Reading]]:
    """Who reads each value, also through views of it; outputs are read when all is done."""
    end = len(net.operations)
    found: list[list[Reading]] = [[] for _ in range(end)]
    for output in (net.params, net.values, net.state):
        if output is not None:
            rows, width = net.shape(output)
            found[output].append(Reading(end, 0, rows * width))
    for number in range(end - 1, -1, -1):
        op = net.operations[number]
        for i in op.inputs if found[number] else ():
            rows, width = net.shape(i)
            if _is_view(op):
                begin = _view_begin(op)
                found[i] += [Reading(r.by, begin + r.begin, r.size) for r in found[number]]
            else:
                found[i].append(Reading(number, 0, rows * width))
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
    """Give each the lowest place that is free for as long as it is needed."""
    placed: list[Buffer] = []
    for buffer in buffers:
        place = 0
        for other in sorted(placed, key=lambda other: other.place):
            apart = other.last < buffer.first or buffer.last < other.first
            if not apart and other.place < place + buffer.size:
                place = max(place, -(-(other.place + other.size) // ALIGNMENT) * ALIGNMENT)
        buffer.place = place
        placed.append(buffer)
