"""A policy as two files of freestanding C99, `policy.h` and `policy.c`, that need nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fugu.core.writing import write_together
from fugu.export.c_actions import Acting
from fugu.export.c_forward import Forward
from fugu.export.c_loss import Loss, as_steps, measure, split
from fugu.export.c_plan import Plan
from fugu.export.c_quantise import Quantised, gather, quantise
from fugu.export.c_rows import getters, halves, setters
from fugu.export.c_text import bare, functions_for, wrapped
from fugu.export.engine import PolicyFacts
from fugu.nets.net import Net

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
    """What was written.

    Attributes:
        header: The file `policy.h`.
        source: The file `policy.c`.
        scratch_bytes: Static memory that is written to.
        weight_bytes: Of the constants.
        float_bytes: What they would be with all weights as float32.
        loss: What int8 weights change on those observations that did not help to round them;
            None if none were given, or if weights are float32.
    """

    header: Path
    source: Path
    scratch_bytes: int
    weight_bytes: int
    float_bytes: int
    loss: Loss | None = None

    def __str__(self) -> str:
        told = f"{self.source} and {self.header.name}: {self.weight_bytes:,} bytes of constants"
        if self.weight_bytes < self.float_bytes:
            told += f" ({self.float_bytes:,} with weights as float32)"
        told += f", {self.scratch_bytes:,} bytes of static memory"
        if self.loss is None:
            return told
        return (
            f"{told}\nint8 weights: {100 * self.loss.agreement:.2f} % equal greedy actions on "
            f"{self.loss.observations:,} observations, params within {self.loss.largest_error:.2g}"
        )


def write_c(
    net: Net, folder: str | Path, *, int8: bool = False, observations: NDArray[Any] | None = None
) -> CReport:
    """Write a policy as C; `policy.json` beside it says what its rows mean.

    Args:
        net: The policy.
        folder: Where the files are put; it is made if it is missing.
        int8: Keep the weights of products and tables as int8, with one scale for each output.
        observations: What the policy meets, for int8: rows as their layout packs them,
            `[count, size]`, or `[steps, batch, size]` for a policy that remembers. One half says
            how weights are rounded best, the other what is lost; 2,000 and more are good.

    Raises:
        UsageError: If the policy has weights that are not finite.
    """
    written, rounded, loss = net, None, None
    if int8:
        quantised, loss = _quantise(net, observations)
        written, rounded = quantised.net, quantised.parts
    forward, acting = Forward(written, rounded), Acting(net)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    report = CReport(
        place / "policy.h",
        place / "policy.c",
        4 * forward.plan.scratch,
        forward.bytes + acting.bytes,
        forward.bytes + acting.bytes + sum(part.saved for part in (rounded or {}).values()),
        loss,
    )
    write_together(
        {
            report.header: _header(net, acting, report),
            report.source: _source(forward, acting),
            place / FACTS: PolicyFacts.of(net).to_json() + "\n",
        }
    )
    return report


def _quantise(net: Net, observations: NDArray[Any] | None) -> tuple[Quantised, Loss | None]:
    if observations is None:
        return quantise(net), None
    known, unknown = split(as_steps(net, observations))
    quantised = quantise(net, gather(net, known))
    return quantised, measure(net, quantised.net, unknown)


def _header(net: Net, acting: Acting, report: CReport) -> str:
    sizes = {
        "OBSERVATION_BYTES": (net.observation.nbytes, ""),
        "STATE": (net.state_size, "floats"),
        "PARAMS": (acting.sampler.num_params, "floats"),
        "CRITICS": (PolicyFacts.of(net).num_critics, "floats"),
        "CHOICES": (acting.sampler.num_choices, "bytes of a mask"),
        "ACTION_BYTES": (net.action.nbytes, ""),
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
        setters(net.observation),
        getters(net.action),
        "#ifdef __cplusplus\n}\n#endif\n\n#endif\n",
    ]
    return "\n".join(part for part in parts if part)


def _source(forward: Forward, acting: Acting) -> str:
    running, choosing = _forward(forward), _act(acting)
    functions = functions_for(running + choosing)
    parts = [SOURCE]
    if "Weight" in functions:
        parts.append(f"typedef {forward.weight_type} Weight; /* of products and tables */\n")
    parts += [functions, *forward.constants, *acting.constants]
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


def _act(acting: Acting) -> str:
    body = "\n".join(wrapped(line) for line in acting.lines)
    given = (
        "const float* params, const unsigned char* mask, unsigned long long* random, void* action"
    )
    rows = ["unsigned char* row = action;"] if _uses(body, "row") else []
    unused = _unused("\n".join([*rows, body]), "params", "mask", "random", "action")
    return _function(f"void fugu_policy_act({given})", [*unused, *rows], body)


def _pointers(plan: Plan, calls: str) -> list[str]:
    """A name for the scratch memory of each value that is used."""
    lines = []
    for buffer in plan.buffers.values():
        if _uses(calls, buffer.name):
            place = f"scratch + {buffer.place}" if buffer.place else "scratch"
            shape = "".join(f"[{side}]" for side in buffer.shape)
            lines.append(f"float* const {buffer.name} = {place}; /* {shape} */")
    return lines


def _uses(code: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", bare(code)) is not None


def _unused(code: str, *names: str) -> list[str]:
    return [f"(void){name};" for name in names if not _uses(code, name)]


def _function(head: str, lines: list[str], body: str) -> str:
    first = "".join(f"    {line}\n" for line in lines)
    gap = "\n" if first and body else ""
    return f"{wrapped(head + ' {', 0)}\n{first}{gap}{body}\n}}\n"
