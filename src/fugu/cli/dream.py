"""`fugu dream`: what does a world model expect, and what happens?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fugu.cli.parsing import ActingOptions, RunName


@dataclass(frozen=True)
class Dream(ActingOptions):
    """Show what a run's world model predicts from actions alone, beside what really happens.

    Images stand side by side, truth first; numbers are lines, the truth's in grey.
    """

    name: RunName
    """The run: its name, the beginning of it, its folder, or latest."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.gif|.mp4|.png")] = Path("dream.gif")
    """The file to write."""
    context: int = 16
    """Steps of an episode that the model looks at."""
    steps: int = 48
    """Steps that it then predicts."""
    fps: float = 10.0
    """Steps a second."""
    seed: int = 0
    """Of the environment, the actions and the dream."""

    def run(self) -> int:
        """Dream; 0 if there is a file."""
        from fugu.cli.dream_pictures import pictures
        from fugu.cli.subjects import load_agent
        from fugu.store.run import Run
        from fugu.training.dreaming import dream
        from fugu.vector.film import check_film, film

        check_film(self.out)
        agent = load_agent(Run.open(self.name, self.runs), self)
        with agent.make(1, backend="serial") as vec:
            found = dream(
                agent.policies,
                vec,
                context=self.context,
                steps=self.steps,
                greedy=not self.sample,
                seed=self.seed,
            )
        with film(self.out, self.fps) as out:
            for picture in pictures(found):
                out.add(picture)
        model, copied = found.errors()
        print(
            f"Written: {self.out}. Mean squared error over {self.steps} steps: {model:.4g}; of the "
            f"last sight for ever: {copied:.4g}."
        )
        return 0
