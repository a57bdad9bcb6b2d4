"""Find algorithms by name: entry points `fugu.algorithms`, or `package.module:Name`."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fugu.core.errors import UsageError

GROUP = "fugu.algorithms"
MEMBERS = ("Config", "start", "collect", "update", "state_dict", "load_state_dict")


def algorithm_names() -> tuple[str, ...]:
    """Return the names of all installed algorithms, in alphabetical order.

    >>> algorithm_names()[:3]
    ('decision_transformer', 'dreamer', 'grpo')
    """
    return tuple(sorted(_installed()))


def is_builtin(name: object) -> bool:
    """Return whether a name is that of an algorithm that ships with fugu.

    >>> is_builtin("ppo"), is_builtin("my_package:MyAlgorithm")
    (True, False)
    """
    found = _installed().get(name) if isinstance(name, str) else None
    return found is not None and found.value.startswith("fugu.")


@cache
def find_algorithm(name: str) -> Any:
    """Return the class of an algorithm; its module is imported only now.

    Args:
        name: The name of an installed algorithm, or `package.module:Name`.

    Raises:
        UsageError: There is none, or it is not an algorithm.
    """
    place = name
    if ":" not in name:
        found = _installed().get(name)
        if found is None:
            raise UsageError(
                f"algo: expected {', '.join(algorithm_names())}, or package.module:Name for an "
                f"algorithm of your own; got {name!r}."
            )
        place = found.value
    module, _, attribute = place.partition(":")
    try:
        algorithm = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"algo: {place!r} cannot be imported ({error}). Check the name, and that its package "
            "is installed or in the working folder (PYTHONPATH=.)."
        ) from error
    missing = [member for member in MEMBERS if not hasattr(algorithm, member)]
    if not isinstance(algorithm, type) or missing:
        raise UsageError(
            f"algo: {place!r} is not an algorithm: it has no {', '.join(missing) or 'class'}. See "
            "fugu.algos.Algorithm for what one has."
        )
    return algorithm


@cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
