"""Flags of commands whose settings are those of training."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

from fugu.core.errors import UsageError
from fugu.core.intervals import allowed_numbers


def plain_options(
    rest: list[str], kinds: dict[str, Any], flags: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    """Options without a section, and names."""
    found: dict[str, Any] = {}
    names: list[str] = []
    items = list(rest)
    while items:
        item = items.pop(0)
        name, equals, value = item.removeprefix("--").partition("=")
        if not item.startswith("--"):
            names.append(item)
        elif name in flags:
            found[name.replace("-", "_")] = True
        elif name in kinds:
            if not equals and (not items or items[0].startswith("--")):
                raise UsageError(f"--{name}: given nothing; allowed: a value.")
            text = value if equals else items.pop(0)
            try:
                found[name.replace("-", "_")] = kinds[name](text)
            except ValueError:
                raise UsageError(f"--{name}: given {text!r}; allowed: a whole number.") from None
        else:
            allowed = ", ".join(f"--{known}" for known in (*kinds, *flags))
            raise UsageError(f"--{name}: given, but there is no such option; allowed: {allowed}.")
    return found, names


SECTIONS = ("train", "vec", "policy", "run")


def settings_help(algo: str = "ppo", sections: tuple[str, ...] = SECTIONS) -> str:
    """Every setting of an algorithm: its default, what it is, and which numbers it may be."""
    from fugu.algos.settings import section_types

    lines, kinds = [], section_types(algo)
    for section in sections:
        kind = kinds[section]
        documents = field_documents(kind)
        lines.append(f"{section}: {(kind.__doc__ or '').splitlines()[0]}")
        for item in dataclasses.fields(kind):
            flag = f"--{section}.{item.name.rstrip('_').replace('_', '-')}"
            made = item.default_factory
            default = item.default if made is dataclasses.MISSING else made()
            line = f"  {flag} ({default})  {' '.join(documents.get(item.name, '').split())}"
            if allowed := allowed_numbers(kind, item.name):
                line += f" Allowed: {allowed}."
            lines += textwrap.wrap(line, 100, subsequent_indent=" " * 6, break_on_hyphens=False)
    return "\n".join(lines)


def field_documents(kind: type) -> dict[str, str]:
    """The lines below a dataclass's fields, its bases' too."""
    import ast
    import inspect

    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(before, ast.AnnAssign) and is_text:
                assert isinstance(before.target, ast.Name)
                found[before.target.id] = str(after.value.value)  # type: ignore[attr-defined]
    return found
