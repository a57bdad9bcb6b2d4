"""`fugu play`: play an environment yourself."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from fugu.cli.settings import Settings, parse_settings


@dataclass(frozen=True)
class Play:
    """Play a native environment with the keyboard; agents without keys act by chance.

    R begins anew, the space bar pauses and Esc or Q quits, unless the game uses them itself.
    """

    env: Annotated[str, tyro.conf.arg(metavar="ENV")]
    """A native environment: its name (cartpole), or the path of one that was built."""
    set: Settings = ()
    """Settings of the environment."""
    seed: int | None = None
    """Seed of the game; a fresh one if not given."""
    players: int | None = None
    """How many of the agents that have keys people play; all of them if not given."""
    terminal: bool = False
    """Play in the terminal, without a window."""
    fps: float | None = None
    """Steps a second; what the environment says if not given."""
    steps: int | None = None
    """End after so many steps."""

    def run(self) -> int:
        """Play; 0 when it ends."""
        from fugu.cli.playing.game import Game
        from fugu.cli.playing.loop import run
        from fugu.cli.playing.terminal import terminal
        from fugu.cli.playing.window import has_display, window
        from fugu.core.errors import UsageError
        from fugu.envs import suite
        from fugu.envs.native_env import NativeEnv
        from fugu.envs.resolve import resolve

        if self.fps is not None and not self.fps > 0:
            raise UsageError(f"fps: given {self.fps}; allowed: a number above 0.")
        factory = resolve(self.env, **parse_settings(self.set))
        if getattr(factory, "func", None) is not NativeEnv:
            raise UsageError(
                f"env: given {self.env!r}; allowed: a native environment, such as "
                f"{', '.join(suite.names()[:5])}, or the path of one that was built. "
                f"fugu record {self.env} shows others."
            )
        game = Game(factory(), self.seed, self.players)
        in_terminal = self.terminal or not has_display(os.environ)
        if in_terminal and not self.terminal:
            print("No display here: playing in the terminal.", file=sys.stderr)
        with terminal() if in_terminal else window(game) as screen:
            run(game, screen, self.steps, self.fps)
        print(game.status())
        return 0
