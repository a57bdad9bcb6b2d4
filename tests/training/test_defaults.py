"""Default settings of environments that nobody tuned, and of plain Gymnasium ids."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from fugu import native
from fugu.core.config import Tree, merge
from fugu.core.errors import UsageError
from fugu.envs.recipes import recipe_name
from fugu.training.config import (
    Choice,
    EnvFacts,
    choose,
    config_layers,
    env_settings,
    observe,
    resolve_config,
    sources_of,
)
from fugu.training.session import train

if not native.available:
    pytest.skip("needs the native extension", allow_module_level=True)


def merged(choices: list[Choice]) -> Tree:
    return merge(*(choice.settings for choice in choices))


class Still(gymnasium.Env[Any, Any]):
    """An environment of given spaces in which nothing happens."""

    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space, self.action_space = observation, action
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps >= 5, False, {}


NUMBERS, CHOICE = spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(2)
FORCE = spaces.Box(-1.0, 1.0, (2,))
PICTURE = spaces.Box(0, 255, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("observation", "action", "facts"),
    [
        (NUMBERS, CHOICE, EnvFacts(1, images=False, numeric=True, action_size=0)),
        (NUMBERS, FORCE, EnvFacts(1, images=False, numeric=True, action_size=2)),
        (PICTURE, CHOICE, EnvFacts(1, images=True, numeric=True, action_size=0)),
        (spaces.Text(9), CHOICE, EnvFacts(1, images=False, numeric=False, action_size=0)),
        (
            spaces.Dict(a=NUMBERS, b=CHOICE),
            spaces.Dict(a=CHOICE, b=FORCE),
            EnvFacts(1, images=False, numeric=True, action_size=2),
        ),
    ],
)
def test_facts_are_those_of_the_spaces(observation: Any, action: Any, facts: EnvFacts) -> None:
    assert observe(lambda: Still(observation, action), {}) == facts


def test_native_environments_have_settings_of_their_own() -> None:
    assert observe("cartpole", {}) is None
    assert not any("observed" in layer.source for layer in config_layers("cartpole"))


def test_settings_follow_from_facts_and_not_from_names() -> None:
    one = resolve_config("<called>", factory=lambda: Still(NUMBERS, FORCE))
    other = resolve_config("<called>", factory=lambda: Still(PICTURE, CHOICE))
    assert one.policy.normalise
    assert not other.policy.normalise
    assert one.train.advantage == other.train.advantage == "gae"
    assert one.vec.num_envs * one.train.horizon == other.vec.num_envs * other.train.horizon == 2048


def test_copies_of_several_agents_are_fewer() -> None:
    several = merged(choose(EnvFacts(4, images=False, numeric=True, action_size=0)))
    assert several["vec"]["num_envs"] == 16
    assert several["train"]["horizon"] == 32
    crowd = merged(choose(EnvFacts(500, images=False, numeric=True, action_size=0)))
    assert crowd["vec"]["num_envs"] == 1
    assert crowd["train"]["horizon"] == 16


def test_segments_are_shorter_if_more_copies_are_asked_for() -> None:
    for given in (64, "64"):  # in Python, and as a flag
        many = resolve_config("CartPole-v1", overrides={"vec": {"num_envs": given}})
        assert (many.vec.num_envs, many.train.horizon) == (64, 32)
    usual = resolve_config("CartPole-v1")
    assert (usual.vec.num_envs, usual.train.horizon) == (8, 256)
    mine = {"vec": {"num_envs": 64}, "train": {"horizon": 100}}
    assert resolve_config("CartPole-v1", overrides=mine).train.horizon == 100


def test_recurrent_policies_get_more_copies_and_fewer_minibatches() -> None:
    plain, lstm = (
        resolve_config("Acrobot-v1", overrides={"policy": {"core": core}})
        for core in ("none", "lstm")
    )
    assert (plain.vec.num_envs, plain.train.minibatches) == (8, 32)
    assert (lstm.vec.num_envs, lstm.train.minibatches) == (32, 8)
    assert lstm.vec.num_envs * lstm.train.horizon == plain.vec.num_envs * plain.train.horizon


class Push(gymnasium.Env[Any, Any]):
    """One step: the reward falls with the distance of the action from 80, in bounds of +-100."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Box(-100.0, 100.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        missed = abs(float(action[0]) - 80.0) / 100.0
        return np.zeros(1, np.float32), 1.0 - missed, True, False, {}


def test_actions_in_wide_bounds_are_learned_only_if_scaled() -> None:
    scores = [
        train(
            Push, train={"total_steps": 30_000}, policy=policy, seed=1, keep=False, show=False
        ).score
        for policy in ({}, {"continuous": "clipped"})
    ]
    assert scores[0] > 0.65
    assert scores[1] < 0.4  # it begins at 0.2


def test_texts_keep_the_plain_defaults() -> None:
    assert choose(EnvFacts(1, images=False, numeric=False, action_size=0)) == []


def test_what_is_given_wins_over_what_is_observed() -> None:
    overrides = {"policy": {"normalise": False}, "train": {"desired_kl": "none"}}
    cfg = resolve_config("CartPole-v1", overrides=overrides)
    assert not cfg.policy.normalise
    assert cfg.train.desired_kl is None
    sources = sources_of(config_layers("CartPole-v1", overrides=overrides))
    assert sources["policy.normalise"] == "given"
    assert sources["policy.layers"].startswith("observed")


def test_other_algorithms_keep_their_own_defaults() -> None:
    layers = config_layers("CartPole-v1", overrides={"algo": "mappo"})
    assert not any("observed" in layer.source for layer in layers)


def test_an_environment_that_cannot_be_made_is_refused_by_training() -> None:
    assert resolve_config("NoSuchEnv-v0").env == "NoSuchEnv-v0"
    with pytest.raises(UsageError, match="NoSuchEnv-v0"):
        train("NoSuchEnv-v0", keep=False, show=False)


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("LunarLander-v3", "box2d:LunarLander-v3"),
        ("LunarLander", "box2d:LunarLander-v3"),
        ("CarRacing-v3", "box2d:CarRacing-v3"),
        ("HalfCheetah-v5", "mujoco:HalfCheetah-v5"),
        ("CartPole-v1", "classic_control:CartPole-v1"),
        ("FrozenLake-v1", "toy_text:FrozenLake-v1"),
        ("MiniGrid-DoorKey-5x5-v0", "minigrid:DoorKey-5x5-v0"),
        ("BabyAI-GoToRedBall-v0", "minigrid:BabyAI-GoToRedBall-v0"),
        ("ALE/Pong-v5", "ALE/Pong-v5"),
        ("box2d:LunarLander-v3", "box2d:LunarLander-v3"),
        ("cartpole", "cartpole"),
        ("some.module:factory", "some.module:factory"),
        ("NoSuchEnv-v0", "NoSuchEnv-v0"),
    ],
)
def test_a_plain_id_is_trained_by_its_familys_recipe(env: str, name: str) -> None:
    assert recipe_name(env) == name
    assert resolve_config(env).env == name


def test_a_recipe_may_have_settings_for_some_of_its_environments() -> None:
    assert env_settings("classic_control:CartPole-v1")["train"]["total_steps"] == 100_000
    assert env_settings("classic_control:Acrobot-v1")["train"]["total_steps"] == 1_000_000
    assert "environments" not in env_settings("classic_control:CartPole-v1")
