"""What Stable-Baselines3 expects of a VecEnv, on its own DummyVecEnv and on ours, and learning."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from peer_toys import Choices, Everything, Pushes, Remembers, Talker, digest, equal
from vector_toys import Herd

import fugu
from fugu.core.errors import ActionError, UsageError
from fugu.envs.expedition import BAG, Expedition
from fugu.vector import WorkerError

pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnv,
    VecMonitor,
    VecNormalize,
)

from fugu.vector import to_sb3
from fugu.vector.sb3_spaces import ActionForm, ObservationForm

ROOT = Path(__file__).parents[2]
NUM_ENVS = 3
pytestmark = pytest.mark.timeout(120)


def registered(name: str, **arguments: Any) -> Callable[[], Any]:
    return functools.partial(gymnasium.make, name, **arguments)


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


@pytest.fixture
def talkers(backend: str) -> Iterator[tuple[DummyVecEnv, Any]]:
    """Stable-Baselines3's vector and ours, of the same environment."""
    make = functools.partial(Talker, render_mode="rgb_array")
    peer, vector = theirs(make), ours(make, backend)
    yield peer, vector
    peer.close()
    vector.close()


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


# ---------------------------------------------------------------------- spaces it does not know


def test_nested_observations_become_one_dict_of_leaves() -> None:
    form = ObservationForm(fugu.Layout.of(Everything.observation_space, limits=4))
    assert isinstance(form.space, spaces.Dict)
    expected = {
        "image": spaces.Box(0, 255, (2, 3), np.uint8),
        "number": spaces.Box(-1, 1, (1,)),
        "choice": spaces.Discrete(5),
        "choices": spaces.MultiDiscrete([3, 4, 5, 6]),
        "bits": spaces.MultiBinary([2, 2]),
        "text/length": spaces.Discrete(6),
        "text/mask": spaces.MultiBinary([5]),
        "text/characters": spaces.MultiDiscrete([3] * 5),
        "pair/0/items": spaces.MultiDiscrete([4] * 4),
        "pair/1/deep": spaces.Box(-np.inf, np.inf, (3,), np.float64),
        "stacked/items": spaces.Box(0, 1, (4, 2)),
        "either/index": spaces.Discrete(2),
        "either/0": spaces.Discrete(3),
        "either/1": spaces.Box(0, 1, (2,)),
        "graph/nodes/items": spaces.Box(0, 1, (4, 2)),
    }
    for key, space in expected.items():
        assert form.space.spaces[key] == space, key


@pytest.mark.parametrize("space", [spaces.Tuple((spaces.Discrete(3),)), spaces.Text(4)])
def test_other_observations_become_dicts_too(space: Any) -> None:
    form = ObservationForm(fugu.Layout.of(space))
    assert isinstance(form.space, spaces.Dict)
    assert set(form.space) in (
        {"0"},
        {f"observation/{k}" for k in ("length", "mask", "characters")},
    )


def test_offered_observations_are_right(backend: str) -> None:
    vector = ours(Choices, backend, limits=4)
    vector.seed(2)
    observations = vector.reset()
    peers = [Choices() for _ in range(NUM_ENVS)]
    seen = [env.reset(seed=2 + i)[0] for i, env in enumerate(peers)]
    for _ in range(30):
        for key, space in vector.observation_space.spaces.items():
            if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
                assert all(value in space for value in observations[key]), key
            assert observations[key].shape == (NUM_ENVS, *space.shape)
        for env, value in enumerate(seen):
            assert equal(observations["image"][env], value["image"])
            assert observations["choice"][env] == value["choice"] + 2
            assert observations["choices"][env].tolist() == value["choices"].ravel().tolist()
            assert observations["echo"][env] == value["echo"]
            assert observations["number"][env].tolist() == [value["number"]]
            assert observations["text/length"][env] == len(value["text"])
            items = value["pair"][0]
            found = observations["pair/0/items"][env][: len(items)]
            assert found.tolist() == [item - 1 for item in items]
            assert equal(observations["pair/1/deep"][env], value["pair"][1]["deep"])
        actions = np.array([vector.action_space.sample() for _ in range(NUM_ENVS)])
        observations, _, dones, infos = vector.step(actions)
        for env, numbers in enumerate(actions):
            action = (numbers[0] - 2, {"bits": numbers[1:4], "more": numbers[None, 4:]})
            value, _, ended, _, _ = peers[env].step(action)
            assert ended == dones[env]
            if ended:
                final = infos[env]["terminal_observation"]
                assert final["echo"] == digest(action)
                assert equal(final["image"], value["image"])
                value = peers[env].reset()[0]
            seen[env] = value
    vector.close()


def test_trees_of_continuous_actions_become_one_box(backend: str) -> None:
    vector = ours(Pushes, backend, limits=4)
    low, high = [-1, -1, -1, -1, 0], [1, 1, 1, 1, 5]
    assert vector.action_space == spaces.Box(np.float32(low), np.float32(high))
    vector.reset()
    actions = np.array([vector.action_space.sample() for _ in range(NUM_ENVS)])
    observations, _, dones, infos = vector.step(actions)
    for env, numbers in enumerate(actions):
        echo = infos[env]["terminal_observation"] if dones[env] else observations
        found = echo["echo"] if dones[env] else echo["echo"][env]
        assert found == digest({"a": numbers[:4].reshape(2, 2), "b": numbers[4]})
    vector.close()


def test_mixed_actions_become_choices_on_request() -> None:
    layout = fugu.Layout.of(Expedition().action_space, strict=True, plain=True)
    with pytest.raises(UsageError, match=r"action leaf 'effort'.*action_bins=5"):
        ActionForm(layout)
    form = ActionForm(layout, bins=5)
    order = list(layout.space.spaces)
    counts = {"direction": 4, "dig": 2, "effort": 5}
    assert form.space == spaces.MultiDiscrete([counts[key] for key in order])
    for bin_, effort in enumerate([-1, -0.5, 0, 0.5, 1]):
        given = {"direction": 3, "dig": 1, "effort": bin_}
        row = form.rows([[given[key] for key in order]], 1)[0]
        action = layout.unpack(row)
        assert (action["direction"], action["dig"].tolist()) == (3, [1])
        assert action["effort"].tolist() == [effort]


@pytest.mark.parametrize(
    ("space", "bins", "message"),
    [
        (spaces.Dict(say=spaces.Text(3)), None, r"action leaf 'say': given Text"),
        (spaces.Tuple((spaces.Sequence(spaces.Discrete(2)),)), None, "action leaf '0': given Seq"),
        (spaces.Box(-np.inf, np.inf, (2,)), 3, "unbounded"),
        (spaces.Box(-1, 1, (2,)), 1, "action_bins: given 1"),
        (spaces.Dict(), None, "no leaf"),
    ],
)
def test_actions_that_cannot_be_offered_are_refused(space: Any, bins: Any, message: str) -> None:
    limits = 4 if "Sequence" in str(space) else None
    with pytest.raises(UsageError, match=message):
        ActionForm(fugu.Layout.of(space, limits=limits), bins)


def test_the_vector_is_closed_if_it_cannot_be_offered() -> None:
    with pytest.raises(UsageError, match="action leaf 'text'"):
        ours(Everything, "process", **Everything.LIMITS)
    with fugu.make(Herd, 2, backend="serial") as herd, pytest.raises(UsageError, match="4 agents"):
        to_sb3(herd)
    with fugu.make(Expedition, 2, backend="serial", limits=BAG) as plain:
        with pytest.raises(UsageError, match="action_bins"):
            to_sb3(plain)
        plain.reset()  # whoever made it may go on with it


def test_actions_that_cannot_be_are_refused_before_any_environment_steps(backend: str) -> None:
    vector = ours(Remembers, backend)
    with pytest.raises(UsageError, match="step: given before reset"):
        vector.step(np.array([1, 1, 1]))
    vector.reset()
    for wrong in ([1, 1], [1, 7, 9], [-1, 0, 0], ["a", "b", "c"], [np.nan, 1, 1], [[1], [1], [1]]):
        with pytest.raises(ActionError):
            vector.step(np.array(wrong))
    assert vector.step(np.array([1, 2, 3]))[0][:, 2].tolist() == [1, 1, 1]
    vector.close()


def test_a_broken_step_is_cut_off(backend: str) -> None:
    vector = ours(Remembers, backend)
    vector.reset()
    seen = vector.step(np.array([1, 1, 1]))[0]
    observations, rewards, dones, infos = vector.step(np.array([1, 4, 1]))
    assert dones.tolist() == [False, True, False]
    assert rewards.tolist() == [1, 0, 1]
    assert observations[:, 2].tolist() == [2, 0, 2]
    assert infos[1]["TimeLimit.truncated"]
    assert np.array_equal(infos[1]["terminal_observation"], seen[1])
    assert "ValueError: as it was told" in infos[1]["fault"]
    vector.close()


# ---------------------------------------------------------------------- learning


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (registered("Blackjack-v1"), {}),
        (functools.partial(Choices, tame=True), {"limits": 4}),
        (functools.partial(Pushes, tame=True), {"limits": 4}),
        (Expedition, {"limits": BAG, "action_bins": 3}),
    ],
    ids=["a tuple", "choices", "pushes", "mixed"],
)
def test_their_algorithms_take_what_they_did_not_know(
    make: Callable[[], Any], options: dict[str, Any]
) -> None:
    torch.set_num_threads(1)
    vector = ours(make, num_envs=2, **options)
    model = A2C("MultiInputPolicy", vector, n_steps=8, seed=0)
    model.learn(64)
    assert model.num_timesteps == 64
    vector.close()


@pytest.mark.timeout(280)
def test_ppo_learns_cartpole_through_processes() -> None:
    torch.set_num_threads(1)
    start = time.time()
    vector = to_sb3(fugu.make("CartPole-v1", 8, backend="process", num_workers=2, seed=1))
    model = PPO(
        "MlpPolicy",
        vector,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        ent_coef=0.0,
        seed=1,
        device="cpu",
    )
    model.learn(100_000)
    assert model.ep_info_buffer is not None
    assert len(model.ep_info_buffer) == 100  # what it logs comes from our infos
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no Monitor
        mean, spread = evaluate_policy(model, vector, n_eval_episodes=20, deterministic=True)
    vector.close()
    print(f"CartPole through to_sb3: {mean:.1f} +- {spread:.1f} in {time.time() - start:.0f} s")
    assert mean >= 475


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


def test_the_structured_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, "examples/sb3_structured.py", "--total-steps", "2000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "mean return" in done.stdout
    assert "steps/s" in done.stdout
