"""What is learned of programs in their proofs, how it is judged, and what is taken away."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from lessons import learn, step_by_step

from fugu.data.segments import Segments
from fugu.policies.policy import Policy
from fugu.training.evaluate import play
from fugu.training.trainer import Progress, Trainer
from fugu.vector import make

HELD_OUT = 1  # of list_dsl's setting `split`
GRPO: dict[str, Any] = {"algo": "grpo"}


def solved_share(policies: list[Policy], seed: int, tasks: int = 2000, **settings: Any) -> float:
    """The share of tasks that greedy policies solve; of those held out, if not told otherwise."""
    with make("list_dsl", 500, env_kwargs={"split": HELD_OUT, **settings}) as vec:
        found = play(policies, vec, tasks, seed=seed)
    return float(np.mean(np.array(found.returns) >= 1.0))


@contextlib.contextmanager
def shuffled_earnings() -> Iterator[None]:
    """Copies have each other's rewards."""
    record_reward, random = Segments.record_reward, np.random.default_rng(5)

    def mistaken(self: Segments, agents: Any, rewards: Any, *rest: Any) -> Any:
        return record_reward(self, agents, random.permutation(rewards), *rest)

    with step_by_step(), mock.patch.object(Segments, "record_reward", mistaken):
        yield


def single_operations(steps: int, settings: dict[str, Any], seed: int = 1) -> float:
    """The share of single operations that are found after so many steps."""
    found = learn("list_dsl", steps, {"env_kwargs": {"length": 1}, **settings}, seed)
    return solved_share(found.policies, seed, length=1)


class Search:
    """A callback that ends a training when a program is right in all cases, hidden ones too.

    Attributes:
        programs: Written so far.
        found: Whether one was right.
    """

    def __init__(self, most: int) -> None:
        self.programs, self.found, self._most = 0, False, most

    def __call__(self, trainer: Trainer, progress: Progress) -> None:
        """After an update."""
        self.programs += int(progress.episodes.get("episodes", 0.0))
        self.found |= progress.episodes.get("general", 0.0) > 0.0
        if self.found or self.programs >= self._most:
            trainer.stopping = True
