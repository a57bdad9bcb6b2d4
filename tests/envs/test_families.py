"""Whole families of other people's environments, step for step beside the bare environment."""

from __future__ import annotations

import copy
import importlib
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import Space, spaces

from fugu.core.seeding import episode_seed
from fugu.envs import Buffers, emulate
from fugu.envs.wrappers import SeededNetHack

pytest.importorskip("minihack", reason="families need the extra [families]")
import minigrid

STEPS = 1_000
SEED = 123
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(300),
]

# What the libraries themselves cannot make here, by what they say.
BROKEN = {
    r"-v[23]$ of mujoco": ("moved to the gymnasium-robotics", r"^\w+-v[23]$", "mujoco"),
    "Pusher-v4": ("only supported on `mujoco<3`", r"^Pusher-v4$", "mujoco"),
    "WFC": ("No such file", r"^MiniGrid-WFC-", "minigrid"),
    "custom levels": ("endswith|des_file", r"^MiniHack-\w+-Custom-v0$", "minihack"),
    "crossings": ("^$", r"^MiniHack-(Lava|Simple)Crossing", "minihack"),
    "Boxoban": ("download maps", r"^MiniHack-Boxoban-", "minihack"),
}
# NetHack games that take no seed: the challenge forbids it, the rooms fail when asked.
UNSEEDED = r"^(NetHackChallenge|MiniHack-MultiRoom)-"


def ids_of(family: str, entry_point: str) -> list[str]:
    found = [k for k, spec in gymnasium.registry.items() if entry_point in str(spec.entry_point)]
    assert found, f"no environments of {family}"
    return found


def all_ids() -> list[tuple[str, str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("minihack")
        if hasattr(minigrid, "register_minigrid_envs"):
            minigrid.register_minigrid_envs()
        families = {
            "classic_control": "gymnasium.envs.classic_control",
            "toy_text": "gymnasium.envs.toy_text",
            "box2d": "gymnasium.envs.box2d",
            "mujoco": "mujoco",
            "minigrid": "minigrid.envs",
            "nle": "nle.env",
            "minihack": "minihack",
        }
        pairs = [(family, i) for family, entry in families.items() for i in ids_of(family, entry)]
    # long ones first, so that two workers end together
    return sorted(pairs, key=lambda pair: "CarRacing" not in pair[1])


IDS = all_ids()


def broken(family: str, env_id: str) -> str | None:
    for message, pattern, of in BROKEN.values():
        if of == family and re.search(pattern, env_id):
            return message
    return None


RUNNING = [(family, i) for family, i in IDS if broken(family, i) is None]
NOT_RUNNING = [(family, i) for family, i in IDS if broken(family, i) is not None]


def make(env_id: str) -> gymnasium.Env[Any, Any]:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  some environments draw from it when they are made
    env = gymnasium.make(env_id)
    return SeededNetHack(env) if "Hack" in env_id else env


def assert_same(space: Space[Any], ours: Any, theirs: Any) -> None:
    """Equal data; a value of another dtype than declared is compared as the declared one."""
    match space:
        case spaces.Dict():
            assert set(ours) == set(theirs)
            for key, item in space.spaces.items():
                assert_same(item, ours[key], theirs[key])
        case spaces.Tuple():
            assert len(ours) == len(theirs)
            for item, a, b in zip(space.spaces, ours, theirs, strict=True):
                assert_same(item, a, b)
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete() | spaces.Discrete():
            expected = np.asarray(theirs)
            assert ours.shape == expected.shape
            assert ours.tobytes() == expected.astype(space.dtype).tobytes()
        case _:
            assert ours == theirs


class Recorder(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Keeps a copy of what the environment returned, for environments that no seed repeats."""

    def reset(self, **arguments: Any) -> Any:
        result = self.env.reset(seed=None, options=arguments.get("options"))
        self.first = copy.deepcopy(result)
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.last = copy.deepcopy(result)
        return result


@pytest.mark.parametrize(("family", "env_id"), RUNNING, ids=[i for _, i in RUNNING])
def test_gymnasium_environment_gives_the_bare_data(family: str, env_id: str) -> None:
    limits = {"mission": 256} if family == "minigrid" else None
    if re.search(UNSEEDED, env_id):
        recorder = Recorder(gymnasium.make(env_id))
        step_beside(recorder, emulate(recorder, limits=limits), recorded=recorder)
    else:
        step_beside(make(env_id), emulate(make(env_id), limits=limits))


def step_beside(bare: Any, env: Any, recorded: Recorder | None = None) -> None:
    space, layout, (rows,) = bare.observation_space, env.observation_layout, env.buffers
    bare.action_space.seed(1)
    episode = 0

    def bare_reset() -> Any:
        if recorded:
            return recorded.first[0]
        return bare.reset(seed=episode_seed(SEED, episode))[0]

    env.reset(SEED)
    assert_same(space, layout.unpack(rows.observations[0]), bare_reset())
    for _ in range(STEPS):
        action = bare.action_space.sample()
        env.action_layout.pack(action, rows.actions[0])
        env.step()
        expected = recorded.last if recorded else bare.step(action)
        observation, reward, terminated, truncated, _ = expected
        assert rows.rewards[0] == np.float32(reward)
        assert (rows.terminations[0], rows.truncations[0]) == (terminated, truncated)
        assert rows.live.all()
        assert rows.valid.all()
        if terminated or truncated:
            assert_same(space, layout.unpack(rows.final[0]), observation)
            assert len(env.infos) == 1
            episode += 1
            observation = bare_reset()
        else:
            assert not env.infos
        assert_same(space, layout.unpack(rows.observations[0]), observation)
    env.close()
    bare.close()


@pytest.mark.parametrize(("family", "env_id"), NOT_RUNNING, ids=[i for _, i in NOT_RUNNING])
def test_what_is_left_out_cannot_be_made_at_all(family: str, env_id: str) -> None:
    message = broken(family, env_id)
    assert message is not None
    with pytest.raises(Exception, match=message):
        gymnasium.make(env_id).reset(seed=1)


# ---------------------------------------------------------------------- PettingZoo


def pettingzoo_modules() -> Iterator[tuple[str, Any]]:
    from mpe2.all_modules import mpe_environments
    from pettingzoo.butterfly.all_modules import butterfly_environments
    from pettingzoo.classic.all_modules import classic_environments

    yield from mpe_environments.items()
    yield from butterfly_environments.items()
    yield from classic_environments.items()


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    MODULES = dict(pettingzoo_modules())
PARALLEL = [name for name, module in MODULES.items() if hasattr(module, "parallel_env")]


def choose(space: Space[Any], observation: Any, info: dict[str, Any]) -> Any:
    """A random action, a legal one where the environment says which are."""
    mask = info.get("action_mask")
    if mask is None and isinstance(observation, dict):
        mask = observation.get("action_mask")
    return space.sample(None if mask is None else np.asarray(mask, np.int8))


class Rows:
    """The rows of each agent, whatever group it is in."""

    def __init__(self, env: Any) -> None:
        self.places: dict[Any, tuple[Any, Buffers, int]] = {}
        for group, buffers in zip(env.groups, env.buffers, strict=True):
            for row, agent in enumerate(group.agents):
                self.places[agent] = (group, buffers, row)

    def get(self, agent: Any, name: str) -> Any:
        group, buffers, row = self.places[agent]
        value = getattr(buffers, name)[row]
        if name in ("observations", "final"):
            return group.observation_layout.unpack(value)
        return value

    def act(self, agent: Any, action: Any) -> None:
        group, buffers, row = self.places[agent]
        group.action_layout.pack(action, buffers.actions[row])

    def live(self) -> set[Any]:
        return {agent for agent in self.places if self.get(agent, "live")}


def two(maker: Callable[..., Any]) -> tuple[Any, Any]:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    return maker(), maker()


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_environment_gives_the_bare_data(name: str) -> None:
    bare, inner = two(MODULES[name].parallel_env)
    env = emulate(inner)
    rows, episode = Rows(env), 0
    assert set(rows.places) == set(bare.possible_agents)
    env.reset(SEED)
    observations, infos = bare.reset(seed=episode_seed(SEED, episode))
    for i, agent in enumerate(bare.possible_agents):
        bare.action_space(agent).seed(i)
    for _ in range(STEPS):
        assert rows.live() == set(bare.agents)
        for agent in bare.agents:
            assert_same(
                bare.observation_space(agent), rows.get(agent, "observations"), observations[agent]
            )
        actions = {
            agent: choose(bare.action_space(agent), observations[agent], infos[agent])
            for agent in bare.agents
        }
        for agent, action in actions.items():
            rows.act(agent, action)
        env.step()
        observations, rewards, terminations, truncations, infos = bare.step(actions)
        for agent in actions:
            assert rows.get(agent, "rewards") == np.float32(rewards[agent])
            assert rows.get(agent, "terminations") == terminations[agent]
            assert rows.get(agent, "truncations") == truncations[agent]
            if terminations[agent] or truncations[agent]:
                space = bare.observation_space(agent)
                assert_same(space, rows.get(agent, "final"), observations[agent])
        for agent in set(rows.places) - set(actions):
            assert rows.get(agent, "rewards") == 0
            assert not rows.get(agent, "terminations")
        if not bare.agents:
            episode += 1
            observations, infos = bare.reset(seed=episode_seed(SEED, episode))
    env.close()
    bare.close()


@pytest.mark.parametrize("name", list(MODULES))
def test_turn_by_turn_environment_gives_the_bare_data(name: str) -> None:
    bare, inner = two(MODULES[name].env)
    env = emulate(inner)
    rows, episode = Rows(env), 0
    env.reset(SEED)
    bare.reset(seed=episode_seed(SEED, episode))
    for i, agent in enumerate(bare.possible_agents):
        bare.action_space(agent).seed(i)
    ended = False
    for _ in range(STEPS):
        # The bare loop of PettingZoo's documentation, up to the next agent that can act.
        while True:
            if not bare.agents:
                episode, ended = episode + 1, True
                bare.reset(seed=episode_seed(SEED, episode))
            agent = bare.agent_selection
            observation, reward, terminated, truncated, info = bare.last()
            if not ended:  # a row speaks of the episode before its reset
                assert rows.get(agent, "rewards") == np.float32(reward)
                assert rows.get(agent, "terminations") == terminated
                assert rows.get(agent, "truncations") == truncated
            if not (terminated or truncated):
                break
            assert_same(bare.observation_space(agent), rows.get(agent, "final"), observation)
            bare.step(None)
        assert rows.live() == {agent}
        assert_same(bare.observation_space(agent), rows.get(agent, "observations"), observation)
        mask = info.get("action_mask")
        if mask is None and isinstance(observation, dict):
            mask = observation["action_mask"]
        expected = 1 if mask is None else np.asarray(mask)
        assert (rows.get(agent, "action_masks") == expected).all()
        action = choose(bare.action_space(agent), observation, info)
        rows.act(agent, action)
        env.step()
        bare.step(action)
        ended = False
    env.close()
    bare.close()
