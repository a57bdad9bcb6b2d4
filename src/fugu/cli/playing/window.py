"""A game in a window of pygame."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fugu.cli.playing.loop import QUIT, Game, KeyEvent
from fugu.core.errors import FuguError, MissingExtraError

HEIGHT = 600  # of a window when it opens


def has_display(environ: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a window can be expected to open here.

    >>> has_display({}, "linux"), has_display({"DISPLAY": ":0"}, "linux"), has_display({}, "darwin")
    (False, True, True)
    """
    if not platform.startswith(("linux", "freebsd")):
        return True
    return any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))


@contextmanager
def window(game: Game) -> Iterator[Window]:
    """A window for a game; it is closed however the game ends."""
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

    def __init__(self, pygame: Any, game: Game) -> None:
        self._pygame, self._game, self._title = pygame, game, ""
        width, height = game.size
        size = (round(HEIGHT * width / height), HEIGHT) if height > 0 else (HEIGHT, HEIGHT)
        self._surface = pygame.display.set_mode(size, pygame.RESIZABLE)

    def events(self) -> list[KeyEvent]:
        """Keys that went down or up, and cells that were pointed at.

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
        """A cell goes down and up at once."""
        shown, size = self._surface.get_size(), self._game.size
        name = self._game.cell_at(at[0] / shown[0] * size[0], at[1] / shown[1] * size[1])
        return [] if name is None else [KeyEvent(name, True), KeyEvent(name, False)]

    def show(self, game: Game, lines: tuple[str, str]) -> None:
        """Draw the game anew."""
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
