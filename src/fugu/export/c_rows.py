"""Rows in C: functions that write each leaf of an observation and read each leaf of an action."""

from __future__ import annotations

import math

from fugu.export.c_text import PARTS, names, quoted, type_of, wrapped
from fugu.spaces import Layout, Leaf


def halves(*layouts: Layout) -> str:
    """What float16 needs, of which C knows nothing; empty if no leaf is one."""
    leaves = (leaf for layout in layouts for leaf in layout.leaves)
    there = any(leaf.dtype.name == "float16" for leaf in leaves)
    return (PARTS / "halves.h").read_text() if there else ""


def setters(layout: Layout) -> str:
    """Functions that write the leaves of an observation."""
    return "\n".join(_setter(*each) for each in _named(layout, "observation"))


def getters(layout: Layout) -> str:
    """Functions that read the leaves of an action."""
    return "\n".join(_getter(*each) for each in _named(layout, "action"))


def _named(layout: Layout, alone: str) -> list[tuple[Leaf, str]]:
    found = names([leaf.path for leaf in layout.leaves], alone)
    return [each for each in zip(layout.leaves, found, strict=True) if each[0].nbytes]


def _setter(leaf: Leaf, name: str) -> str:
    kind, count = _seen(leaf), math.prod(leaf.shape)
    value = f"const {kind} value[{count}]" if leaf.shape else f"{kind} value"
    to = f"(unsigned char*)observation + {leaf.offset}" if leaf.offset else "observation"
    pointer = "value" if leaf.shape else "&value"
    move = f"fugu_policy_copy({to}, {pointer}, {leaf.nbytes});"
    if type_of(leaf.dtype) == "half":
        move = f"fugu_policy_put_halves({to}, {pointer}, {count});"
    head = f"static inline void fugu_policy_set_{name}(void* observation, {value}) {{"
    return f"{_comment(leaf)}\n{wrapped(head, 0)}\n{wrapped(move)}\n}}\n"


def _getter(leaf: Leaf, name: str) -> str:
    kind, count = _seen(leaf), math.prod(leaf.shape)
    at = f"(const unsigned char*)action + {leaf.offset}" if leaf.offset else "action"
    pointer = "value" if leaf.shape else "&value"
    move = f"fugu_policy_copy({pointer}, {at}, {leaf.nbytes});"
    if type_of(leaf.dtype) == "half":
        move = f"fugu_policy_take_halves({at}, {count}, {pointer});"
    if leaf.shape:
        given = f"const void* action, {kind} value[{count}]"
        head = f"static inline void fugu_policy_get_{name}({given}) {{"
        return f"{_comment(leaf)}\n{wrapped(head, 0)}\n{wrapped(move)}\n}}\n"
    head = f"static inline {kind} fugu_policy_get_{name}(const void* action) {{"
    body = f"    {kind} value;\n{wrapped(move)}\n    return value;"
    return f"{_comment(leaf)}\n{wrapped(head, 0)}\n{body}\n}}\n"


def _seen(leaf: Leaf) -> str:
    """The type of its numbers for the caller."""
    kind = type_of(leaf.dtype)
    return "float" if kind == "half" else kind


def _comment(leaf: Leaf) -> str:
    shape = "".join(f"[{side}]" for side in leaf.shape)
    what = quoted(leaf.path) if leaf.path else "the whole row"
    flags = ", 0 or 1" if leaf.dtype.kind == "b" else ""
    return f"/* {what}: {leaf.dtype.name}{shape}{flags}; from byte {leaf.offset} on. */"
