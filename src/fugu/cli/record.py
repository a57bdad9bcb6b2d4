"""`fugu record`: what does an environment look like?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fugu.cli.settings import Settings, parse_settings


@dataclass(frozen=True)
class Record:
    """Play an environment with random actions and write a video, a GIF or a picture of it."""

    env: Annotated[str, tyro.conf.arg(metavar="ENV")]
    """cartpole, CartPole-v1, module:Id-v0, pettingzoo:family/name or package.module:factory."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE.mp4|.gif|.png")] = None
    """The file to write; the environment's name with .mp4 if not given."""
    steps: int = 300
    """Steps to play. A PNG shows how it looks after them."""
    copies: int = 1
    """Copies to show side by side."""
    set: Settings = ()
    """Settings or arguments of the environment."""
    seed: int = 0
    """Seed of the environment and of the actions."""
    fps: float | None = None
    """Pictures a second; what the environment says if not given."""
    height: int | None = None
    """Height of a copy's picture in pixels; even sizes suit a video."""

    def run(self) -> int:
        """Record; 0 if there is a file."""
        from fugu.vector.recording import record

        name = self.env.replace(":", "_").replace("/", "_")
        path = record(
            self.env,
            self.video or Path(f"{name}.mp4"),
            steps=self.steps,
            copies=self.copies,
            seed=self.seed,
            fps=self.fps,
            height=self.height,
            env_kwargs=parse_settings(self.set),
            show=True,
        )
        print(f"Written: {path}")
        return 0
