"""Gymnasium's vector and ours of the same environments, stepped side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from expedition import BAG, Expedition
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from peer_toys import NUM_ENVS, Choices, Everything, Talker, equal, registered
from vector_toys import Walk

from fugu.vector import to_gymnasium


def minigrid() -> Any:
    import minigrid  # noqa: F401

    return gymnasium.make("MiniGrid-Empty-5x5-v0", max_steps=12)


# What makes each environment, and how it is made for fugu.
ENVS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "CartPole": (registered("CartPole-v1", max_episode_steps=15), {}),
    "FrozenLake": (registered("FrozenLake-v1"), {}),
    "Blackjack": (registered("Blackjack-v1"), {}),
    "Pendulum": (registered("Pendulum-v1", max_episode_steps=20), {}),
    "MiniGrid": (minigrid, {"limits": {"mission": 64}}),
    "Expedition": (lambda: Expedition(length=12), {"limits": {"walker/bag": BAG}}),
    "infos of every kind": (Talker, {}),
    "spaces of every kind": (Everything, Everything.LIMITS),
    "a tree of choices": (Choices, {"limits": 4}),
    "text": (Walk, {}),
}


def theirs(make: Callable[[], Any], num_envs: int = NUM_ENVS, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)


def ours(
    make: Callable[[], Any], backend: str = "serial", num_envs: int = NUM_ENVS, **options: Any
) -> Any:
    workers = {"num_workers": 2} if backend == "process" else {}
    return to_gymnasium(make, num_envs, backend=backend, **workers, **options)


def check_step(peer: VectorEnv[Any, Any, Any], vector: VectorEnv[Any, Any, Any]) -> Any:
    """One random step of both; what it gave."""
    actions = peer.action_space.sample()
    expected, found = peer.step(actions), vector.step(actions)
    assert equal(found[0], expected[0])
    assert found[1].dtype == expected[1].dtype == np.float64
    assert found[1].astype(np.float32).tobytes() == expected[1].astype(np.float32).tobytes()
    for flags in (2, 3):
        assert found[flags].tolist() == expected[flags].tolist()
        assert found[flags].dtype == np.bool_
    assert equal(found[4], expected[4]), (found[4], expected[4])
    return expected
