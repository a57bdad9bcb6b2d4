"""A vector that was made anew and restored goes on as the one that its snapshot is of."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit, TransformReward
from vector_toys import Chance, Herd, Keeper, Mortal, Slow, Small, Waiting, Walk, process_of

from fugu.core.errors import UsageError
from fugu.vector import Batch, Vector, WorkerError, make
from fugu.vector.shared_buffers import FIELDS

BACKENDS = [("serial", 1), ("threads", 2), ("process", 1), ("process", 2)]
Arrays = dict[str, np.ndarray[Any, Any]]


ENVS: dict[str, Callable[[], Any] | str] = {
    "CartPole": lambda: gymnasium.make("CartPole-v1"),
    "a time limit": lambda: TimeLimit(Small(), 17),
    "chance": Chance,
    "structured": lambda: TimeLimit(Walk(40), 9),
    "many agents": Herd,
    "turns": "pettingzoo:classic/tictactoe_v3",
    "its own state": lambda: TimeLimit(Keeper(), 13),
    "a state of no bytes": partial(Keeper, "array"),
    "rewards of a wrapper": lambda: TransformReward(Chance(), lambda reward: reward / 3),
    "native, without the pool": "cartpole",
}


def act(vec: Vector, rng: np.random.Generator, batch: Batch) -> Any:
    """Random legal actions for the agents of a batch."""
    found = []
    for group, part in zip(vec.groups, batch.groups, strict=True):
        layout = group.action_layout
        flat = layout.zeros(len(part.agent_ids))
        layout.space.seed(int(rng.integers(2**31)))
        for row, mask in zip(flat, part.rows.action_masks, strict=True):
            whole = mask.all() or not mask.any()
            layout.pack(
                layout.space.sample() if whole else int(rng.choice(np.flatnonzero(mask))), row
            )
        found.append(flat)
    return found[0] if len(found) == 1 else tuple(found)


def ids(batch: Batch) -> Any:
    found = tuple(group.agent_ids for group in batch.groups)
    return found[0] if len(found) == 1 else found


def seen(batch: Batch) -> Any:
    """All that a batch says."""
    rows = [
        {name: getattr(group.rows, name).tobytes() for name in FIELDS} for group in batch.groups
    ]
    return batch.env_ids.tolist(), rows, repr(sorted(batch.infos.items()))


def play(vec: Vector, rng: np.random.Generator, held: list[Batch], steps: int) -> list[Any]:
    """Step on from the batches that are held; all that was seen. Nothing is under way after."""
    told = []
    for _ in range(steps):
        for batch in held:
            told.append(seen(batch))
            vec.send(act(vec, rng, batch), ids(batch))
        held[:] = [vec.recv() for _ in held]
    return told + [seen(batch) for batch in held]


def saved(vec: Vector, held: list[Batch]) -> tuple[Arrays, Any]:
    return vec.snapshot(), np.concatenate([batch.env_ids for batch in held])


def start(vec: Vector, seed: int) -> list[Batch]:
    vec.async_reset(seed=seed)
    return [vec.recv() for _ in range(vec.num_envs // vec.batch_size)]


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
def test_a_new_vector_goes_on_as_the_old_one(name: str, backend: Any, workers: int) -> None:
    options = {"backend": backend, "num_workers": workers, "resumable": True}
    with make(ENVS[name], 4, **options) as vec:
        assert (vec.has_states, vec.why_stateless) == (True, None)
        rng, held = np.random.default_rng(5), start(vec, 11)
        snapshots, told = [], []
        for steps in (0, 1, 2, 22, 6):  # in the middle of episodes, and where some have ended
            told += play(vec, rng, held, steps)[:-1]
            snapshots.append((len(told), rng.bit_generator.state, saved(vec, held)))
        told += play(vec, rng, held, 50)
        assert any("episode_return" in infos for *_, infos in told)
        assert not vec.faults
    with make(ENVS[name], 4, **options) as vec:
        for at, random, (snapshot, order) in snapshots:
            rng.bit_generator.state = random
            snapshot = {key: array.copy() for key, array in snapshot.items()}
            held = vec.restore(snapshot, order)
            again = vec.snapshot()
            assert all(np.array_equal(again[key], snapshot[key]) for key in snapshot)
            for step, other in enumerate(play(vec, rng, held, 12)):
                assert other == told[at + step], (at, step)
        assert not vec.faults


@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
@pytest.mark.parametrize("ordered", [True, False])
def test_batches_of_a_part_are_held_and_given_back(
    ordered: bool, backend: Any, workers: int
) -> None:
    """As training does: environments under way are received, and acted on when it goes on."""
    options: dict[str, Any] = {"backend": backend, "num_workers": workers, "ordered": ordered}
    with make(Walk, 6, batch_size=2, resumable=True, **options) as vec:
        rng, held = np.random.default_rng(3), start(vec, 1)
        play(vec, rng, held, 20)
        for batch in held[:1]:  # so that the batches held are not in the order of the copies
            vec.send(act(vec, rng, batch), ids(batch))
        held = [*held[1:], vec.recv()]
        snapshot, order = saved(vec, held)
        random = rng.bit_generator.state
        first = [seen(batch) for batch in held]
        told = play(vec, rng, held, 15)
    with make(Walk, 6, batch_size=2, resumable=True, **options) as vec:
        for _ in range(2):
            held = vec.restore(snapshot, order)
            assert [seen(batch) for batch in held] == first
            rng.bit_generator.state = random
            again = play(vec, rng, held, 15)
            assert len(again) == len(told)
            assert again == told or not ordered  # else whoever is first comes first


@pytest.mark.parametrize(("backend", "workers"), BACKENDS)
def test_what_cannot_be_replayed_begins_anew_and_says_so(backend: Any, workers: int) -> None:
    options = {"backend": backend, "num_workers": workers, "resumable": True}
    make_env = partial(Chance, cheats=True)
    with make(make_env, 3, **options) as vec:
        held = start(vec, 1)
        play(vec, np.random.default_rng(0), held, 5)
        snapshot, order = saved(vec, held)
        states = vec.state()
        with pytest.raises(WorkerError, match="went otherwise when its 5 actions .* allowed"):
            vec.set_state(states)
    with make(make_env, 3, **options) as vec:
        (batch,) = held = vec.restore(snapshot, order)
        assert [fault.kind for fault in vec.faults] == ["replayed otherwise"] * 3
        assert not batch.valid.any()
        assert batch.live.all()
        assert not batch.rewards.any()
        play(vec, np.random.default_rng(0), held, 5)
        assert held[0].valid.all()


def test_states_of_its_own_are_used() -> None:
    with make(lambda: TimeLimit(Keeper(), 30), 2, backend="serial", resumable=True) as vec:
        held = start(vec, 1)
        play(vec, np.random.default_rng(0), held, 20)
        snapshot, order = saved(vec, held)
    with make(lambda: TimeLimit(Keeper(), 30), 2, backend="serial", resumable=True) as vec:
        vec.restore(snapshot, order)
        for calls in vec.get_attr("calls"):
            assert (calls["set"], calls["step"]) == (1, 0)


def test_states_as_rows_of_one_width() -> None:
    """Their episodes differ in length; one environment's state can be given to all."""
    with make(Walk, 3, backend="serial", resumable=True) as vec:
        play(vec, np.random.default_rng(0), start(vec, 1), 10)
        states = vec.state()
        before = vec._buffers.rows[0].observations.copy()
        batch = vec.set_state(states)
        assert np.array_equal(batch.observations, before)
        batch = vec.set_state(states[1])
        assert np.array_equal(batch.observations, before[[1, 1, 1]])
        with pytest.raises(WorkerError, match="no state of an emulated environment"):
            vec.set_state(np.zeros((3, 40), np.uint8))


def test_a_long_replay_is_no_stall() -> None:
    """It takes longer than any step may; a step of it that stalls is noticed all the same."""
    options: dict[str, Any] = {"backend": "process", "num_workers": 2, "resumable": True}
    slow = partial(Slow, 0.05)
    with make(slow, 2, step_timeout=0.5, **options) as vec:
        held = start(vec, 1)
        play(vec, np.random.default_rng(0), held, 20)
        snapshot, order = saved(vec, held)
    with make(slow, 2, step_timeout=0.5, **options) as vec:
        began = time.monotonic()
        vec.restore(snapshot, order)
        assert time.monotonic() - began >= 0.9
        assert not vec.faults
    with (
        make(partial(Slow, 5.0), 2, step_timeout=0.5, max_restarts=2, **options) as vec,
        pytest.raises(WorkerError, match="stalled"),
    ):
        vec.restore(snapshot, order)


@pytest.mark.parametrize(
    ("env", "options", "why"),
    [
        (Chance, {}, "resumable=True"),
        (Chance, {"resumable": True, "seeding": "first"}, "seeding='episode'"),
        (partial(Keeper, "array"), {"resumable": True, "seeding": "first"}, "seeding='episode'"),
        (Waiting, {"resumable": True}, "has no state"),
    ],
)
def test_why_there_are_no_states(env: Any, options: dict[str, Any], why: str) -> None:
    with make(env, 2, backend="serial", **options) as vec:
        assert not vec.has_states
        assert vec.why_stateless is not None
        assert why in vec.why_stateless
        assert vec.why_stateless.count(".") >= 1
        vec.reset(seed=1)
        for call in (vec.state, vec.snapshot):
            with pytest.raises(UsageError, match="without states"):
                call()


@pytest.mark.parametrize("mortal", [0, 1])
def test_a_worker_that_dies_of_a_snapshot_is_in_it_with_new_episodes(
    mortal: int, tmp_path: Path
) -> None:
    make_one = partial(Mortal, tmp_path / "died")
    options: dict[str, Any] = {"backend": "process", "num_workers": 2, "resumable": True}
    with make(make_one, 4, batch_size=2, **options) as vec:
        vec.async_reset(seed=1)
        for batch in (vec.recv(), vec.recv()):
            deeds = [[int(env) % 2 + 2 * (env == mortal)] for env in batch.env_ids]
            vec.send(np.array(deeds), ids(batch))
        held = [vec.recv(), vec.recv()]
        assert [batch.env_ids.tolist() for batch in held] == [[0, 2], [1, 3]]  # copies, not views
        snapshot, order = saved(vec, held)
        assert [fault.kind for fault in vec.faults] == ["killed"]
        for batch in held:
            rows = batch.groups[0].rows
            assert rows.valid.tolist() == [False, True]  # the first worker has 0 and 1
            assert rows.observations[:, 0].tolist() == [0.0, 1.0]
        told = [seen(batch) for batch in held]
        for batch in held:
            vec.send(np.zeros((2, 1), int), ids(batch))
        for batch in (vec.recv(), vec.recv()):
            rows = batch.groups[0].rows
            assert rows.valid.all()
            assert sorted(set(rows.observations[:, 0])) in ([1.0], [2.0], [1.0, 2.0])
    with make(make_one, 4, batch_size=2, **options) as vec:
        assert [seen(batch) for batch in vec.restore(snapshot, order)] == told


def test_what_ended_with_its_worker_begins_anew_before_it_is_asked(tmp_path: Path) -> None:
    options: dict[str, Any] = {"backend": "process", "num_workers": 1, "resumable": True}
    with make(partial(Mortal, tmp_path / "died"), 2, **options) as vec:
        vec.reset(seed=1)
        vec.step(np.zeros((2, 1), int))
        os.kill(vec.apply(process_of)[0], signal.SIGKILL)
        assert len(vec.snapshot()["sizes"]) == 2
        assert vec.get_attr("count") == (0, 0)


def test_snapshots_of_other_vectors_are_refused() -> None:
    with make("cartpole", 2) as vec:
        vec.reset(seed=1)
        native = vec.snapshot()
    with make(Chance, 3, backend="serial", resumable=True) as vec:
        vec.reset(seed=1)
        of_three = vec.snapshot()
    with make(Chance, 2, backend="serial", resumable=True) as vec:
        vec.reset(seed=1)
        for wrong in (native, of_three):
            with pytest.raises(UsageError, match="allowed"):
                vec.restore(wrong, np.arange(2))
        vec.send(vec.action_layout.zeros(2))
        with pytest.raises(UsageError, match="under way"):
            vec.restore(of_three, np.arange(2))


def test_nothing_is_kept_unless_it_is_asked_for() -> None:
    with make(Chance, 2, backend="serial") as vec:
        vec.reset(seed=1)
        assert vec.apply(_keeps) == (False, False)


def _keeps(env: Any) -> bool:
    return env._taken is not None
