"""The suite: native environments that come with fugu, by name; and how names are looked up."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from fugu import native

SUFFIXES = (".so", ".dylib", ".dll")
LONGEST = 100  # letters of a name
# Tasks of programming have names like those of the problems that are not native.
ALIASES = {"coding:brainf": "brainf", "coding:list-dsl": "list_dsl"}
_KINDS = {
    "Games": "breakout pong snake tetris game2048 connect4 maze minesweeper",
    "Classic control": "cartpole mountain_car acrobot pendulum",
    "Several agents": "simple_spread speaker_listener predator_prey warehouse",
    "Safety": "hazard_grid constrained_cartpole point_goal",
    "Programs": "list_dsl brainf",
    "Checks for one common bug each": "bandit password memory stochastic squared multiagent spaces "
    "continuous masked truncated",
}
KINDS = {kind: tuple(names.split()) for kind, names in _KINDS.items()}
"""Their names by what they are for."""


def folder() -> Path:
    """Return the folder of their libraries."""
    if not native.available:
        return Path()
    import fugu._native as extension

    return Path(extension.__file__).parent / "envs" / "suite"


def names() -> list[str]:
    """Return the names of all of them, sorted."""
    return sorted(path.stem for path in folder().glob("*") if path.suffix in SUFFIXES)


def find(name: str) -> str | None:
    """Return the path of an environment's library; None if there is none of that name."""
    name = ALIASES.get(name, name)
    if name.isidentifier() and len(name) <= LONGEST:
        for suffix in SUFFIXES:
            path = folder() / f"{name}{suffix}"
            if path.is_file():
                return str(path)
    return None


def newest(name: str, known: Iterable[str]) -> str | None:
    """Return what `name` means among `known`: itself, or its newest version if it names none.

    >>> newest("Hopper", ["Hopper-v4", "Hopper-v5", "HopperHop-v9"]), newest("a_v1", ["a_v2"])
    ('Hopper-v5', None)
    """
    known = list(known)
    if name in known:
        return name
    versions = [each for each in known if re.fullmatch(rf"{re.escape(name)}[-_]v\d+", each)]
    return max(versions, key=lambda each: int(each.rpartition("v")[2]), default=None)


def nearest(given: str, known: Iterable[str]) -> str:
    """Return a sentence with the names most like the one given, whatever their case."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=0.5)
    return f"Nearest: {', '.join(by_lower[name] for name in close)}." if close else "None is near."
