"""`fugu play`: play an environment yourself, or watch a run's policy play it."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import tyro

from fugu.cli.parsing import ActingOptions, EnvSettings, parse_settings
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.cli.games import Game, WatchedGame
    from fugu.store.run import Run


@dataclass(frozen=True)
class Play(ActingOptions):
    """Play a native environment with the keyboard, or watch a run's policy play its environment.

    Cells of a board are chosen by the mouse. Agents without keys act at random. R starts again, the
    space bar pauses and Esc or Q quits, unless the game uses them itself.
    """

    env: Annotated[str, tyro.conf.arg(metavar="ENV|RUN")]
    """A native environment or its path, or a run: its name, how it begins, its folder, latest."""
    set: EnvSettings = ()
    """Settings of the environment, beside those of the run."""
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
        from fugu.cli.screens import has_display, keys_of, run, terminal, window
        from fugu.cli.subjects import find_run

        if self.fps is not None and not self.fps > 0:
            raise UsageError(f"fps: given {self.fps}; allowed: a number above 0.")
        found = find_run(self.env, self.runs)
        with ExitStack() as stack:
            game = self._game() if found is None else self._watched(found, stack)
            in_terminal = self.terminal or not has_display(os.environ)
            if in_terminal and game.names and not keys_of(game):
                raise UsageError(
                    f"play: given {self.env!r} in a terminal; allowed: a window, since it is "
                    "played by pointing at cells. fugu gallery makes a page that needs no display."
                )
            if in_terminal and not self.terminal:
                print("No display here: playing in the terminal.", file=sys.stderr)
            with terminal() if in_terminal else window(game) as screen:
                run(game, screen, self.steps, self.fps)
            print(game.status())
        return 0

    def _game(self) -> Game:
        """A game for people."""
        from fugu.cli.games import Game
        from fugu.cli.subjects import refuse_run_options
        from fugu.envs import suite
        from fugu.envs.native_env import NativeEnv
        from fugu.envs.resolve import resolve

        refuse_run_options(self.env, self)
        factory = resolve(self.env, **parse_settings(self.set))
        if getattr(factory, "func", None) is not NativeEnv:
            raise UsageError(
                f"env: given {self.env!r}; allowed: a native environment, such as "
                f"{', '.join(suite.names()[:5])}, or the path of one that was built. "
                f"fugu record {self.env} shows others."
            )
        return Game(factory(), self.seed, self.players)

    def _watched(self, found: Run, stack: ExitStack) -> WatchedGame:
        """A game that the policies of a run play."""
        from fugu.cli.games import WatchedGame, watched_vector
        from fugu.cli.subjects import load_agent
        from fugu.core.seeding import fresh_seed

        if self.players is not None:
            raise UsageError(f"players: given with {self.env!r}; allowed: with an environment.")
        seed = fresh_seed() if self.seed is None else self.seed
        agent = load_agent(found, self)
        kwargs = {**agent.config.env_kwargs, **parse_settings(self.set)}
        vec = stack.enter_context(watched_vector(agent.config.env, kwargs))
        players = partial(agent.players, greedy=not self.sample, seed=seed)
        return WatchedGame(found.name, vec, players, seed)
