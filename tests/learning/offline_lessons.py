"""Lessons from recorded episodes: the tests and the benchmark of offline learning share them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fugu.algos.decision_transformer import DecisionSequences, SequenceSampler
from fugu.data.recording import record_episodes
from fugu.policies.policy import Policy
from fugu.training.evaluate import Players, play
from fugu.training.session import train
from fugu.training.target_returns import ask
from fugu.training.trainer import Progress, Trainer
from fugu.vector import make

CARTPOLE: dict[str, Any] = {"hidden_size": 64, "blocks": 2, "heads": 2, "window": 10}
MIXTURE = {0.1: 640, 0.3: 160, 0.6: 160, 1.0: 64}  # episodes after this share of a run
TARGETS = (25.0, 50.0, 100.0, 150.0, 200.0, 300.0, 400.0, 500.0)


def learn(
    env: str,
    data: Path,
    steps: int,
    policy: dict[str, Any],
    seed: int = 1,
    **settings: Any,
) -> Policy:
    """Train quietly, and keep nothing."""
    result = train(
        env,
        keep=False,
        show=False,
        algo="decision_transformer",
        seed=seed,
        vec={"num_envs": 1, "backend": "serial"},
        policy=policy,
        train={"data": data, "total_steps": steps, "learning_rate": 0.003, **settings},
    )
    (found,) = result.policies
    return found


@contextlib.contextmanager
def returns_shuffled() -> Iterator[None]:
    """The returns to go of a batch belong to other sequences."""
    take = SequenceSampler.take

    def mixed(self: SequenceSampler, drawn: Any) -> DecisionSequences:
        found = take(self, drawn)
        order = np.random.default_rng(int(drawn[0])).permutation(len(drawn))
        return DecisionSequences(
            found.observations, found.actions, found.returns[order], found.times, found.mask
        )

    with mock.patch.object(SequenceSampler, "take", mixed):
        yield


def record_mixture(folder: Path, steps: int = 120_000) -> Path:
    """Episodes of CartPole by one PPO run after 10, 30, 60 and 100 % of it: see `MIXTURE`."""
    shares = list(MIXTURE)

    def record(trainer: Trainer, progress: Progress) -> None:
        while shares and progress.steps >= shares[0] * steps:
            share = shares.pop(0)
            seed = round(100 * share)
            with make("cartpole", 16) as vec:
                players = Players(trainer.policies, vec, seed, greedy=False)
            record_episodes("cartpole", folder, episodes=MIXTURE[share], policy=players, seed=seed)

    train(
        "cartpole",
        keep=False,
        show=False,
        seed=1,
        train={"total_steps": steps},
        callbacks=[record],
    )
    return folder


def achieved(policy: Policy, targets: tuple[float, ...] = TARGETS) -> list[float]:
    """Mean returns for each target."""
    found = []
    with make("cartpole", 16) as vec:
        for target in targets:
            ask([policy], target)
            found.append(float(np.mean(play([policy], vec, 32).returns)))
    return found
