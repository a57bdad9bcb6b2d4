"""PufferLib's interface: emulation, `PufferEnv`, wrappers, and what differs on purpose."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import puffer_script as script
import pytest
import torch
from gymnasium import spaces
from puffer_toys import Bare, Echo, f32, u8

import fugu_pufferlib as pufferlib
from fugu.core.errors import ActionError, SpaceError, UsageError
from fugu_pufferlib.emulation import GymnasiumPufferEnv, PettingZooPufferEnv


def leaves(value: Any) -> list[Any]:
    """Of dicts and tuples, in order."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in leaves(value[key])]
    if isinstance(value, tuple) and not isinstance(value, np.void):
        return [leaf for item in value for leaf in leaves(item)]
    if isinstance(value, np.void):
        return [leaf for name in value.dtype.names or () for leaf in leaves(value[name])]
    return [np.asarray(value).reshape(-1)]


# ---------------------------------------------------------------------- observations

OBSERVATIONS = {
    "choice, which PufferLib loses": (spaces.Discrete(16), "int32", 1),
    "choices, which it refuses": (spaces.MultiDiscrete([3, 4]), "int32", 2),
    "bits, which it refuses": (spaces.MultiBinary(5), "int8", 5),
    "three choices, which it refuses": (spaces.Tuple([spaces.Discrete(9)] * 3), "int32", 3),
    "floats": (spaces.Dict(a=f32, b=f32), "float32", 4),
    "mixed": (spaces.Dict(a=u8, b=f32, c=spaces.Discrete(5)), "uint8", 16),
    "nested, which it misreads": (spaces.Dict(a=spaces.Dict(x=f32, y=u8), z=u8), "uint8", 12),
    "deeply": (spaces.Dict(a=u8, b=spaces.Tuple((u8, spaces.Dict(d=f32)))), "uint8", 12),
    "flags": (spaces.Dict(a=spaces.Box(0, 1, (3,), np.bool_), b=f32), "uint8", 12),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_any_observation_comes_back_from_rows_in_numpy_and_in_torch(name: str) -> None:
    space, dtype, size = OBSERVATIONS[name]
    source = Echo(space)
    env = GymnasiumPufferEnv(source)
    observations, _ = env.reset(seed=3)
    assert (observations.dtype, observations.shape) == (np.dtype(dtype), (1, size))
    assert env.single_observation_space.contains(observations[0])
    for _ in range(5):
        wanted = leaves(source.shown)
        native = pufferlib.pytorch.nativize_dtype(env.emulated)
        tensors = pufferlib.pytorch.nativize_tensor(torch.from_numpy(observations), native)
        whole = observations[0]
        if env.obs_dtype.fields is not None:
            whole = observations.view(env.obs_dtype)[0, 0]
        for found in (leaves(whole), leaves(tensors)):
            np.testing.assert_equal(found, wanted)
        assert pufferlib.pytorch.flattened_tensor_size(native) == sum(map(len, wanted))
        observations = env.step(0)[0]


def test_pictures_keep_their_shape() -> None:
    env = GymnasiumPufferEnv(Echo(spaces.Box(0, 255, (4, 5), np.uint8)))
    assert env.reset()[0].shape == (1, 4, 5)
    assert not env.is_obs_emulated
    assert env.single_observation_space is env.env.observation_space


# ---------------------------------------------------------------------- actions

ACTIONS = {
    "dict": (spaces.Dict(a=spaces.Discrete(3), b=spaces.Discrete(4)), [2, 3]),
    "tuple": (spaces.Tuple((spaces.Discrete(3), spaces.MultiDiscrete([2, 5]))), [2, 1, 4]),
    "bits": (spaces.MultiBinary(3), [1, 0, 1]),
    "bits in a dict": (spaces.Dict(a=spaces.Discrete(3), b=spaces.MultiBinary(2)), [2, 1, 0]),
    "choice": (spaces.Discrete(3, start=5), [7]),
    "numbers in two axes": (spaces.Box(-1, 1, (2, 2)), [0.5, -0.5, 0.25, 1.0]),
}


@pytest.mark.parametrize("width", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("name", ACTIONS)
def test_actions_mean_the_same_in_numbers_of_any_width(name: str, width: Any) -> None:
    space, numbers = ACTIONS[name]
    source = Echo(f32, space)
    env = GymnasiumPufferEnv(source)
    env.reset()
    kind = np.float64 if isinstance(space, spaces.Box) else width
    env.step(np.array(numbers, kind))
    assert np.concatenate(leaves(source.taken)).tolist() == numbers


def test_an_action_outside_its_space_is_refused() -> None:
    env = GymnasiumPufferEnv(Echo(f32, spaces.Dict(a=spaces.Discrete(3))))
    env.reset()
    with pytest.raises(ActionError, match=r"a.*given 3"):
        env.step([3])


def test_a_mixed_action_is_refused_with_the_way_out() -> None:
    with pytest.raises(SpaceError, match=r"'b' is a Box.*fugu.make"):
        GymnasiumPufferEnv(Echo(f32, spaces.Dict(a=spaces.Discrete(3), b=f32)))


# ---------------------------------------------------------------------- one environment


def test_an_environment_is_stepped_between_reset_and_end() -> None:
    env = GymnasiumPufferEnv(env_creator=gymnasium.make, env_args=["CartPole-v1"])
    with pytest.raises(pufferlib.APIUsageError, match="before reset"):
        env.step(0)
    env.reset(seed=1)
    while not env.done:
        env.step(0)
    assert env.terminals[0]
    with pytest.raises(pufferlib.APIUsageError, match="after the episode's end"):
        env.step(0)
    assert env.reset(seed=1)[0].shape == (1, 4)
    assert not env.terminals[0]


def test_either_an_environment_or_what_makes_it_is_given() -> None:
    env = Echo(f32)
    with pytest.raises(ValueError, match="one of the two"):
        GymnasiumPufferEnv()
    with pytest.raises(ValueError, match="one of the two"):
        GymnasiumPufferEnv(env, env_creator=Echo)
    with pytest.raises(TypeError, match="env_creator"):
        GymnasiumPufferEnv(Echo)


class Leaving(script.Herd):
    """One is terminated and the others cut off, in the same step; cem comes later."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed)
        self.agents.remove("cem")
        del observations["cem"]
        return observations, infos

    def step(self, actions: Any) -> Any:
        self.time += 1
        self.agents = list(self.possible_agents)
        seen = {agent: self.see(i) for i, agent in enumerate(self.agents)}
        over = self.time == 3
        dones = {"ann": over, "bob": False, "cem": False}
        cuts = {"ann": False, "bob": over, "cem": over}
        return seen, dict.fromkeys(seen, 1.0), dones, cuts, {}


def test_agents_that_are_not_there_have_no_mask_not_even_at_the_start() -> None:
    env = PettingZooPufferEnv(Leaving())
    seen, _ = env.reset(seed=1)
    assert env.masks.tolist() == [True, True, False]
    assert seen["cem"].tolist() == [0, 0]
    env.step(np.zeros(3, np.int64))
    assert env.masks.all()


def test_an_episode_is_over_when_each_agent_is_terminated_or_cut_off() -> None:
    env = PettingZooPufferEnv(Leaving())
    env.reset()
    for _ in range(3):
        assert not env.done
        env.step({"ann": 1, "bob": 2})
    assert env.done
    assert (env.terminals.tolist(), env.truncations.tolist()) == ([1, 0, 0], [0, 1, 1])


def test_unknown_agents_and_wrong_numbers_of_actions_are_refused() -> None:
    env = PettingZooPufferEnv(env_creator=script.Herd)
    env.reset()
    with pytest.raises(pufferlib.InvalidAgentError, match="dan"):
        env.step({"dan": 0})
    with pytest.raises(ValueError, match="dan"):
        env.action_space("dan")
    with pytest.raises(UsageError, match="2 actions; allowed: 3"):
        env.step(np.zeros(2, int))


def test_agents_of_several_kinds_are_refused_with_the_way_out() -> None:
    class Mixed(script.Herd):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2 + (agent == "bob"))

    with pytest.raises(SpaceError, match=r"'bob'.*fugu.make"):
        PettingZooPufferEnv(Mixed())


# ---------------------------------------------------------------------- PufferEnv


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_agents": 0}, "num_agents: given 0"),
        ({"single_observation_space": spaces.Discrete(3)}, "allowed: a Box"),
        ({"single_action_space": spaces.MultiBinary(3)}, "Discrete, MultiDiscrete, Box"),
        ({"action_space": spaces.Discrete(3)}, "single_action_space, of one agent"),
    ],
)
def test_what_a_subclass_sets_is_checked(change: dict[str, Any], match: str) -> None:
    kind = type("Wrong", (Bare,), change)
    with pytest.raises(pufferlib.APIUsageError, match=match):
        kind()


def test_what_a_subclass_forgets_is_named() -> None:
    class Empty(pufferlib.PufferEnv):
        pass

    with pytest.raises(pufferlib.APIUsageError, match=r"no single_observation_space.*super"):
        Empty()


# ---------------------------------------------------------------------- wrappers and names


class Noisy(gymnasium.Env[Any, Any]):
    observation_space, action_space = spaces.Box(0, 255, (4, 6), np.uint8), f32

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.options = 0, options
        return np.arange(24, dtype=np.uint8).reshape(4, 6), {}

    def step(self, action: Any) -> Any:
        self.time, self.taken = self.time + 1, action
        info = {"a": 2, "b": {"c": 0.5, "d": np.uint8(200)}, "text": "x"}
        return np.zeros((4, 6), np.uint8), 1.5, self.time == 3, False, info


def test_episode_stats_tell_sums_at_the_end_and_nothing_before() -> None:
    env = pufferlib.EpisodeStats(Noisy())
    env.reset(options={"level": 1})
    assert env.unwrapped.options == {"level": 1}
    infos = [env.step(np.zeros(2))[4] for _ in range(3)]
    assert infos[:2] == [{}, {}]
    sums = {"a": 6, "b/c": 1.5, "b/d": 600}
    assert infos[2] == {"episode_return": 4.5, "episode_length": 3, **sums}


def test_pictures_are_made_smaller_and_actions_cut() -> None:
    env = pufferlib.ResizeObservation(pufferlib.ClipAction(Noisy()), downscale=2)
    assert env.observation_space.shape == (2, 3)
    assert env.reset()[0].tolist() == [[0, 2, 4], [12, 14, 16]]
    env.step(np.array([20.0, -0.5], np.float32))
    assert env.unwrapped.taken.tolist() == [9.0, -0.5]
    with pytest.raises(UsageError, match="divisor"):
        pufferlib.ResizeObservation(Noisy(), downscale=4)


def test_wrappers_of_many_agents() -> None:
    env = pufferlib.MultiagentEpisodeStats(script.Herd())
    env.reset(seed=1)
    told = [env.step(dict.fromkeys(env.agents, 2))[4] for _ in range(2)]
    assert told == [{}, {"ann": {"episode_return": 2.0, "episode_length": 1, "age": 2}}]
    mean = pufferlib.MeanOverAgents(script.Herd())
    assert mean.reset()[1] == {}
    infos = [mean.step(dict.fromkeys(mean.agents, 1))[4] for _ in range(2)]
    assert infos == [{}, {"age": 2.0}]
    cut = pufferlib.PettingZooTruncatedWrapper(script.Herd())
    assert cut.reset()[1] == {"ann": {}, "bob": {}, "cem": {}}
    assert (cut.possible_agents, str(cut)[:27]) == (
        script.Herd.possible_agents,
        "PettingZooTruncatedWrapper<",
    )


def test_joint_spaces_are_pufferlibs() -> None:
    joint = pufferlib.spaces.joint_space
    assert joint(spaces.Discrete(3), 2) == spaces.MultiDiscrete([3, 3])
    assert joint(spaces.MultiDiscrete([3, 5]), 2).high.tolist() == [[2, 4], [2, 4]]
    assert joint(f32, 3).shape == (3, 2)
    with pytest.raises(ValueError, match="allowed: Discrete"):
        joint(spaces.MultiBinary(2), 2)


def test_importing_it_imports_no_torch_and_missing_names_say_where_to_go() -> None:
    program = (
        "import sys, fugu_pufferlib as p; p.vector; p.emulation; p.PufferEnv; p.spaces;"
        "p.EpisodeStats; p.to_fugu; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="fugu train"):
        pufferlib.pufferl  # noqa: B018
    with pytest.raises(AttributeError, match="PufferEnv"):
        pufferlib.nothing  # noqa: B018
    assert set(dir(pufferlib)) == {*pufferlib.__all__}
