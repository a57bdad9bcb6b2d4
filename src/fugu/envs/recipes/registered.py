"""Ids of packages that register with Gymnasium, as names of recipes."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

import gymnasium

from fugu.envs.naming import newest


def ids_of(module: str, start: str, end: str = "") -> Callable[[], list[str]]:
    """What lists the ids that begin with `start` once `module` is imported, without it."""

    def names() -> list[str]:
        register(module)
        found = [name for name in gymnasium.registry if name.startswith(start)]
        return sorted(name.removeprefix(start) for name in found if name.endswith(end))

    return names


def newest_of(module: str, entry_point: str) -> Callable[[], list[str]]:
    """What lists the newest id of each environment whose entry point begins so."""

    def names() -> list[str]:
        register(module)
        entries = {name: str(spec.entry_point) for name, spec in gymnasium.registry.items()}
        found = [name for name, entry in entries.items() if entry.startswith(entry_point)]
        bare = {name.rpartition("-v")[0] for name in found}
        return sorted(filter(None, (newest(name, found) for name in bare)))

    return names


def alias_of(entry_point: str) -> Callable[[str], str | None]:
    """Return what recognizes plain ids of one of Gymnasium's own families by their entry point."""

    def alias(env: str) -> str | None:
        found = newest(env, gymnasium.registry)
        entry = str(gymnasium.registry[found].entry_point) if found else ""
        return found if entry.startswith(entry_point) else None

    return alias


def register(module: str) -> None:
    """Import a module for what it registers; some talk then."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        importlib.import_module(module)
