"""What Gymnasium documents of its vectors, on its own and on ours, with equal results."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from peer_toys import Choices, Everything, Remembers, Talker, equal
from strategies import LIMIT, any_space, same, value_of
from vector_toys import Herd, Walk

import fugu
from fugu.core.errors import ActionError, UsageError
from fugu.core.seeding import derive, episode_seed
from fugu.envs.expedition import BAG, Expedition
from fugu.vector import WorkerError, to_gymnasium
from fugu.vector.gymnasium_adapter import ArrayTree, ValueTree, _structure_of

ROOT = Path(__file__).parents[2]
NUM_ENVS = 3
pytestmark = pytest.mark.timeout(120)


def registered(name: str, **arguments: Any) -> Callable[[], Any]:
    return functools.partial(gymnasium.make, name, **arguments)


def minigrid() -> Any:
    import minigrid  # noqa: F401

    return gymnasium.make("MiniGrid-Empty-5x5-v0", max_steps=12)


# What makes each environment, and how it is made for fugu.
ENVS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "CartPole": (registered("CartPole-v1", max_episode_steps=15), {}),
    "FrozenLake": (registered("FrozenLake-v1"), {}),
    "Blackjack": (registered("Blackjack-v1"), {}),
    "Pendulum": (registered("Pendulum-v1", max_episode_steps=20), {}),
    "MiniGrid": (minigrid, {"limits": {"mission": 64}}),
    "Expedition": (lambda: Expedition(length=12), {"limits": {"walker/bag": BAG}}),
    "infos of every kind": (Talker, {}),
    "spaces of every kind": (Everything, Everything.LIMITS),
    "a tree of choices": (Choices, {"limits": 4}),
    "text": (Walk, {}),
}


def theirs(make: Callable[[], Any], num_envs: int = NUM_ENVS, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **options)


def ours(
    make: Callable[[], Any], backend: str = "serial", num_envs: int = NUM_ENVS, **options: Any
) -> Any:
    workers = {"num_workers": 2} if backend == "process" else {}
    return to_gymnasium(make, num_envs, backend=backend, **workers, **options)


@pytest.fixture
def talkers(backend: str) -> Iterator[tuple[SyncVectorEnv, Any]]:
    """Gymnasium's vector and ours, of the same environment."""
    make = functools.partial(Talker, render_mode="rgb_array")
    peer, vector = theirs(make), ours(make, backend)
    yield peer, vector
    peer.close()
    vector.close()


def check_step(peer: VectorEnv[Any, Any, Any], vector: VectorEnv[Any, Any, Any]) -> Any:
    """One random step of both; what it gave."""
    actions = peer.action_space.sample()
    expected, found = peer.step(actions), vector.step(actions)
    assert equal(found[0], expected[0])
    assert found[1].dtype == expected[1].dtype == np.float64
    assert found[1].astype(np.float32).tobytes() == expected[1].astype(np.float32).tobytes()
    for flags in (2, 3):
        assert found[flags].tolist() == expected[flags].tolist()
        assert found[flags].dtype == np.bool_
    assert equal(found[4], expected[4]), (found[4], expected[4])
    return expected


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


# ---------------------------------------------------------------------- copies


@pytest.mark.parametrize("name", ["CartPole", "infos of every kind", "spaces of every kind"])
@pytest.mark.parametrize("copy", [True, False])
def test_what_was_given_changes_only_without_copies(name: str, copy: bool, backend: str) -> None:
    make, options = ENVS[name]
    peer, vector = theirs(make, copy=copy), ours(make, backend, copy=copy, **options)
    kept = []
    for each in (peer, vector):
        observations, _ = each.reset(seed=1)
        before = concatenate_copy(observations)
        peer.action_space.seed(1)
        each.step(peer.action_space.sample())
        kept.append(equal(numbers(observations), numbers(before)))
    assert kept == [copy, copy]
    peer.close()
    vector.close()


def concatenate_copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: concatenate_copy(item) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(concatenate_copy, tree))
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def numbers(tree: Any) -> Any:
    """The arrays that Gymnasium overwrites: those at the top and below dicts."""
    if isinstance(tree, dict):
        return {k: numbers(v) for k, v in tree.items() if isinstance(v, dict | np.ndarray)}
    return tree


def test_final_observations_are_always_copies(backend: str) -> None:
    vector = ours(registered("CartPole-v1", max_episode_steps=3), backend, copy=False)
    vector.reset(seed=0)
    kept = []
    for _ in range(9):
        infos = vector.step(np.ones(NUM_ENVS, int))[4]
        kept += [(final, final.copy()) for final in infos.get("final_obs", ())]
    assert len(kept) == 9
    assert all(np.array_equal(final, then) for final, then in kept)
    vector.close()


@given(any_space(4), st.integers(0, 2**32))
@settings(max_examples=150)
def test_any_space_is_batched_as_gymnasium_batches_it(space: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = fugu.Layout.of(space, limits=LIMIT) if _limited(space) else fugu.Layout.of(space)
    values = [value_of(space, rng) for _ in range(NUM_ENVS)]
    rows = layout.zeros(NUM_ENVS)
    for value, row in zip(values, rows, strict=True):
        layout.pack(value, row)
    expected = concatenate(space, values, create_empty_array(space, NUM_ENVS))
    for copy in (True, False):
        structure = _structure_of(layout)(layout, NUM_ENVS, copy)
        assert isinstance(structure, ArrayTree | ValueTree)
        assert same(structure.batch(rows), expected)
        for row, value in zip(rows, values, strict=True):
            assert same(structure.single(row), layout.unpack(row))
            assert equal(structure.single(row), value) or _has_nan(value)


def _limited(space: Any) -> bool:
    from fugu.spaces.compile import limited_paths

    return bool(limited_paths(space))


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, tuple):
        return any(map(_has_nan, value))
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).any()


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


# ---------------------------------------------------------------------- mistakes and faults


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: to_gymnasium(fugu.make(Herd, 2, backend="serial")),
            r"4 agents \(3 sheep, 1 dog\)",
        ),
        (
            lambda: to_gymnasium(fugu.make(Talker, 4, backend="serial", batch_size=2)),
            "given batches of 2 of 4 environments; allowed: all at once",
        ),
        (
            lambda: to_gymnasium(fugu.make(Talker, 2, backend="serial"), 2, seed=1),
            "given a Vector and num_envs, seed; allowed: a Vector alone",
        ),
    ],
)
def test_vectors_that_cannot_be_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_actions_that_cannot_be_are_refused_before_any_environment_steps(backend: str) -> None:
    vector = ours(Remembers, backend)
    with pytest.raises(UsageError, match="step: given before reset"):
        vector.step([1, 1, 1])
    vector.reset(seed=0)
    for wrong in ([1, 1], [1, 7, 9], [0.5, 1, 1], ["a", "b", "c"], [[1], [1]]):
        with pytest.raises(ActionError):
            vector.step(wrong)
    assert vector.step([1, 2, 3])[0][:, 2].tolist() == [1, 1, 1]
    vector.close()
    tree = ours(Choices, backend, limits=4)
    tree.reset(seed=0)
    actions = list(tree.action_space.sample())
    actions[0] = np.array([0, 9, 0])
    with pytest.raises(ActionError, match="leaf '0': given 9; allowed: an integer from -2 to 2"):
        tree.step(tuple(actions))
    tree.step(tree.action_space.sample())
    tree.close()


def test_a_broken_step_is_cut_off(backend: str) -> None:
    """The final observation is the one that was acted on; learning goes on with a new episode."""
    vector = ours(Remembers, backend)
    vector.reset(seed=5)
    seen = vector.step([1, 1, 1])[0]
    observations, rewards, terminations, truncations, infos = vector.step([1, 4, 1])
    assert truncations.tolist() == [False, True, False]
    assert not terminations.any()
    assert rewards.tolist() == [1, 0, 1]
    assert observations[:, 2].tolist() == [2, 0, 2]
    assert np.array_equal(infos["final_obs"][1], seen[1])
    assert "ValueError: as it was told" in infos["final_info"]["fault"][1]
    _, _, _, truncations, infos = vector.step([1, 1, 1])
    assert not truncations.any()
    assert infos == {}
    vector.close()


def test_a_worker_that_dies_between_two_steps_is_a_cut_too() -> None:
    vector = ours(Remembers, "process")
    vector.reset(seed=5)
    seen = vector.step([1, 1, 1])[0]
    process = vector.vector._crew._processes[0]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    _, _, _, truncations, infos = vector.step([1, 1, 1])
    lost = vector.vector._exchange.envs_of(0)
    assert truncations.tolist() == [lost[0] <= env < lost[1] for env in range(NUM_ENVS)]
    assert np.array_equal(infos["final_obs"][0], seen[0])
    assert infos["final_info"]["fault"][0]
    assert not vector.step([1, 1, 1])[3].any()
    vector.close()


def test_a_broken_reset_is_an_error(backend: str) -> None:
    vector = ours(Remembers, backend)
    with pytest.raises(WorkerError, match=r"(?s)reset failed in environment 0.*as it was told"):
        vector.reset(seed=0, options={"fail": True})
    vector.reset(seed=0)
    vector.close()


# ---------------------------------------------------------------------- the example


@pytest.mark.parametrize("env", ["expedition", "CartPole-v1", "Pendulum-v1"])
def test_the_cleanrl_style_example_runs(env: str) -> None:
    program = "examples/cleanrl_style_ppo.py"
    done = subprocess.run(
        [sys.executable, program, "--env", env, "--total-steps", "2000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "mean return" in done.stdout
