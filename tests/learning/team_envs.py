"""Games for teams whose optimum is known, as PettingZoo environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

PLAYERS = ["row", "column"]
Floats = NDArray[np.float32]


class MatrixGame(ParallelEnv[str, Floats, int]):
    """Two players choose at once and get the same: `payoff[row][column]`.

    Attributes:
        payoff: Of every pair of choices.
    """

    metadata = {"name": "matrix_game"}
    payoff = ((0.0,),)

    def __init__(self) -> None:
        self.possible_agents = list(PLAYERS)
        self.table = np.array(self.payoff, np.float64)
        self.agents: list[str] = []
        self.state_space = spaces.Box(0, 1, (1,))

    def observation_space(self, agent: str) -> spaces.Box:
        """Nothing to see."""
        return spaces.Box(0, 1, (1,))

    def action_space(self, agent: str) -> spaces.Discrete:
        """A row or a column."""
        return spaces.Discrete(self.table.shape[PLAYERS.index(agent)])

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict[str, Floats], Any]:
        """Begin."""
        self.agents = list(PLAYERS)
        return self._told(np.ones(1, np.float32)), {}

    def step(self, actions: dict[str, int]) -> Any:
        """Both get what the table says, and it is over."""
        reward = float(self.table[actions["row"], actions["column"]])
        return self._over(self._told(np.zeros(1, np.float32)), reward)

    def state(self) -> Floats:
        """Nothing either."""
        return np.ones(1, np.float32)

    def _over(self, told: dict[str, Floats], reward: float) -> Any:
        self.agents = []
        yes, no = dict.fromkeys(PLAYERS, True), dict.fromkeys(PLAYERS, False)
        return told, dict.fromkeys(PLAYERS, reward), yes, no, {}

    def _told(self, seen: Floats) -> dict[str, Floats]:
        return {player: seen.copy() for player in PLAYERS}


class Climbing(MatrixGame):
    """The climbing game (Claus and Boutilier 1998): the best pair is next to the worst ones."""

    payoff = ((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0))


class Penalty(MatrixGame):
    """The penalty game: two best pairs, which must agree on which, or pay."""

    payoff = ((10.0, 0.0, -10.0), (0.0, 2.0, 0.0), (-10.0, 0.0, 10.0))


class Lucky(MatrixGame):
    """One choice is better whatever the other does, but luck, which only the state tells of, adds
    or takes a hundred times as much."""

    metadata = {"name": "lucky"}
    payoff = ((10.0, 0.0), (0.0, -10.0))

    def __init__(self) -> None:
        super().__init__()
        self._luck, self._chance = 0.0, np.random.default_rng(0)
        self.state_space = spaces.Box(-1, 1, (1,))

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict[str, Floats], Any]:
        """Begin; the seed decides on luck."""
        if seed is not None:
            self._chance = np.random.default_rng(seed)
        self._luck = float(self._chance.choice([-1.0, 1.0]))
        return super().reset()

    def step(self, actions: dict[str, int]) -> Any:
        """Both get what the table says and what luck adds."""
        reward = float(self.table[actions["row"], actions["column"]]) + 1000.0 * self._luck
        return self._over(self._told(np.zeros(1, np.float32)), reward)

    def state(self) -> Floats:
        """Luck."""
        return np.array([self._luck], np.float32)


class TwoSteps(MatrixGame):
    """The two-step game (Rashid et al. 2018): the row player chooses which table both then play.

    The first table gives 7 whatever they do. The second gives 8 if both choose 1, and 0 or 1 else.
    """

    metadata = {"name": "two_steps"}
    payoff = ((0.0, 1.0), (1.0, 8.0))

    def __init__(self) -> None:
        super().__init__()
        self._table = 0  # 0 before the choice
        self.state_space = spaces.Box(0, 1, (3,))

    def observation_space(self, agent: str) -> spaces.Box:
        """Where they are, one-hot."""
        return spaces.Box(0, 1, (3,))

    def reset(self, seed: Any = None, options: Any = None) -> tuple[dict[str, Floats], Any]:
        """Begin before the choice."""
        self.agents, self._table = list(PLAYERS), 0
        return self._told(self.state()), {}

    def step(self, actions: dict[str, int]) -> Any:
        """Go to a table, or play it."""
        if self._table:
            reward = 7.0
            if self._table == 2:
                reward = float(self.table[actions["row"], actions["column"]])
            return self._over(self._told(self.state()), reward)
        self._table = 1 + actions["row"]
        no = dict.fromkeys(PLAYERS, False)
        return self._told(self.state()), dict.fromkeys(PLAYERS, 0.0), no, no, {}

    def state(self) -> Floats:
        """Where they are, one-hot."""
        found: Floats = np.eye(3, dtype=np.float32)[self._table]
        return found
