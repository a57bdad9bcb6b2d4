"""Config: frozen dataclasses, filled from layers of TOML and flags; no wrong key is ignored."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from fugu.core.errors import UsageError
from fugu.core.files import read_text

T = TypeVar("T")
Tree = dict[str, Any]


def from_tree(kind: type[T], tree: Mapping[str, Any], place: str = "") -> T:
    """An instance of a dataclass from nested dicts, each value of the field's own type."""
    hints = _hints(kind)  # type: ignore[arg-type]
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


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def to_tree(config: Any) -> Tree:
    """Nested dicts of plain values, as JSON and TOML have them."""
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
    """One tree of several; later ones win, key by key.

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
    """A TOML file as nested dicts; an error names the file and the line."""
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
    """A tree of `--a.b value` and `--a.b=value`, and what is no such flag, in order.

    A flag that is followed by another flag, or by nothing, is true; `--no-x` makes x false.

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
            value = items.pop(0) if items and not _is_flag(items[0]) else "true"
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
    """What a flag's text means where no type is known: a number, true, false, or text.

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


def _is_flag(text: str) -> bool:
    return text.startswith("--")


def _convert(hint: Any, value: Any, path: str) -> Any:
    """The value as its type has it, or an error that names the place."""
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise UsageError(f"{path}: given {value!r}; allowed: settings of their own.")
        return from_tree(hint, value, f"{path}.")
    if origin in (Union, types.UnionType):
        return _convert_union(get_args(hint), value, path)
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


def _convert_union(options: tuple[Any, ...], value: Any, path: str) -> Any:
    if (value is None or value == "none") and type(None) in options:
        return None
    for option in options:
        if option is not type(None):
            try:
                return _convert(option, value, path)
            except UsageError:
                continue
    raise UsageError(f"{path}: given {value!r}; allowed: {' or '.join(map(_name, options))}.")


def _convert_plain(hint: Any, value: Any) -> Any:
    """A bool, a number, a text or a path; None if the value is none of it."""
    if hint is bool:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    if hint is int:
        if isinstance(value, str):
            value = parse_value(value)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if hint is float:
        if isinstance(value, str):
            value = parse_value(value)
        return _as_float(value) if isinstance(value, int | float) else None
    if hint is str:
        return value if isinstance(value, str) else None
    if hint is Path:
        return Path(value) if isinstance(value, str | Path) else None
    return None


def _as_float(value: int | float) -> float | None:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return None


def _name(hint: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(hint, "nothing" if hint is type(None) else str(hint).replace("typing.", ""))


def _unknown(path: str, names: list[str]) -> UsageError:
    (nearest,) = difflib.get_close_matches(path, names, 1, cutoff=0.0) or [""]
    return UsageError(f"{path}: given, but there is no such setting; nearest: {nearest}")
