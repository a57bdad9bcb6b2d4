"""CartPole on three nodes of a Ray cluster, one of which is killed on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lessons import judge, learn
from ray_nodes import Nodes, nodes

from fugu.training.trainer import Progress, Trainer
from fugu.vector.backends import ClusterReport, Fault

ENV, STEPS, THRESHOLD = "CartPole-v1", 250_000, 450.0
NUM_NODES, WORKERS, SEATS = 3, 6, 3  # two nodes have seats for all workers
KILLED_AT = 0.4  # of the steps


@dataclass
class Story:
    """What came of it.

    Attributes:
        score: Mean return of greedy episodes that were not seen.
        before: What each node did until one was killed.
        after: And from then on.
        faults: Of workers.
    """

    score: float = 0.0
    before: list[ClusterReport] = field(default_factory=list)
    after: list[ClusterReport] = field(default_factory=list)
    faults: tuple[Fault, ...] = ()


def train_while_a_node_dies(
    seed: int,
    steps: int = STEPS,
    tell: Callable[[int], None] = lambda steps: None,
    **settings: Any,
) -> Story:
    """Train, kill a node, train on.

    Args:
        seed: Of the training.
        steps: Of the training.
        tell: Is told of the steps so far.
        **settings: Of the algorithm.
    """
    with nodes(NUM_NODES, SEATS) as cluster:
        return _train(cluster, seed, steps, tell, settings)


def _train(
    cluster: Nodes, seed: int, steps: int, tell: Callable[[int], None], settings: dict[str, Any]
) -> Story:
    story = Story()

    def watch(trainer: Trainer, progress: Progress) -> None:
        tell(progress.steps)
        assert progress.cluster is not None
        alive = len(cluster.others) == NUM_NODES - 1
        (story.before if alive else story.after).append(progress.cluster)
        if alive and progress.steps >= KILLED_AT * steps:
            cluster.kill()
        story.faults = tuple(trainer.vec.faults)

    vec = {"num_envs": 60, "num_workers": WORKERS, **cluster.options}
    result = learn(ENV, steps, {"vec": vec, "train": settings}, seed, callbacks=(watch,))
    story.score = judge(result.policies, ENV, seed)
    return story
