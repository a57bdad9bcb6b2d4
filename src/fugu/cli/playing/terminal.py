"""A game in a terminal, drawn with half blocks."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from fugu.cli.playing.loop import QUIT, Game, KeyEvent
from fugu.core.errors import UsageError
from fugu.envs.picture import to_terminal

try:
    import termios
    import tty
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

# Terminals tell of keys that are pressed and repeated, never of those let go: a key counts as held
# until it was not heard of for so many seconds.
HOLD = 0.3
ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # another screen, no cursor, cleared
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
NAMES = {" ": "space", "\r": "return", "\n": "return", "\t": "tab", "\x7f": "backspace"}
ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}


def read_keys(text: str) -> list[str]:
    r"""Names of the keys whose characters a terminal sent.

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
    """The terminal that this process has, as it was before however the game ends."""
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
        """Keys that were pressed, or that were not heard of for a while."""
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

    def show(self, game: Game, lines: tuple[str, str]) -> None:
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
    """What would end the process at once ends it by an exception, so that all is put right."""
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
