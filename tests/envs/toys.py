"""Small environments that do exactly what they are told, and the rows that they are seen in."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fugu.envs import Buffers


def only(env: Any) -> Buffers:
    """The rows of an environment with one group."""
    (rows,) = env.buffers
    return rows


class Counter(gymnasium.Env):  # type: ignore[type-arg]
    """Counts steps; ends after `length`, by termination or truncation; remembers its resets."""

    def __init__(self, length: int = 3, truncates: bool = False, **spaces_: Any) -> None:
        self.observation_space = spaces_.get("observation", spaces.Box(-1, 99, (2,)))
        self.action_space = spaces_.get("action", spaces.Discrete(4))
        self.length, self.truncates = length, truncates
        self.resets: list[tuple[Any, Any]] = []
        self.actions: list[Any] = []
        self.info: dict[str, Any] = {}
        self.closed = 0

    def observe(self) -> Any:
        return np.float32([len(self.resets), self.count])

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.resets.append((seed, options))
        self.count = 0
        return self.observe(), dict(self.info)

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.count += 1
        over = self.count >= self.length
        flags = (over and not self.truncates, over and self.truncates)
        return self.observe(), float(self.count), *flags, dict(self.info)

    def close(self) -> None:
        self.closed += 1


class Script:
    """A parallel environment that plays a script: who is there, and who leaves how, each step.

    `script[t]` maps each agent there after step t to None, "terminated" or "truncated".
    """

    metadata: dict[str, Any] = {"name": "script"}

    def __init__(self, agents: list[str], start: list[str], script: list[dict[str, Any]]) -> None:
        self.possible_agents, self._start, self._script = agents, start, script
        self.seen: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9, 99, (1,)) if agent[0] == "a" else spaces.Discrete(100)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3) if agent[0] == "a" else spaces.Box(-1, 1, (2,))

    def observe(self, agent: str) -> Any:
        return np.float32([self.time]) if agent[0] == "a" else self.time

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.time, self.agents = 10, list(self._start)
        return {a: self.observe(a) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.seen.append(actions)
        script = self._script[self.time - 10]
        self.time += 1
        everyone = list(dict.fromkeys([*actions, *script]))
        ends = {a: script.get(a) for a in everyone}
        self.agents = [a for a in everyone if a in script and ends[a] is None]
        return (
            {a: self.observe(a) for a in everyone},
            {a: float(self.time) for a in everyone},
            {a: ends[a] == "terminated" for a in everyone},
            {a: ends[a] == "truncated" for a in everyone},
            {a: {"time": self.time} for a in everyone},
        )

    def close(self) -> None:
        pass


class Turns:
    """Two players of a PettingZoo AECEnv; each act rewards the actor 1 and the other -10.

    It ends for both after `length` acts.
    """

    metadata: dict[str, Any] = {"name": "turns"}

    def __init__(self, length: int = 3) -> None:
        self.possible_agents = ["white", "black"]
        self.length = length

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict(
            observation=spaces.Discrete(100), action_mask=spaces.Box(0, 1, (3,), np.int8)
        )

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.agent_selection = "white"
        self.count = 0
        self.cumulative = dict.fromkeys(self.agents, 0.0)
        self.over = False

    def last(self) -> Any:
        mask = np.int8([1, self.count % 2, 0])
        observation = {"observation": self.count, "action_mask": mask}
        agent = self.agent_selection
        return observation, self.cumulative[agent], self.over, False, {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        other = "black" if agent == "white" else "white"
        if action is None:
            self.agents.remove(agent)
            self.agent_selection = other
            return
        self.cumulative[agent] = 1.0
        self.cumulative[other] += -10.0
        self.count += 1
        self.over = self.count >= self.length
        self.agent_selection = other

    def agent_iter(self) -> Any:
        raise AssertionError("the adapter does not need it")

    def close(self) -> None:
        pass
