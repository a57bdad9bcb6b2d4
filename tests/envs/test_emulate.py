"""Emulation keeps the contract: rows, seeds, actions, infos, order of calls, errors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from toys import Counter, Script, Turns, only

import fugu
from fugu.core.errors import EnvError, PackError, SpaceError, UsageError
from fugu.core.seeding import episode_seed
from fugu.envs import Buffers, emulate


@pytest.mark.parametrize("truncates", [False, True])
def test_an_episode_restarts_in_the_step_that_ends_it(truncates: bool) -> None:
    env = emulate(Counter(length=2, truncates=truncates))
    rows = only(env)
    env.reset(seed=1)
    assert rows.observations.tolist() == [[1, 0]]
    assert rows.live.tolist() == [True]
    env.step()
    assert rows.observations.tolist() == [[1, 1]]
    assert not env.infos
    env.step()
    assert rows.rewards.tolist() == [2.0]
    assert rows.terminations.tolist() == [not truncates]
    assert rows.truncations.tolist() == [truncates]
    assert rows.final.tolist() == [[1, 2]]
    assert rows.observations.tolist() == [[2, 0]]  # the next episode's first
    assert rows.live.tolist() == [True]
    assert env.infos == ({"episode_return": 3.0, "episode_length": 2},)
    env.step()
    assert rows.rewards.tolist() == [1.0]
    assert not rows.terminations.any()
    assert not rows.truncations.any()
    assert not env.infos


def test_every_episode_has_a_seed_of_its_own_and_options_reach_it() -> None:
    inner = Counter(length=1)
    env = emulate(inner, reset_options={"level": 1})
    env.reset(seed=7, options={"start": "left"})
    env.step()
    env.step()
    assert inner.resets == [
        (episode_seed(7, 0), {"level": 1, "start": "left"}),
        (episode_seed(7, 1), {"level": 1}),
        (episode_seed(7, 2), {"level": 1}),
    ]
    assert len({seed for seed, _ in inner.resets}) == 3


def test_a_reset_without_a_seed_goes_on_and_one_with_it_begins_again() -> None:
    inner = Counter()
    env = emulate(inner)
    env.reset()
    env.reset(seed=3)
    env.reset()
    env.reset(seed=3)
    seeds = [seed for seed, _ in inner.resets]
    assert seeds[1:] == [episode_seed(3, 0), episode_seed(3, 1), episode_seed(3, 0)]
    assert seeds[0] is not None


def test_seeding_first_gives_the_seed_as_it_is_and_only_once() -> None:
    inner = Counter(length=1)
    env = emulate(inner, seeding="first")
    env.reset(seed=42)
    env.step()
    env.reset()
    assert [seed for seed, _ in inner.resets] == [42, None, None]


def test_it_writes_into_the_buffers_it_is_bound_to() -> None:
    env = emulate(Counter())
    rows = Buffers.allocate(env.groups[0])
    rows.observations[:] = np.nan
    env.bind(rows)
    env.reset(seed=0)
    rows.actions[:] = 3
    env.step()
    assert only(env) is rows
    assert rows.observations.tolist() == [[1, 1]]
    assert rows.valid.all()


def test_actions_are_values_of_the_action_space_and_never_views() -> None:
    inner = Counter(length=9, action=spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2, 2))))
    env = emulate(inner)
    env.reset(seed=0)
    for number in (1, 2):
        value = {"a": number, "b": np.full((2, 2), number / 2, np.float32)}
        env.action_layout.pack(value, only(env).actions[0])
        env.step()
    assert [action["a"] for action in inner.actions] == [1, 2]
    assert [action["b"][0, 0] for action in inner.actions] == [0.5, 1.0]
    assert all(action in inner.action_space for action in inner.actions)


def test_continuous_actions_are_clipped_only_on_request() -> None:
    box = spaces.Box(-1, 1, (2,))
    for clip in (False, True):
        inner = Counter(action=box)
        env = emulate(inner, clip_actions=clip)
        env.reset(seed=0)
        only(env).actions[:] = [[5, -5]]
        if clip:
            env.step()
            assert inner.actions[0].tolist() == [1, -1]
            assert only(env).actions.tolist() == [[5, -5]]  # the caller's row is not touched
            only(env).actions[:] = np.nan
        with pytest.raises(PackError, match="5.0 at index|not a number"):
            env.step()


def test_all_infos_come_as_they_are_on_request() -> None:
    inner = Counter(length=2)
    env = emulate(inner, infos="all")
    inner.info = {"level": "first"}
    env.reset(seed=0)
    assert env.infos == ({"level": "first"},)
    inner.info = {}
    env.step()
    assert not env.infos
    inner.info = {"x": [1, 2]}
    env.step()
    assert env.infos == ({"x": [1, 2], "final_info": {"x": [1, 2]}},)
    env.step()
    assert env.infos == ({"x": [1, 2]},)
    inner.info = {}
    env.step()
    assert env.infos == ({"final_info": {}},)
    with pytest.raises(UsageError, match="many agents"):
        emulate(Turns(), infos="all")
    with pytest.raises(UsageError, match="given 'some'"):
        emulate(Counter(), infos="some")  # type: ignore[arg-type]


@pytest.mark.parametrize("action", [-1, 4, 2**40])
def test_an_action_out_of_range_is_refused(action: int) -> None:
    env = emulate(Counter())
    env.reset(seed=5)
    only(env).actions[:] = action
    with pytest.raises(PackError, match=f"given {action}; allowed: an integer from 0 to 3") as e:
        env.step()
    assert "seed 5, episode 0, step 1" in e.value.__notes__[0]


def test_out_of_order_calls_are_refused() -> None:
    inner = Counter()
    env = emulate(inner)
    with pytest.raises(UsageError, match="reset"):
        env.step()
    env.reset(seed=0)
    env.close()
    env.close()
    assert inner.closed == 1
    for call in (env.step, env.reset, env.render):
        with pytest.raises(UsageError, match="closed"):
            call()


def test_a_failed_reset_leaves_no_half_open_episode() -> None:
    inner = Counter()
    env = emulate(inner)
    with pytest.raises(UsageError, match="'seven'"):
        env.reset(seed="seven")
    with pytest.raises(UsageError, match="before reset"):
        env.step()


def test_binding_checks_every_buffer() -> None:
    env = emulate(Counter())
    rows = Buffers.allocate(env.groups[0])
    with pytest.raises(UsageError, match="given 2 buffers; allowed: 1"):
        env.bind(rows, rows)
    wrong = {**rows.__dict__, "rewards": np.zeros(1)}
    with pytest.raises(UsageError, match="given rewards as float64.*allowed: contiguous float32"):
        env.bind(Buffers(**wrong))


class Old(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, False, {}


class Unreal(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), np.zeros(2), False, False, {}


class Nothing(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), None, False, False, {}


class Talks(Counter):
    def step(self, action: Any) -> Any:
        return self.observe(), 0.0, False, False, "info"


class Raises(Counter):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("inside")


@pytest.mark.parametrize(
    ("inner", "error", "message"),
    [
        (Old(), EnvError, "given 4 values; allowed"),
        (Unreal(), EnvError, "reward: given array"),
        (Nothing(), EnvError, "reward: given None"),
        (Talks(), EnvError, "info: given 'info'"),
        (Raises(), ZeroDivisionError, "inside"),
        (Counter(observation=spaces.Discrete(3)), PackError, "allowed: an integer from 0 to 2"),
    ],
)
def test_an_environment_that_breaks_its_word_is_named(
    inner: Any, error: type[Exception], message: str
) -> None:
    env = emulate(inner)
    with pytest.raises(error, match=message) as caught:  # noqa: PT012
        env.reset(seed=5)
        env.step()
    assert "seed 5" in caught.value.__notes__[0]
    assert type(inner).__name__ in caught.value.__notes__[0]


def test_what_is_no_environment_is_refused() -> None:
    for thing, message in [
        (3, "given 3 of type builtins.int; allowed: a gymnasium.Env"),
        ("CartPole-v1", r"gymnasium.make\('CartPole-v1'\)"),
        (gymnasium.make_vec("CartPole-v1", 2), "Give one copy"),
        (emulate(Counter()), "already"),
        (lambda: 5, "given 5"),
    ]:
        with pytest.raises(UsageError, match=message):
            emulate(thing)
    with pytest.raises(UsageError, match="Autoreset"):
        emulate(gymnasium.wrappers.Autoreset(gymnasium.make("CartPole-v1")))
    with pytest.raises(SpaceError, match="no possible_agents"):
        emulate(Script([], [], []))
    with pytest.raises(UsageError, match="seeding"):
        emulate(Counter(), seeding="never")  # type: ignore[arg-type]


def test_factories_and_classes_are_called() -> None:
    assert isinstance(emulate(Counter).source, Counter)
    assert emulate(lambda: Counter(length=9)).source.length == 9
    assert fugu.emulate is emulate


def test_the_same_seed_and_actions_give_the_same_bytes_and_another_seed_others() -> None:
    def play(seed: int) -> bytes:
        env = emulate(gymnasium.make("CartPole-v1"))
        env.reset(seed)
        rng, rows, out = np.random.default_rng(0), only(env), b""
        for action in rng.integers(0, 2, 200):
            rows.actions[:] = action
            env.step()
            out += rows.observations.tobytes() + rows.final.tobytes() + rows.rewards.tobytes()
        return out

    assert play(1) == play(1)
    assert play(1) != play(2)
