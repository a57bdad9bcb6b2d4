"""What GRPO learns in its proofs, and what is taken away in their controls."""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from lessons import judge, learn

from fugu.algos.grpo import GRPOLearner
from fugu.algos.preferences import PreferenceConfig, Report, compare, train_reward_model
from fugu.rollout.actor import sample_episodes
from fugu.training.trainer import Progress, Trainer
from fugu.vector import make

BANDIT = {
    "algo": "grpo",
    "vec": {"num_envs": 128, "backend": "serial"},
    "env_kwargs": {"luck": 30.0},
    "train": {"teams": 16, "epochs": 2, "minibatches": 2},
}
CARTPOLE = {
    "algo": "grpo",
    "vec": {"num_envs": 16},
    "train": {
        "teams": 4,
        "advantages": "process",
        "gamma": 0.99,
        "length": "group",
        "epochs": 8,
    },
}
SEQUENCES = {
    "algo": "grpo",
    "vec": {"num_envs": 128, "backend": "serial"},
    "policy": {"core": "tokens", "hidden_size": 64, "layers": 2},
    "train": {
        "teams": 16,
        "length": "group",
        "normalise_std": False,
        "clip_high": 0.28,
        "learning_rate": 0.001,
        "epochs": 2,
        "minibatches": 2,
        "entropy_coefficient": 0.05,
        "final_entropy_coefficient": 0.0,
    },
}


@contextlib.contextmanager
def mixed_teams() -> Iterator[None]:
    """Copies that are compared do not begin alike."""

    def mixed(*arguments: Any, **options: Any) -> Any:
        return make(*arguments, **{**options, "group_size": 1})

    with mock.patch("fugu.training.trainer.make", mixed):
        yield


@contextlib.contextmanager
def shuffled_rewards() -> Iterator[None]:
    """Episodes of a team have each other's rewards; they must be of one length."""
    offer, random = GRPOLearner.offer, np.random.default_rng(5)

    def mistaken(self: GRPOLearner, team: Any) -> None:
        others = random.permutation(len(team))
        pairs = zip(team, others, strict=True)
        offer(self, [replace(episode, rewards=team[i].rewards) for episode, i in pairs])

    with mock.patch.object(GRPOLearner, "offer", mistaken):
        yield


def right_pulls(seed: int = 1) -> float:
    """Of the context bandit, after 50,000 steps."""
    return final_share("grpo_envs:ContextBandit", 50_000, BANDIT, "right", seed)


def balanced(seed: int = 1) -> float:
    """Steps of greedy CartPole, after 300,000."""
    return judge(learn("cartpole", 300_000, CARTPOLE, seed).policies, "cartpole", seed)


def exact_sequences(task: str, seed: int = 1, steps: int = 400_000) -> float:
    """The share that is written again without a mistake."""
    settings = {**SEQUENCES, "env_kwargs": {"task": task}}
    return final_share("sequence_task:SequenceTask", steps, settings, "exact", seed)


def taught_by_preferences(shuffled: bool, seed: int = 1) -> tuple[float, Report]:
    """The true return of a policy that saw only rewards learned from comparisons, and their report.

    Comparisons are of evenly random episodes; one in twenty is turned around.
    """
    group, episodes = sample_episodes("grpo_envs:Echo", 200, seed=seed)
    random = np.random.default_rng(seed)
    comparisons = compare(episodes, 500, random, mistakes=0.05)
    if shuffled:
        labels = random.permutation([c.preference for c in comparisons])
        comparisons = [replace(c, preference=p) for c, p in zip(comparisons, labels, strict=True)]
    model, report = train_reward_model(group, comparisons, PreferenceConfig(members=2, seed=seed))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "reward")
        settings = {
            "algo": "grpo",
            "vec": {"num_envs": 64, "backend": "serial"},
            "train": {"reward_model": Path(folder) / "reward"},
        }
        result = learn("grpo_envs:Echo", 60_000, settings, seed)
    assert result.score is not None
    return result.score, report


def final_share(env: str, steps: int, settings: Any, name: str, seed: int) -> float:
    """The mean of what episodes told by that name, over about the last five hundred of them."""
    recent: deque[tuple[float, float]] = deque()

    def watch(trainer: Trainer, progress: Progress) -> None:
        recent.append((progress.episodes["episodes"], progress.episodes[name]))
        while sum(count for count, _ in recent) - recent[0][0] >= 500:
            recent.popleft()

    learn(env, steps, settings, seed, (watch,))
    return sum(n * share for n, share in recent) / sum(n for n, _ in recent)
