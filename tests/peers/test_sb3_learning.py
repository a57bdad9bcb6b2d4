"""Stable-Baselines3's algorithms learn in our vector, also what they did not know."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from expedition import BAG, Expedition
from peer_toys import Choices, Pushes, registered, run_example

import fugu

pytest.importorskip("stable_baselines3")

import torch
from sb3_vectors import ours
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.evaluation import evaluate_policy

from fugu.vector import to_sb3

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (registered("Blackjack-v1"), {}),
        (functools.partial(Choices, tame=True), {"limits": 4}),
        (functools.partial(Pushes, tame=True), {"limits": 4}),
        (Expedition, {"limits": BAG, "action_bins": 3}),
    ],
    ids=["a tuple", "choices", "pushes", "mixed"],
)
def test_their_algorithms_take_what_they_did_not_know(
    make: Callable[[], Any], options: dict[str, Any]
) -> None:
    torch.set_num_threads(1)
    vector = ours(make, num_envs=2, **options)
    model = A2C("MultiInputPolicy", vector, n_steps=8, seed=0)
    model.learn(64)
    assert model.num_timesteps == 64
    vector.close()


@pytest.mark.timeout(280)
def test_ppo_learns_cartpole_through_processes() -> None:
    torch.set_num_threads(1)
    start = time.time()
    vector = to_sb3(fugu.make("CartPole-v1", 8, backend="process", num_workers=2, seed=1))
    model = PPO(
        "MlpPolicy",
        vector,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        ent_coef=0.0,
        seed=1,
        device="cpu",
    )
    model.learn(100_000)
    assert model.ep_info_buffer is not None
    assert len(model.ep_info_buffer) == 100  # what it logs comes from our infos
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no Monitor
        mean, spread = evaluate_policy(model, vector, n_eval_episodes=20, deterministic=True)
    vector.close()
    print(f"CartPole through to_sb3: {mean:.1f} +- {spread:.1f} in {time.time() - start:.0f} s")
    assert mean >= 475


def test_the_structured_example_runs() -> None:
    told = run_example("sb3_structured")
    assert "mean return" in told
    assert "steps/s" in told
