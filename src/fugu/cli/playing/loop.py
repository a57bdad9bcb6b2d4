"""The loop of a game: keys in, pictures out, on whatever screen there is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fugu.cli.playing.game import Game

RATE = 30.0  # frames a second where an environment does not say
QUIT = "escape"


@dataclass(frozen=True)
class KeyEvent:
    """A key went down or up."""

    name: str
    """As pygame calls it: "left", "space", "a"."""
    down: bool


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
    pause = 1 / (fps or game.env.spec.frames or RATE)
    commands = commands_of(game)
    words = [f"{key} {what}" for key, what in commands.items() if key != "q"]
    help_line = f"keys: {', '.join(game.names)}   {', '.join(words)}"
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
