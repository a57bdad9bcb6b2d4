"""Results, loading and resuming in Python: what a user types after `fugu.train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

import fugu
from fugu.core.errors import UsageError

SHORT = {"total_steps": 512, "horizon": 32}


class Structured(gymnasium.Env[Any, Any]):
    """Observations are a dict of a board, a number and flags; actions are a tuple."""

    observation_space = spaces.Dict(
        board=spaces.Box(0, 255, (4, 4), np.uint8),
        speed=spaces.Box(-1.0, 1.0, (), np.float32),
        items=spaces.MultiBinary(3),
    )
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,), np.float32)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return self._observation(), float(action[0]), bool(self.np_random.random() < 0.2), False, {}

    def _observation(self) -> dict[str, Any]:
        return {
            "board": self.np_random.integers(0, 256, (4, 4), dtype=np.uint8),
            "speed": np.array(self.np_random.uniform(-1, 1), np.float32),
            "items": self.np_random.integers(0, 2, 3, dtype=np.int8),
        }


def train(env: Any = "CartPole-v1", **more: Any) -> Any:
    return fugu.train(env, train=SHORT, vec={"num_envs": 4}, show=False, seed=3, **more)


def test_the_policy_of_a_result_acts_as_the_policy_of_its_run_does(tmp_path: Path) -> None:
    result = train(run={"folder": str(tmp_path), "name": "pole"})
    loaded = fugu.load("pole", root=tmp_path)
    environment = gymnasium.make("CartPole-v1")
    observation, _ = environment.reset(seed=1)
    for _ in range(20):
        action, value, _ = result.policy.act(observation)
        assert (action, value) == loaded.act(observation)[:2]
        assert environment.action_space.contains(action)
        observation, _, terminated, truncated, _ = environment.step(action)
        if terminated or truncated:
            break


def test_policies_of_nested_spaces_act_on_values_of_the_space(tmp_path: Path) -> None:
    result = train(Structured, run={"folder": str(tmp_path), "name": "nested"})
    loaded = fugu.load("nested", root=tmp_path, env=Structured)
    environment = Structured()
    observation, _ = environment.reset(seed=1)
    for policy in (result.policy, loaded):
        action, _, _ = policy.act(observation)
        assert environment.action_space.contains(action)


def test_a_result_of_several_groups_names_them_instead_of_choosing_one() -> None:
    result = train("speaker_listener", keep=False)
    assert len(result.groups) == len(result.policies) == 2
    with pytest.raises(UsageError, match=rf"'{result.groups[0].name}', '{result.groups[1].name}'"):
        result.policy  # noqa: B018


def test_resume_takes_settings_by_section_as_train_does(tmp_path: Path) -> None:
    train(run={"folder": str(tmp_path), "name": "short"})
    more = fugu.resume("short", root=tmp_path, show=False, train={"total_steps": 1024})
    assert more.steps >= 1024
    with pytest.raises(UsageError, match="overrides"):
        fugu.resume("short", root=tmp_path, show=False, overrides={"train": {}})


def test_resume_takes_settings_of_the_run_section(tmp_path: Path) -> None:
    train(run={"folder": str(tmp_path), "name": "short", "checkpoint_seconds": 0})
    options = {"train": {"total_steps": 2048}, "run": {"keep": 1, "checkpoint_seconds": 0}}
    more = fugu.resume("short", root=tmp_path, show=False, **options)
    assert len(list((more.run.folder / "checkpoints").iterdir())) <= 2  # the last and the best


def test_a_policy_factory_that_returns_a_plain_module_is_refused_with_the_guide() -> None:
    def make(group: Any, cfg: Any) -> Any:
        return nn.Linear(4, 2)

    with pytest.raises(UsageError, match=r"'Linear'.*encoder=module.*write_your_own/policy\.md"):
        train(policy_factory=make, keep=False)
