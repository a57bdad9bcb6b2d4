"""C as text: literals, arrays, names, and the functions that written files are made of."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError

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
    """What C calls a dtype; a float16 has no name there, and is called half."""
    return TYPES[dtype.name]


def literal(number: Any, ctype: str = "float") -> str:
    """A number in C.

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
    """A constant array, its numbers in the order of memory; one of no numbers is left out."""
    flat = numbers.reshape(-1)
    if not flat.size:
        return ""
    _check_finite(flat, name)
    note = f" /* {comment} */" if comment else ""
    body = "\n".join(_lines(_literals(flat, ctype)))
    return f"static const {ctype} {name}[{flat.size}] = {{{note}\n{body}\n}};\n"


def _literals(numbers: NDArray[Any], ctype: str) -> list[str]:
    if ctype == "float":  # there may be millions
        return [f"{number!s}f" for number in numbers.astype(np.float32)]
    return [literal(number, ctype) for number in numbers]


def _lines(texts: list[str]) -> Iterator[str]:
    """Numbers with commas, as many on a line as fit."""
    line = "   "
    for text in texts:
        if len(line) + len(text) + 2 > COLUMNS:
            yield line
            line = "   "
        line += f" {text},"
    yield line.removesuffix(",")


def wrapped(line: str, indent: int = 4) -> str:
    """A line of code, broken between its parts if it is too long."""
    text = " " * indent + line
    return "\n".join(
        textwrap.wrap(
            text,
            COLUMNS,
            subsequent_indent=" " * (text.find("(") + 1),
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def quoted(text: str) -> str:
    """A text that may stand in a comment, whatever it is."""
    return json.dumps(text).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")


def names(paths: list[str], alone: str) -> list[str]:
    """A C name for each path of a layout, no two alike; `alone` for the empty one.

    >>> names(["a/b", "a-b", "", "é"], "value")
    ['a_b', 'a_b_2', 'value', '_']
    """
    found: list[str] = []
    for path in paths:
        name = plain = re.sub(r"\W", "_", path, flags=re.ASCII) or alone
        count = 1
        while name in found:
            count += 1
            name = f"{plain}_{count}"
        found.append(name)
    return found


@cache
def _blocks() -> list[tuple[str, str]]:
    """Every function with its comment, and its name, in an order in which C takes them."""
    text = "\n\n".join((PARTS / f"{name}.c").read_text().strip() for name in FILES)
    return [(_name(block), block) for block in text.split("\n\n")]


def _name(block: str) -> str:
    """What it defines: a function, or a type that ends with its name."""
    (found,) = re.findall(r"^static [^=;]*?(\w+)\(|^} (\w+);", block, re.M)
    return "".join(found)


def functions_for(code: str) -> str:
    """The functions that a piece of C calls, and all that those call in turn."""
    needed = bare(code)
    found: list[str] = []
    for name, block in reversed(_blocks()):
        kinds = NUMBERS if "TYPE" in name else ["TYPE"]
        for kind in kinds:
            called = name.replace("TYPE", kind)
            if re.search(rf"\b{called}\b", needed):
                found.append(block.replace("TYPE", kind))
                needed += bare(found[-1])
    return "\n\n".join(reversed(found)) + "\n"


def bare(code: str) -> str:
    """Without comments, in which a function's name may be a word."""
    return re.sub(r"/\*.*?\*/", "", code, flags=re.S)
