"""The native stepper does what the plain path does."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from expedition import BAG, Expedition

from fugu import native
from fugu.envs import emulate

pytestmark = pytest.mark.skipif(not native.available, reason="needs the extension")


def play(make: Any, *, stepper: bool, **settings: Any) -> list[Any]:
    env = emulate(make, **settings)
    assert env._stepper is not None  # type: ignore[attr-defined]
    if not stepper:
        env._stepper = None  # type: ignore[attr-defined]
    env.reset(3)
    (rows,), seen = env.buffers, []
    env.source.action_space.seed(1)
    for t in range(300):
        if t == 250:
            env.reset()  # in the middle of an episode, whose sums must not reach the next
        env.action_layout.pack(env.source.action_space.sample(), rows.actions[0])
        env.step()
        arrays = (rows.observations, rows.final, rows.rewards, rows.terminations, rows.truncations)
        seen.append(([array.tobytes() for array in arrays], str(env.infos)))
    return seen


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: gymnasium.make("CartPole-v1"), {}),
        (lambda: gymnasium.make("FrozenLake-v1"), {}),
        (lambda: gymnasium.make("Pendulum-v1"), {}),
        (lambda: Expedition(length=30), {"limits": {"walker/bag": BAG}}),
    ],
    ids=["CartPole", "FrozenLake", "Pendulum", "Expedition"],
)
def test_both_paths_write_the_same(make: Any, settings: dict[str, Any]) -> None:
    ours = play(make, stepper=True, **settings)
    assert ours == play(make, stepper=False, **settings)
    assert any(infos != "()" for _, infos in ours)


def test_rewards_of_every_kind_are_summed_alike() -> None:
    class Rewards(gymnasium.Env):  # type: ignore[type-arg]
        observation_space = gymnasium.spaces.Discrete(9)
        action_space = gymnasium.spaces.Discrete(2)
        kinds = (1, 0.5, np.float32(0.25), np.float64(2), np.int64(3), True, np.array(1.5))

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.t = 0
            return 0, {}

        def step(self, action: Any) -> Any:
            reward = self.kinds[self.t]
            self.t += 1
            return 0, reward, self.t == len(self.kinds), np.False_, {}

    env = emulate(Rewards())
    env.reset(0)
    for kind in Rewards.kinds:
        env.step()
        assert env.buffers[0].rewards[0] == np.float32(kind)
    assert env.infos[0] == {"episode_return": 9.25, "episode_length": 7}
