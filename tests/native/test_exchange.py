"""The exchange: turns, order of completion, waiting, and what a death leaves behind."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu._native import Exchange, gather

TIMEOUT, CLOSING, COMMAND = -1, -2, -3
IDLE, STEP, COMMANDED, WORK, READY, FAULT = range(6)


def exchange(workers: int, envs: int, spin: float = 0.0) -> Exchange:
    size = Exchange.bytes(workers, envs)
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return Exchange(memory[start : start + size], workers, envs, spin)


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@given(st.integers(1, 20), st.integers(1, 100))
def test_every_environment_has_one_owner(workers: int, envs: int) -> None:
    workers = min(workers, envs)
    ours = exchange(workers, envs)
    ranges = [ours.envs_of(worker) for worker in range(workers)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == envs
    sizes = [end - begin for begin, end in ranges]
    assert max(sizes) - min(sizes) <= 1
    for worker, (begin, end) in enumerate(ranges):
        assert all(ours.owner(env) == worker for env in range(begin, end))


def test_a_turn_goes_around() -> None:
    ours = exchange(2, 4)
    assert ours.next(0, 0.0) == TIMEOUT
    ours.post(ids(1, 2))
    assert ours.next(0, 0.0) == 1
    assert ours.state(1) == WORK
    assert ours.next(0, 0.0) == TIMEOUT
    assert ours.next(1, 0.0) == 2
    assert ours.silent(1)[1] == 2
    ours.done(0, 1)
    ours.done(1, 2)
    assert ours.silent(1) == (0.0, -1)
    found = np.zeros(4, np.int64)
    assert ours.wait_ready(0, 4, 2, 0, 0.0) == 2
    assert ours.take(0, 4, 4, found) == 2
    assert found[:2].tolist() == [1, 2]
    assert ours.state(1) == IDLE


def test_commands_are_told_apart() -> None:
    ours = exchange(1, 3)
    ours.post(ids(2), True)
    assert ours.next(0, 0.0) == COMMAND - 2


def test_each_environment_gets_its_turn() -> None:
    """The place in the range goes on, so that the first ones cannot starve the last."""
    ours = exchange(1, 4)
    ours.post(ids(0, 1, 2, 3))
    seen = []
    for _ in range(8):
        env = ours.next(0, 0.0)
        seen.append(env)
        ours.done(0, env)
        ours.take(0, 4, 4, np.zeros(4, np.int64))
        ours.post(ids(env))
    assert seen == [0, 1, 2, 3] * 2


def test_the_first_that_were_done_are_taken_first() -> None:
    ours = exchange(1, 5)
    ours.post(ids(0, 1, 2, 3, 4))
    for _ in range(5):
        ours.next(0, 0.0)
    for env in (3, 0, 4, 1, 2):
        ours.done(0, env)
    found = np.zeros(5, np.int64)
    assert ours.take(0, 5, 2, found) == 2
    assert found[:2].tolist() == [0, 3]  # in ascending order
    assert ours.take(0, 5, 2, found) == 2
    assert found[:2].tolist() == [1, 4]


@pytest.mark.parametrize("spin", [0.0, 1e-4])
def test_waiting_ends_when_enough_are_ready(spin: float) -> None:
    ours = exchange(1, 3, spin)

    def work() -> None:
        theirs = ours  # the same memory
        for _ in range(3):
            env = theirs.next(0, 5.0)
            time.sleep(0.02)
            theirs.done(0, env)

    thread = threading.Thread(target=work)
    thread.start()
    ours.post(ids(0, 1, 2))
    start = time.monotonic()
    assert ours.wait_ready(0, 3, 3, 0, 5.0) == 3
    assert time.monotonic() - start < 2.0
    thread.join()


def test_waiting_ends_when_time_is_up() -> None:
    ours = exchange(1, 1)
    start = time.monotonic()
    assert ours.wait_ready(0, 1, 1, 0, 0.05) == 0
    assert ours.next(0, 0.05) == TIMEOUT
    assert 0.1 <= time.monotonic() - start < 2.0


def test_faults_and_full_pipes_wake_the_learner() -> None:
    ours = exchange(1, 2)
    ours.post(ids(0, 1))
    for event in (lambda: ours.done(0, ours.next(0, 0.0), True), lambda: ours.send_mail(0, True)):
        known = ours.faults()
        timer = threading.Timer(0.05, event)
        timer.start()
        start = time.monotonic()
        ours.wait_ready(0, 2, 2, known, 10.0)
        assert time.monotonic() - start < 5.0
        timer.join()
    assert ours.faults() == 1
    assert ours.mail(0) == 2
    ours.read_mail(0)
    assert ours.mail(0) == 0


def test_closing_sends_workers_away() -> None:
    ours = exchange(1, 1)
    threading.Timer(0.05, ours.close).start()
    assert ours.next(0, 10.0) == CLOSING


def test_a_new_worker_is_due_to_do_what_the_dead_one_left() -> None:
    ours = exchange(2, 4)
    ours.post(ids(0, 1))
    ours.post(ids(3), True)
    assert ours.next(0, 0.0) == 0
    ours.done(0, 0)
    assert ours.next(0, 0.0) == 1  # and then it dies
    ours.revive(0)
    assert [ours.state(env) for env in range(4)] == [READY, STEP, IDLE, COMMANDED]
    assert ours.silent(0)[1] == -1
    assert ours.next(0, 0.0) == 1


def test_nonsense_is_refused() -> None:
    ours = exchange(1, 2)
    for call in (
        lambda: ours.post(ids(2)),
        lambda: ours.post(ids(-1)),
        lambda: ours.next(1, 0.0),
        lambda: ours.done(0, 2),
        lambda: ours.take(0, 3, 1, np.zeros(1, np.int64)),
        lambda: ours.take(0, 2, 2, np.zeros(1, np.int64)),
        lambda: ours.state(9),
        lambda: exchange(3, 2),
        lambda: Exchange(np.zeros(8, np.uint8), 1, 1, 0.0),
        lambda: ours.post(np.array([0], np.int32)),
    ):
        with pytest.raises((IndexError, ValueError, TypeError)):
            call()


def test_many_threads_lose_no_step() -> None:
    """Four workers and a learner, each step counted on both sides."""
    workers, envs, rounds = 4, 32, 400
    ours = exchange(workers, envs, 2e-5)
    counts = np.zeros(envs, np.int64)
    size = Exchange.bytes(workers, envs)
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory = memory[start : start + size]
    ours = Exchange(memory, workers, envs, 2e-5)

    def work(worker: int) -> None:
        theirs = Exchange(memory, workers, envs, 2e-5)
        while (env := theirs.next(worker, 5.0)) != CLOSING:
            if env >= 0:
                counts[env] += 1
                theirs.done(worker, env)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    ours.post(np.arange(envs))
    received = np.zeros(envs, np.int64)
    found = np.zeros(envs, np.int64)
    for _ in range(rounds):
        assert ours.wait_ready(0, envs, 8, 0, 10.0) >= 8
        count = ours.take(0, envs, 8, found)
        received[found[:count]] += 1
        ours.post(found[:count].copy())
    ours.wait_ready(0, envs, envs, 0, 10.0)
    ours.close()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(counts, received + 1)


@given(st.lists(st.integers(0, 19), min_size=1, max_size=20), st.integers(1, 9))
def test_gather_copies_the_blocks_named(blocks: list[int], width: int) -> None:
    rng = np.random.default_rng(0)
    source = rng.integers(0, 256, (20, width)).astype(np.uint8)
    out = np.zeros((25, width), np.uint8)
    gather(ids(*blocks), [source, source], [out, out.copy()])
    np.testing.assert_array_equal(out[: len(blocks)], source[blocks])
    assert not out[len(blocks) :].any()
    with pytest.raises(IndexError):
        gather(ids(20), [source], [out])
    with pytest.raises(ValueError, match="fit"):
        gather(ids(0), [source], [np.zeros((1, width + 1), np.uint8)])
