"""A walk on a fixed random graph: the Decision Transformer's own toy. Needs gymnasium and NumPy."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

NODES, GOAL, HORIZON = 20, 0, 10


def make_graph(seed: int = 0) -> NDArray[np.bool_]:
    """Who is whose neighbour: edges with probability 0.1, and a random tree so that all connect."""
    random = np.random.default_rng(seed)
    edges = np.triu(random.random((NODES, NODES)) < 0.1, 1)
    order = random.permutation(NODES)
    for place in range(1, NODES):
        edges[order[place], order[random.integers(place)]] = True
    return edges | edges.T


def distances(graph: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Steps of the shortest path of each node to the goal, by breadth-first search."""
    found = np.full(NODES, -1)
    found[GOAL] = 0
    queue = deque([GOAL])
    while queue:
        node = queue.popleft()
        for other in np.flatnonzero(graph[node] & (found < 0)):
            found[other] = found[node] + 1
            queue.append(int(other))
    return found


class GraphWalk(gymnasium.Env[int, int]):
    """Walk to the goal; every step costs 1, and after ten of them the walk is cut off.

    Args:
        start: Where walks begin; anywhere but the goal by chance if not given.
    """

    def __init__(self, start: int | None = None) -> None:
        self.observation_space: Any = spaces.Discrete(NODES)
        self.action_space: Any = spaces.Discrete(NODES)
        self._graph, self._start = make_graph(), start

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """To the start."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(1, NODES))
        self._node, self._steps = drawn if self._start is None else self._start, 0
        return self._node, self._info()

    def step(self, action: Any) -> Any:
        """To a neighbour."""
        assert self._graph[self._node, action]
        self._node, self._steps = int(action), self._steps + 1
        ends = self._node == GOAL
        return self._node, -1.0, ends, not ends and self._steps == HORIZON, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._graph[self._node]}
