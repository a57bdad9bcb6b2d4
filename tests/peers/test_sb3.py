"""What Stable-Baselines3 expects of a VecEnv, on its own DummyVecEnv and on ours."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from peer_toys import NUM_ENVS, Remembers, Talker, equal

import fugu
from fugu.core.errors import UsageError
from fugu.vector import WorkerError

pytest.importorskip("stable_baselines3")

from sb3_vectors import ENVS, check_step, ours, theirs
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnv,
    VecMonitor,
    VecNormalize,
)

from fugu.vector import to_sb3

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def talkers(backend: str) -> Iterator[tuple[DummyVecEnv, Any]]:
    """Stable-Baselines3's vector and ours, of the same environment."""
    make = functools.partial(Talker, render_mode="rgb_array")
    peer, vector = theirs(make), ours(make, backend)
    yield peer, vector
    peer.close()
    vector.close()


# ---------------------------------------------------------------------- reset and step


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("monitored", [False, True])
def test_every_step_is_equal(name: str, monitored: bool, backend: str) -> None:
    make = ENVS[name]
    if monitored:
        make = functools.partial(lambda make: Monitor(make()), make)
    peer, vector = theirs(make), ours(make, backend)
    rng, ends = np.random.default_rng(0), 0
    assert peer.seed(7) == vector.seed(7) == [7, 8, 9]
    for _ in range(2):  # the second reset goes on where the generators are
        assert equal(vector.reset(), peer.reset())
        assert equal(vector.reset_infos, peer.reset_infos)
        for _ in range(40):
            ends += int(check_step(peer, vector, rng)[2].sum())
    assert ends > 3
    peer.close()
    vector.close()


def test_the_comparison_can_fail() -> None:
    """A negative control: another seed is noticed."""
    peer, vector = theirs(Talker), ours(Talker)
    peer.seed(1)
    vector.seed(2)
    peer.reset()
    vector.reset()
    with pytest.raises(AssertionError):
        check_step(peer, vector, np.random.default_rng(0))
    vector.close()


@pytest.mark.parametrize("name", ENVS)
def test_what_it_says_of_itself_is_equal(name: str) -> None:
    peer, vector = theirs(ENVS[name]), ours(ENVS[name])
    assert isinstance(vector, VecEnv)
    for attribute in ("num_envs", "observation_space", "action_space", "metadata", "render_mode"):
        assert getattr(vector, attribute) == getattr(peer, attribute), attribute
    assert vector.unwrapped is vector
    peer.close()
    vector.close()


def test_seeds_and_options_are_used_once(backend: str) -> None:
    peer, vector = theirs(Remembers), ours(Remembers, backend)
    for options in ({"level": 3}, [{"level": 1}, {}, {"level": 2}], None):
        for each in (peer, vector):
            each.seed(40)
            each.set_options(options)
        assert equal(vector.reset(), peer.reset())
        assert equal(vector.reset_infos, peer.reset_infos)
        again = vector.reset()
        assert equal(again, peer.reset())
        assert again[:, :2].tolist() == [[-1, -1]] * 3
    peer.close()
    vector.close()


def test_a_reset_cancels_a_step_that_was_begun(backend: str) -> None:
    vector = ours(Remembers, backend)
    vector.seed(1)
    vector.reset()
    vector.step_async(np.array([1, 1, 1]))
    assert vector.reset()[:, 2].tolist() == [0, 0, 0]
    assert vector.step(np.array([1, 1, 1]))[0][:, 2].tolist() == [1, 1, 1]
    vector.close()


def test_what_was_given_never_changes(backend: str) -> None:
    vector = ours(Talker, backend)
    first = vector.reset()
    before = {key: value.copy() for key, value in first.items()}
    _, rewards, dones, _ = vector.step(np.array([1, 2, 1]))
    copies = rewards.copy(), dones.copy()
    vector.step(np.array([0, 0, 0]))
    assert equal(first, before)
    assert equal((rewards, dones), copies)
    vector.close()


@pytest.mark.parametrize("infos", ["all", "episode"])
def test_episodes_are_logged(infos: str, backend: str) -> None:
    vector = ours(Talker, backend, infos=infos)
    vector.reset()
    returns, lengths = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS)
    ends = 0
    for step in range(40):
        _, rewards, dones, told = vector.step(np.array([1, 2, step % 3]))
        returns += rewards
        lengths += 1
        for env in range(NUM_ENVS):
            assert ("episode" in told[env]) == ("terminal_observation" in told[env]) == dones[env]
            if dones[env]:
                episode = told[env]["episode"]
                assert (episode["r"], episode["l"]) == (returns[env], lengths[env])
                assert 0 <= episode["t"] < 60
                if infos == "episode":
                    assert told[env]["episode_length"] == lengths[env]
                returns[env] = lengths[env] = 0
                ends += 1
    assert ends > 5
    vector.close()


def test_a_plain_vector_goes_on_without_a_seed() -> None:
    with fugu.make("CartPole-v1", 2, backend="serial", seed=3) as plain:
        vector = to_sb3(plain)
        first, second = vector.reset(), vector.reset()
        assert not np.array_equal(first, second)
        with fugu.make("CartPole-v1", 2, backend="serial", seed=3) as other:
            assert np.array_equal(other.reset()[0], first)


# ---------------------------------------------------------------------- the environments themselves


def test_calls_and_attributes(talkers: tuple[DummyVecEnv, Any]) -> None:
    for vector in talkers:
        assert vector.get_attr("greeting") == ["hello"] * 3  # before the first reset too
        vector.reset()
        assert vector.env_method("greet", "you", mark="!") == ["hello you 0!"] * 3
        assert vector.env_method("greet", "you", indices=[2, 0]) == ["hello you 0."] * 2
        vector.set_attr("greeting", "hi", indices=1)
        vector.set_attr("greeting", "hey", indices=-1)
        assert vector.get_attr("greeting") == ["hello", "hi", "hey"]
        assert vector.get_attr("greeting", indices=[1, 0]) == ["hi", "hello"]
        vector.set_attr("note", [1, 2])  # one value for all
        assert vector.get_attr("note", indices=0) == [[1, 2]]
        assert vector.has_attr("greeting")
        assert not vector.has_attr("no_such_thing")
        with pytest.raises(AttributeError, match="no_such_thing"):
            vector.get_attr("no_such_thing")
        with pytest.raises((ValueError, WorkerError), match="as it was told"):
            vector.env_method("fail")
        with pytest.raises(IndexError):
            vector.get_attr("note", indices=3)
        vector.step(np.zeros(NUM_ENVS, int))


def test_wrappers_are_found(backend: str) -> None:
    class Renamed(gymnasium.Wrapper):  # type: ignore[type-arg]
        pass

    def make() -> Any:
        return Renamed(Monitor(Talker()))

    peer, vector = theirs(make), ours(make, backend)
    for wrapper in (Monitor, Renamed, gymnasium.Wrapper, gymnasium.wrappers.TimeLimit):
        found = vector.env_is_wrapped(wrapper)
        assert found == peer.env_is_wrapped(wrapper), wrapper
    assert vector.env_is_wrapped(Monitor, indices=1) == [True]
    peer.close()
    vector.close()


def test_workers_stay_without_torch() -> None:
    """Not even the question for one of Stable-Baselines3's wrappers brings it there."""
    vector = ours(Talker, "process")
    vector.reset()
    assert vector.env_is_wrapped(Monitor) == [False] * 3
    assert vector.env_method("has_torch") == [False] * 3
    vector.close()


def test_pictures(talkers: tuple[DummyVecEnv, Any]) -> None:
    peer, vector = talkers
    for each in talkers:
        each.seed(0)
        each.reset()
    rng = np.random.default_rng(0)
    for _ in range(3):
        check_step(peer, vector, rng)
        assert equal(vector.get_images(), peer.get_images())
        assert equal(vector.render(), peer.render())
        assert equal(vector.render("rgb_array"), peer.render("rgb_array"))


def test_pictures_need_a_render_mode() -> None:
    for vector in (theirs(Talker), ours(Talker)):
        vector.reset()
        with pytest.warns(UserWarning, match="render"):
            assert vector.get_images() == [None] * 3
        with pytest.warns(UserWarning, match="render_mode"):
            assert vector.render() is None
        vector.close()


def test_closing_twice_is_once(talkers: tuple[DummyVecEnv, Any]) -> None:
    for vector in talkers:
        vector.reset()
        vector.close()
        vector.close()
    with pytest.raises(UsageError, match="closed"):
        talkers[1].reset()


def test_their_wrappers_agree(backend: str) -> None:
    peer, vector = (
        VecNormalize(VecMonitor(VecCheckNan(each, raise_exception=True)))
        for each in (theirs(ENVS["Pendulum"]), ours(ENVS["Pendulum"], backend))
    )
    peer.seed(3)
    vector.seed(3)
    assert equal(vector.reset(), peer.reset())
    rng = np.random.default_rng(0)
    for _ in range(50):
        actions = rng.uniform(-1, 1, (NUM_ENVS, 1)).astype(np.float32)
        found, expected = vector.step(actions), peer.step(actions)
        assert equal(found[:3], expected[:3])
        for env in range(NUM_ENVS):
            episodes = [step[3][env].get("episode", {}).get("r") for step in (found, expected)]
            assert episodes[0] == episodes[1]
    peer.close()
    vector.close()


# ---------------------------------------------------------------------- importing


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def test_only_its_use_imports_stable_baselines3() -> None:
    done = run(
        "import sys, fugu.vector as v; v.make, v.to_gymnasium\n"
        "assert not {'torch', 'stable_baselines3'} & set(sys.modules)\n"
        "v.to_sb3; assert 'stable_baselines3' in sys.modules"
    )
    assert done.returncode == 0, done.stderr


def test_without_it_the_error_names_the_extra() -> None:
    done = run(
        "import sys; sys.modules['stable_baselines3'] = None\nfrom fugu.vector import to_sb3"
    )
    assert 'pip install "fugu-rl[sb3]"' in done.stderr
