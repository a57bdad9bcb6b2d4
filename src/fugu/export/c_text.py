"""Write C as text: literals, arrays, names, access to rows, and the functions of `c_parts`."""

from __future__ import annotations

import json
import math
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.spaces import Layout, Leaf

PARTS = Path(__file__).parent / "c_parts"
FILES = ("math", "rows", "layers", "actions")
COLUMNS = 100
TYPES = {
    "bool": "uint8_t",
    "float16": "half",
    "float32": "float",
    "float64": "double",
    **{f"{kind}{bits}": f"{kind}{bits}_t" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
NUMBERS = sorted({name for name in TYPES.values() if name != "half"})


def type_of(dtype: np.dtype[Any]) -> str:
    """Return the C type of a dtype; C has no float16, which is called half here."""
    return TYPES[dtype.name]


def literal(number: Any, ctype: str = "float") -> str:
    """Return a number in C.

    >>> literal(0.1), literal(-2, "int64_t"), literal(0.1, "double")
    ('0.1f', '-2', '0.1')
    """
    if ctype in ("float", "double"):
        _check_finite(np.asarray(number, np.float64), "a constant")
        return f"{np.float32(number)!s}f" if ctype == "float" else repr(float(number))
    if ctype == "int64_t" and int(number) == np.iinfo(np.int64).min:
        return "INT64_MIN"  # in C, the minus is not part of the number
    return str(int(number))


def _check_finite(numbers: NDArray[Any], name: str) -> None:
    if not np.isfinite(numbers).all():
        raise UsageError(
            f"policy: given {name} with numbers that are not finite; allowed: finite ones. "
            "Take a checkpoint from before training went astray."
        )


def array(ctype: str, name: str, numbers: NDArray[Any], comment: str = "") -> str:
    """Return a constant array in C, in the order of memory; an empty one is left out."""
    flat = numbers.reshape(-1)
    if not flat.size:
        return ""
    _check_finite(flat, name)
    if ctype == "float":  # there may be millions
        literals = [f"{number!s}f" for number in flat.astype(np.float32)]
    else:
        literals = [literal(number, ctype) for number in flat]
    lines = ["   "]
    for text in literals:
        if len(lines[-1]) + len(text) + 2 > COLUMNS:
            lines.append("   ")
        lines[-1] += f" {text},"
    note = f" /* {comment} */" if comment else ""
    body = "\n".join(lines).removesuffix(",")
    return f"static const {ctype} {name}[{flat.size}] = {{{note}\n{body}\n}};\n"


def wrapped(line: str, indent: int = 4) -> str:
    """Break a line of code between its parts if it is too long."""
    text = " " * indent + line
    return textwrap.fill(
        text,
        COLUMNS,
        subsequent_indent=" " * (text.find("(") + 1),
        break_long_words=False,
        break_on_hyphens=False,
    )


def quoted(text: str) -> str:
    """Quote any text so that it may stand in a comment."""
    return json.dumps(text).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")


def names(paths: list[str], default: str) -> list[str]:
    """Return a unique C name for each path of a layout; `default` names the empty path.

    >>> names(["a/b", "a-b", "", "é"], "value")
    ['a_b', 'a_b_2', 'value', '_']
    """
    found: list[str] = []
    for path in paths:
        name = plain = re.sub(r"\W", "_", path, flags=re.ASCII) or default
        count = 1
        while name in found:
            count += 1
            name = f"{plain}_{count}"
        found.append(name)
    return found


# ---------------------------------------------------------------------- functions of c_parts


@cache
def _blocks() -> list[tuple[str, str]]:
    """Return the name and text of every function, in an order in which C takes them."""
    text = "\n\n".join((PARTS / f"{name}.c").read_text().strip() for name in FILES)
    return [(_defined(block), block) for block in text.split("\n\n")]


def _defined(block: str) -> str:
    """Return what a block defines: a function, or a type that ends with its name."""
    (found,) = re.findall(r"^static [^=;]*?(\w+)\(|^} (\w+);", block, re.M)
    return "".join(found)


def functions_for(code: str) -> str:
    """Return the functions that a piece of C calls, and all that those call in turn."""
    needed = bare(code)
    found: list[str] = []
    for name, block in reversed(_blocks()):
        kinds = NUMBERS if "TYPE" in name else ["TYPE"]
        for kind in kinds:
            if re.search(rf"\b{name.replace('TYPE', kind)}\b", needed):
                found.append(block.replace("TYPE", kind))
                needed += bare(found[-1])
    return "\n\n".join(reversed(found)) + "\n"


def bare(code: str) -> str:
    """Remove comments, in which a function's name may be a word."""
    return re.sub(r"/\*.*?\*/", "", code, flags=re.S)


# ---------------------------------------------------------------------- access to rows


def halves(*layouts: Layout) -> str:
    """Return what float16 needs, which C does not have; empty if no leaf is one."""
    leaves = (leaf for layout in layouts for leaf in layout.leaves)
    needed = any(leaf.dtype.name == "float16" for leaf in leaves)
    return (PARTS / "halves.h").read_text() if needed else ""


def accessors(layout: Layout, row: str) -> str:
    """Return functions that set each leaf of an observation, or get each leaf of an action."""
    found = zip(layout.leaves, names([leaf.path for leaf in layout.leaves], row), strict=True)
    return "\n".join(_accessor(leaf, name, row) for leaf, name in found if leaf.nbytes)


def _accessor(leaf: Leaf, name: str, row: str) -> str:
    kind, count = type_of(leaf.dtype).replace("half", "float"), math.prod(leaf.shape)
    half, sets = leaf.dtype.name == "float16", row == "observation"
    pointer = "value" if leaf.shape else "&value"
    const = "" if sets else "const "
    at = f"({const}unsigned char*){row} + {leaf.offset}" if leaf.offset else row
    value = f"{kind} value[{count}]" if leaf.shape else f"{kind} value"
    if sets:
        copy = f"put_halves({at}, {pointer}, {count})" if half else f"copy({at}, {pointer}"
        given = f"void* observation, {'const ' if leaf.shape else ''}{value}"
        head = f"static inline void fugu_policy_set_{name}({given}) {{"
    else:
        copy = f"take_halves({at}, {count}, {pointer})" if half else f"copy({pointer}, {at}"
        head = f"static inline {kind} fugu_policy_get_{name}(const void* action) {{"
        if leaf.shape:
            head = f"static inline void fugu_policy_get_{name}(const void* action, {value}) {{"
    body = wrapped(f"fugu_policy_{copy if half else f'{copy}, {leaf.nbytes})'};")
    if not sets and not leaf.shape:
        body = f"    {kind} value;\n{body}\n    return value;"
    return f"{_comment(leaf)}\n{wrapped(head, 0)}\n{body}\n}}\n"


def _comment(leaf: Leaf) -> str:
    shape = "".join(f"[{side}]" for side in leaf.shape)
    what = quoted(leaf.path) if leaf.path else "the whole row"
    flags = ", 0 or 1" if leaf.dtype.kind == "b" else ""
    return f"/* {what}: {leaf.dtype.name}{shape}{flags}; from byte {leaf.offset} on. */"
