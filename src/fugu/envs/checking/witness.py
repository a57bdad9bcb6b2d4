"""Witnesses: stand before an environment, look like it, and log every call.

Emulation drives one as it would the environment itself (`reset`, `step`, `last`); a bare run drives
it with `begin` and `play`, the same for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import gymnasium

from fugu.envs.checking.findings import Broken, Finding
from fugu.envs.checking.log import Log
from fugu.envs.checking.moments import Moment
from fugu.envs.checking.report import Status
from fugu.envs.gymnasium_env import AGENT, find_mask_method
from fugu.native.packing_reference import describe

Actions = dict[Hashable, Any]
_STEP_NAMES = ("observation", "reward", "terminated", "truncated", "info")


class Witness(Protocol):
    """What a bare run needs of every kind."""

    log: Log

    def begin(self, seed: int) -> None:
        """Reset; `log.awaiting` then holds who acts."""
        raise NotImplementedError("begin(seed: int) -> None")

    def play(self, actions: Actions) -> None:
        """Give the actions, and go on until someone acts again or all is over."""
        raise NotImplementedError("play(actions: dict) -> None")

    def ask_masks(self) -> Any:
        """What `env.action_masks()` says, or None."""
        raise NotImplementedError("ask_masks() -> Any")


def witness_of(env: Any, log: Log) -> Any:
    """The witness for this kind of environment."""
    if isinstance(env, gymnasium.Env):
        return GymnasiumWitness(env, log)
    return TurnWitness(env, log) if hasattr(env, "agent_iter") else ParallelWitness(env, log)


def expect_values(check: str, call: str, result: Any, names: tuple[str, ...]) -> None:
    """Raise unless a call returned a tuple of these values."""
    if isinstance(result, tuple) and len(result) == len(names):
        return
    allowed = f"a tuple of {len(names)}, ({', '.join(names)})"
    raise Broken(
        check,
        f"{call} returned {describe(result)}; allowed: {allowed}",
        "For an environment of the old Gym, use shimmy; else return what is allowed.",
    )


# ---------------------------------------------------------------------- Gymnasium


class GymnasiumWitness(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Before a Gymnasium environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], log: Log) -> None:
        super().__init__(env)
        self.log = log
        self._masks = find_mask_method(env)
        if self._masks is not None:
            # Only if the environment has it: emulation looks for the name.
            self.action_masks: Callable[[], Any] = self.ask_masks

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, logged."""
        with self.log.clock:
            result = self.log.reset(self.env.reset, seed, options)
            expect_values("reset", "reset", result, ("observation", "info"))
            observation, info = result
            self.log.tell([Moment(AGENT, self.log.episode, 0, observation, info, first=True)])
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, logged."""
        with self.log.clock:
            result = self.log.act(self.env.step, action)
            expect_values("step", "step", result, _STEP_NAMES)
            observation, reward, terminated, truncated, info = result
            moment = Moment(AGENT, self.log.episode, self.log.step, observation, info)
            flags = {"terminated": terminated, "truncated": truncated}
            self.log.tell([replace(moment, reward=reward, **flags)])
        return observation, reward, terminated, truncated, info

    def begin(self, seed: int) -> None:
        """Reset."""
        self.reset(seed=seed)

    def play(self, actions: Actions) -> None:
        """Step."""
        self.step(actions[AGENT])

    def ask_masks(self) -> Any:
        """The environment's own masks, logged, since they decide which actions can be repeated."""
        if self._masks is None:
            return None
        with self.log.clock:
            return self.log.ask(self._masks)


# ---------------------------------------------------------------------- PettingZoo


class Population:
    """Who is there: the agents of an environment as they come and go."""

    def __init__(self, possible: list[Hashable]) -> None:
        self.possible = possible
        self.joined: dict[Hashable, None] = {}  # ordered sets
        self.died: dict[Hashable, None] = {}
        self.fewest, self.most = len(possible), 0
        self._present: set[Hashable] = set()
        self._over: dict[Hashable, None] = {}

    def begin(self, agents: list[Hashable]) -> None:
        """An episode begins with these."""
        self._present, self._over = set(agents), {}
        self._count(agents)

    def see(self, moments: list[Moment], agents: list[Hashable]) -> None:
        """Who was told something, and who is there now."""
        for agent in agents:
            if agent not in self._present:
                self.joined[agent] = None
                self._present.add(agent)
        self._over |= {moment.agent: None for moment in moments if moment.ended}
        if any(not moment.ended for moment in moments):  # the episode goes on without them
            self.died |= self._over
            self._count(agents)

    def _count(self, agents: list[Hashable]) -> None:
        self.fewest, self.most = min(self.fewest, len(agents)), max(self.most, len(agents))

    def __str__(self) -> str:
        range_ = f"{self.fewest} to {self.most}" if self.fewest < self.most else f"{self.most}"
        parts = [f"{len(self.possible)} possible, {range_} at once"]
        for word, agents in (("left before the end", self.died), ("joined later", self.joined)):
            if agents:
                names = ", ".join(map(str, list(agents)[:6]))
                parts.append(f"{word}: {names}{', ...' if len(agents) > 6 else ''}")
        return "; ".join(parts)


class PettingZooWitness:
    """What both kinds of PettingZoo environments share."""

    def __init__(self, env: Any, log: Log) -> None:
        self.env, self.log = env, log
        self.population = Population(list(env.possible_agents))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def ask_masks(self) -> Any:
        """PettingZoo has them in observations and infos only."""
        return None

    def _known(self, agents: Any) -> list[Hashable]:
        """`agents`, all of them possible ones."""
        for agent in agents:
            if agent not in self.population.possible:
                raise Broken(
                    "agents",
                    f"{self.log.place}: given {agent!r}; allowed: the possible_agents "
                    f"{self.population.possible}",
                    "Name every agent that may ever appear in possible_agents.",
                )
        return list(agents)

    def _begin(self, seed: Any, options: Any) -> Any:
        result = self.log.reset(self.env.reset, seed, options)
        agents = self._known(self.env.agents)
        if not agents:
            text = "reset left env.agents empty; allowed: at least one agent"
            raise Broken("agents", text, "Fill env.agents in reset.")
        self.population.begin(agents)
        return result

    def _moment(self, agent: Hashable, observation: Any, info: Any, *outcome: Any) -> Moment:
        return Moment(agent, self.log.episode, self.log.step, observation, info, *outcome)


class ParallelWitness(PettingZooWitness):
    """Before a ParallelEnv."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Reset, logged."""
        with self.log.clock:
            result = self._begin(seed, options)
            expect_values("reset", "reset", result, ("observations", "infos"))
            self._expect_dicts("reset", result, ("observations", "infos"))
            self.log.tell([self._first(agent, *result) for agent in self.env.agents])
        return result

    def step(self, actions: Actions) -> Any:
        """Step, logged."""
        acting = list(actions)
        with self.log.clock:
            result = self.log.act(self.env.step, actions)
            names = ("observations", "rewards", "terminations", "truncations", "infos")
            expect_values("step", "step", result, names)
            self._expect_dicts("step", result, names)
            agents = self._known(self.env.agents)
            moments = [self._outcome(agent, result, names) for agent in acting]
            self._expect_farewells(moments, agents)
            joined = [agent for agent in agents if agent not in acting]
            moments += [self._first(agent, result[0], result[4]) for agent in joined]
            self.population.see(moments, agents)
            self.log.tell(moments)
        return result

    def begin(self, seed: int) -> None:
        """Reset."""
        self.reset(seed)

    def play(self, actions: Actions) -> None:
        """Step."""
        self.step(actions)

    def _expect_dicts(self, call: str, result: Any, names: tuple[str, ...]) -> None:
        for name, part in zip(names, result, strict=True):
            if not isinstance(part, Mapping):
                text = f"{call} returned {name} as {describe(part)}; allowed: a dict by agent"
                raise Broken(call, text, f"Return {name} as {{agent: value}}.")
            for agent in set(part) - set(self.population.possible):
                text = f"{call} returned {name} for {agent!r}; allowed: the possible_agents"
                advice = "Return values for possible_agents only: fugu has no row for others."
                status: Status = "warn" if name == "infos" else "fail"
                self.log.note(Finding("agents", status, name, text, advice))

    def _first(self, agent: Hashable, observations: Any, infos: Any) -> Moment:
        if agent not in observations:
            text = f"{self.log.place}: no observation for {agent!r}, which is in env.agents"
            raise Broken("agents", text, "Return an observation for each agent in env.agents.")
        info = infos.get(agent, {})
        episode, step = self.log.episode, self.log.step
        return Moment(agent, episode, step, observations[agent], info, first=True)

    def _outcome(self, agent: Hashable, result: Any, names: tuple[str, ...]) -> Moment:
        for name, part in zip(names[1:], result[1:], strict=True):
            if agent not in part:
                text = f"step returned no {name} for {agent!r}, which acted"
                advice = "Return a value for each agent that acted."
                self.log.note(Finding("agents", "warn", name, text, advice))
        observations, rewards, terminations, truncations, infos = result
        return self._moment(
            agent,
            observations.get(agent),
            infos.get(agent, {}),
            rewards.get(agent, 0.0),
            terminations.get(agent, False),
            truncations.get(agent, False),
        )

    def _expect_farewells(self, moments: list[Moment], agents: list[Hashable]) -> None:
        """Agents leave by a termination or truncation, and by nothing else."""
        for moment in moments:
            if not moment.ended and moment.agent not in agents:
                text = (
                    f"{self.log.place}: {moment.agent!r} left env.agents neither terminated nor "
                    "truncated"
                )
                raise Broken("agents", text, "Set one of the two flags when an agent leaves.")
            if moment.ended and moment.agent in agents:
                text = f"{moment.agent!r} is over and still in env.agents"
                advice = "Take agents that are over out of env.agents."
                self.log.note(Finding("agents", "warn", "over", text, advice))


class TurnWitness(PettingZooWitness):
    """Before an AECEnv."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Reset, logged."""
        with self.log.clock:
            self._begin(seed, options)

    def step(self, action: Any) -> None:
        """Step, logged."""
        with self.log.clock:
            self.log.act(self.env.step, action)

    def last(self, observe: bool = True) -> Any:
        """What the agent whose turn it is sees, logged."""
        with self.log.clock:
            result = self.log.look(self.env.last)
            expect_values("step", "last", result, _STEP_NAMES)
            (agent,) = self._known([self.env.agent_selection])
            observation, reward, terminated, truncated, info = result
            outcome = (reward, terminated, truncated, self.log.step == 0)
            moment = self._moment(agent, observation, info, *outcome)
            self.population.see([moment], self._known(self.env.agents))
            self.log.tell([moment])
        return result

    def begin(self, seed: int) -> None:
        """Reset, and see who is first."""
        self.reset(seed)
        self.last()

    def play(self, actions: Actions) -> None:
        """Step, and go on past those whose episode is over."""
        (action,) = actions.values()
        self.step(action)
        for _ in range(2 * len(self.population.possible) + 1):
            if not self.env.agents:
                return
            self.last()
            if self.log.awaiting:
                return
            self.step(None)
        raise Broken(
            "agents",
            f"{self.log.place}: {self.env.agents} stay in env.agents after each was told that it "
            "is over",
            "Take an agent out of env.agents on its last step(None).",
        )
