"""States of emulated environments: by replay, or the environment's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeReward, TimeLimit
from toys import Counter, Script, Turns
from vector_toys import Chance, Herd, Keeper, Walk

from fugu.core.errors import ActionError, UsageError
from fugu.envs.emulated import EmulatedEnv
from fugu.envs.emulation import emulate
from fugu.envs.states import ReplayError, from_json, to_json

MAKERS: dict[str, Callable[[], Any]] = {
    "CartPole": lambda: gymnasium.make("CartPole-v1"),
    "walk": Walk,
    "chance": lambda: TimeLimit(Chance(), 8),
    "herd": Herd,
    "turns": lambda: Turns(5),
    "its own": lambda: TimeLimit(Keeper(), 6),
    "script": lambda: Script(["a0", "b0"], ["a0"], [{"a0": None, "b0": None}, {"a0": "truncated"}]),
}


def step(env: EmulatedEnv, rng: np.random.Generator) -> None:
    for group, rows in zip(env.groups, env.buffers, strict=True):
        group.action_layout.space.seed(int(rng.integers(2**31)))
        for row, mask in zip(rows.actions, rows.action_masks, strict=True):
            whole = mask.all() or not mask.any()
            action = group.action_layout.space.sample() if whole else np.flatnonzero(mask)[0]
            group.action_layout.pack(action, row)
    env.step()


def seen(env: EmulatedEnv) -> Any:
    """What agents that can act see, and what was said of episodes."""
    rows = [
        (rows.live.tobytes(), rows.observations.tobytes(), rows.action_masks[rows.live].tobytes())
        for rows in env.buffers
    ]
    return rows, repr(env.infos)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "script"])
def test_going_back_is_exact(name: str) -> None:
    for steps in range(12):
        rng = np.random.default_rng(steps)
        env = emulate(MAKERS[name], resumable=True)
        env.reset(seed=7)
        for _ in range(steps):
            step(env, rng)
        state, random, shown = env.state(), rng.bit_generator.state, seen(env)[0]
        expected = []
        for _ in range(9):
            step(env, rng)
            expected.append(seen(env))
        other = emulate(MAKERS[name], resumable=True)
        for again in (other, env):  # new, and used
            again.set_state(state)
            assert seen(again)[0] == shown
            assert again.state() == state
            rng.bit_generator.state = random
            for one in expected:
                step(again, rng)
                assert seen(again) == one


def test_agents_that_join_and_leave_come_back() -> None:
    env = emulate(MAKERS["script"], resumable=True)
    env.reset(seed=1)
    step(env, np.random.default_rng(0))
    live = [rows.live.tolist() for rows in env.buffers]
    other = emulate(MAKERS["script"], resumable=True)
    other.set_state(env.state())
    assert [rows.live.tolist() for rows in other.buffers] == live == [[True], [True]]


def test_an_action_that_was_refused_is_no_step() -> None:
    env = emulate(lambda: gymnasium.make("CartPole-v1"), resumable=True)
    env.reset(seed=1)
    for action in (1, 9, 0):
        env.buffers[0].actions[:] = action
        if action == 9:
            with pytest.raises(ActionError):
                env.step()
        else:
            env.step()
    before = env.buffers[0].observations.copy()
    env.set_state(env.state())
    assert np.array_equal(env.buffers[0].observations, before)


def test_options_of_the_reset_come_back() -> None:
    env = emulate(lambda: Counter(9), resumable=True)
    env.reset(seed=1, options={"start": np.arange(3), "way": ("a", 2)})
    state = env.state()
    other = emulate(lambda: Counter(9), resumable=True)
    other.set_state(state)
    (_, first), (_, again) = env.source.resets[-1], other.source.resets[-1]
    assert repr(first) == repr(again)
    env.reset(seed=1, options={"call": len})
    with pytest.raises(UsageError, match="allowed"):
        env.state()


@pytest.mark.parametrize("begun", [False, True])
def test_attributes_that_were_set_come_back_when_they_were_set(begun: bool) -> None:
    env, other = (emulate(gymnasium.make("CartPole-v1"), resumable=True) for _ in range(2))
    rng = np.random.default_rng(1)
    if not begun:
        env.set_attribute("gravity", to_json(2.0))
    env.reset(5)
    for gravity in (20.0, -3.0):
        step(env, rng)
        env.set_attribute("gravity", to_json(gravity))
        step(env, rng)
    state = env.state()
    other.set_attribute("force_mag", to_json(1.0))  # which the state does not have
    other.reset(6)
    other.set_state(state)
    assert seen(other) == seen(env)
    assert other.source.unwrapped.gravity == -3.0
    assert other.source.unwrapped.force_mag == 10.0
    assert other.state() == state


def test_replays_that_go_otherwise_are_noticed() -> None:
    rng = np.random.default_rng(0)
    for make in (lambda: Chance(cheats=True), lambda: NormalizeReward(Chance())):
        env = emulate(make, resumable=True)
        env.reset(seed=1)
        for _ in range(60):
            step(env, rng)
        other = emulate(make, resumable=True)
        with pytest.raises(ReplayError, match="given .* allowed: .* Call reset"):
            other.set_state(env.state())
        episode = other._episode
        other.reset()
        assert other._episode == episode + 1


def test_a_state_of_its_own_must_be_of_bytes_and_not_below_wrappers() -> None:
    for make, owns in [
        (Keeper, True),
        (lambda: TimeLimit(Keeper(), 9), True),
        (lambda: Keeper("array"), False),
        (lambda: NormalizeReward(Keeper()), False),
    ]:
        env = emulate(make, resumable=True)
        env.reset(seed=1)
        step(env, np.random.default_rng(0))
        env.state()
        assert (env._snapshot is not None, env._taken is None) == (owns, owns)


def test_what_has_no_state_says_why() -> None:
    plain = emulate(Counter())
    plain.reset(seed=1)
    with pytest.raises(UsageError, match="resumable=True"):
        plain.state()
    first = emulate(Counter(), seeding="first", resumable=True)
    first.reset(seed=1)
    with pytest.raises(UsageError, match="seeding='episode'"):
        first.state()
    early = emulate(Counter(), resumable=True)
    with pytest.raises(UsageError, match="before reset"):
        early.state()
    keeper = emulate(Keeper(), resumable=True)
    keeper.reset(seed=1)
    for state in (b"", b"nonsense", keeper.state()):
        with pytest.raises(UsageError, match="allowed"):
            early.set_state(state)


def test_a_replay_in_parts() -> None:
    env = emulate(lambda: Counter(50), resumable=True)
    env.reset(seed=1)
    for _ in range(20):
        step(env, np.random.default_rng(0))
    other = emulate(lambda: Counter(50), resumable=True)
    other.begin_replay(env.state())
    parts = 1
    while not other.go_on(-1.0):
        parts += 1
    assert parts == 21
    assert other.state() == env.state()


def test_plain_values_come_back() -> None:
    value = {"a": [1, (2.5, float("inf"))], 3: np.float32(0.1), "b": np.eye(2, dtype=np.int8)}
    back = from_json(to_json(value))
    assert repr(back) == repr(value)
    assert from_json(to_json([object])) == ["<class 'object'>"]
