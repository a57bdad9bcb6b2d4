"""Whole episodes: steps land in their own, teams come out complete, memory is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from fugu.core.errors import UsageError
from fugu.data.episodes import Episode, Episodes, EpisodeShape, began_alike, pack, unpack
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout

ACTION = Layout.of(spaces.Discrete(3))
GROUP = AgentGroup("agent", (0,), Layout.of(spaces.Box(-9, 9, (2,))), ACTION)


def store(agents: int, team: int, **options: Any) -> Episodes:
    return Episodes(GROUP, EpisodeShape(agents, team, 1, **options))


def step(episodes: Episodes, agents: list[int], seen: float, reward: float, ends: Any) -> None:
    """Agents see a number, act, and earn; some of them end."""
    ids, count = np.array(agents), len(agents)
    observations = np.full((count, 2), seen, np.float32)
    samples = np.full((count, 1), seen % 3, np.float32)
    masks = np.ones((count, 3), np.bool_)
    episodes.record_step(ids, observations, masks, samples, np.full(count, -seen, np.float32))
    ended = np.broadcast_to(np.asarray(ends, np.bool_), count)
    rewards = np.full(count, reward, np.float32)
    yes = np.ones(count, np.bool_)
    episodes.record_reward(ids, rewards, ended, ~yes, yes, yes)


def test_a_team_comes_out_when_its_slowest_has_ended() -> None:
    episodes = store(4, 2)
    step(episodes, [0, 1, 2, 3], 1.0, 0.5, [True, False, False, True])
    assert episodes.take() == []
    step(episodes, [1], 2.0, 0.25, True)
    ((first, second),) = episodes.take()
    assert (first.length, second.length) == (1, 2)
    assert second.rewards.tolist() == [0.5, 0.25]
    assert second.observations[:, 0].tolist() == [1.0, 2.0]
    assert second.log_probabilities.tolist() == [-1.0, -2.0]
    assert second.total == 0.75
    assert episodes.take() == []
    assert episodes.kept == 1
    assert began_alike([first, second])


def test_episodes_of_the_same_number_are_compared() -> None:
    episodes = store(2, 2)
    for number in range(3):
        step(episodes, [0], 10.0 + number, 1.0, True)
    step(episodes, [1], 20.0, 2.0, True)
    step(episodes, [1], 21.0, 2.0, True)
    teams = episodes.take()
    assert [[e.observations[0, 0] for e in team] for team in teams] == [[10, 20], [11, 21]]
    assert not began_alike(teams[0])
    assert episodes.kept == 1


def test_agents_of_one_environment_are_teams_of_their_own() -> None:
    pair = AgentGroup("agent", (0, 1), GROUP.observation_layout, ACTION)
    episodes = Episodes(pair, EpisodeShape(4, 2, 1))
    step(episodes, [0, 1, 2, 3], 1.0, 0.0, [True, False, True, False])
    ((first, second),) = episodes.take()  # of agents 0 and 2: the same one in both copies
    assert (first.length, second.length) == (1, 1)
    step(episodes, [1, 3], 2.0, 0.0, True)
    assert [episode.length for episode in episodes.take()[0]] == [2, 2]


def test_what_reaches_an_agent_between_its_turns_belongs_to_its_last_action() -> None:
    episodes = store(1, 1)
    one, no = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    masks, logs = np.ones((1, 3), np.bool_), np.zeros(1, np.float32)
    episodes.record_reward(
        one, np.full(1, 9.0, np.float32), no, no, ~no, ~no
    )  # it has not acted yet
    episodes.record_step(
        one, np.zeros((1, 2), np.float32), masks, np.zeros((1, 1), np.float32), logs
    )
    for reward, ends in ((1.0, no), (2.0, no), (4.0, ~no)):
        episodes.record_reward(one, np.full(1, reward, np.float32), ends, no, ~no, no)
    episodes.record_reward(one, np.full(1, 9.0, np.float32), no, no, ~no, no)  # after its end
    (((episode,)),) = episodes.take()
    assert episode.rewards.tolist() == [7.0]


def test_who_runs_too_far_ahead_gives_numbers_up_for_the_team() -> None:
    episodes = store(2, 2, ahead=3)
    for number in range(10):
        step(episodes, [0], float(number), 0.0, True)
    assert (episodes.kept, episodes.given_up) == (4, 6)  # numbers 0 to 3 wait
    numbers = []
    for number in range(14):
        step(episodes, [1], float(number), 0.0, True)
        numbers += [team[1].observations[0, 0] for team in episodes.take()]
    assert numbers == [0, 1, 2, 3]
    assert episodes.kept == 4  # now the other one is ahead: 10 to 13
    for number in range(10, 14):
        step(episodes, [0], float(number), 0.0, True)
        numbers += [team[0].observations[0, 0] for team in episodes.take()]
    assert numbers == [0, 1, 2, 3, 10, 11, 12, 13]
    assert not episodes._given_up


def test_long_episodes_grow_and_endless_ones_are_refused() -> None:
    episodes = store(1, 1, longest=100)
    for t in range(100):
        step(episodes, [0], float(t), 1.0, t == 99)
    (((episode,)),) = episodes.take()
    assert episode.observations[:, 0].tolist() == list(range(100))
    for t in range(100):
        step(episodes, [0], float(t), 1.0, False)
    with pytest.raises(UsageError, match="time limit"):
        step(episodes, [0], 100.0, 1.0, False)


def test_a_team_that_is_forgotten_begins_anew() -> None:
    episodes = store(4, 2)
    step(episodes, [0, 0 + 2], 1.0, 1.0, True)
    step(episodes, [1], 1.0, 1.0, False)
    episodes.forget(np.array([1]))
    step(episodes, [1], 5.0, 1.0, True)
    assert episodes.take() == []  # what agent 0 had ended is gone
    step(episodes, [0], 6.0, 1.0, True)
    ((first, second),) = episodes.take()
    assert (first.observations[0, 0], second.length) == (6.0, 1)
    step(episodes, [3], 1.0, 1.0, True)
    assert len(episodes.take()) == 1  # the other team is as it was


def test_states_go_back_exactly() -> None:
    def play(episodes: Episodes, seed: int) -> list[Any]:
        random, found = np.random.default_rng(seed), []
        for _ in range(40):
            agents = np.flatnonzero(random.random(4) < 0.7).tolist()
            if agents:
                ends = random.random(len(agents)) < 0.4
                step(episodes, agents, random.random(), random.random(), ends)
            found += episodes.take()
        return [[e.rewards.tolist() for e in team] for team in found]

    one, other = store(4, 2, ahead=2), store(4, 2, ahead=2)
    play(one, 1)
    other.load_state_dict({name: value.copy() for name, value in one.state_dict().items()})
    assert play(one, 2) == play(other, 2)
    with pytest.raises(UsageError, match="4 agents"):
        store(2, 2).load_state_dict(one.state_dict())


def test_a_team_that_does_not_divide_the_copies_is_refused() -> None:
    with pytest.raises(UsageError, match="divisor of 4"):
        store(4, 3)


def test_no_episodes_are_packed_into_empty_arrays_of_the_same_types() -> None:
    mixed = Layout.of(spaces.Box(0, 255, (3,), np.uint8))
    group = AgentGroup("agent", (0,), mixed, Layout.of(spaces.Discrete(4)))
    zeros = np.zeros((2, 1), np.float32)
    one = Episode(mixed.zeros(2), zeros, np.ones((2, 4), np.bool_), zeros[:, 0], zeros[:, 0])
    some, none = pack([one], group), pack([], group)
    assert unpack(none) == []
    for name, array in some.items():
        assert none[name].dtype == array.dtype
        assert len(none[name]) == 0
    (again,) = unpack(some)
    assert again.length == 2
