"""Screens on which games are played or watched: a window of pygame, or the terminal."""

from __future__ import annotations

import importlib
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

from fugu.core.errors import FuguError, MissingExtraError, UsageError
from fugu.envs.picture import to_terminal

try:
    import termios
    import tty
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from fugu.cli.games import Game, WatchedGame

    AnyGame: TypeAlias = Game | WatchedGame

RATE = 30.0  # frames a second where an environment does not say
QUIT = "escape"
_CELL = "cell "


def cell_name(number: int) -> str:
    """Return the name of a cell among keys."""
    return f"{_CELL}{number}"


def keys_of(game: AnyGame) -> list[str]:
    """Return the keys of a keyboard that do something."""
    return [name for name in game.names if not name.startswith(_CELL)]


@dataclass(frozen=True)
class KeyEvent:
    """A key went down or up."""

    name: str
    """As pygame calls it: "left", "space", "a"; or a cell that was pointed at: "cell 12"."""
    down: bool


def commands_of(game: AnyGame) -> dict[str, str]:
    """Return the commands of keys that the game does not use itself."""
    commands = {"space": "pause", "r": "reset", "q": "quit"}
    free = {key: what for key, what in commands.items() if key not in game.names}
    return free | {QUIT: "quit"}


def run(
    game: AnyGame,
    screen: Terminal | Window,
    steps: int | None = None,
    fps: float | None = None,
) -> None:
    """Play until a person quits, or for so many steps.

    Args:
        game: The game.
        screen: Where it is shown, and where its keys come from.
        steps: The number of steps after which it ends.
        fps: Steps per second; what the environment says if not given.
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


# ---------------------------------------------------------------------- the terminal

# Terminals tell of keys that are pressed and repeated, never of those let go: a key counts as held
# until it was not heard of for so many seconds.
HOLD = 0.3
ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # another screen, no cursor, cleared
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
NAMES = {" ": "space", "\r": "return", "\n": "return", "\t": "tab", "\x7f": "backspace"}
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}


def read_keys(text: str) -> list[str]:
    r"""Return the names of the keys whose characters a terminal sent.

    >>> read_keys("a \x1b[A\x1bOD")
    ['a', 'space', 'up', 'left']
    >>> read_keys("\x1b"), read_keys("\x1b[5~q")
    (['escape'], ['q'])
    """
    names, at = [], 0
    while at < len(text):
        if text[at] != "\x1b":
            names.append(NAMES.get(text[at], text[at].lower()))
            at += 1
        elif text[at + 1 : at + 2] in ("[", "O"):
            at += 2
            while at < len(text) and not "@" <= text[at] <= "~":
                at += 1
            names += [ARROWS[text[at]]] if text[at : at + 1] in ARROWS else []
            at += 1
        else:
            names.append(QUIT)
            at += 1
    return names


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Yield the terminal of this process, and restore it however the game ends."""
    if termios is None:
        raise UsageError("terminal: given a system without termios; allowed: Linux and macOS.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "terminal: given input or output that is no terminal; allowed: a terminal, to read "
            "keys from and to draw in. fugu record writes a file instead."
        )
    entrance = sys.stdin.fileno()
    before = termios.tcgetattr(entrance)
    with _signals_as_exceptions():
        try:
            tty.setcbreak(entrance)
            mode = termios.tcgetattr(entrance)
            mode[6][termios.VSUSP] = b"\0"  # stopped by Ctrl-Z, it would leave the terminal raw
            termios.tcsetattr(entrance, termios.TCSANOW, mode)
            _write(ENTER)
            yield Terminal(entrance)
        finally:
            termios.tcsetattr(entrance, termios.TCSAFLUSH, before)
            _write(LEAVE)


class Terminal:
    """Draws pictures as large as the terminal is, with two lines of text below."""

    def __init__(self, entrance: int) -> None:
        self._entrance = entrance
        self._heard: dict[str, float] = {}  # keys that are held, and when they were heard of last

    def events(self) -> list[KeyEvent]:
        """Return keys that were pressed, or that were not heard of for a while."""
        now, found = time.monotonic(), []
        text = b""
        while select.select([self._entrance], [], [], 0)[0]:
            more = os.read(self._entrance, 1024)
            if not more:
                return [KeyEvent(QUIT, True)]  # the terminal is gone
            text += more
        for name in read_keys(text.decode(errors="ignore")):
            found.append(KeyEvent(name, True))
            self._heard[name] = now
        for name in [name for name, heard in self._heard.items() if now - heard > HOLD]:
            found.append(KeyEvent(name, False))
            del self._heard[name]
        return found

    def show(self, game: AnyGame, lines: tuple[str, str]) -> None:
        """Draw the game over what was drawn before."""
        columns, rows = shutil.get_terminal_size()
        width, height = game.size
        high = max(2, 2 * min(rows - 3, round(columns * height / width / 2)))
        wide = max(1, min(columns, round(high * width / height)))
        drawn = to_terminal(game.picture((wide, high)), wide).splitlines()
        text = [line[: columns - 1] for line in lines]
        _write("\x1b[H" + "\x1b[K\r\n".join([*drawn, *text]) + "\x1b[J")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Turn signals that would end the process into exceptions, so that the terminal is restored."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return

    def end(number: int, _: FrameType | None) -> Any:
        raise SystemExit(128 + number)

    before = {name: signal.signal(name, end) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


# ---------------------------------------------------------------------- a window

HEIGHT = 600  # of a window when it opens


def has_display(environ: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Return whether a window can be expected to open here.

    >>> has_display({}, "linux"), has_display({"DISPLAY": ":0"}, "linux"), has_display({}, "darwin")
    (False, True, True)
    """
    if not platform.startswith(("linux", "freebsd")):
        return True
    return any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))


@contextmanager
def window(game: AnyGame) -> Iterator[Window]:
    """Yield a window for a game, and close it however the game ends."""
    # pygame greets on stdout when it is imported, unless it is asked not to
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        pygame: Any = importlib.import_module("pygame")
    except ModuleNotFoundError as error:
        raise MissingExtraError("pygame-ce", "play") from error
    try:
        pygame.display.init()  # not pygame.init: that looks for sound too
        try:
            yield Window(pygame, game)
        finally:
            pygame.display.quit()
    except pygame.error as error:
        raise FuguError(
            f"play: no window can be opened here ({error}). fugu play --terminal needs none."
        ) from error


class Window:
    """Shows pictures as large as the window is; the line of the score is its title."""

    def __init__(self, pygame: Any, game: AnyGame) -> None:
        self._pygame, self._game, self._title = pygame, game, ""
        width, height = game.size
        size = (round(HEIGHT * width / height), HEIGHT) if height > 0 else (HEIGHT, HEIGHT)
        self._surface = pygame.display.set_mode(size, pygame.RESIZABLE)

    def events(self) -> list[KeyEvent]:
        """Return keys that went down or up, and cells that were pointed at.

        Closing the window counts as the key that quits.
        """
        pygame = self._pygame
        found: list[KeyEvent] = []
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                found.append(KeyEvent(QUIT, True))
            elif event.type in (pygame.KEYDOWN, pygame.KEYUP):
                name = pygame.key.name(event.key)
                found.append(KeyEvent(name, event.type == pygame.KEYDOWN))
            elif event.type == pygame.MOUSEBUTTONDOWN and event.button == 1:
                found += self._pointed(event.pos)
        return found

    def _pointed(self, at: tuple[int, int]) -> list[KeyEvent]:
        """Return the events of the cell at a place: it goes down and up at once."""
        shown, size = self._surface.get_size(), self._game.size
        name = self._game.cell_at(at[0] / shown[0] * size[0], at[1] / shown[1] * size[1])
        return [] if name is None else [KeyEvent(name, True), KeyEvent(name, False)]

    def show(self, game: AnyGame, lines: tuple[str, str]) -> None:
        """Draw the game."""
        pygame = self._pygame
        self._surface = pygame.display.get_surface()
        picture = game.picture(self._surface.get_size())
        height, width, _ = picture.shape
        self._surface.blit(pygame.image.frombuffer(picture, (width, height), "RGB"), (0, 0))
        title = "   |   ".join(lines)
        if title != self._title:
            pygame.display.set_caption(title)
            self._title = title
        pygame.display.flip()
