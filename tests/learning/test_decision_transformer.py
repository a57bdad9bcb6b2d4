"""The Decision Transformer learns what was done on the way to which return.

Seeds, steps and thresholds are fixed. The controls take returns away or mix them up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_env import GOAL, NODES, distances, make_graph
from offline_lessons import CARTPOLE, TARGETS, achieved, learn, record_mixture, returns_shuffled

from fugu.data.offline import Dataset
from fugu.data.recording import record_episodes
from fugu.policies.policy import Policy
from fugu.training.evaluate import play
from fugu.training.target_returns import ask, rank_correlation
from fugu.vector import make

pytestmark = pytest.mark.timeout(280)
GRAPH = "graph_env:GraphWalk"
SMALL: dict[str, Any] = {"hidden_size": 32, "blocks": 1, "window": 10, "dropout": 0.0}


# ------------------------------------------------------------------ shortest paths


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walks")
    record_episodes(GRAPH, folder, episodes=2000, backend="serial")
    return folder


def best_returns(data: Dataset) -> np.ndarray[Any, Any]:
    """The highest return that the data has from each node to the goal."""
    best = np.full(NODES, -np.inf)
    for episode in data:
        if episode.terminations[-1]:
            to_go = np.cumsum(episode.rewards[::-1])[::-1]
            np.maximum.at(best, episode.observations[:-1, 0], to_go)
    return best


def share_of_shortest_paths(policy: Policy, data: Dataset) -> float:
    """Of all starts, asked for the best return that the data has from there."""
    shortest, best = distances(make_graph()), best_returns(data)
    found = []
    for start in range(NODES):
        if start != GOAL:
            ask([policy], best[start])
            with make(GRAPH, 1, backend="serial", env_kwargs={"start": start}) as vec:
                found.append(play([policy], vec, 1).returns[0] == -shortest[start])
    return float(np.mean(found))


def test_random_walks_have_few_shortest_paths(walks: Path) -> None:
    data, shortest = Dataset(walks), distances(make_graph())
    starts = [episode.observations[0, 0] for episode in data]
    assert np.mean(-data.returns == shortest[starts]) < 0.2


def test_shortest_paths_are_found_from_random_walks(walks: Path) -> None:
    policy = learn(GRAPH, walks, 400_000, SMALL)
    assert share_of_shortest_paths(policy, Dataset(walks)) >= 0.9


def test_without_returns_walks_stay_random(walks: Path) -> None:
    """Behaviour cloning on all walks: the same network, which is not told any return."""
    policy = learn(GRAPH, walks, 200_000, SMALL, percentile=100.0)
    assert share_of_shortest_paths(policy, Dataset(walks)) <= 0.5


# ------------------------------------------------------------------ a mixture of skills


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About a thousand episodes of CartPole by one PPO run after 10, 30, 60 and 100 % of it."""
    return record_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_asked_for_is_achieved(mixture: Path) -> None:
    assert Dataset(mixture).returns.mean() <= 200
    policy = learn("cartpole", mixture, 700_000, CARTPOLE, learning_rate=0.001)
    returns = achieved(policy)
    assert returns[-1] >= 400
    assert returns[-1] - returns[0] >= 0.6 * (TARGETS[-1] - TARGETS[0])
    assert rank_correlation(TARGETS, returns) >= 0.8


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_shuffled_returns_say_nothing(mixture: Path) -> None:
    with returns_shuffled():
        policy = learn("cartpole", mixture, 700_000, CARTPOLE, learning_rate=0.001)
    returns = achieved(policy)
    # What is asked for moves it a fifth of the way at most; ranks alone would make much of little.
    assert max(returns) - min(returns) <= 0.2 * (TARGETS[-1] - TARGETS[0])
