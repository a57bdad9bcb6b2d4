"""Spaces that Stable-Baselines3 does not know are offered in a form that it does, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expedition import BAG, Expedition
from gymnasium import spaces
from peer_toys import NUM_ENVS, Choices, Everything, Pushes, Remembers, digest, equal
from vector_toys import Herd

import fugu
from fugu.core.errors import ActionError, UsageError

pytest.importorskip("stable_baselines3")

from sb3_vectors import ours

from fugu.vector import to_sb3
from fugu.vector.sb3_spaces import ActionForm, ObservationForm

pytestmark = pytest.mark.timeout(120)


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
