"""Mistakes and faults in a vector with Gymnasium's interface: refused, cut off, or an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium_vectors import ours
from peer_toys import NUM_ENVS, Choices, Remembers, Talker
from vector_toys import Herd

import fugu
from fugu.core.errors import ActionError, UsageError
from fugu.vector import WorkerError, to_gymnasium

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: to_gymnasium(fugu.make(Herd, 2, backend="serial")),
            r"4 agents \(3 sheep, 1 dog\)",
        ),
        (
            lambda: to_gymnasium(fugu.make(Talker, 4, backend="serial", batch_size=2)),
            "given batches of 2 of 4 environments; allowed: all at once",
        ),
        (
            lambda: to_gymnasium(fugu.make(Talker, 2, backend="serial"), 2, seed=1),
            "given a Vector and num_envs, seed; allowed: a Vector alone",
        ),
    ],
)
def test_vectors_that_cannot_be_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_actions_that_cannot_be_are_refused_before_any_environment_steps(backend: str) -> None:
    vector = ours(Remembers, backend)
    with pytest.raises(UsageError, match="step: given before reset"):
        vector.step([1, 1, 1])
    vector.reset(seed=0)
    for wrong in ([1, 1], [1, 7, 9], [0.5, 1, 1], ["a", "b", "c"], [[1], [1]]):
        with pytest.raises(ActionError):
            vector.step(wrong)
    assert vector.step([1, 2, 3])[0][:, 2].tolist() == [1, 1, 1]
    vector.close()
    tree = ours(Choices, backend, limits=4)
    tree.reset(seed=0)
    actions = list(tree.action_space.sample())
    actions[0] = np.array([0, 9, 0])
    with pytest.raises(ActionError, match="leaf '0': given 9; allowed: an integer from -2 to 2"):
        tree.step(tuple(actions))
    tree.step(tree.action_space.sample())
    tree.close()


def test_a_broken_step_is_cut_off(backend: str) -> None:
    """The final observation is the one that was acted on; learning goes on with a new episode."""
    vector = ours(Remembers, backend)
    vector.reset(seed=5)
    seen = vector.step([1, 1, 1])[0]
    observations, rewards, terminations, truncations, infos = vector.step([1, 4, 1])
    assert truncations.tolist() == [False, True, False]
    assert not terminations.any()
    assert rewards.tolist() == [1, 0, 1]
    assert observations[:, 2].tolist() == [2, 0, 2]
    assert np.array_equal(infos["final_obs"][1], seen[1])
    assert "ValueError: as it was told" in infos["final_info"]["fault"][1]
    _, _, _, truncations, infos = vector.step([1, 1, 1])
    assert not truncations.any()
    assert infos == {}
    vector.close()


def test_a_worker_that_dies_between_two_steps_is_a_cut_too() -> None:
    vector = ours(Remembers, "process")
    vector.reset(seed=5)
    seen = vector.step([1, 1, 1])[0]
    process = vector.vector._backend._processes[0]
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    _, _, _, truncations, infos = vector.step([1, 1, 1])
    lost = vector.vector._queue.envs_of(0)
    assert truncations.tolist() == [lost[0] <= env < lost[1] for env in range(NUM_ENVS)]
    assert np.array_equal(infos["final_obs"][0], seen[0])
    assert infos["final_info"]["fault"][0]
    assert not vector.step([1, 1, 1])[3].any()
    vector.close()


def test_a_broken_reset_is_an_error(backend: str) -> None:
    vector = ours(Remembers, backend)
    with pytest.raises(WorkerError, match=r"(?s)reset failed in environment 0.*as it was told"):
        vector.reset(seed=0, options={"fail": True})
    vector.reset(seed=0)
    vector.close()
