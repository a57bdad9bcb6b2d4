"""`fugu eval`: how well does a trained policy play?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Evaluate:
    """Play episodes with a run's policy and say what they came to."""

    name: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """The run: its name, the beginning of it, its folder, or latest."""
    episodes: int = 100
    """Episodes to play."""
    best: bool = False
    """Take the best checkpoint and not the last."""
    sample: bool = False
    """Draw actions at random, as in training, and do not take the most probable ones."""
    seed: int = 0
    """Of the environments and of the actions."""
    runs: Path = Path("runs")
    """Where runs are."""
    video: Path | None = None
    """Write a video of it too: FILE.mp4 or FILE.gif."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> int:
        """Evaluate; 0 if it went well."""
        from fugu.training.evaluate import evaluate

        found = evaluate(
            self.name,
            episodes=self.episodes,
            root=self.runs,
            best=self.best,
            greedy=not self.sample,
            seed=self.seed,
        ).to_dict()
        if self.video is not None:
            self._film(self.video)
        if self.json:
            print(json.dumps(found))
        else:
            print(
                f"{found['episodes']} episodes: return {found['mean_return']:.4g} "
                f"(deviation {found['deviation']:.3g}, {found['lowest']:.4g} to "
                f"{found['highest']:.4g}), length {found['mean_length']:.4g}"
            )
        return 0

    def _film(self, out: Path) -> None:
        from fugu.cli.subjects import Cast
        from fugu.store.run import Run
        from fugu.vector.recording import record

        run = Run.open(self.name, self.runs)
        cast = Cast(run, best=self.best, greedy=not self.sample, seed=self.seed)
        kwargs = cast.cfg.env_kwargs
        policy = cast.players_in(1)
        record(cast.cfg.env, out, policy=policy, steps=600, seed=self.seed, env_kwargs=kwargs)
