"""`fugu.check` with several agents: every fault of agents, parallel or in turns, is found."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from faulty_envs import quietly, statuses
from gymnasium import spaces


class Team:
    """A small parallel environment without faults: "c" joins late, "a" leaves early."""

    possible_agents: ClassVar[list[str]] = ["a", "b", "c"]
    space = spaces.Box(0.0, 1.0, (2,), np.float32)
    moves = spaces.Discrete(2)

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return self.moves

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.random = np.random.default_rng(seed)
        self.agents, self.steps = ["a", "b"], 0
        return self.see(self.agents), {agent: {} for agent in self.agents}

    def see(self, agents: list[str]) -> Any:
        return {agent: self.random.random(2, np.float32) for agent in agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        self.steps += 1
        before = list(self.agents)
        terminated = {agent: agent == "a" and self.steps == 3 for agent in before}
        truncated = dict.fromkeys(before, self.steps == 9)
        self.agents = [a for a in before if not terminated[a] and not truncated[a]]
        if self.steps == 5:
            self.agents.append("c")
        there = sorted({*before, *self.agents})
        rewards, infos = dict.fromkeys(before, 1.0), {agent: {} for agent in there}
        return self.see(there), rewards, terminated, truncated, infos

    def close(self) -> None:
        pass


class Stranger(Team):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed, options)
        self.agents = ["a", "x"]
        return observations | {"x": observations["b"]}, infos


class StrangeKey(Team):
    def see(self, agents: list[str]) -> Any:
        return super().see(agents) | {"x": np.zeros(2, np.float32)}


class StrangeInfo(Team):
    def step(self, actions: dict[str, Any]) -> Any:
        *rest, infos = super().step(actions)
        return *rest, infos | {"x": {}}


class ListsOfInfos(Team):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed, options)
        return observations, list(infos)


class AsksOnce(Team):
    def action_space(self, agent: str) -> Any:
        if hasattr(self, "agents"):
            raise ValueError("asked before")
        return self.moves


class Vanishing(Team):
    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        self.agents = [agent for agent in self.agents if agent != "b"]
        return result


class Lingering(Team):
    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        if self.steps == 9:
            self.agents = ["b", "c"]
        return result


class NewObject(Team):
    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0.0, 1.0, (2,), np.float32)


class NewSpace(Team):
    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(5 if hasattr(self, "agents") else 2)


class Unrewarded(Team):
    def step(self, actions: dict[str, Any]) -> Any:
        observations, _, *rest = super().step(actions)
        return observations, {}, *rest


class ListsOfRewards(Team):
    def step(self, actions: dict[str, Any]) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, list(rewards.values()), *rest


class Blind(Team):
    def see(self, agents: list[str]) -> Any:
        return {"b": np.zeros(2, np.float32)}


class NoInfos(Team):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed, options)[0]


class TextInfos(Team):
    def step(self, actions: dict[str, Any]) -> Any:
        *rest, infos = super().step(actions)
        return *rest, dict.fromkeys(infos, "fine")


class Deserted(Team):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed, options)
        self.agents = []
        return result


class Nameless(Team):
    possible_agents: ClassVar[list[str]] = []


class PopsActions(Team):
    def step(self, actions: dict[str, Any]) -> Any:
        result = super().step(actions)
        actions.clear()
        return result


TEAM_FAULTS: list[tuple[type[Team], str, str, str]] = [
    (Stranger, "agents", "fail", "expected one of the possible_agents ['a', 'b', 'c']; got 'x'"),
    (StrangeKey, "agents", "fail", "got observations of 'x'"),
    (StrangeInfo, "agents", "warn", "got infos of 'x'"),
    (ListsOfInfos, "reset", "fail", "expected infos as a dict by agent; got list of 2 items"),
    (AsksOnce, "agents", "fail", "ValueError: asked before"),
    (Vanishing, "agents", "fail", "'b' left env.agents neither terminated nor truncated"),
    (Lingering, "agents", "warn", "expected env.agents without agents that are over; got "),
    (NewObject, "agents", "warn", "got another object, equal to the first"),
    (
        NewSpace,
        "agents",
        "fail",
        "action_space('a'): expected the same on each call; got Discrete(5)",
    ),
    (Unrewarded, "agents", "warn", "rewards of each agent that acted; got none of 'a'"),
    (Blind, "agents", "fail", "got none of 'a'"),
    (Deserted, "reset", "fail", "expected at least one agent that can act"),
    (ListsOfRewards, "step", "fail", "expected rewards as a dict by agent; got list of 2 items"),
    (NoInfos, "reset", "fail", "(observations, infos); got dict"),
    (TextInfos, "infos", "fail", "expected a dict; got str 'fine'"),
    (Nameless, "layout", "fail", "expected possible_agents; got none"),
    (PopsActions, "actions", "fail", "wrote into the action"),
]


def test_agents_that_come_and_go() -> None:
    report = quietly(Team)
    assert set(statuses(report).values()) == {"ok"}, str(report)
    assert report["agents"].detail == "3 possible; up to 2 act at once"


@pytest.mark.parametrize(
    ("kind", "name", "status", "text"), TEAM_FAULTS, ids=[f[0].__name__ for f in TEAM_FAULTS]
)
def test_each_fault_of_a_team(kind: type[Team], name: str, status: str, text: str) -> None:
    report = quietly(kind)
    row = report[name]
    assert (row.status, text in row.detail) == (status, True), str(report)
    assert row.advice


class Turns:
    """A small turn-by-turn environment without faults."""

    possible_agents: ClassVar[list[str]] = ["a", "b"]
    space = spaces.Discrete(9)

    def observation_space(self, agent: str) -> Any:
        return self.space

    action_space = observation_space

    def agent_iter(self) -> Any:
        raise NotImplementedError

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.random = np.random.default_rng(seed)
        self.agents, self.agent_selection, self.steps = ["a", "b"], "a", 0

    def last(self) -> Any:
        self.seen = int(self.random.integers(9))
        return self.seen, 0.5, self.steps >= 6, False, {}

    def step(self, action: Any) -> None:
        agent, over = self.agent_selection, self.steps >= 6
        self.steps += 1
        self.agent_selection = "b" if agent == "a" else "a"
        if over:
            self.leave(agent)

    def leave(self, agent: str) -> None:
        self.agents.remove(agent)

    def close(self) -> None:
        pass


class StayingTurns(Turns):
    def leave(self, agent: str) -> None:
        pass


class StrangeTurns(Turns):
    def step(self, action: Any) -> None:
        super().step(action)
        self.agent_selection = "x"


class ShortLast(Turns):
    def last(self) -> Any:
        return super().last()[:4]


class OverAtOnce(Turns):
    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.steps = 6


class RaisingTurns(Turns):
    def last(self) -> Any:
        if self.steps == 4:
            raise ValueError("whose turn?")
        return super().last()


def test_turns() -> None:
    assert set(statuses(quietly(Turns)).values()) == {"ok"}, str(quietly(Turns))


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (StayingTurns, "agents", "stay in env.agents after each of them is over"),
        (StrangeTurns, "agents", "expected one of the possible_agents ['a', 'b']; got 'x'"),
        (ShortLast, "step", "info); got tuple of 4 items"),
        (OverAtOnce, "reset", "expected at least one agent that can act"),
        (RaisingTurns, "step", "ValueError: whose turn?"),
    ],
)
def test_each_fault_of_turns(kind: type[Turns], name: str, text: str) -> None:
    row = quietly(kind)[name]
    assert (row.status, text in row.detail) == ("fail", True), str(row)
