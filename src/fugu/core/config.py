"""Settings: frozen dataclasses, read from layers of TOML and flags; unknown keys are errors."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from fugu.core.errors import UsageError, nearest_names
from fugu.core.files import read_text
from fugu.core.writing import write_whole

T = TypeVar("T")
Tree = dict[str, Any]
_hints: Any = functools.cache(typing.get_type_hints)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def from_tree(kind: type[T], tree: Mapping[str, Any], place: str = "") -> T:
    """Return an instance of a dataclass from nested dicts; values get the types of the fields."""
    hints = _hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = {field.name.rstrip("_"): field.name for field in fields}  # lambda_ is called lambda
    values = {}
    for key, value in tree.items():
        short, path = key.replace("-", "_").rstrip("_"), f"{place}{key}"
        if short not in names:
            raise _unknown(path, [f"{place}{other}" for other in names])
        name = names[short]
        values[name] = _convert(hints[name], value, path)
    return kind(**values)


def to_tree(config: Any) -> Tree:
    """Return a config as nested dicts."""
    tree: Tree = dataclasses.asdict(config)
    return tree


def plain_tree(config: Any) -> Tree:
    """Return a config as nested dicts, lists and plain values, as JSON has them."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [plain(entry) for entry in value]
        return str(value) if isinstance(value, Path) else value

    tree: Tree = plain(to_tree(config))
    return tree


def merge(*trees: Mapping[str, Any]) -> Tree:
    """Return one tree of several; later ones win, key by key.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    """
    out: Tree = {}
    for tree in trees:
        for key, value in tree.items():
            name = key.replace("-", "_")
            old = out.get(name)
            both = isinstance(old, dict) and isinstance(value, Mapping)
            out[name] = merge(old, value) if both else value  # type: ignore[arg-type]
    return out


def read_toml(path: str | Path) -> Tree:
    """Return a TOML file as nested dicts; an error names the file and the line."""
    try:
        return tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise UsageError(f"config: given {str(path)!r}; allowed: a file that exists.") from None
    except OSError as error:
        reason = error.strerror
        raise UsageError(
            f"config: given {str(path)!r}; allowed: a file of TOML ({reason})."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"config: given {str(path)!r}, which is no TOML: {error}.") from None


def from_flags(flags: Iterable[str]) -> tuple[Tree, list[str]]:
    """Return a tree of `--a.b value` and `--a.b=value`, and all other arguments in order.

    A flag before another flag, or at the end, is true; `--no-x` makes x false.

    >>> from_flags(["--train.learning-rate", "0.01", "cartpole", "--train.compile"])
    ({'train': {'learning_rate': '0.01', 'compile': 'true'}}, ['cartpole'])
    """
    tree: Tree = {}
    rest: list[str] = []
    items = list(flags)
    while items:
        item = items.pop(0)
        name, equals, value = item.removeprefix("--").partition("=")
        if not item.startswith("--") or "." not in name:
            rest.append(item)
            continue
        if not equals:
            value = items.pop(0) if items and not items[0].startswith("--") else "true"
        *folders, last = name.replace("-", "_").split(".")
        if last.startswith("no_") and value == "true":
            last, value = last.removeprefix("no_"), "false"
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
            if not isinstance(inner, dict):
                raise UsageError(
                    f"{item}: given with {folder}, which has a value; allowed: one of both."
                )
        inner[last] = value
    return tree, rest


def parse_value(text: str) -> Any:
    """Return the value of a flag's text where no type is known: a number, true, false, or text.

    >>> parse_value("3"), parse_value("1e-3"), parse_value("true"), parse_value("hard")
    (3, 0.001, True, 'hard')
    """
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    for kind in (int, float):
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            continue
    return text


def _convert(hint: Any, value: Any, path: str) -> Any:
    """Return a value with the type of its field; UsageError names the field."""
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise UsageError(f"{path}: given {value!r}; allowed: settings of their own.")
        return from_tree(hint, value, f"{path}.")
    if origin in (Union, types.UnionType):
        options = get_args(hint)
        if (value is None or value == "none") and type(None) in options:
            return None
        for option in options:
            if option is not type(None):
                with contextlib.suppress(UsageError):
                    return _convert(option, value, path)
        raise UsageError(f"{path}: given {value!r}; allowed: {' or '.join(map(_name, options))}.")
    if origin is Literal:
        if value in get_args(hint):
            return value
        raise UsageError(
            f"{path}: given {value!r}; allowed: {', '.join(map(str, get_args(hint)))}."
        )
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else value
        if isinstance(items, list | tuple):
            return tuple(_convert(get_args(hint)[0], item, path) for item in items)
    if origin is dict or hint is dict:
        if isinstance(value, Mapping):
            return {k: parse_value(v) if isinstance(v, str) else v for k, v in value.items()}
    elif hint is Any:
        return value
    else:
        found = _convert_plain(hint, value)
        if found is not None:
            return found
    raise UsageError(f"{path}: given {value!r}; allowed: {_name(hint)}.")


def _convert_plain(hint: Any, value: Any) -> Any:
    """Return a bool, a number, a text or a path; None if the value is something else."""
    if hint is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if hint in (int, float):
        number = parse_value(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        if hint is int:
            return int(number) if isinstance(number, int) or number.is_integer() else None
        try:
            return float(number)
        except OverflowError:  # an integer of more than 308 digits
            return None
    if hint is str:
        return value if isinstance(value, str) else None
    if hint is Path:
        return Path(value) if isinstance(value, str | Path) else None
    return None


def _name(hint: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(hint, "nothing" if hint is type(None) else str(hint).replace("typing.", ""))


def _unknown(path: str, names: list[str]) -> UsageError:
    nearest = "".join(nearest_names(path, names))
    return UsageError(f"{path}: given, but there is no such setting; nearest: {nearest}")


# ---------------------------------------------------------------------- TOML


def dump_toml(tree: Mapping[str, Any], place: str = "") -> str:
    """Return a tree as TOML; None, which TOML lacks, is left out.

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
    """Set keys of one table of a TOML file, and keep everything else, comments included.

    The file is created if it does not exist.

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
    r"""Return the text with these keys of a table set.

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
    stop = next(
        (i for i in range(start + 1, len(lines)) if lines[i].lstrip().startswith("[")), len(lines)
    )
    body = [line for line in lines[start + 1 : stop] if _key_of(line) not in values]
    while body and not body[-1].strip():
        body.pop()
    body += [f"{_key(key)} = {_value(value)}" for key, value in values.items()]
    gap = [""] if stop < len(lines) else []
    return "\n".join([*lines[: start + 1], *body, *gap, *lines[stop:]]) + "\n"


def _key_of(line: str) -> str:
    """Return the key that a line sets, as settings spell it; empty if it sets none."""
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
