"""Stable-Baselines3's DummyVecEnv and our vector of the same environments, stepped side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peer_toys import NUM_ENVS, Talker, equal, registered

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from fugu.vector import to_sb3

ENVS: dict[str, Callable[[], Any]] = {
    "CartPole": registered("CartPole-v1", max_episode_steps=15),
    "FrozenLake": registered("FrozenLake-v1"),
    "Pendulum": registered("Pendulum-v1", max_episode_steps=20),
    "Taxi": registered("Taxi-v3", max_episode_steps=20),
    "a dict, and infos of every kind": Talker,
}


def theirs(make: Callable[[], Any], num_envs: int = NUM_ENVS) -> DummyVecEnv:
    return DummyVecEnv([make] * num_envs)


def ours(
    make: Callable[[], Any], backend: str = "serial", num_envs: int = NUM_ENVS, **options: Any
) -> Any:
    workers = {"num_workers": 2} if backend == "process" else {}
    return to_sb3(make, num_envs, backend=backend, **workers, **options)


def check_step(peer: VecEnv, vector: VecEnv, rng: np.random.Generator) -> Any:
    """One random step of both; what it gave."""
    peer.action_space.seed(int(rng.integers(2**31)))
    actions = np.array([peer.action_space.sample() for _ in range(peer.num_envs)])
    expected, found = peer.step(actions), vector.step(actions)
    assert equal(found[0], expected[0])
    for array in (1, 2):
        assert equal(found[array], expected[array])
    for info in [*found[3], *expected[3]]:
        info.get("episode", {}).pop("t", None)
    without = [
        {key: info[key] for key in info if key != "episode" or key in other}
        for info, other in zip(found[3], expected[3], strict=True)
    ]
    assert equal(without, expected[3]), (without, expected[3])
    assert equal(vector.reset_infos, peer.reset_infos)
    return found
