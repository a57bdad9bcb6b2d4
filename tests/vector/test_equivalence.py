"""One truth: every backend, with any number of workers, gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from vector_toys import Herd, Walk

from fugu.vector import Vector, make

NUM_ENVS, STEPS = 6, 60
BACKENDS = [("serial", 1), ("threads", 1), ("threads", 3), ("process", 1), ("process", 4)]


def tictactoe() -> Any:
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env()


ENVS: dict[str, Callable[[], Any]] = {
    "single-agent": lambda: gymnasium.make("CartPole-v1"),
    "structured, of random lengths": Walk,
    "many agents": Herd,
    "turns": tictactoe,
}


def random_actions(vec: Vector, rng: np.random.Generator) -> tuple[Any, ...]:
    """Rows of random legal actions for all agents."""
    found = []
    for group, rows in zip(vec.groups, vec._buffers.rows, strict=True):
        layout = group.action_layout
        flat = layout.zeros(vec.num_envs * group.num_agents)
        layout.space.seed(int(rng.integers(2**31)))
        for i, row in enumerate(flat):
            mask = rows.action_masks[i]
            whole = mask.all() or not mask.any()
            action = layout.space.sample() if whole else int(rng.choice(np.flatnonzero(mask)))
            layout.pack(action, row)
        found.append(flat)
    return tuple(found)


def play(env: Callable[[], Any], backend: Any, workers: int, **options: Any) -> list[Any]:
    rng, seen = np.random.default_rng(5), []
    with make(env, NUM_ENVS, backend=backend, num_workers=workers, **options) as vec:
        vec.async_reset(seed=11)
        for _ in range(STEPS):
            batch = vec.recv()
            for group in batch.groups:
                rows = group.rows
                names = ("observations", "final", "action_masks", "rewards", "terminations")
                names += ("truncations", "live", "valid")
                seen.append({name: getattr(rows, name).tobytes() for name in names})
            seen.append({str(env): str(infos) for env, infos in batch.infos.items()})
            actions = random_actions(vec, rng)
            vec.send(actions[0] if len(actions) == 1 else actions)
        assert not vec.faults
    return seen


@pytest.mark.parametrize("name", ENVS)
def test_all_backends_and_numbers_of_workers_agree(name: str) -> None:
    expected = play(ENVS[name], *BACKENDS[0])
    assert any(infos for infos in expected[len(expected) // 2 :] if isinstance(infos, dict))
    for backend, workers in BACKENDS[1:]:
        ours = play(ENVS[name], backend, workers)
        for step, (a, b) in enumerate(zip(ours, expected, strict=True)):
            assert a == b, (backend, workers, step)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_start_method_agrees(method: str) -> None:
    expected = play(Walk, "serial", 1)
    assert play(Walk, "process", 2, start_method=method) == expected


@pytest.mark.timeout(60)
def test_a_fork_leaves_the_threads_of_opencv_alone() -> None:
    """Its pool has no threads in a forked process: telling it to end them waits for ever."""
    cv2 = pytest.importorskip("cv2")
    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    cv2.GaussianBlur(np.ones((2000, 2000), np.float32), (31, 31), 5)  # starts the threads
    try:
        for _ in range(3):
            with make(Walk, 4, backend="process", num_workers=4, start_method="fork") as vec:
                vec.reset(seed=1)
                assert not vec.faults
    finally:
        cv2.setNumThreads(before)


def test_another_seed_gives_other_bytes() -> None:
    def first(seed: int) -> bytes:
        with make(Walk, 2, backend="serial") as vec:
            return bytes(vec.reset(seed=seed)[0].tobytes())

    assert first(1) == first(1)
    assert first(1) != first(2)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_ordered_batches_agree_whatever_their_size(backend: Any) -> None:
    """Batches of a part, in a fixed order, are the parts of the whole."""

    def observations(batch_size: int) -> np.ndarray:
        parts = []
        options = {"backend": backend, "num_workers": 2 if backend == "process" else None}
        with make("CartPole-v1", 6, batch_size=batch_size, ordered=True, **options) as vec:
            vec.async_reset(seed=3)
            for step in range(40 * 6 // batch_size):
                batch = vec.recv()
                first = step * batch_size % 6
                assert batch.env_ids.tolist() == list(range(first, first + batch_size))
                parts.append(batch.observations.copy())
                vec.send(batch.env_ids % 2)
        return np.concatenate(parts).reshape(40, 6, 4)

    whole = observations(6)
    np.testing.assert_array_equal(observations(3), whole)
    np.testing.assert_array_equal(observations(2), whole)


def test_groups_of_copies_begin_alike() -> None:
    with make("CartPole-v1", 6, backend="serial", group_size=3) as vec:
        observations, _ = vec.reset(seed=1)
        assert len(np.unique(observations[:3], axis=0)) == 1
        assert len(np.unique(observations[3:], axis=0)) == 1
        assert not np.array_equal(observations[0], observations[3])
