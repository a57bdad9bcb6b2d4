"""Fronts of score (more is better) and cost (less is better)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def pareto_front(scores: ArrayLike, costs: ArrayLike) -> NDArray[np.intp]:
    """Which ones no other beats in both, cheapest first; of equal ones the first.

    >>> pareto_front([1.0, 3.0, 2.0], [1.0, 2.0, 3.0]).tolist()
    [0, 1]
    """
    score, cost = np.asarray(scores, np.float64), np.asarray(costs, np.float64)
    order = np.lexsort((-score, cost))
    before = np.maximum.accumulate(np.concatenate([[-np.inf], score[order]]))[:-1]
    front: NDArray[np.intp] = order[score[order] > before]
    return front


def hypervolume(
    scores: ArrayLike, costs: ArrayLike, worst_score: float, worst_cost: float
) -> float:
    """The area that the front covers, seen from a score and a cost that are worse than all.

    >>> hypervolume([1.0, 2.0], [1.0, 3.0], 0.0, 4.0)
    4.0
    """
    score, cost = np.asarray(scores, np.float64), np.asarray(costs, np.float64)
    inside = (score > worst_score) & (cost < worst_cost)
    score, cost = score[inside], cost[inside]
    front = pareto_front(score, cost)
    until = np.append(cost[front][1:], worst_cost)
    return float(((until - cost[front]) * (score[front] - worst_score)).sum())


def best_within(scores: Floats, costs: Floats, limits: Floats) -> Floats:
    """The best score of those that cost no more than each limit; the worst of all if none does.

    >>> best_within(np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.array([0.0, 2.0, 9.0])).tolist()
    [1.0, 1.0, 2.0]
    """
    front = pareto_front(scores, costs)
    found = np.searchsorted(costs[front], limits, side="right")
    best: Floats = np.concatenate([[scores.min()], scores[front]])[found]
    return best
