"""Write a policy as two files of freestanding C99, `policy.h` and `policy.c`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.writing import write_together
from fugu.export.c_forward import Forward, Plan
from fugu.export.c_quantize import Loss, as_steps, gather, measure, quantize, split
from fugu.export.c_text import (
    accessors,
    array,
    bare,
    functions_for,
    halves,
    literal,
    names,
    quoted,
    type_of,
    wrapped,
)
from fugu.export.engine import PolicyFacts
from fugu.nets.net import Net
from fugu.spaces import Leaf
from fugu.spaces.action_rows import Choices, Numbers
from fugu.spaces.action_sampler import ActionSampler

FACTS = "policy.json"
HEADER = """\
/* policy.h: a policy, written by fugu. Freestanding C99: no library, no allocation, no threads.

   An observation is a row of bytes, and so is an action; begin an observation with zeros and set
   its leaves, and get the leaves of an action. The state is the caller's, one for each agent;
   zeros begin an episode. Scratch memory is static: one call of fugu_policy_forward has to end
   before the next begins. */
#ifndef FUGU_POLICY_H
#define FUGU_POLICY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

"""
FUNCTIONS = """\
/* What to do, and what it is worth. The state is changed in place; pointers to what this policy has
   not (a state, critics) are not looked at. */
void fugu_policy_forward(const void* observation, float* state, float* params, float* values);

/* An action of the params that fugu_policy_forward gave.
   mask: which choices are allowed, one byte for each of all heads; NULL allows all. A head of which
   nothing is allowed takes its first choice.
   random: the state of a generator (SplitMix64), any number to begin with; NULL takes the most
   probable choices, the first of equals, and the means. */
void fugu_policy_act(const float* params, const unsigned char* mask, unsigned long long* random,
                     void* action);

static inline void fugu_policy_copy(void* to, const void* from, size_t size) {
    for (size_t i = 0; i < size; ++i)
        ((unsigned char*)to)[i] = ((const unsigned char*)from)[i];
}
"""
SOURCE = """\
/* policy.c: see policy.h. Compile it with -O3 and, where there is no C library, -ffreestanding. */
#if defined(__GNUC__) && !defined(__clang__)
/* Loops stay loops, not calls of memcpy, and those with comparisons become vectors. */
#pragma GCC optimize("no-tree-loop-distribute-patterns", "no-trapping-math")
#endif

#include "policy.h"
"""


@dataclass(frozen=True)
class CReport:
    """The files that were written.

    Attributes:
        loss: What int8 weights change on the observations that were not used for rounding; None
            if no observations were given, or if weights are float32.
    """

    header: Path  # The file `policy.h`
    source: Path  # The file `policy.c`
    scratch_bytes: int  # Static memory that is written to
    weight_bytes: int  # Size of the constants
    float_bytes: int  # Size of the constants with all weights as float32
    loss: Loss | None = None

    def __str__(self) -> str:
        text = f"{self.source} and {self.header.name}: {self.weight_bytes:,} bytes of constants"
        if self.weight_bytes < self.float_bytes:
            text += f" ({self.float_bytes:,} with weights as float32)"
        text += f", {self.scratch_bytes:,} bytes of static memory"
        return text if self.loss is None else f"{text}\n{self.loss_text}"

    @property
    def loss_text(self) -> str:
        """What int8 weights change, in one line; empty if that was not measured."""
        if self.loss is None:
            return ""
        return (
            f"int8 weights: {100 * self.loss.agreement:.2f} % equal greedy actions on "
            f"{self.loss.observations:,} observations, params within {self.loss.largest_error:.2g}"
        )


def write_c(
    net: Net, folder: str | Path, *, int8: bool = False, observations: NDArray[Any] | None = None
) -> CReport:
    """Write a policy as C; `policy.json` beside it describes its rows.

    Args:
        net: The policy.
        folder: A folder, which is made if it is missing.
        int8: Store the weights of products and tables as int8, with one scale for each output.
        observations: Typical observations, for int8: rows as their layout packs them,
            `[count, size]`, or `[steps, batch, size]` for a recurrent policy. One half fits the
            rounding, the other measures what is lost; use 2,000 or more.

    Raises:
        UsageError: If the policy has weights that are not finite.
    """
    quantized, loss, place = None, None, Path(folder)
    if int8 and observations is None:
        quantized = quantize(net)
    elif int8 and observations is not None:
        fitted, measured = split(as_steps(net, observations))
        quantized = quantize(net, gather(net, fitted))
        loss = measure(net, quantized.net, measured)
    parts = None if quantized is None else quantized.parts
    forward = Forward(net if quantized is None else quantized.net, parts)
    act = ActionWriter(net)
    weight_bytes = forward.bytes + act.bytes
    report = CReport(
        place / "policy.h",
        place / "policy.c",
        4 * forward.plan.scratch,
        weight_bytes,
        weight_bytes + sum(part.saved for part in (parts or {}).values()),
        loss,
    )
    facts = PolicyFacts.of(net)
    place.mkdir(parents=True, exist_ok=True)
    write_together(
        {
            report.header: _header(net, facts, report),
            report.source: _source(forward, act),
            place / FACTS: facts.to_json() + "\n",
        }
    )
    return report


def _header(net: Net, facts: PolicyFacts, report: CReport) -> str:
    observation, state, params, critics, choices, action = facts.sizes
    sizes = {
        "OBSERVATION_BYTES": (observation, ""),
        "STATE": (state, "floats"),
        "PARAMS": (params, "floats"),
        "CRITICS": (critics, "floats"),
        "CHOICES": (choices, "bytes of a mask"),
        "ACTION_BYTES": (action, ""),
        "SCRATCH_BYTES": (report.scratch_bytes, "static memory that is written to"),
        "WEIGHT_BYTES": (report.weight_bytes, "constants"),
    }
    lines = [
        f"#define FUGU_POLICY_{name} {size}" + (f" /* {note} */" if note else "")
        for name, (size, note) in sizes.items()
    ]
    parts = [
        HEADER + "\n".join(lines) + "\n",
        FUNCTIONS,
        halves(net.observation, net.action),
        accessors(net.observation, "observation"),
        accessors(net.action, "action"),
        "#ifdef __cplusplus\n}\n#endif\n\n#endif\n",
    ]
    return "\n".join(part for part in parts if part)


def _source(forward: Forward, act: ActionWriter) -> str:
    running, choosing = _forward(forward), _act(act)
    functions = functions_for(running + choosing)
    parts = [SOURCE]
    if "Weight" in functions:
        parts.append(f"typedef {forward.weight_type} Weight; /* of products and tables */\n")
    parts += [functions, *forward.constants, *act.constants]
    if forward.plan.scratch:
        parts.append("static float scratch[FUGU_POLICY_SCRATCH_BYTES / sizeof(float)];\n")
    return "\n".join([*parts, running, choosing])


def _forward(forward: Forward) -> str:
    calls = "\n".join(wrapped(call) for call in forward.calls)
    given = "const void* observation, float* state, float* params, float* values"
    reading = ["const unsigned char* row = observation;"] if _uses(calls, "row") else []
    lines = [*reading, *_pointers(forward.plan, calls)]
    unused = _unused("\n".join([*lines, calls]), "observation", "state", "params", "values")
    return _function(f"void fugu_policy_forward({given})", [*unused, *lines], calls)


def _act(act: ActionWriter) -> str:
    body = "\n".join(wrapped(line) for line in act.lines)
    given = (
        "const float* params, const unsigned char* mask, unsigned long long* random, void* action"
    )
    rows = ["unsigned char* row = action;"] if _uses(body, "row") else []
    unused = _unused("\n".join([*rows, body]), "params", "mask", "random", "action")
    return _function(f"void fugu_policy_act({given})", [*unused, *rows], body)


def _pointers(plan: Plan, calls: str) -> list[str]:
    """Name the scratch memory of each value that is used."""
    lines = []
    for buffer in plan.buffers.values():
        if _uses(calls, buffer.name):
            at = f"scratch + {buffer.offset}" if buffer.offset else "scratch"
            shape = "".join(f"[{side}]" for side in buffer.shape)
            lines.append(f"float* const {buffer.name} = {at}; /* {shape} */")
    return lines


def _uses(code: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", bare(code)) is not None


def _unused(code: str, *names: str) -> list[str]:
    return [f"(void){name};" for name in names if not _uses(code, name)]


def _function(head: str, lines: list[str], body: str) -> str:
    first = "".join(f"    {line}\n" for line in lines)
    gap = "\n" if first and body else ""
    return f"{wrapped(head + ' {', 0)}\n{first}{gap}{body}\n}}\n"


class ActionWriter:
    """Writes `fugu_policy_act`: discrete leaves first, in the order of their random numbers."""

    def __init__(self, net: Net) -> None:
        self._sampler = ActionSampler(net.action, net.continuous)
        self.constants: list[str] = []
        self.lines: list[str] = []
        self.bytes = 0
        leaves = net.action.leaves
        found = names([leaf.path for leaf in leaves], "")
        self._names = {
            leaf.path: f"action_{name}" if name else "action"
            for leaf, name in zip(leaves, found, strict=True)
        }
        writer, layout = self._sampler.writer, net.action
        if sum(leaf.nbytes for leaf in layout.leaves) < layout.nbytes:
            self.lines += [f"for (int i = 0; i < {layout.nbytes}; ++i)", "    row[i] = 0;"]
        first = 0
        for choices in writer.choices:
            self._choose(choices, first)
            first += sum(choices.counts)
        for numbers in writer.numbers:
            self._sample(numbers, first)
            first += len(numbers.low)

    def _constant(self, ctype: str, name: str, numbers: NDArray[Any]) -> str:
        """Return number i in C: an element of a new array, or a literal if all are equal."""
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
        count = self._constant("int", f"{name}_choices", np.array(choices.counts))
        start = self._constant(kind, f"{name}_start", choices.start)
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
            f"    fugu_policy_copy({_address(leaf, heads)}, &value, sizeof(value));",
            "}",
        ]

    def _sample(self, numbers: Numbers, mean: int) -> None:
        leaf, dims = numbers.leaf, len(numbers.low)
        if not dims:
            return
        name, kind = self._names[leaf.path], type_of(leaf.dtype)
        ctype = "double" if kind == "double" else "float"
        low = self._constant(ctype, f"{name}_low", numbers.low)
        high = self._constant(ctype, f"{name}_high", numbers.high)
        log_std = mean + self._sampler.num_continuous
        self.lines += [
            f"/* {_title(leaf)}{dims} numbers */",
            f"for (int i = 0; i < {dims}; ++i) {{",
            f"    const float x = normal(params[{mean} + i], params[{log_std} + i], random);",
        ]
        value = self._value(numbers, name, ctype)
        cut = "within_double" if ctype == "double" else "within"
        self.lines.append(f"    const {ctype} value = {cut}({value}, {low}, {high});")
        put = "fugu_policy_put_halves" if kind == "half" else "fugu_policy_copy"
        count = "1" if kind == "half" else "sizeof(value)"
        self.lines += [f"    {put}({_address(leaf, dims)}, &value, {count});", "}"]

    def _value(self, numbers: Numbers, name: str, ctype: str) -> str:
        """Return the C expression of the action that sample x stands for, before it is clipped."""
        if numbers.plain:
            return "x"
        shift = self._constant(ctype, f"{name}_shift", numbers.shift)
        scale = self._constant(ctype, f"{name}_scale", numbers.scale)
        value = "x"
        if numbers.squashed.any():
            squashed = self._constant("int", f"{name}_squashed", numbers.squashed.astype(np.int32))
            value = "tanh_of(x)" if numbers.squashed.all() else f"({squashed} ? tanh_of(x) : x)"
        cast = "(double)" if ctype == "double" else ""
        return f"{shift} + {scale} * {cast}{value}"


def _title(leaf: Leaf) -> str:
    return f"{quoted(leaf.path)}: " if leaf.path else ""


def _address(leaf: Leaf, count: int) -> str:
    """Return the address of number i of so many."""
    begin = f"row + {leaf.offset}" if leaf.offset else "row"
    return begin if count == 1 else f"{begin} + {leaf.dtype.itemsize} * i"
