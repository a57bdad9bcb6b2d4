"""Learning goes on while a node of the cluster is killed."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("ray")
from ray_lessons import NUM_NODES, THRESHOLD, train_while_a_node_dies

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="several nodes on one machine"),
]


def test_cartpole_is_balanced_while_a_node_dies() -> None:
    story = train_while_a_node_dies(seed=1)
    assert story.score >= THRESHOLD
    assert {fault.kind for fault in story.faults} == {"lost"}
    assert len({node.name for report in story.before for node in report.nodes}) == NUM_NODES
    assert len([node for node in story.after[-1].nodes if node.workers]) == NUM_NODES - 1
    assert sum(node.workers for node in story.after[-1].nodes) == sum(
        node.workers for node in story.before[0].nodes
    )


def test_without_learning_it_falls() -> None:
    """The control: a node dies, and nothing is learned.

    The bound is that of the sanity environments, a share of the threshold: greedy actions of
    weights that nobody trained are a fixed rule, which may balance a pole for a while.
    """
    untrained = train_while_a_node_dies(seed=1, steps=3_000, learning_rate=0.0)
    assert untrained.score <= 0.75 * THRESHOLD
