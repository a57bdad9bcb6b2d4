"""The suite: native environments that come with fugu, by name."""

from __future__ import annotations

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
    """Where their libraries are."""
    if not native.available:
        return Path()
    import fugu._native as extension

    return Path(extension.__file__).parent / "envs" / "suite"


def names() -> list[str]:
    """All of them, in order."""
    return sorted(path.stem for path in folder().glob("*") if path.suffix in SUFFIXES)


def find(name: str) -> str | None:
    """The path of an environment's library; None if there is none of that name."""
    name = ALIASES.get(name, name)
    if name.isidentifier() and len(name) <= LONGEST:
        for suffix in SUFFIXES:
            path = folder() / f"{name}{suffix}"
            if path.is_file():
                return str(path)
    return None
