"""The best that can be done on the hazard grid below a limit of cost: a linear program.

Its variables are how often each action is taken in each cell at each step of an episode (the
occupancy measure); what comes of them are the environment's own dynamics. No policy of any kind,
with memory or without, has a higher mean return within the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, eye_array, kron

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: rows down, columns right
UP, RIGHT, DOWN, LEFT = range(4)


@dataclass(frozen=True)
class HazardGrid:
    """The grid in its first layout, hazards all along the bottom; as `hazard_grid.h` has it."""

    size: int = 5
    slip: float = 0.1
    step_penalty: float = 0.01
    max_steps: int = 100

    @property
    def start(self) -> int:
        """The left end of the bottom row."""
        return (self.size - 1) * self.size

    @property
    def goal(self) -> int:
        """Its right end."""
        return self.size * self.size - 1

    @property
    def hazards(self) -> NDArray[np.bool_]:
        """What lies between them."""
        cells = np.arange(self.size * self.size)
        return (cells > self.start) & (cells < self.goal)

    def transitions(self) -> NDArray[np.float64]:
        """Probabilities `[cell, action, next cell]`."""
        cells = self.size * self.size
        found = np.zeros((cells, len(MOVES), cells))
        chances = ((0, 1 - self.slip), (1, self.slip / 2), (3, self.slip / 2))
        for cell in range(cells):
            row, column = divmod(cell, self.size)
            for action in range(len(MOVES)):
                for turn, chance in chances:
                    down, right = MOVES[(action + turn) % 4]
                    place = np.clip([row + down, column + right], 0, self.size - 1)
                    found[cell, action, place[0] * self.size + place[1]] += chance
        return found


@dataclass(frozen=True)
class Optimum:
    """The best mean return of an episode, and what it costs."""

    mean_return: float
    mean_cost: float


def best(grid: HazardGrid, limit: float | None) -> Optimum:
    """The optimum within a limit of mean cost an episode; without one if it is None."""
    moves, steps, cells = grid.transitions(), grid.max_steps, grid.size * grid.size
    rewards = np.tile((moves[:, :, grid.goal] - grid.step_penalty).ravel(), steps)
    costs = np.tile((moves @ grid.hazards).ravel(), steps)
    # Where agents are at a step is where those of the step before went, unless they were done.
    leaves = kron(eye_array(cells), np.ones((1, len(MOVES))))
    arrives = moves.reshape(-1, cells).T.copy()
    arrives[grid.goal] = 0.0
    before = eye_array(steps, k=-1)
    flow = kron(eye_array(steps), leaves) - kron(before, coo_array(arrives))
    begins = np.zeros(steps * cells)
    begins[grid.start] = 1.0
    within = {} if limit is None else {"A_ub": costs[None], "b_ub": [limit]}
    found = linprog(-rewards, A_eq=flow.tocsr(), b_eq=begins, **within)
    assert found.success, found.message
    return Optimum(float(rewards @ found.x), float(costs @ found.x))
