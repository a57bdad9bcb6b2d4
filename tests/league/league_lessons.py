"""Leagues of Kuhn poker: how much a best response gains against a pool, and a learner alone."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exact_games import SIGHTS, kuhn_average, kuhn_exploitability
from numpy.typing import NDArray

from fugu.algos.ppo import PPO
from fugu.envs.building import build
from fugu.league.players import PolicyPlayer
from fugu.league.self_play import SelfPlay
from fugu.policies.policy import Policy
from fugu.training.session import train
from fugu.training.trainer import Trainer

Floats = NDArray[np.float64]
STEPS = 400_000
# Snapshots are met all alike, as in fictitious play, and the learner itself.
POOL: dict[str, Any] = {"self_share": 0.5, "draw": "uniform", "pool_size": 0}
LATEST: dict[str, Any] = {"self_share": 1.0}  # the control: nobody but the learner itself


@cache
def kuhn() -> str:
    """The game, built."""
    folder = Path(tempfile.mkdtemp(prefix="fugu-kuhn-"))
    return str(build(Path(__file__).with_name("kuhn.h"), folder / "kuhn.so"))


def strategy(policy: Policy) -> Floats:
    """How probable a bet is, by what is seen, `[12]`."""
    with torch.no_grad():
        params, _, _ = policy(torch.eye(SIGHTS), policy.initial_state(SIGHTS))
    return params.softmax(-1).double().numpy()[:, 1]


def learn(seed: int, steps: int, league: dict[str, Any]) -> Trainer:
    """Train, and give back what is left of it."""
    left: list[Trainer] = []
    train(
        kuhn(),
        keep=False,
        show=False,
        seed=seed,
        vec={"num_envs": 512},
        policy={"hidden_size": 32, "layers": 1},
        train={
            "total_steps": steps,
            "horizon": 8,
            "rows": 256,
            "schedule": "constant",
            "learning_rate": 0.003,
            "entropy_coefficient": 0.1,  # who is sure of something learns nothing new of it
            "final_entropy_coefficient": None,
            "gamma": 1.0,
            "normalise_rewards": False,
        },
        league={"enabled": True, "snapshot_score": 1.0, "snapshot_every": 5000, **league},
        callbacks=[lambda trainer, _: left.append(trainer) if not left else None],
    )
    return left[0]


def pooled(trainer: Trainer) -> Sequence[Floats]:
    """The strategies of all snapshots."""
    assert isinstance(trainer.algorithm, PPO)
    assert isinstance(trainer.algorithm.opponents, SelfPlay)
    players = [member.player for member in trainer.algorithm.opponents.pool.members]
    return [strategy(each.policies[0]) for each in players if isinstance(each, PolicyPlayer)]


def exploitability_of_the_pool(seed: int, steps: int = STEPS) -> tuple[float, float]:
    """Of its average, at the beginning and in the end."""
    strategies = pooled(learn(seed, steps, POOL))
    return kuhn_exploitability(strategies[0]), kuhn_exploitability(kuhn_average(strategies))


def exploitability_of_the_latest(seed: int, steps: int = STEPS) -> float:
    """Of a learner that only ever met itself."""
    trainer = learn(seed, steps, LATEST)
    return kuhn_exploitability(strategy(trainer.policies[0]))
