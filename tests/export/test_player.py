"""Loaded policies: what they take, what they give, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_kinds import KINDS, MIXED, TREE, Kind, observations_of

from fugu.core.errors import PackError, UsageError
from fugu.envs.contract import AgentGroup
from fugu.export.engine import make_engine
from fugu.inference.player import LoadedPolicy
from fugu.policies import PolicyConfig, make_policy
from fugu.policies.recalling import recalling
from fugu.spaces import Layout


def player_of(name: str, seed: int = 0) -> LoadedPolicy:
    kind = next(kind for kind in [*KINDS, MIXED_LSTM] if kind.name == name)
    return LoadedPolicy(make_engine("torch", *kind.make()), "torch", seed)


MIXED_LSTM = Kind("mixed-lstm", TREE, MIXED, {"core": "lstm"})


def test_one_observation_is_a_batch_of_one() -> None:
    player = player_of("mixed-lstm")
    rows = observations_of(player.facts.observation, 5)
    state, states = None, None
    for row in rows:
        observation = player.facts.observation.unpack(row)
        action, value, state = player.act(observation, state)
        actions, values, states = player.act_rows(row[None], states)
        expected = player.facts.action.unpack(actions[0])
        assert action.keys() == expected.keys() == {"go", "by"}
        assert all((action[key] == expected[key]).all() for key in action)
        assert action in player.facts.action.space
        assert value == values[0, 0]
        assert (state == states[0]).all()
        assert state.shape == (player.facts.state_size,)


def test_a_state_is_remembered_and_none_begins() -> None:
    player = player_of("lstm")
    seen = np.float32([1, 2, -1, 0, 3])
    _, first, state = player.act(seen)
    _, second, _ = player.act(seen, state)
    _, again, _ = player.act(seen, player.initial_state())
    assert first == again
    assert first != second
    assert player.initial_state(3).shape == (3, player.facts.state_size)


def test_a_mask_forbids() -> None:
    player = player_of("mlp")
    rows = observations_of(player.facts.observation, 50)
    best, _, _ = player.act_rows(rows)
    masks = np.ones((50, 4), np.bool_)
    masks[np.arange(50), best[:, 0]] = False
    for greedy in (True, False):
        other, _, _ = player.act_rows(rows, masks=masks, greedy=greedy)
        assert (other != best).all()
    action, _, _ = player.act(rows[0], mask=[0, 0, 1, 0], greedy=False)
    assert action == 2
    with pytest.raises(UsageError):
        player.act(rows[0], mask=[0, 0, 0, 0])


def test_chance_comes_from_the_seed() -> None:
    rows = observations_of(player_of("own-critic").facts.observation, 64)

    def drawn(player: LoadedPolicy, **given: Any) -> bytes:
        return player.act_rows(rows, greedy=False, **given)[0].tobytes()

    one, same, other = (player_of("own-critic", seed) for seed in (1, 1, 2))
    assert drawn(one) == drawn(same) != drawn(other)
    assert drawn(one) == drawn(same)  # both went on
    generators = [np.random.default_rng(5) for _ in range(2)]
    assert drawn(one, random=generators[0]) == drawn(other, random=generators[1])
    first, second = one.act_rows(rows)[0], other.act_rows(rows)[0]  # the best need no chance
    assert first.tobytes() == second.tobytes()


def test_without_critics_there_is_no_value() -> None:
    _, value, _ = player_of("no-critic").act(np.zeros(5, np.float32))
    assert np.isnan(value)
    two = player_of("own-critic").act_rows(np.zeros((3, 5), np.float32))[1]
    assert two.shape == (3, 2)


def test_rows_that_nobody_may_write_to_are_read() -> None:
    player = player_of("lstm")
    rows = observations_of(player.facts.observation, 4)
    state = player.initial_state(4)
    for array in (rows, state):
        array.flags.writeable = False
    player.act_rows(rows, state)


def test_a_policy_that_recalls_is_shown_what_it_remembers() -> None:
    layouts = Layout.of(spaces.MultiDiscrete([9] * 4)), Layout.of(spaces.Discrete(3))
    group = AgentGroup("agent", (0,), *layouts)
    cfg = PolicyConfig(core="tokens", hidden_size=16, recall=2, recall_length=3)
    policy = recalling(make_policy, group, cfg).eval()
    player = LoadedPolicy(make_engine("torch", policy, layouts[0]))
    rows = observations_of(layouts[0], 5)
    found = player.act_rows(rows)[1]
    wide = np.concatenate([np.full((5, 6), 9), rows], 1)  # nothing is remembered yet
    with torch.no_grad():
        expected = policy(torch.from_numpy(wide), policy.initial_state(5))[1]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(UsageError, match="cannot be taken apart: RecallingPolicy"):
        make_engine("native", policy, layouts[0])


# ---------------------------------------------------------------------- refused


def test_a_nan_is_named_with_its_leaf() -> None:
    player = player_of("tree")
    rows = observations_of(player.facts.observation, 4)
    player.facts.observation.views(rows)["inner"][1][2, 0] = np.nan
    with pytest.raises(UsageError, match="given a NaN at 'inner/1' in row 2; allowed: numbers"):
        player.act_rows(rows)
    with pytest.raises(UsageError, match="given a NaN in row 0"):
        player_of("mlp").act(np.float32([0, 0, np.nan, 0, 0]))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 4), np.float32), r"shape \(2, 5\)"),
        (np.zeros((0, 5), np.float32), "with a row at least"),
        (np.float32(3), "with a row at least"),
        ([["a"] * 5], "allowed: float32 array"),
    ],
)
def test_rows_of_another_shape_are_refused(rows: Any, message: str) -> None:
    with pytest.raises((UsageError, PackError), match=message):
        player_of("mlp").act_rows(rows)


def test_bytes_are_not_reinterpreted() -> None:
    player = player_of("tree")
    rows = observations_of(player.facts.observation, 2)
    with pytest.raises(PackError, match="make them with pack"):
        player.act_rows(rows.astype(np.float32))


def test_what_does_not_fit_is_refused() -> None:
    player = player_of("lstm")
    seen = np.zeros(5, np.float32)
    with pytest.raises(PackError):
        player.act(np.zeros(6, np.float32))
    with pytest.raises(UsageError, match=r"state: given an array of shape \(1, 3\); allowed"):
        player.act(seen, np.zeros(3))
    with pytest.raises(UsageError, match=r"mask: given int64 of shape \(1, 3\); allowed: booleans"):
        player.act(seen, mask=[1, 1, 1])
    with pytest.raises(UsageError, match="mask: given float64"):
        player.act(seen, mask=[1.0, 0.0, 0.0, 0.5])
    with pytest.raises(UsageError, match="not finite|finite"):
        player.act(seen, np.full(player.facts.state_size, np.nan))
