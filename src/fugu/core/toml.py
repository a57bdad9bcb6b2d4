"""TOML, written: whole files, and single tables of files that people keep."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fugu.core.config import merge, read_toml
from fugu.core.errors import UsageError
from fugu.core.files import read_text
from fugu.core.writing import write_whole

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump_toml(tree: Mapping[str, Any], place: str = "") -> str:
    """A tree as TOML; what is None, which TOML has no word for, is left out.

    >>> print(dump_toml({"seed": 1, "train": {"gamma": 0.99, "schedule": "linear"}}), end="")
    seed = 1
    <BLANKLINE>
    [train]
    gamma = 0.99
    schedule = "linear"
    """
    plain = {key: value for key, value in tree.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(k)} = {_value(v)}\n" for k, v in plain.items() if v is not None]
    parts = ["".join([f"[{place}]\n" if place else "", *lines])] if lines else []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            parts.append(dump_toml(value, f"{place}.{_key(key)}" if place else _key(key)))
    return "\n".join(parts)


def write_table(path: Path, table: str, values: Mapping[str, Any]) -> None:
    """Set keys of one table of a TOML file; all else in it stays, comments too.

    A file that does not exist is made.

    Raises:
        UsageError: The file is no TOML, or has the table in a form that cannot be edited.
    """
    write_whole(path, _edited(path, table, values))


def check_table(path: Path, table: str, keys: Iterable[str]) -> None:
    """Raise what `write_table` would raise for these keys."""
    _edited(path, table, dict.fromkeys(keys, 0))


def _edited(path: Path, table: str, values: Mapping[str, Any]) -> str:
    wanted = merge(read_toml(path) if path.exists() else {}, {table: values})
    before = read_text(path) if path.exists() else ""
    after = edit_table(before, table, values)
    try:
        found = merge(tomllib.loads(after))
    except tomllib.TOMLDecodeError:
        found = {}
    if found != wanted:
        raise UsageError(
            f"config: given {str(path)!r}, whose settings of {table} are in a form that is not "
            f"edited; allowed: a table [{table}] with one key a line."
        )
    return after


def edit_table(text: str, table: str, values: Mapping[str, Any]) -> str:
    r"""The text with these keys of a table set.

    >>> print(edit_table("[vec]\nnum_envs = 8  # enough\n", "vec", {"num_envs": 16}), end="")
    [vec]
    num_envs = 16
    """
    lines = text.splitlines()
    header = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(#.*)?")
    start = next((i for i, line in enumerate(lines) if header.fullmatch(line)), None)
    if start is None:
        gap = [""] if lines and lines[-1].strip() else []
        lines += [*gap, f"[{table}]"]
        start = len(lines) - 1
    stop = next((i for i in range(start + 1, len(lines)) if _is_header(lines[i])), len(lines))
    body = [line for line in lines[start + 1 : stop] if _name(line) not in values]
    while body and not body[-1].strip():
        body.pop()
    body += [f"{_key(key)} = {_value(value)}" for key, value in values.items()]
    gap = [""] if stop < len(lines) else []
    return "\n".join([*lines[: start + 1], *body, *gap, *lines[stop:]]) + "\n"


def _is_header(line: str) -> bool:
    return line.lstrip().startswith("[")


def _name(line: str) -> str:
    """The key that a line sets, as settings spell it; empty if it sets none."""
    found = re.match(r"\s*[\"']?([A-Za-z0-9_-]+)[\"']?\s*=", line)
    return found[1].replace("-", "_") if found else ""


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(value)
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str | Path):
        if any("\ud800" <= letter <= "\udfff" for letter in str(value)):
            raise UsageError(f"toml: given {str(value)!r:.80}; allowed: whole characters.")
        return json.dumps(str(value), ensure_ascii=False)
    raise UsageError(f"toml: given a {type(value).__name__}; allowed: numbers, texts, lists.")
