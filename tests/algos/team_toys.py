"""Teams that do as they are told: some die, some are of another kind, some are cut off."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

SEEN = {"walker_0": spaces.Box(-99, 99, (2,)), "walker_1": spaces.Box(-99, 99, (2,))}
KINDS: dict[str, Any] = {**SEEN, "tower": spaces.Dict(at=spaces.Discrete(50), up=SEEN["walker_0"])}


class Mortal(ParallelEnv[str, Any, int]):
    """Walkers and a tower; walker_1 dies after two steps, and all is cut off after four.

    The state is the time and what the seed made of the episode. Observations are the time and the
    agent's number; the tower's stand in a dict. Rewards are what agents do.
    """

    metadata = {"name": "mortal"}

    def __init__(self, alike: bool = False) -> None:
        self.possible_agents = list(SEEN) if alike else list(KINDS)
        self.state_space = spaces.Box(-99, 99, (2,))
        self.agents: list[str] = []
        self.time, self.fate = 0, 0

    def observation_space(self, agent: str) -> Any:
        """Of a walker or the tower."""
        return KINDS[agent]

    def action_space(self, agent: str) -> Any:
        """Three ways to go, or two."""
        return spaces.Discrete(3 if agent in SEEN else 2)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        """Begin."""
        self.agents, self.time = list(self.possible_agents), 0
        self.fate = 1 + int(seed or 0) % 89
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        """Time goes on; some leave."""
        self.time += 1
        seen = self._seen()
        dead = {agent: agent == "walker_1" and self.time == 2 for agent in self.agents}
        cut = dict.fromkeys(self.agents, self.time == 4)
        rewards = {agent: float(actions[agent]) for agent in self.agents}
        self.agents = [a for a in self.agents if not (dead[a] or cut[a])]
        return seen, rewards, dead, cut, {}

    def state(self) -> Any:
        """When it is, and in which episode."""
        return np.array([self.time, self.fate], np.float32)

    def _seen(self) -> Any:
        found = {}
        for number, agent in enumerate(self.possible_agents):
            if agent in self.agents:
                row = np.array([self.time, 10 + number], np.float32)
                found[agent] = row if agent in SEEN else {"at": self.time, "up": row}
        return found
