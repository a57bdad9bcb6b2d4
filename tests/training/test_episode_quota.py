"""Evaluations count the same number of episodes of every agent, whoever ends first."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from toys import Script, Turns

import fugu
from fugu.core.errors import EnvError, UsageError
from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup, Buffers, Env
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.spaces import Layout
from fugu.training.episode_quota import EpisodeQuota
from fugu.training.evaluate import EVALUATION, Evaluation, Players, play
from fugu.vector import Vector


def policies_of(vec: Vector) -> list[Policy]:
    return [make_policy(group, PolicyConfig(hidden_size=8)) for group in vec.groups]


def play_episodes(
    env: Any, episodes: int, copies: int = 4, *, limit: int = 1000, **options: Any
) -> Evaluation:
    with fugu.make(env, copies, **{"backend": "serial", **options}) as vec:
        return play(policies_of(vec), vec, episodes, max_episode_steps=limit)


class Lifetimes:
    """A parallel environment in which each agent lives for a number of steps and gets 1 for each.

    Args:
        lengths: Steps that each agent lives in each round, in turn; 0: it takes no part in that
            round, None: it lives for ever.
    """

    metadata: dict[str, Any] = {"name": "lifetimes"}

    def __init__(self, **lengths: list[int | None]) -> None:
        self.possible_agents, self._lengths = list(lengths), lengths
        self._round = -1

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (1,))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self._round, self._time = self._round + 1, 0
        turns = {a: each[self._round % len(each)] for a, each in self._lengths.items()}
        self._left = {a: length for a, length in turns.items() if length != 0}
        self.agents = list(self._left)
        return self._seen(self.agents), {a: {} for a in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        self._time += 1
        over = {a: self._left[a] == self._time for a in actions}
        self.agents = [a for a in actions if not over[a]]
        infos = {a: {"cost": 2.0, "is_success": a == "long"} for a in actions}
        earned = {a: float(a == "long") for a in actions}
        return self._seen(actions), earned, over, dict.fromkeys(actions, False), infos

    def close(self) -> None:
        pass

    def _seen(self, agents: Any) -> dict[str, Any]:
        return {a: np.zeros(1, np.float32) for a in agents}


# ---------------------------------------------------------------------- agents that die


@pytest.mark.parametrize("episodes", [1, 16, 40])
def test_an_agent_that_dies_early_is_not_counted_more_often(episodes: int) -> None:
    found = play_episodes(lambda: Lifetimes(short=[1], long=[10]), episodes, costs=("cost",))
    quota = -(-episodes // 8)  # 4 copies of 2 agents
    assert found.returns == ((0.0,) * quota + (10.0,) * quota) * 4
    assert found.lengths == ((1.0,) * quota + (10.0,) * quota) * 4
    figures = found.to_dict()
    assert figures["episodes"] == 8 * quota
    assert (figures["mean_return"], figures["mean_length"]) == (5.0, 5.5)
    assert figures["mean_cost"] == 2 * figures["mean_length"]  # of exactly the same episodes
    assert figures["is_success"] == 0.5
    assert figures["cut_off"] == 0


def reference(vec: Vector, policies: list[Policy], quota: int) -> tuple[list[float], list[float]]:
    """Returns and lengths of the first episodes of every agent, followed one by one."""
    returns: list[list[float]] = [[] for _ in range(vec.num_agents)]
    lengths: list[list[float]] = [[] for _ in range(vec.num_agents)]
    total, steps = np.zeros(vec.num_agents), np.zeros(vec.num_agents, int)
    players = Players(policies, vec, derive(0, EVALUATION), greedy=False)
    vec.async_reset(derive(0, EVALUATION, 1))
    acted = np.zeros(vec.num_agents, bool)
    while min(map(len, returns)) < quota:
        batch = vec.recv()
        for agent in range(vec.num_agents):
            total[agent] += batch.rewards[agent]
            steps[agent] += acted[agent]
            if batch.terminations[agent] or batch.truncations[agent]:
                returns[agent].append(total[agent])
                lengths[agent].append(float(steps[agent]))
                total[agent], steps[agent] = 0.0, 0
        acted = batch.live.copy()
        vec.send(players(batch))
    flat = [[value for mine in each for value in mine[:quota]] for each in (returns, lengths)]
    return flat[0], flat[1]


@pytest.mark.parametrize(("env", "kwargs"), [("snake", {}), ("connect4", {"opponent": 2})])
@pytest.mark.parametrize("episodes", [16, 100, 300])
def test_native_agents_play_as_many_episodes_each(
    env: str, kwargs: dict[str, Any], episodes: int
) -> None:
    with fugu.make(env, 16, env_kwargs=kwargs) as vec:
        policies = policies_of(vec)
        quota = -(-episodes // vec.num_agents)
        returns, lengths = reference(vec, policies, quota)
        found = play(policies, vec, episodes, greedy=False)
    assert found.returns == pytest.approx(returns)
    assert list(found.lengths) == lengths
    assert len(found.lengths) == vec.num_agents * quota


def test_native_agents_that_end_together_share_their_statistics() -> None:
    with fugu.make("connect4", 4, env_kwargs={"opponent": 2}) as vec:
        found = play(policies_of(vec), vec, 8, greedy=False)
    assert found.stats["won"] == pytest.approx(0.5 * (1 - found.stats["drawn"]))


# ---------------------------------------------------------------------- agents that are not there


def test_agents_that_never_appear_are_not_waited_for() -> None:
    found = play_episodes(lambda: Lifetimes(a=[2], long=[5], ghost=[0]), 24)
    assert found.returns == (0.0, 0.0, 5.0, 5.0) * 4
    assert found.cut_off == 0


def test_rounds_without_an_agent_count_against_its_quota() -> None:
    env = lambda: Lifetimes(a=[2], long=[5, 0], rare=[0, 0, 0, 3])  # noqa: E731
    found = play_episodes(env, 16, 1)  # 6 rounds
    assert found.lengths == (2.0,) * 6 + (5.0,) * 3 + (3.0,)


def test_agents_that_join_late_and_come_back_are_counted_each() -> None:
    script: list[dict[str, Any]] = [
        {"a0": None, "a1": "terminated"},
        {"a0": None, "a1": None},  # is back
        {"a0": "terminated", "a1": None},
        {"a1": "truncated"},
    ]
    found = play_episodes(lambda: Script(["a0", "a1"], ["a0", "a1"], script), 2, 1)
    assert found.lengths == (3.0, 1.0)
    found = play_episodes(lambda: Script(["a0", "a1"], ["a0", "a1"], script), 4, 1)
    assert found.lengths == (3.0, 3.0, 1.0, 2.0)


def test_agents_of_several_groups_are_counted_each() -> None:
    script: list[dict[str, Any]] = [{"a": None, "b": "terminated"}, {"a": "terminated"}]
    found = play_episodes(lambda: Script(["a", "b"], ["a", "b"], script), 4, 2)
    assert found.returns == (11.0 + 12.0, 11.0) * 2
    assert found.stats == {"time": pytest.approx((11.5 + 11.0) / 2)}


# ---------------------------------------------------------------------- turns


def test_rewards_between_turns_belong_to_the_agent_they_reach() -> None:
    found = play_episodes(lambda: Turns(length=5), 8, 2)
    # White acts three times; each act of one costs the other 10.
    assert found.returns == (3 - 2 * 10.0,) * 2 + (2 - 3 * 10.0,) * 2 + (-17.0, -17.0, -28.0, -28.0)
    assert found.lengths == (3.0, 3.0, 2.0, 2.0) * 2


class Elimination(Turns):
    """White is out after its first turn; black goes on until it has acted `length` times."""

    def last(self) -> Any:
        *rest, _, _ = super().last()[:4]
        over = (self.agent_selection == "white" and self.count > 0) or self.count > self.length
        return *rest, over, False, {}

    def step(self, action: Any) -> None:
        if action is None:
            self.agents.remove(self.agent_selection)
            self.agent_selection = "black"
            return
        self.cumulative[self.agent_selection] = 1.0
        self.count += 1
        if self.count > 1:
            self.agent_selection = "black"


def test_an_agent_may_die_before_another_had_its_first_turn() -> None:
    found = play_episodes(lambda: Elimination(length=3), 8, 1)
    assert found.lengths == (1.0,) * 4 + (3.0,) * 4


# ---------------------------------------------------------------------- faults and vectors


class Fragile(gymnasium.Env[Any, Any]):
    """Its second episode fails in the third step; all others last for four."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)
    episodes = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        Fragile.episodes += 1
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if Fragile.episodes == 2 and self.steps == 3:
            raise RuntimeError("broken on purpose")
        return np.zeros(1, np.float32), 1.0, self.steps == 4, False, {}


def test_episodes_that_a_fault_broke_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "episodes", 0)
    found = play_episodes(Fragile, 3, 1)
    assert found.returns == found.lengths == (4.0, 4.0, 4.0)


def test_vectors_that_give_some_copies_at_a_time_count_the_same() -> None:
    env = lambda: Lifetimes(short=[1], long=[7])  # noqa: E731
    found = play_episodes(env, 24, batch_size=2, backend="threads", num_workers=2)
    assert found.lengths == (1.0, 1.0, 1.0, 7.0, 7.0, 7.0) * 4


class Silent(Env):
    """Two agents that write rows and give no infos: one lives two steps, the other three."""

    def __init__(self) -> None:
        seen, done = Layout.of(spaces.Box(0, 1, (1,))), Layout.of(spaces.Discrete(2))
        self.groups = (AgentGroup("agent", ("one", "two"), seen, done),)

    def bind(self, *buffers: Buffers) -> None:
        self.buffers = buffers

    def reset(self, seed: Any = None, options: Any = None) -> None:
        (rows,) = self.buffers
        self.time = 0
        rows.live[:] = rows.valid[:] = rows.action_masks[:] = True
        rows.rewards[:], rows.terminations[:], rows.truncations[:] = 0.0, False, False

    def step(self) -> None:
        (rows,) = self.buffers
        self.time += 1
        rows.rewards[:] = 1.0, 2.0
        rows.terminations[:] = self.time % 2 == 0, self.time % 3 == 0

    def close(self) -> None:
        pass


def test_episodes_without_infos_are_counted_from_their_rows() -> None:
    found = play_episodes(Silent, 12, 2)
    assert found.returns == (2.0,) * 3 + (6.0,) * 3 + (2.0,) * 3 + (6.0,) * 3
    assert found.lengths == ((2.0,) * 3 + (3.0,) * 3) * 2


# ---------------------------------------------------------------------- episodes that do not end


class Endless(gymnasium.Env[Any, Any]):
    """Gives 1 a step and says whether it is done.

    Args:
        lengths: Steps of its episodes, in turn; 0: it does not end.
    """

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, *lengths: int) -> None:
        self._lengths, self._episode = lengths or (0,), -1

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._episode, self._steps = self._episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        over = self._steps == self._lengths[self._episode % len(self._lengths)]
        info = {"is_success": over, "cost": 0.5}
        return np.zeros(1, np.float32), 1.0, over, False, info


def test_endless_episodes_are_counted_as_truncated_at_the_limit() -> None:
    found = play_episodes(Endless, 12, limit=20, costs=("cost",))
    assert found.returns == found.lengths == (20.0,) * 12
    assert found.cut_off == 12
    assert found.to_dict()["cut_off"] == 12
    assert found.costs == {"mean_cost": 10.0}


@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "backend": "threads"}])
def test_no_episode_is_dropped_where_only_some_are_endless(options: dict[str, Any]) -> None:
    found = play_episodes(lambda: Endless(3, 3, 0), 16, limit=20, **options)
    assert found.lengths == (3.0, 3.0, 20.0, 3.0) * 4
    assert found.cut_off == 4
    assert found.to_dict()["is_success"] == 1.0  # of those that ended


def test_an_episode_that_ends_at_the_limit_is_not_cut_off() -> None:
    assert play_episodes(lambda: Endless(3), 4, limit=3).cut_off == 0
    assert play_episodes(lambda: Endless(3), 4, limit=2).lengths == (2.0,) * 4


def test_an_episode_that_was_cut_off_and_ends_after_all_is_counted_once() -> None:
    kinds = itertools.cycle([(30, 3, 3), (19,)])
    found = play_episodes(lambda: Endless(*next(kinds)), 6, 2, limit=20)
    assert sorted(found.lengths) == [3.0, 3.0, 19.0, 19.0, 19.0, 20.0]
    assert found.cut_off == 1


@pytest.mark.parametrize("dead", [[2], [2, 0]])
def test_the_dead_wait_for_an_endless_agent_until_it_is_cut_off(dead: list[int | None]) -> None:
    found = play_episodes(lambda: Lifetimes(short=dead, long=[None]), 8, 2, limit=9)
    assert found.cut_off == 4
    assert found.returns.count(9.0) == 4
    assert found.lengths.count(2.0) == (4 if dead == [2] else 2)


def test_recurrent_policies_begin_anew_after_a_cut() -> None:
    """The first episode of a copy and one after a cut play alike: nothing is remembered."""

    class Parrot(Endless):
        def step(self, action: Any) -> Any:
            seen, _, *rest = super().step(action)
            return seen, float(action), *rest

    with fugu.make(Parrot, 2, backend="serial") as vec:
        policy = make_policy(vec.groups[0], PolicyConfig(hidden_size=8, core="lstm"))
        found = play([policy], vec, 6, max_episode_steps=7)
    assert found.cut_off == 6
    assert len(set(found.returns)) == 1


class Nobody(Silent):
    """Agents that are never live."""

    def reset(self, seed: Any = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.buffers[0].live[:] = False

    def step(self) -> None:
        pass


@pytest.mark.parametrize(
    ("env", "limit", "error", "text"),
    [
        (Nobody, 5, EnvError, "no agent acted within 5 steps"),
        (Endless, 0, UsageError, "max_episode_steps: expected 1 or more; got 0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    env: Callable[[], Any], limit: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        play_episodes(env, 4, limit=limit)


# ---------------------------------------------------------------------- figures


def test_statistics_do_not_replace_figures_of_the_same_name() -> None:
    found = Evaluation((1.0,), (2.0,), stats={"deviation": 7.0, "score": 3.0})
    assert found.to_dict()["deviation"] == 0.0
    assert found.to_dict()["info/deviation"] == 7.0
    assert found.to_dict()["score"] == 3.0


def test_statistics_are_those_of_the_agent_that_an_info_names() -> None:
    with fugu.make(partial(Lifetimes, short=[2], long=[2]), 2, backend="serial") as vec:
        quota = EpisodeQuota(vec.groups, 2, 1, 100)
        players = Players(policies_of(vec), vec, 0)
        vec.async_reset(0)
        while True:
            batch = vec.recv()
            quota.add(batch)
            if quota.complete:
                break
            vec.send(players(batch))
    names = [agent for group in vec.groups for agent in group.agents]
    assert len(quota.episodes) == 4
    for episode in quota.episodes:
        assert episode.stats["is_success"] == (names[episode.agent] == "long")
        assert episode.episode_return == 2.0 * (names[episode.agent] == "long")
        assert episode.length == 2
