"""What Gymnasium documents of its vectors, on its own and on ours, with equal results."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from gymnasium_vectors import ENVS, check_step, ours, theirs
from peer_toys import NUM_ENVS, Remembers, Talker, equal, registered, run_example

import fugu
from fugu.core.errors import UsageError
from fugu.core.seeding import derive, episode_seed
from fugu.vector import WorkerError, to_gymnasium

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def talkers(backend: str) -> Iterator[tuple[SyncVectorEnv, Any]]:
    """Gymnasium's vector and ours, of the same environment."""
    make = functools.partial(Talker, render_mode="rgb_array")
    peer, vector = theirs(make), ours(make, backend)
    yield peer, vector
    peer.close()
    vector.close()


# ---------------------------------------------------------------------- reset and step


@pytest.mark.parametrize("name", ENVS)
def test_every_step_is_equal(name: str, backend: str) -> None:
    make, options = ENVS[name]
    if name == "MiniGrid":
        pytest.importorskip("minigrid")
    peer, vector = theirs(make), ours(make, backend, **options)
    peer.action_space.seed(3)
    ends = 0
    for seed in (7, None):  # the second reset goes on where the generators are
        expected, found = peer.reset(seed=seed), vector.reset(seed=seed)
        assert equal(found[0], expected[0])
        assert equal(found[1], expected[1]), (found[1], expected[1])
        for _ in range(50):
            _, _, terminations, truncations, _ = check_step(peer, vector)
            ends += int((terminations | truncations).sum())
    assert ends > 3
    peer.close()
    vector.close()


def test_the_comparison_can_fail() -> None:
    """A negative control: another seed and another way of restarting are noticed."""
    peer, vector = theirs(Talker), ours(Talker)
    peer.reset(seed=1)
    vector.reset(seed=2)
    with pytest.raises(AssertionError):
        check_step(peer, vector)
    peer = SyncVectorEnv([Talker] * NUM_ENVS)
    peer.reset(seed=1)
    vector.reset(seed=1)
    with pytest.raises(AssertionError):
        play(peer, vector, 20)
    vector.close()


def play(peer: SyncVectorEnv, vector: Any, steps: int) -> None:
    for _ in range(steps):
        check_step(peer, vector)


@pytest.mark.parametrize("name", ENVS)
def test_what_it_says_of_itself_is_equal(name: str) -> None:
    make, options = ENVS[name]
    if name == "MiniGrid":
        pytest.importorskip("minigrid")
    peer, vector = theirs(make), ours(make, **options)
    assert isinstance(vector, VectorEnv)
    assert vector.metadata == peer.metadata
    assert vector.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    names = ["num_envs", "render_mode", "closed", "observation_space", "action_space"]
    for attribute in [*names, "single_observation_space", "single_action_space"]:
        assert getattr(vector, attribute) == getattr(peer, attribute), attribute
    contained = [each.reset(seed=0)[0] in each.observation_space for each in (peer, vector)]
    assert contained[0] == contained[1]
    peer.close()
    vector.close()


def test_its_metadata_is_its_own() -> None:
    class Own(Talker):
        metadata = {"render_modes": ["rgb_array"]}

    with ours(Own).vector:
        assert Own.metadata == {"render_modes": ["rgb_array"]}


def test_the_spec_is_that_of_the_environment(backend: str) -> None:
    vector = ours(registered("CartPole-v1"), backend)
    assert vector.spec.id == "CartPole-v1"
    assert repr(vector) == "GymnasiumVectorEnv(CartPole-v1, num_envs=3)"
    vector.close()
    vector = ours(Talker, backend)
    assert vector.spec is None
    vector.close()


@pytest.mark.parametrize("seed", [5, [11, 3, 7], [4, None, 4], None])
def test_seeds_reach_the_environments(backend: str, seed: Any) -> None:
    peer, vector = theirs(Remembers), ours(Remembers, backend)
    expected, found = peer.reset(seed=seed)[0], vector.reset(seed=seed)[0]
    assert equal(found, expected)
    assert equal(peer.reset()[0], vector.reset()[0])
    if seed == 5:
        assert found[:, 0].tolist() == [5, 6, 7]
        assert vector.np_random_seed == peer.np_random_seed == (5, 6, 7)
        states = [[rng.bit_generator.state for rng in v.np_random] for v in (peer, vector)]
        assert states[0] == states[1]
    peer.close()
    vector.close()


def test_the_seed_given_to_make_is_that_of_the_first_reset() -> None:
    vector = ours(Remembers, seed=20)
    assert vector.reset()[0][:, 0].tolist() == [20, 21, 22]
    assert vector.reset()[0][:, 0].tolist() == [-1, -1, -1]
    vector.close()


@pytest.mark.parametrize("seed", [[1, 2], [1, 2, 3, 4]])
def test_a_wrong_number_of_seeds_is_refused(seed: Any) -> None:
    vector = ours(Remembers)
    with pytest.raises(UsageError, match=f"given {len(seed)} seeds; allowed: one integer, or 3"):
        vector.reset(seed=seed)
    vector.close()


def test_options_and_masks(backend: str) -> None:
    peer, vector = theirs(Remembers), ours(Remembers, backend)

    def check(**arguments: Any) -> None:
        options = arguments.pop("options", None)
        # A dict each, since Gymnasium takes the mask out of what it is given.
        expected = peer.reset(options=options and dict(options), **arguments)
        found = vector.reset(options=options and dict(options), **arguments)
        assert equal(found, expected), (found, expected)

    check(seed=1, options={"level": 4})
    for _ in range(3):
        check_step(_all_ones(peer), vector)
    check(seed=30, options={"reset_mask": np.array([True, False, True]), "level": 6})
    check_step(_all_ones(peer), vector)
    check(options={"reset_mask": np.array([False, True, False]), "level": 2})
    check_step(_all_ones(peer), vector)
    check(seed=[8, 9, 10], options={"reset_mask": np.array([True, True, True]), "level": 0})
    check()
    check_step(_all_ones(peer), vector)
    options = {"reset_mask": np.array([True, False, False])}
    vector.reset(options=options)
    assert list(options) == ["reset_mask"]  # the caller's dict stays as it was
    peer.close()
    vector.close()


def _all_ones(peer: SyncVectorEnv) -> SyncVectorEnv:
    peer.action_space.sample = lambda: np.ones(NUM_ENVS, int)  # type: ignore[method-assign]
    return peer


@pytest.mark.parametrize(
    "mask", [[True, False, True], np.array([1, 0, 1]), np.array([True]), np.zeros(3, bool)]
)
def test_masks_that_cannot_be_are_refused(mask: Any) -> None:
    vector, peer = ours(Remembers), theirs(Remembers)
    for each in (vector, peer):
        each.reset(seed=0)
    with pytest.raises(UsageError, match=r"reset_mask.*3 bools, at least one of them True"):
        vector.reset(options={"reset_mask": mask})
    with pytest.raises((AssertionError, TypeError, ValueError)):
        peer.reset(options={"reset_mask": mask})
    vector.close()


def test_a_mask_before_the_first_reset_is_refused() -> None:
    vector = ours(Remembers)
    with pytest.raises(UsageError, match="reset all"):
        vector.reset(options={"reset_mask": np.array([True, False, False])})
    vector.close()


def test_the_end_of_an_episode_is_all_there(backend: str) -> None:
    make = registered("CartPole-v1", max_episode_steps=4)
    vector = ours(make, backend)
    vector.reset(seed=1)
    for _ in range(3):
        assert "final_obs" not in vector.step(np.ones(NUM_ENVS, int))[4]
    observations, _, _, truncations, infos = vector.step(np.ones(NUM_ENVS, int))
    assert truncations.all()
    assert infos["_final_obs"].all()
    assert infos["_final_info"].all()
    bare = make()
    for env in range(NUM_ENVS):
        bare.reset(seed=1 + env)
        for _ in range(4):
            last = bare.step(1)[0]
        assert np.array_equal(infos["final_obs"][env], last)
        assert np.array_equal(observations[env], bare.reset()[0])
    vector.close()


def test_gymnasiums_wrappers_agree(backend: str) -> None:
    for wrapper in (RecordEpisodeStatistics, DictInfoToList):
        peer, vector = theirs(Talker), ours(Talker, backend)
        wrapped, own = wrapper(peer), wrapper(vector)
        wrapped.reset(seed=4)
        own.reset(seed=4)
        for _ in range(30):
            actions = peer.action_space.sample()
            expected, found = wrapped.step(actions), own.step(actions)
            for infos in (expected[4], found[4]):
                if isinstance(infos, dict) and "episode" in infos:
                    infos["episode"].pop("t")
            assert equal(found[4], expected[4])
        peer.close()
        vector.close()


# ---------------------------------------------------------------------- the environments themselves


def test_calls_and_attributes(talkers: tuple[SyncVectorEnv, Any]) -> None:
    for vector in talkers:
        vector.reset(seed=3)
        assert vector.call("greet", "you", mark="!") == ("hello you 0!",) * 3
        assert vector.call("note") == vector.get_attr("note") == ("unset",) * 3
        vector.set_attr("note", "set")
        assert vector.get_attr("note") == ("set",) * 3
        vector.set_attr("note", [1, 2, 3])
        assert vector.get_attr("note") == (1, 2, 3)
        vector.set_attr("note", ("x", None, {"a": 1}))
        assert vector.get_attr("note") == ("x", None, {"a": 1})
        with pytest.raises((ValueError, UsageError), match="2"):
            vector.set_attr("note", [1, 2])
        with pytest.raises(AttributeError, match="no_such_thing"):
            vector.get_attr("no_such_thing")
        with pytest.raises((ValueError, WorkerError), match="as it was told"):
            vector.call("fail")
        assert vector.get_attr("has_torch")[0] in (True, False)  # a method is called
        vector.step(np.zeros(NUM_ENVS, int))


def test_attributes_before_the_first_reset(talkers: tuple[SyncVectorEnv, Any]) -> None:
    for vector in talkers:
        vector.set_attr("greeting", "hi")
        assert vector.get_attr("greeting") == ("hi",) * 3
        vector.reset(seed=3)
        assert vector.call("greet", "you") == ("hi you 0.",) * 3


def test_pictures(talkers: tuple[SyncVectorEnv, Any]) -> None:
    peer, vector = talkers
    assert vector.render_mode == peer.render_mode == "rgb_array"
    peer.reset(seed=0)
    vector.reset(seed=0)
    for _ in range(4):
        check_step(peer, vector)
        assert equal(vector.render(), peer.render())


def test_pictures_of_cartpole() -> None:
    pytest.importorskip("pygame")
    make = registered("CartPole-v1", render_mode="rgb_array")
    peer, vector = theirs(make, 2), ours(make, "process", 2)
    peer.reset(seed=0)
    vector.reset(seed=0)
    check_step(peer, vector)
    assert equal(vector.render(), peer.render())
    peer.close()
    vector.close()


def test_closing_twice_is_once(talkers: tuple[SyncVectorEnv, Any]) -> None:
    for vector in talkers:
        vector.reset(seed=0)
        assert not vector.closed
        vector.close()
        assert vector.closed
        vector.close()
    with pytest.raises(UsageError, match="closed"):
        talkers[1].reset(seed=0)


# ---------------------------------------------------------------------- a vector of fugu's own ways


def test_a_plain_vector_keeps_its_seeds_and_its_infos(backend: str) -> None:
    workers = {"num_workers": 2} if backend == "process" else {}
    with fugu.make(Talker, NUM_ENVS, backend=backend, **workers) as plain:
        vector = to_gymnasium(plain)
        observations, infos = vector.reset(seed=9)
        assert infos == {}
        bare = Talker()
        for env in range(NUM_ENVS):
            first = bare.reset(seed=episode_seed(derive(9, env), 0))[0]
            assert np.array_equal(observations["place"][env], first["place"])
        told = 0
        for _ in range(20):
            _, _, terminations, truncations, infos = vector.step(np.ones(NUM_ENVS, int))
            ended = terminations | truncations
            assert ("final_info" in infos) == bool(ended.any())
            if ended.any():
                assert infos["_final_info"].tolist() == ended.tolist()
                final = infos["final_info"]
                assert final["_episode_return"].tolist() == ended.tolist()
                assert (final["episode_return"][ended] == final["episode_length"][ended] / 4).all()
                told += 1
        assert told


def test_a_plain_vector_goes_on_without_a_seed(backend: str) -> None:
    """Each reset begins the next episodes, and not those of the first time again."""
    with fugu.make("CartPole-v1", 2, backend=backend, seed=3) as plain:
        vector = to_gymnasium(plain)
        found = [vector.reset()[0] for _ in range(3)]
        for episode, observations in enumerate(found):
            for env in range(2):
                bare = gymnasium.make("CartPole-v1")
                seed = episode_seed(derive(3, env), episode)
                assert np.array_equal(observations[env], bare.reset(seed=seed)[0])
        again = vector.reset(seed=3)[0]
        assert np.array_equal(again, found[0])


def test_a_vector_made_as_others_do_is_recognised() -> None:
    with fugu.make(Remembers, 2, backend="serial", seeding="first", infos="all") as made:
        vector = to_gymnasium(made)
        observations, infos = vector.reset(seed=40)
        assert observations[:, 0].tolist() == [40, 41]
        assert infos["_level"].tolist() == [True, True]


def test_flat_rows() -> None:
    make, options = ENVS["spaces of every kind"]
    vector, structured = ours(make, flat=True, **options), ours(make, **options)
    layout = vector.observation_layout
    assert vector.single_observation_space == spaces.Box(0, 255, (layout.size,), np.uint8)
    rows, trees = vector.reset(seed=1)[0], structured.reset(seed=1)[0]
    assert rows in vector.observation_space
    assert np.array_equal(layout.views(rows)["image"], trees["image"])
    for _ in range(20):
        actions = vector.action_space.sample()
        infos, others = vector.step(actions)[4], structured.step(actions)[4]
        for flat, tree in zip(infos.get("final_obs", ()), others.get("final_obs", ()), strict=True):
            assert (flat is None and tree is None) or equal(layout.unpack(flat), tree)
    vector.close()
    structured.close()


# ---------------------------------------------------------------------- the example


@pytest.mark.parametrize("env", ["expedition", "CartPole-v1", "Pendulum-v1"])
def test_the_cleanrl_style_example_runs(env: str) -> None:
    assert "mean return" in run_example("cleanrl_style_ppo", "--env", env)
