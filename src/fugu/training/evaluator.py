"""Evaluations in the course of a training run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fugu.training.evaluate import COPIES, engine_of, play
from fugu.vector import Vector, make

if TYPE_CHECKING:
    from fugu.training.trainer import Trainer

log = logging.getLogger("fugu")


class Evaluator:
    """Evaluates a trainer's policies every so many steps, on the same episodes each time.

    Its environments are its own: they have none of the attributes that callbacks set.

    Args:
        every: Agent steps between two evaluations; 0: never.
        episodes: Episodes of each.

    Attributes:
        steps: Agent steps at the last evaluation.
    """

    def __init__(self, every: int, episodes: int) -> None:
        self._every, self._episodes, self.steps = every, episodes, 0
        self._vec: Vector | None = None

    def evaluate(self, trainer: Trainer) -> dict[str, float]:
        """Return what the first rank measures, at all ranks; nothing if no evaluation is due.

        One is due whenever `every` steps have passed, and at the end of the run.
        """
        every, done = self._every, trainer.steps >= trainer.cfg.train.total_steps
        if not every or (trainer.steps // every == self.steps // every and not done):
            return {}
        self.steps = trainer.steps
        found = {} if trainer.ranks.rank else self._play(trainer)
        return trainer.ranks.share(found, patient=True)

    def close(self) -> None:
        """Close the environments."""
        if self._vec is not None:
            self._vec.close()
            self._vec = None

    def _play(self, trainer: Trainer) -> dict[str, float]:
        cfg = trainer.cfg
        if self._vec is None:
            env = trainer.inputs.env_of(cfg.env)
            self._vec = make(env, min(COPIES, self._episodes), **cfg.env_options)
        limit = cfg.run.evaluation_max_episode_steps
        found = play(
            trainer.policies,
            self._vec,
            self._episodes,
            seed=cfg.seed,
            engine=engine_of(cfg),
            max_episode_steps=limit,
        )
        if found.cut_off:
            log.warning(
                "evaluation: %d of %d episodes did not end within %d steps and were cut off; "
                "--run.evaluation-max-episode-steps sets the limit",
                found.cut_off,
                len(found.returns),
                limit,
            )
        return found.to_dict()
