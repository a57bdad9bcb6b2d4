"""Writes docs/reference/python.md: the functions and classes that scripts call, from the code.

    python docs/generate_python_page.py [--check]

With --check nothing is written, and the exit status is 1 if the page is not what it should be.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import table, write_or_check

import fugu

PAGE = Path(__file__).parent / "reference" / "python.md"
# What is there beside the names of `fugu` itself, by where it is imported from.
OTHERS = {
    "fugu.vector": ("Batch", "to_gymnasium", "to_sb3"),
    "fugu.policies": (
        "make_policy",
        "PolicyConfig",
        "Policy",
        "Core",
        "ActionDistribution",
        "unpack",
    ),
    "fugu.export": ("load", "LoadedPolicy"),
    "fugu.training.session": ("Result",),
    "fugu.envs.contract": ("AgentGroup",),
}
LISTS = ("Args", "Attributes", "Raises")
INTRO = """# Python

Names of `fugu` load their modules when they are first used; `import fugu` imports nothing else.
Everything here is typed, and `help(fugu.make)` says the same.

"""


def entry(place: str, name: str) -> list[str]:
    """One function or class."""
    thing = getattr(importlib.import_module(place), name)
    lines = [f"### `{place}.{name}`", "", "```py", signature(name, thing), "```", ""]
    lines += rendered(inspect.getdoc(thing) or "")
    if inspect.isclass(thing):
        rows = [(f"`{short}`", words) for short, words in methods(thing)]
        if rows:
            lines += table(("method", "what it does"), rows)
    return lines


def signature(name: str, thing: Any) -> str:
    """How it is called."""
    found = inspect.signature(thing)
    parts, kinds = [], [part.kind for part in found.parameters.values()]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for part in found.parameters.values():
        words = f"{stars.get(part.kind, '')}{part.name}"
        words += "" if part.annotation is part.empty else f": {part.annotation}"
        parts.append(
            words
            if part.default is part.empty
            else f"{words} = {part.default!r}".replace("<factory>", "...")
        )
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    gives = found.return_annotation
    arrow = "" if inspect.isclass(thing) or gives is inspect.Signature.empty else f" -> {gives}"
    short = f"{name}({', '.join(parts)}){arrow}"
    if len(short) <= 90:
        return short
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){arrow}"


def methods(kind: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties of a class, with their first lines."""
    for name, member in vars(kind).items():
        if name.startswith("_") or not (callable(member) or isinstance(member, property)):
            continue
        words = (inspect.getdoc(member) or "").partition("\n\n")[0]
        call = "" if isinstance(member, property) else "()"
        yield f"{name}{call}", cell(words)


def rendered(text: str) -> list[str]:
    """A docstring as a page has it: lists of arguments as tables, examples as code."""
    lines: list[str] = []
    for block in re.split(r"\n\n(?!    )", text):
        heading, _, rest = block.partition("\n")
        title = heading.removesuffix(":")
        if title in LISTS and heading.endswith(":"):
            lines += table((title.lower(), ""), list(entries(rest)))
        elif heading.startswith(">>>"):
            lines += ["```pycon", block, "```", ""]
        elif title == "Returns":
            lines += [f"Returns {cell(rest)}", ""]
        else:
            lines += [block, ""]
    return lines


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Names and words of an indented list."""
    for item in re.split(r"\n(?=    \S)", text.rstrip()):
        name, _, words = item.strip().partition(":")
        yield f"`{name}`", cell(words)


def cell(text: str) -> str:
    """Words in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    """Write the page, or check it."""
    lines = ["## fugu", ""]
    for name in sorted(set(fugu.__all__) - {"__version__"}, key=lambda n: (n[0].isupper(), n)):
        lines += entry("fugu", name)
    for place, names in OTHERS.items():
        lines += [f"## {place}", ""]
        for name in names:
            lines += entry(place, name)
    return write_or_check({PAGE: INTRO + "\n".join(lines).rstrip() + "\n"})


if __name__ == "__main__":
    sys.exit(main())
