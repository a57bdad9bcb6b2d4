"""The loop of a game: keys in, pictures out, on whatever screen there is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fugu.envs.picture import Picture

RATE = 30.0  # frames a second where an environment does not say
QUIT = "escape"
_CELL = "cell "


def cell_name(number: int) -> str:
    """What a cell is called among keys."""
    return f"{_CELL}{number}"


def keys_of(game: Game) -> list[str]:
    """Keys of a keyboard that do something."""
    return [name for name in game.names if not name.startswith(_CELL)]


@dataclass(frozen=True)
class KeyEvent:
    """A key went down or up."""

    name: str
    """As pygame calls it: "left", "space", "a"; or a cell that was pointed at: "cell 12"."""
    down: bool


class Game(Protocol):
    """Something that goes on step by step and can be looked at."""

    steps: int
    """That were made."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the keys that do something, and of cells to point at."""
        raise NotImplementedError("names -> tuple[str, ...]")

    @property
    def waits(self) -> bool:
        """Whether it stands still until a person presses a key."""
        raise NotImplementedError("waits -> bool")

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of its picture, in its own units."""
        raise NotImplementedError("size -> tuple[float, float]")

    @property
    def rate(self) -> float:
        """Steps a second; 0 if nobody says."""
        raise NotImplementedError("rate -> float")

    def cell_at(self, x: float, y: float) -> str | None:
        """The name of the cell at a place of the picture, in its own units; None if none is."""
        raise NotImplementedError("cell_at(x: float, y: float) -> str | None")

    def reset(self) -> None:
        """Begin the next episode."""
        raise NotImplementedError("reset() -> None")

    def step(self, held: Iterable[str]) -> bool:
        """Make a step while keys are held; False if what they ask for is not allowed now."""
        raise NotImplementedError("step(held: Iterable[str]) -> bool")

    def status(self) -> str:
        """How it goes, in a line."""
        raise NotImplementedError("status() -> str")

    def picture(self, size: tuple[int, int]) -> Picture:
        """A picture of now, of this width and height."""
        raise NotImplementedError("picture(size: tuple[int, int]) -> Picture")


class Screen(Protocol):
    """Where a game is shown, and where its keys come from."""

    def events(self) -> Sequence[KeyEvent]:
        """What happened to keys since they were asked for last."""
        raise NotImplementedError("events() -> Sequence[KeyEvent]")

    def show(self, game: Game, lines: tuple[str, str]) -> None:
        """Show the game, what is to be said of it, and which keys there are."""
        raise NotImplementedError("show(game: Game, lines: tuple[str, str]) -> None")


def commands_of(game: Game) -> dict[str, str]:
    """What keys do beside moving agents: only those that the game does not use itself."""
    commands = {"space": "pause", "r": "reset", "q": "quit"}
    free = {key: what for key, what in commands.items() if key not in game.names}
    return free | {QUIT: "quit"}


def run(game: Game, screen: Screen, steps: int | None = None, fps: float | None = None) -> None:
    """Play until a person quits, or for so many steps.

    Args:
        game: To be played.
        screen: Where it is shown.
        steps: After which it ends.
        fps: Steps a second; what the environment says if not given.
    """
    pause = 1 / (fps or game.rate or RATE)
    commands = commands_of(game)
    words = [f"{key} {what}" for key, what in commands.items() if key != "q"]
    names = keys_of(game) + ["the mouse"] * (len(keys_of(game)) < len(game.names))
    keys = [f"keys: {', '.join(names)}"] if names else []
    help_line = "   ".join([*keys, ", ".join(words)])
    held: list[str] = []
    paused, due = False, time.perf_counter()
    while steps is None or game.steps < steps:
        tapped: list[str] = []
        for event in screen.events():
            command = commands.get(event.name) if event.down else None
            if command == "quit":
                return
            if command == "reset":
                game.reset()
            elif command == "pause":
                paused = not paused
            elif event.name in game.names:
                held = [name for name in held if name != event.name]
                if event.down:
                    held.append(event.name)
                    tapped.append(event.name)
        if not paused and (tapped or not game.waits):
            # a tap counts even if the key is up again by now
            game.step([*(name for name in tapped if name not in held), *held])
        status = "   ".join([game.status(), *(["paused"] if paused else [])])
        screen.show(game, (status, help_line))
        due = max(due + pause, time.perf_counter() - pause)  # what was missed is not caught up
        time.sleep(max(0.0, due - time.perf_counter()))
