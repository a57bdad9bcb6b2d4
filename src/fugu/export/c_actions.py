"""`fugu_policy_act` in C: an action of the params of its distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.export.c_text import array, literal, names, quoted, type_of
from fugu.nets.net import Net
from fugu.spaces import Leaf
from fugu.spaces.action_sampler import ActionSampler, Choices, Numbers


class Acting:
    """Writes how actions are chosen: discrete leaves first, as their random numbers are drawn.

    Attributes:
        sampler: What is written.
        constants: C arrays.
        lines: The function's body.
        bytes: Of the constants.
    """

    def __init__(self, net: Net) -> None:
        self.sampler = ActionSampler(net.action, net.continuous)
        self.constants: list[str] = []
        self.lines: list[str] = []
        self.bytes = 0
        leaves = net.action.leaves
        found = names([leaf.path for leaf in leaves], "")
        self._names = {
            leaf.path: f"action_{name}" if name else "action"
            for leaf, name in zip(leaves, found, strict=True)
        }
        writer, layout = self.sampler.writer, net.action
        if sum(leaf.nbytes for leaf in layout.leaves) < layout.nbytes:
            self.lines += [f"for (int i = 0; i < {layout.nbytes}; ++i)", "    row[i] = 0;"]
        first = 0
        for choices in writer.choices:
            self._choose(choices, first)
            first += sum(choices.counts)
        for numbers in writer.numbers:
            self._draw(numbers, first)
            first += len(numbers.low)

    def _columns(self, ctype: str, name: str, numbers: NDArray[Any]) -> str:
        """The number of column i in C: an element of a new array, or a literal if all are alike."""
        if np.unique(numbers).size == 1:
            return literal(numbers.reshape(-1)[0], ctype)
        self.constants.append(array(ctype, name, numbers))
        self.bytes += numbers.size * {"int": 4, "float": 4}.get(ctype, numbers.dtype.itemsize)
        return f"{name}[i]"

    def _choose(self, choices: Choices, first: int) -> None:
        leaf, heads = choices.leaf, len(choices.counts)
        if not heads:
            return
        name, kind = self._names[leaf.path], type_of(leaf.dtype)
        count = self._columns("int", f"{name}_choices", np.array(choices.counts))
        start = self._columns(kind, f"{name}_start", choices.start)
        value = f"({kind})chosen" if start == "0" else f"({kind})({start} + ({kind})chosen)"
        if heads == 1:
            begin = [f"{{ /* {_title(leaf)}1 of {count} */"]
            logits, allowed = ("params", "mask")
            if first:
                logits, allowed = f"params + {first}", f"mask ? mask + {first} : mask"
        else:
            begin = [
                f"/* {_title(leaf)}{heads} heads */",
                f"for (int i = 0, first = {first}; i < {heads}; first += {count}, ++i) {{",
            ]
            logits, allowed = "params + first", "mask ? mask + first : mask"
        self.lines += [
            *begin,
            f"    const int chosen = choose({logits}, {allowed}, {count}, random);",
            f"    const {kind} value = {value};",
            f"    fugu_policy_copy({_place(leaf, heads)}, &value, sizeof(value));",
            "}",
        ]

    def _draw(self, numbers: Numbers, mean: int) -> None:
        leaf, dims = numbers.leaf, len(numbers.low)
        if not dims:
            return
        name, kind = self._names[leaf.path], type_of(leaf.dtype)
        ctype = "double" if kind == "double" else "float"
        low = self._columns(ctype, f"{name}_low", numbers.low)
        high = self._columns(ctype, f"{name}_high", numbers.high)
        spread = mean + self.sampler.num_continuous
        self.lines += [
            f"/* {_title(leaf)}{dims} numbers */",
            f"for (int i = 0; i < {dims}; ++i) {{",
            f"    const float x = normal(params[{mean} + i], params[{spread} + i], random);",
        ]
        value = self._value(numbers, name, ctype)
        cut = "within_double" if ctype == "double" else "within"
        self.lines.append(f"    const {ctype} value = {cut}({value}, {low}, {high});")
        put = "fugu_policy_put_halves" if kind == "half" else "fugu_policy_copy"
        count = "1" if kind == "half" else "sizeof(value)"
        self.lines += [f"    {put}({_place(leaf, dims)}, &value, {count});", "}"]

    def _value(self, numbers: Numbers, name: str, ctype: str) -> str:
        """Return the C expression of the action that sample x stands for, before it is clipped."""
        if numbers.plain:
            return "x"
        shift = self._columns(ctype, f"{name}_shift", numbers.shift)
        scale = self._columns(ctype, f"{name}_scale", numbers.scale)
        value = "x"
        if numbers.squashed.any():
            squashed = self._columns("int", f"{name}_squashed", numbers.squashed.astype(np.int32))
            value = "tanh_of(x)" if numbers.squashed.all() else f"({squashed} ? tanh_of(x) : x)"
        cast = "(double)" if ctype == "double" else ""
        return f"{shift} + {scale} * {cast}{value}"


def _title(leaf: Leaf) -> str:
    return f"{quoted(leaf.path)}: " if leaf.path else ""


def _place(leaf: Leaf, count: int) -> str:
    """Where number i of so many stands."""
    begin = f"row + {leaf.offset}" if leaf.offset else "row"
    return begin if count == 1 else f"{begin} + {leaf.dtype.itemsize} * i"
