"""`fugu record`: what does an environment look like, and how is it played?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fugu.cli.settings import Settings, parse_settings


@dataclass(frozen=True)
class Record:
    """Play an environment and write a video, a GIF or a picture of it.

    Actions are random, or those of a run's policy.
    """

    env: Annotated[str, tyro.conf.arg(metavar="ENV|RUN")]
    """Any environment's name, or a run: its name, how it begins, its folder, latest."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE.mp4|.gif|.png")] = None
    """The file to write; the name of the environment or the run with .mp4 if not given."""
    steps: int = 300
    """Steps to play. A PNG shows how it looks after them."""
    copies: int = 1
    """Copies to show side by side."""
    set: Settings = ()
    """Settings or arguments of the environment, beside those of the run."""
    seed: int = 0
    """Seed of the environment and of the actions."""
    best: bool = False
    """Take a run's best checkpoint and not its last."""
    sample: bool = False
    """Let a run's policy draw its actions, as in training, and not take the most probable ones."""
    fps: float | None = None
    """Pictures a second; what the environment says if not given."""
    height: int | None = None
    """Height of a copy's picture in pixels; even sizes suit a video."""
    runs: Path = Path("runs")
    """Where runs are."""

    def run(self) -> int:
        """Record; 0 if there is a file."""
        from fugu.cli.subjects import Cast, find_run
        from fugu.core.errors import UsageError
        from fugu.vector.recording import record

        found = find_run(self.env, self.runs)
        env, name, policy, kwargs = self.env, self.env, None, parse_settings(self.set)
        if found is not None:
            cast = Cast(found, best=self.best, greedy=not self.sample, seed=self.seed)
            env, name = cast.cfg.env, found.name
            kwargs = {**cast.cfg.env_kwargs, **kwargs}
            policy = cast.players_in(self.copies)
        elif self.best or self.sample:
            option = "best" if self.best else "sample"
            raise UsageError(f"{option}: given with {self.env!r}; allowed: with a run.")
        path = record(
            env,
            self.video or Path(f"{name.replace(':', '_').replace('/', '_')}.mp4"),
            policy=policy,
            steps=self.steps,
            copies=self.copies,
            seed=self.seed,
            fps=self.fps,
            height=self.height,
            env_kwargs=kwargs,
            show=True,
        )
        print(f"Written: {path}")
        return 0
