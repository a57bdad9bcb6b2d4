"""Safe PPO stays within its limits and is nearly as good as possible there; PPO is not.

Seeds, steps and thresholds are fixed. The optimum of the hazard grid is exact: a linear program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hazard_lp import HazardGrid, best
from lessons import learn

from fugu.training.evaluate import play
from fugu.vector import make

pytestmark = pytest.mark.timeout(280)
STEPS, EPISODES = 300_000, 6400
# The step penalty and the limit: at the safest of short ways; and below it, where a longer one is.
EASY, SHARP = (0.1, 0.3), (0.03, 0.1)
UNBOUND = {"initial_multiplier": 0.0, "multiplier_rate": 0.0}
PID = {"multiplier": "pid", "pid_proportional": 10.0, "pid_integral": 1.0, "pid_derivative": 1.0}


def mean_return_and_cost(penalty: float, limit: float, **train: Any) -> tuple[float, float]:
    """Of many episodes, played as in training, after it."""
    env_kwargs = {"step_penalty": penalty}
    train = {"cost_limit": limit, **train}
    settings = {"algo": "safe_ppo", "env_kwargs": env_kwargs, "train": train}
    result = learn("hazard_grid", STEPS, settings)
    with make("hazard_grid", 64, env_kwargs=env_kwargs) as vec:
        found = play(result.policies, vec, EPISODES, greedy=False).to_dict()
    return found["mean_return"], found["mean_cost"]


@pytest.mark.parametrize(("task", "train"), [(EASY, {}), (SHARP, PID)], ids=["lagrange", "pid"])
def test_the_limit_is_kept_and_the_return_nearly_the_best(task: Any, train: Any) -> None:
    penalty, limit = task
    mean_return, cost = mean_return_and_cost(penalty, limit, **train)
    assert cost <= 1.1 * limit
    assert mean_return >= 0.9 * best(HazardGrid(step_penalty=penalty), limit).mean_return


def test_without_multipliers_the_limit_is_broken() -> None:
    penalty, limit = EASY
    mean_return, cost = mean_return_and_cost(penalty, limit, **UNBOUND)
    assert cost > 3 * limit
    assert mean_return >= 0.9 * best(HazardGrid(step_penalty=penalty), None).mean_return


def test_the_optimum_is_that_of_the_environment() -> None:
    """The program's own dynamics, against the environment's: a policy that knows the way."""
    grid = HazardGrid(step_penalty=0.1)
    moves, cells = grid.transitions(), grid.size * grid.size
    actions = np.array([1] * cells)  # right, then down along the right side
    actions[grid.size - 1 :: grid.size] = 2
    actions[grid.start] = 0  # up from the start
    where = np.eye(cells)[grid.start]
    total, paid = 0.0, 0.0
    for _ in range(grid.max_steps):
        chances = where @ moves[np.arange(cells), actions]
        total += chances[grid.goal] - grid.step_penalty * where.sum()
        paid += float(chances @ grid.hazards)
        where = chances.copy()
        where[grid.goal] = 0.0
    returns, costs = [], 0.0
    with make("hazard_grid", 64, env_kwargs={"step_penalty": 0.1}) as vec:
        vec.async_reset(3)
        while len(returns) < EPISODES:
            batch = vec.recv()
            costs += float(batch.costs.sum())
            returns += [info["episode_return"] for told in batch.infos.values() for info in told]
            vec.send(actions[batch.observations.argmax(1)][:, None])
    assert np.mean(returns) == pytest.approx(total, abs=4 * 0.2 / EPISODES**0.5)
    assert costs / len(returns) == pytest.approx(paid, abs=0.03)
    assert total <= best(grid, paid).mean_return
