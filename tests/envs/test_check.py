"""`fugu.check`: good environments pass, and every check catches an environment that breaks it."""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from fugu.core.errors import UsageError
from fugu.envs import slots
from fugu.envs.checking import Report, check, checker, runs
from fugu.envs.expedition import Expedition

STEPS = 60


class Walk(gymnasium.Env[Any, Any]):
    """A small, faultless environment; its children have one fault each."""

    observation_space: Any = spaces.Dict(
        body=spaces.Dict(position=spaces.Box(-1.0, 1.0, (2,), np.float32)),
        gear=spaces.Discrete(3),
    )
    action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
    length = 20

    def __init__(self) -> None:
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.see(), self.reward(), False, self.steps >= self.length, {}

    def see(self) -> Any:
        position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"body": {"position": position}, "gear": int(self.np_random.integers(3))}

    def reward(self) -> Any:
        return 1.0

    def close(self) -> None:
        self.closed += 1


def quietly(env: Any, **arguments: Any) -> Report:
    return check(env, **{"steps": STEPS, "show": False, **arguments})


# ---------------------------------------------------------------------- good environments


def statuses(report: Report) -> dict[str, str]:
    return {row.name: row.status for row in report.rows}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
def test_good_gymnasium_environment(env_id: str) -> None:
    for given in (lambda: gymnasium.make(env_id), gymnasium.make(env_id)):
        report = quietly(given, steps=300)
        assert set(statuses(report).values()) == {"ok"}, str(report)


def test_nested_environments() -> None:
    assert set(statuses(quietly(Walk)).values()) == {"ok"}
    report = quietly(Expedition, limits=8, steps=300)
    assert report.ok, str(report)
    assert report["step"].detail.startswith("300 steps;")


def test_good_parallel_environment() -> None:
    pytest.importorskip("mpe2")
    from mpe2 import simple_speaker_listener_v4, simple_spread_v3

    report = quietly(simple_spread_v3.parallel_env)
    assert report.ok, str(report)
    assert report["agents"].detail == "3 possible, 3 at once; groups: agent (3)"
    report = quietly(simple_speaker_listener_v4.parallel_env())
    assert report.ok, str(report)
    assert "groups: speaker (1), listener (1)" in report["agents"].detail


def test_good_turn_by_turn_environment() -> None:
    pytest.importorskip("pettingzoo")
    from pettingzoo.classic import tictactoe_v3

    for given in (tictactoe_v3.env, tictactoe_v3.env()):
        report = quietly(given)  # one illegal move would end an episode with a warning
        assert report.ok, str(report)
        assert report["action masks"].status == "ok"
        assert report["other seed"].status == "warn"  # there is no chance in it


def test_nethack_ignores_its_seed() -> None:
    pytest.importorskip("nle")
    from fugu.envs.wrappers import SeededNetHack

    report = quietly(lambda: gymnasium.make("NetHackScore-v0"))
    assert report["same seed"].status == "fail"
    assert "SeededNetHack" in report["same seed"].advice
    assert report["kept observations"].status == "warn"
    report = quietly(lambda: SeededNetHack(gymnasium.make("NetHackScore-v0")))
    assert report.ok, str(report)


# ---------------------------------------------------------------------- one fault each


class WrongShape(Walk):
    def see(self) -> Any:
        return super().see() | {"body": {"position": np.zeros(3, np.float32)}}


class FloatsForWhole(Walk):
    def see(self) -> Any:
        return super().see() | {"gear": 1.5}


class WiderDtype(Walk):
    def see(self) -> Any:
        return super().see() | {"body": {"position": self.np_random.uniform(-1, 1, 2)}}


class ListForArray(Walk):
    def see(self) -> Any:
        return super().see() | {"body": {"position": [0.5, -0.5]}}


class MissingKey(Walk):
    def see(self) -> Any:
        return {"body": super().see()["body"]}


class ExtraKey(Walk):
    def see(self) -> Any:
        return super().see() | {"secret": 1}


class OutOfBounds(Walk):
    def see(self) -> Any:
        value = [0.0, 7.5 if self.steps == 3 else 0.0]
        return super().see() | {"body": {"position": np.array(value, np.float32)}}


class JustOutOfBounds(Walk):
    def see(self) -> Any:
        above = np.nextafter(np.float32(1), np.float32(2))
        return super().see() | {"body": {"position": np.full(2, above)}}


class OutOfRange(Walk):
    def see(self) -> Any:
        return super().see() | {"gear": 3}


class NanObservation(Walk):
    def see(self) -> Any:
        return super().see() | {"body": {"position": np.array([0, np.nan], np.float32)}}


class InfiniteObservation(Walk):
    observation_space = spaces.Dict(speed=spaces.Box(-np.inf, np.inf, (1,)))

    def see(self) -> Any:
        return {"speed": np.array([np.inf * self.np_random.choice([1, -1])], np.float32)}


class NanReward(Walk):
    def reward(self) -> Any:
        return float("nan")


class HugeReward(Walk):
    def reward(self) -> Any:
        return 1e300


class ArrayReward(Walk):
    def reward(self) -> Any:
        return np.ones(1)


class ScalarArrayReward(Walk):
    def reward(self) -> Any:
        return np.array(1.0)


class TextReward(Walk):
    def reward(self) -> Any:
        return "1.0"


class NoReward(Walk):
    def reward(self) -> Any:
        return None


class IntegerFlags(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), int(truncated), info


class NoFlag(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, None, truncated, info


class TextInfo(Walk):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], "fine"


class FourValues(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, truncated, info


class BareReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class ResetWithoutOptions(Walk):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class Unseeded(Walk):
    def see(self) -> Any:
        return super().see() | {"gear": int(np.random.randint(3))}  # noqa: NPY002


class Leaky(Walk):
    """Remembers something over a reset, so that only its first episode can be had again."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed)

    def see(self) -> Any:
        return super().see() | {"gear": min(self.episodes, 5) % 3}


class OneSeed(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=7)


class Aliasing(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.buffers = [np.zeros(2, np.float32) for _ in range(2)]

    def see(self) -> Any:
        observation = super().see()
        buffer = self.buffers[self.np_random.integers(2)]
        buffer[:] = observation["body"]["position"]
        return observation | {"body": {"position": buffer}}


class WritesAction(Walk):
    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action)


class RaisesInStep(Walk):
    def step(self, action: Any) -> Any:
        if self.steps == 5:
            raise ValueError("the wheel came off")
        return super().step(action)


class ExitsInStep(Walk):
    def step(self, action: Any) -> Any:
        sys.exit("goodbye")


class RaisesInReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise ValueError("no road")


class RaisesInConstructor(Walk):
    def __init__(self) -> None:
        raise ValueError("no wheels")


class RaisesInClose(Walk):
    def close(self) -> None:
        raise ValueError("stuck door")


class RaisesSecondTime(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets = getattr(self, "resets", 0) + 1
        if self.resets > 4:
            raise ValueError("tired")
        return super().reset(seed=seed)


class NeverEnds(Walk):
    length = 10**9


class Endless(Walk):
    observation_space = spaces.Dict(road=spaces.Sequence(spaces.Discrete(3)))

    def see(self) -> Any:
        return {"road": tuple(self.np_random.integers(0, 3, 2))}


class NoSpace(Walk):
    observation_space = None


class NoActionSpace(Walk):
    action_space = None


class BadMask(Walk):
    action_space = spaces.Discrete(2)

    def action_masks(self) -> Any:
        return np.zeros(2, np.bool_)


class RaisingMask(Walk):
    action_space = spaces.Discrete(2)

    def action_masks(self) -> Any:
        raise ValueError("no mask today")


class Restarting(Walk):
    """Restarts its episodes itself, which emulation refuses."""

    def __new__(cls) -> Any:
        return gymnasium.wrappers.Autoreset(Walk())


FAULTS: list[tuple[type[Walk], str, str, str]] = [
    (WrongShape, "observations", "fail", "'body/position': given float32 array of shape (3,)"),
    (FloatsForWhole, "observations", "fail", "'gear': given float 1.5"),
    (WiderDtype, "observations", "warn", "'body/position': given float64; declared float32"),
    (ListForArray, "observations", "warn", "'body/position': given list of 2 items"),
    (MissingKey, "observations", "fail", "without ['gear']"),
    (ExtraKey, "observations", "fail", "unknown keys ['secret']"),
    (OutOfBounds, "bounds", "fail", "'body/position': given 7.5 at index [1]; declared -1.0 to 1"),
    (OutOfBounds, "bounds", "fail", "(3 times, first at episode 0, step 3)"),
    (JustOutOfBounds, "bounds", "warn", "'body/position': given 1.0000001"),
    (OutOfRange, "bounds", "fail", "'gear': given 3; allowed: an integer from 0 to 2"),
    (NanObservation, "finite", "fail", "'body/position': nan at index [1]"),
    (InfiniteObservation, "finite", "warn", "'speed': "),
    (NanReward, "rewards", "fail", "given nan"),
    (HugeReward, "rewards", "fail", "given 1e+300"),
    (ArrayReward, "rewards", "fail", "float64 array of shape (1,)"),
    (ScalarArrayReward, "rewards", "warn", "float64 array of shape ()"),
    (TextReward, "rewards", "fail", "str '1.0'"),
    (NoReward, "rewards", "fail", "NoneType None"),
    (IntegerFlags, "flags", "warn", "terminated: given int 0"),
    (NoFlag, "flags", "fail", "terminated: given NoneType None"),
    (TextInfo, "infos", "fail", "given str 'fine'"),
    (FourValues, "step", "fail", "tuple of 4 items"),
    (BareReset, "reset", "fail", "reset returned dict with the keys ['body', 'gear']"),
    (ResetWithoutOptions, "reset", "fail", "unexpected keyword argument 'options'"),
    (Unseeded, "same seed", "fail", "'gear' at"),
    (OneSeed, "other seed", "warn", "seeds 0 and 1 give the same 60 steps"),
    (Aliasing, "kept observations", "warn", "'body/position': the array returned at"),
    (WritesAction, "actions", "fail", "wrote into the action"),
    (RaisesInStep, "step", "fail", "ValueError: the wheel came off"),
    (RaisesInStep, "step", "fail", "episode 0, step 6"),
    (ExitsInStep, "step", "fail", "SystemExit: goodbye"),
    (RaisesInReset, "reset", "fail", "ValueError: no road"),
    (RaisesInConstructor, "make", "fail", "ValueError: no wheels"),
    (RaisesInClose, "close", "fail", "ValueError: stuck door"),
    (NeverEnds, "autoreset", "warn", "no episode ended within 60 steps"),
    (Endless, "layout", "fail", "'road': given a space without a maximum length"),
    (NoSpace, "layout", "fail", "observation_space: given None"),
    (NoActionSpace, "layout", "fail", "action_space: given None"),
    (BadMask, "action masks", "fail", "forbids every choice"),
    (RaisingMask, "action masks", "fail", "no mask today"),
    (Restarting, "autoreset", "fail", "Autoreset"),
]


@pytest.mark.parametrize(
    ("kind", "name", "status", "text"), FAULTS, ids=[f"{f[0].__name__}-{f[1]}" for f in FAULTS]
)
def test_each_check_catches_its_fault(
    kind: type[Walk], name: str, status: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(kind, steps=STEPS)
    row = report[name]
    assert (row.status, text in row.detail) == (status, True), str(report)
    assert row.advice
    assert report.ok == (status != "fail")
    others = [r.name for r in report.rows if r.name != name and r.status in ("warn", "fail")]
    assert not others, str(report)
    path = text.split("'")[1] if text.startswith("'") else ""
    assert path in capsys.readouterr().out  # of the table


def test_the_layout_of_a_sequence_takes_a_limit() -> None:
    report = quietly(Endless)
    assert "limits=" in report["layout"].advice
    assert report["observations"].status == report["autoreset"].status == "skip"
    assert report["same seed"].status == "ok"  # which does not need a layout
    assert quietly(Endless, limits=4).ok
    assert quietly(Endless, limits={"road": 4}).ok
    row = quietly(Endless, limits={"road": 4, "rode": 4})["layout"]
    assert "given ['rode']; allowed: ['road']" in row.detail
    assert "no others" in row.advice


def test_every_fault_is_told_at_once() -> None:
    class Hopeless(WrongShape):
        def step(self, action: Any) -> Any:
            return self.see(), None, None, self.steps, "fine"

    report = quietly(Hopeless)
    failed = {row.name for row in report.failures}
    assert failed == {"observations", "rewards", "flags", "infos"}
    assert report["autoreset"].status == "skip"
    assert report["same seed"].status == "ok"


def test_an_instance_that_remembers_is_caught() -> None:
    assert "'gear' at reset" in quietly(Leaky())["same seed"].detail
    report = quietly(RaisesSecondTime())
    assert "ValueError: tired" in report["same seed"].detail
    assert report["autoreset"].status == report["other seed"].status == "skip"


def test_after_a_fault_the_rest_is_skipped() -> None:
    report = quietly(RaisesInReset)
    assert {row.name for row in report.rows if row.status == "skip"} >= {"step", "same seed"}
    assert report["step"].detail == "not run: see 'reset'"
    assert quietly(RaisesInStep)["observations"].detail.startswith("6 observations")


# ---------------------------------------------------------------------- autoreset


@pytest.mark.parametrize("fault", ["final", "observation", "reward"])
def test_autoreset_notices_what_emulation_changes(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"final": "end", "observation": "show", "reward": "reward"}[fault]
    real = getattr(slots.Slot, name)

    def wrong(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        match fault:
            case "final":
                self._final[:] = 0
            case "observation":
                self._observation[:] = 0
            case "reward":
                self._rewards[self._row] += 1

    monkeypatch.setattr(slots.Slot, name, wrong)
    report = quietly(Walk)
    words = {"final": "the final observation", "observation": "the row", "reward": "the reward"}
    assert words[fault] in report["autoreset"].detail
    assert [row.name for row in report.failures] == ["autoreset"]
    assert report["same seed"].status == "ok"


# ---------------------------------------------------------------------- masks


class Masked(Walk):
    """Every choice but those of its mask ends the test."""

    action_space = spaces.Dict(
        arm=spaces.MultiDiscrete([3, 2]),
        legs=spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary(2))),
        push=spaces.Box(-1, 1, (1,)),
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self._draw()
        return result

    def _draw(self) -> None:
        heads = [self.np_random.integers(0, 2, n) for n in (3, 2, 4, 2, 2)]
        for head in heads:
            head[self.np_random.integers(len(head))] = 1
        self.heads = heads

    def action_masks(self) -> Any:
        return np.concatenate(self.heads).astype(np.bool_)

    def step(self, action: Any) -> Any:
        choices = [*action["arm"], action["legs"][0] - 2, *action["legs"][1]]
        if not all(head[choice] for head, choice in zip(self.heads, choices, strict=True)):
            raise ValueError("illegal")
        self._draw()
        return super().step(action)


@pytest.mark.parametrize("given", [Masked, Masked()], ids=["factory", "instance"])
def test_actions_are_legal(given: Any) -> None:
    report = quietly(given, steps=200)
    assert report.ok, str(report)
    assert report["action masks"].detail.startswith("200 given, 2")


# ---------------------------------------------------------------------- several agents


class Team:
    """A small, faultless parallel environment: "c" joins late, "a" leaves early."""

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
    (Stranger, "agents", "fail", "given 'x'; allowed: the possible_agents ['a', 'b', 'c']"),
    (StrangeKey, "agents", "fail", "observations for 'x'"),
    (Vanishing, "agents", "fail", "'b' left env.agents neither terminated nor truncated"),
    (Lingering, "agents", "warn", "is over and still in env.agents"),
    (NewObject, "agents", "warn", "observation_space('a') gives another object, equal,"),
    (NewSpace, "agents", "fail", "gives another space when asked again: Discrete(5)"),
    (Unrewarded, "agents", "warn", "no rewards for 'a', which acted"),
    (Blind, "agents", "fail", "no observation for 'a'"),
    (Deserted, "agents", "fail", "left env.agents empty"),
    (ListsOfRewards, "step", "fail", "rewards as list of 2 items"),
    (NoInfos, "reset", "fail", "reset returned dict"),
    (TextInfos, "infos", "fail", "given str 'fine'"),
    (Nameless, "layout", "fail", "no possible_agents"),
    (PopsActions, "actions", "fail", "wrote into the action"),
]


def test_agents_that_come_and_go() -> None:
    report = quietly(Team)
    assert set(statuses(report).values()) == {"ok"}, str(report)
    detail = "3 possible, 1 to 2 at once; left before the end: a; joined later: c; groups: "
    assert report["agents"].detail.startswith(detail)


@pytest.mark.parametrize(
    ("kind", "name", "status", "text"), TEAM_FAULTS, ids=[f[0].__name__ for f in TEAM_FAULTS]
)
def test_each_fault_of_a_team(kind: type[Team], name: str, status: str, text: str) -> None:
    report = quietly(kind)
    row = report[name]
    assert (row.status, text in row.detail) == (status, True), str(report)
    assert row.advice


class Turns:
    """A small, faultless turn-by-turn environment."""

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
        (StayingTurns, "agents", "stay in env.agents after each was told that it is over"),
        (StrangeTurns, "agents", "given 'x'; allowed: the possible_agents"),
        (ShortLast, "step", "last returned tuple of 4 items"),
        (OverAtOnce, "reset", "nobody can act"),
        (RaisingTurns, "step", "ValueError: whose turn?"),
    ],
)
def test_each_fault_of_turns(kind: type[Turns], name: str, text: str) -> None:
    row = quietly(kind)[name]
    assert (row.status, text in row.detail) == ("fail", True), str(row)


# ---------------------------------------------------------------------- manners


def test_what_is_no_environment_is_refused() -> None:
    for given in (None, 3, "CartPole-v1", lambda: 3, gymnasium.make_vec("CartPole-v1")):
        with pytest.raises(UsageError, match="allowed: a gymnasium.Env"):
            check(given)
    for arguments in ({"steps": 0}, {"steps": 1.5}, {"steps": True}, {"seed": "x"}):
        with pytest.raises(UsageError, match="allowed: an int"):
            check(Walk, **arguments)


def test_what_the_factory_made_is_closed_and_nothing_else() -> None:
    made: list[Walk] = []
    for kind in (Walk, RaisesInStep, RaisesInReset):
        check(lambda kind=kind: made.append(kind()) or made[-1], steps=STEPS, show=False)
    assert [env.closed for env in made] == [1] * len(made)
    env = Walk()
    assert "close" not in statuses(quietly(env))
    assert env.closed == 0
    quietly(lambda: env)
    assert env.closed == 1


def test_global_generators_are_left_alone() -> None:
    class Greedy(Unseeded):
        def see(self) -> Any:
            random.seed(3)
            np.random.seed(3)  # noqa: NPY002
            return super().see()

    def states() -> Any:
        return random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    for kind in (Greedy, Unseeded, RaisesInStep):
        before = states()
        quietly(kind)
        assert states() == before


def test_the_spaces_of_an_instance_keep_their_generators() -> None:
    env, twin = Walk(), Walk()
    env.action_space, twin.action_space = (spaces.Box(-1, 1, (2,), seed=5) for _ in range(2))
    quietly(env)
    assert (env.action_space.sample() == twin.action_space.sample()).all()


def test_a_slow_environment_gets_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Walk):
        def step(self, action: Any) -> Any:
            time.sleep(0.01)
            return super().step(action)

    monkeypatch.setattr(runs, "RUN_SECONDS", 0.25)
    report = quietly(Slow, steps=100_000)
    assert report.ok, str(report)
    assert "of 100,000, as many as the time allowed" in report["step"].detail


needs_alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")


@needs_alarm
@pytest.mark.parametrize("where", ["make", "reset", "step", "close"])
def test_a_call_that_hangs_is_broken_off(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> None:
        while True:
            try:
                time.sleep(60)
            except Exception:  # an environment that catches everything
                continue

    class Hanging(Walk):
        def __init__(self) -> None:
            super().__init__()
            if where == "make":
                hang()

        def reset(self, **arguments: Any) -> Any:
            if where == "reset":
                hang()
            return super().reset(**arguments)

        def step(self, action: Any) -> Any:
            if where == "step" and self.steps == 3:
                hang()
            return super().step(action)

        def close(self) -> None:
            if where == "close":
                hang()

    monkeypatch.setattr(checker, "CALL_SECONDS", 0.2)
    report = quietly(Hanging)
    assert report[where].status == "fail"
    assert "did not return within 0.2 seconds" in report[where].detail


@needs_alarm
def test_a_timer_of_the_caller_goes_on() -> None:
    rang: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        quietly(Walk)
        deadline = time.monotonic() + 5
        while not rang and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rang == [1]
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_it_works_in_a_thread() -> None:
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(quietly(Walk)))
    thread.start()
    thread.join()
    assert reports[0].ok


# ---------------------------------------------------------------------- the report


def test_report_forms(capsys: pytest.CaptureFixture[str]) -> None:
    report = check(OutOfBounds, steps=STEPS)
    printed = capsys.readouterr().out
    assert "body/position" in printed
    assert printed.splitlines()[-1] == report.verdict
    assert report.verdict == "OutOfBounds fails: 1 failure (bounds), no warnings."
    assert report.verdict in str(report)
    assert "FAIL  bounds" in str(report)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["ok"] is False
    assert {"name", "status", "detail", "advice"} == set(data["rows"][0])
    with pytest.raises(KeyError, match="allowed:"):
        report["bonds"]
    narrow = Console(width=50, record=True)
    with narrow.capture() as captured:
        narrow.print(report)
    assert max(map(len, captured.get().splitlines())) <= 50
    check(Walk, steps=STEPS, show=False)
    assert capsys.readouterr().out == ""
