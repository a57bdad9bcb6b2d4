"""Settings of environments as they are typed: `--set name=value`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Annotated, Any

import tyro

from fugu.core.errors import UsageError

Settings = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="NAME=VALUE [...]"),
]
"""The type of a command's option: once with several, or several times."""


def parse_settings(given: Iterable[Iterable[str]]) -> dict[str, Any]:
    """Settings by name; values are Python literals, or text where they are none.

    >>> parse_settings([("gravity=9.8", "size=3"), ("map=easy",), ("slippery=False",)])
    {'gravity': 9.8, 'size': 3, 'map': 'easy', 'slippery': False}
    """
    settings: dict[str, Any] = {}
    for item in (item for items in given for item in items):
        name, equals, text = item.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"set: given {item!r}; allowed: name=value, such as max_steps=200.")
        if name in settings:
            raise UsageError(f"set: given {name!r} twice; allowed: once.")
        settings[name] = _value(text)
    return settings


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
