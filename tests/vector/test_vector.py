"""The vector's contract: batches, order, errors, calls."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from vector_toys import Chatty, Herd, Sleepy, Slow, Small, Waiting, Walk

import fugu
from fugu.core.errors import ActionError, UsageError
from fugu.core.machine import usable_cores
from fugu.core.seeding import derive, episode_seed
from fugu.vector import Vector, WorkerError, make

BACKENDS = ["serial", "threads", "process"]
pytestmark = pytest.mark.timeout(60)


def vector(env: Any, num_envs: int, backend: Any, **options: Any) -> Vector:
    workers = {} if backend == "serial" else {"num_workers": min(2, num_envs)}
    return make(env, num_envs, backend=backend, **{**workers, **options})


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_reset_and_step_follow_gymnasium(backend: str) -> None:
    with vector(Small, 3, backend) as vec:
        observations, infos = vec.reset(seed=7)
        seeds = [episode_seed(derive(7, env), 0) % 1000 for env in range(3)]
        assert observations.tolist() == [[0, seed] for seed in seeds]
        assert infos == {}
        observations, rewards, terminations, truncations, infos = vec.step([1, 2, 3])
        assert observations[:, 0].tolist() == [1, 1, 1]
        assert rewards.tolist() == [1, 2, 3]
        assert not terminations.any()
        assert not truncations.any()


def test_seeds_may_be_given_one_by_one_and_options_reach_the_environments(backend: str) -> None:
    with vector(Small, 2, backend) as vec:
        observations, _ = vec.reset(seed=[5, 6], options={"level": 3})
        assert observations[:, 1].tolist() == [episode_seed(s, 0) % 1000 for s in (5, 6)]
        assert vec.get_attr("options") == ({"level": 3}, {"level": 3})
        with pytest.raises(UsageError, match="given 3 seeds"):
            vec.reset(seed=[1, 2, 3])


def test_a_reset_without_a_seed_begins_other_episodes_and_repeats_exactly(backend: str) -> None:
    found = []
    for _ in range(2):
        with vector(Walk, 4, backend, seed=3, group_size=2) as vec:
            found.append([vec.reset()[0].copy() for _ in range(3)])
            assert vec.reset(seed=3)[0].tobytes() == found[-1][0].tobytes()
    first, second = found
    assert len({rows.tobytes() for rows in first}) == 3
    assert [rows.tobytes() for rows in first] == [rows.tobytes() for rows in second]
    assert all(rows[0].tobytes() == rows[1].tobytes() != rows[2].tobytes() for rows in first)


def test_auto_takes_processes_where_they_pay() -> None:
    with make(Small, 4) as cheap:
        assert (cheap.backend, cheap.num_workers) == ("serial", 1)
    with make(Slow, 4) as slow:
        assert slow.backend == ("process" if usable_cores() > 1 else "serial")
    with make(Small, 4, num_workers=2) as asked_for:
        assert (asked_for.backend, asked_for.num_workers) == ("process", 2)


def test_auto_survives_what_crashes_at_once() -> None:
    with make(Slow, 2, env_kwargs={"seconds": None}, max_restarts=0) as vec:
        vec.reset(seed=0)
        with pytest.raises(WorkerError, match="TypeError"):
            vec.step([1, 1])


def test_the_first_that_are_ready_come_first(backend: str) -> None:
    """Environment 0 sleeps for long; the others come by twice before it does."""
    if backend == "serial":
        pytest.skip("a caller that steps by itself has nobody to overtake")
    with make(Sleepy, 4, backend=backend, num_workers=4, batch_size=2) as vec:
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        held = sorted([*first.env_ids.tolist(), *second.env_ids.tolist()])
        assert held == [0, 1, 2, 3]
        order = []
        for batch in (first, second):
            vec.send(np.where(batch.env_ids == 0, 40, 0).clip(0, 4) * 1, batch.agent_ids)
        for _ in range(6):
            batch = vec.recv()
            order += batch.env_ids.tolist()
            vec.send(np.zeros(2, int), batch.agent_ids)
        first_of_zero = order.index(0) if 0 in order else len(order)
        assert first_of_zero >= 3, order


def test_batches_that_are_not_contiguous_are_right_and_stay_as_they_are() -> None:
    """Several batches held at once; what they hold does not change until they are sent."""
    with make(Sleepy, 6, backend="process", num_workers=6, batch_size=2) as vec:
        vec.async_reset(seed=list(range(6)))
        held = [vec.recv() for _ in range(3)]
        seeds = [episode_seed(s, 0) % 1000 for s in range(6)]
        copies = [batch.observations.copy() for batch in held]
        for batch in held:
            assert batch.observations[:, 1].tolist() == [seeds[e] for e in batch.env_ids]
        vec.send(np.zeros(2, int), held[1].agent_ids)
        vec.recv()
        for i in (0, 2):
            np.testing.assert_array_equal(held[i].observations, copies[i])
        gathered = [b for b in held if np.diff(b.env_ids)[0] != 1]
        for batch in gathered:
            assert batch.observations.base is not vec._buffers.rows[0].observations


def test_rows_of_a_gathered_batch_are_those_of_its_environments() -> None:
    with make(Sleepy, 4, backend="threads", num_workers=4, batch_size=2) as vec:
        vec.async_reset(seed=[1, 2, 3, 4])
        a, b = vec.recv(), vec.recv()
        by_env = {}
        for batch in (a, b):
            by_env |= dict(zip(batch.env_ids.tolist(), batch.observations[:, 1], strict=True))
        expected = {env: episode_seed(env + 1, 0) % 1000 for env in range(4)}
        assert by_env == expected
        slow = {0: 3, 2: 3}  # so that 1 and 3 come first, which are not neighbours
        for batch in (a, b):
            vec.send([slow.get(e, 0) for e in batch.env_ids.tolist()], batch.agent_ids)
        batch = vec.recv()
        assert batch.env_ids.tolist() == [1, 3]
        assert batch.agent_ids.tolist() == [1, 3]
        assert batch.observations.tolist() == [[1, expected[1]], [1, expected[3]]]
        assert batch.rewards.tolist() == [0, 0]


def test_zero_copy_when_the_rows_are_contiguous(backend: str) -> None:
    with vector(Small, 4, backend) as vec:
        vec.async_reset(seed=0)
        batch = vec.recv()
        assert np.shares_memory(batch.observations, vec._buffers.rows[0].observations)


def test_poison_shows_who_reads_rows_too_late(backend: str) -> None:
    with vector(Sleepy, 2, backend, poison=True) as vec:
        vec.async_reset(seed=0)
        batch = vec.recv()
        observations, rewards = batch.observations, batch.rewards
        assert observations[0, 0] == 0
        slow = [4, 4] if backend != "serial" else [0, 0]
        vec.send(slow)
        assert (observations.view(np.uint8) == 0xAB).all()
        assert np.isnan(rewards).all()
        assert vec.recv().observations[:, 0].tolist() == [1, 1]


def test_an_environment_that_waits_blocks_no_sibling(backend: str) -> None:
    """Eight of one worker, each waiting 0.2 s: together they take little more than that."""
    workers = 1 if backend != "serial" else None
    with make(lambda: Waiting(0.05), 8, backend=backend, num_workers=workers) as vec:
        vec.reset(seed=0)
        start = time.monotonic()
        observations = vec.step(np.full(8, 4))[0]
        assert 0.2 <= time.monotonic() - start < 1.0
        assert observations[:, 0].tolist() == [1] * 8


def test_a_batch_does_not_wait_for_those_that_wait(backend: str) -> None:
    """One of four waits for an hour; the others come as often as they are sent."""
    workers = 1 if backend != "serial" else None
    options: dict[str, Any] = {"backend": backend, "num_workers": workers, "batch_size": 3}
    with make(lambda: Waiting(3600.0), 4, step_timeout=7200.0, **options) as vec:
        vec.async_reset(0)
        for _ in range(2):
            batch = vec.recv()
            vec.send((batch.env_ids == 1).astype(int), batch.env_ids)
        for _ in range(5):
            batch = vec.recv()
            assert batch.env_ids.tolist() == [0, 2, 3]
            assert vec.ready == 0
            vec.send(np.zeros(3, int), batch.env_ids)


def test_an_environment_that_waits_for_ever_is_restarted() -> None:
    with make(lambda: Waiting(100.0), 2, backend="process", num_workers=1, step_timeout=0.3) as vec:
        vec.reset(seed=0)
        vec.send([1, 0])
        batch = vec.recv()
        assert batch.valid.tolist() == [False, True]
        assert "poll() is False after 0.3 s" in vec.faults[0].detail


def test_long_infos_do_not_block(backend: str) -> None:
    """More than any pipe holds, all at once, while the learner waits for the whole batch."""
    with vector(Chatty, 40, backend) as vec:
        vec.reset(seed=0)
        for _ in range(3):
            infos = vec.step(np.zeros(40, int))[4]
            assert sorted(infos) == list(range(40))
            assert all(len(info[0]["text"]) == 20_000 for info in infos.values())


def test_infos_come_once_for_each_episode(backend: str) -> None:
    with vector(Walk, 4, backend) as vec:
        vec.reset(seed=2)
        lengths: dict[int, int] = dict.fromkeys(range(4), 0)
        actions = vec.action_layout.zeros(4)
        for _ in range(50):
            _, _, terminations, truncations, infos = vec.step(actions)
            ended = np.flatnonzero(terminations | truncations).tolist()
            assert sorted(infos) == ended
            for env in range(4):
                lengths[env] += 1
                if env in ended:
                    assert infos[env][0]["episode_length"] == lengths[env]
                    lengths[env] = 0


def test_calls_and_attributes_reach_the_environments(backend: str) -> None:
    with vector(Walk, 3, backend) as vec:
        vec.reset(seed=0)
        assert vec.call("describe", "hello", mark="!") == ("hello 0!",) * 3
        assert vec.get_attr("note") == ("unset",) * 3
        vec.set_attr("note", "set")
        assert vec.get_attr("note") == ("set",) * 3
        vec.set_attr("note", [1, 2, 3])
        assert vec.get_attr("note") == (1, 2, 3)
        with pytest.raises(UsageError, match="given 2 values"):
            vec.set_attr("note", [1, 2])
        with pytest.raises(WorkerError, match="no_such_thing"):
            vec.call("no_such_thing")
        assert vec.get_attr("note") == (1, 2, 3)
        vec.send(vec.action_layout.zeros(3))
        with pytest.raises(UsageError, match="3 environments are under way"):
            vec.get_attr("note")
        vec.recv()


def test_a_reset_in_the_middle_begins_anew(backend: str) -> None:
    with vector(Small, 4, backend, batch_size=2) as vec:
        vec.async_reset(seed=1)
        batch = vec.recv()
        vec.send([1, 1])
        vec.async_reset(seed=1)
        for _ in range(2):
            batch = vec.recv()
            assert (batch.observations[:, 0] == 0).all()


def test_many_agents_have_groups(backend: str) -> None:
    with vector(Herd, 2, backend) as vec:
        assert [(g.name, g.num_agents) for g in vec.groups] == [("sheep", 3), ("dog", 1)]
        assert vec.num_agents == 8
        (sheep, dogs), _ = vec.reset(seed=0)
        assert (sheep.shape, dogs.shape) == ((6, 3), (2, 2))
        batch_rewards = vec.step((np.ones(6, int), np.zeros((2, 1))))[1]
        assert [rewards.shape for rewards in batch_rewards] == [(6,), (2,)]
        with pytest.raises(UsageError, match="2 groups"):
            _ = vec.observation_layout
        with pytest.raises(UsageError, match="actions for 1 groups; allowed: 2"):
            vec.step((np.ones(6, int),))


# ---------------------------------------------------------------------- mistakes


def test_an_action_that_cannot_be_is_refused_and_nothing_is_lost(backend: str) -> None:
    with vector(Small, 3, backend) as vec:
        vec.reset(seed=0)
        for wrong, message in [
            ([0, 1], r"int64 array of shape \(2,\); allowed: int64 array of shape \(3, 1\)"),
            ([0.5, 1, 1], "float64"),
            (["a", "b", "c"], "<U1"),
        ]:
            with pytest.raises(ActionError, match=message):
                vec.step(wrong)
        vec.send([1, 7, 1])
        with pytest.raises(ActionError, match="given 7; allowed: an integer from 0 to 4") as caught:
            vec.recv()
        assert "in environment 1" in caught.value.__notes__[-1]
        vec.send([2], agent_ids=[1])  # the one that was refused still awaits its action
        batch = vec.recv()
        assert batch.observations[:, 0].tolist() == [1, 1, 1]
        assert batch.rewards.tolist() == [1, 2, 1]
        assert batch.valid.all()
        assert not vec.faults


def test_several_refused_actions_are_one_error(backend: str) -> None:
    with vector(Small, 3, backend) as vec:
        vec.reset(seed=0)
        vec.send([7, 1, 7])
        refused: list[int] = []
        while len(refused) < 2:  # one worker may tell later than another
            with pytest.raises(ActionError, match="given 7") as caught:
                vec.recv()
            named = [
                env for env in (0, 1, 2) if f"environment {env}" in str(caught.value.__notes__)
            ]
            vec.send(np.ones(len(named), int), agent_ids=named)
            refused += named
        assert sorted(refused) == [0, 2]
        assert vec.recv().rewards.tolist() == [1, 1, 1]
        assert vec.reset(seed=0)[0][:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_the_width_of_actions_does_not_matter(dtype: Any) -> None:
    with make(Small, 3, backend="serial") as vec:
        vec.reset(seed=0)
        assert vec.step(np.array([4, 0, 3], dtype))[1].tolist() == [4, 0, 3]


def test_calls_out_of_order_are_refused(backend: str) -> None:
    vec = vector(Small, 4, backend, batch_size=2)
    with pytest.raises(UsageError, match="recv: given 0 environments under way"):
        vec.recv()
    with pytest.raises(UsageError, match="no agent_ids and no batch"):
        vec.send([0, 0])
    vec.async_reset(seed=0)
    a, b = vec.recv(), vec.recv()
    with pytest.raises(UsageError, match="recv: given 0"):
        vec.recv()
    for ids, message in [
        ([0, 0], "side by side"),
        ([9, 10], "not in a batch"),
        ([-1, 0], "not in a batch"),
    ]:
        with pytest.raises(UsageError, match=message):
            vec.send([0, 0], ids)
    vec.send([0, 0], a.agent_ids)
    with pytest.raises(UsageError, match="not in a batch that was received and not sent"):
        vec.send([0, 0], a.agent_ids.copy())
    vec.send([0, 0], b.agent_ids.tolist())
    for call in (lambda: vec.reset(seed=0), lambda: vec.step([0, 0, 0, 0])):
        with pytest.raises(UsageError, match="Use send and recv"):
            call()
    vec.close()
    vec.close()
    for call in (vec.recv, vec.async_reset, lambda: vec.get_attr("x"), lambda: vec.send([0])):
        with pytest.raises(UsageError, match="closed|no batch"):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs: given 0"),
        ({"num_envs": 2.0}, "num_envs: given 2.0"),
        ({"num_envs": 2, "num_workers": 3, "backend": "process"}, "num_workers: given 3"),
        ({"num_envs": 2, "batch_size": 3}, r"batch_size: given 3; allowed: an integer from 1 to 2"),
        ({"num_envs": 4, "batch_size": 3, "ordered": True}, "divisor of num_envs=4"),
        ({"num_envs": 4, "group_size": 3}, "divisor of num_envs=4"),
        ({"num_envs": 4, "backend": "proces"}, "allowed: auto, serial, threads, process"),
        ({"num_envs": 4, "start_method": "clone"}, "allowed: forkserver, spawn, fork"),
        ({"num_envs": 4, "step_timeout": 0}, "step_timeout=0"),
        ({"num_envs": 4, "no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, TypeError), match=message):
        make(Small, **options)


def test_names_are_resolved_and_lambdas_work() -> None:
    with make("CartPole-v1", 2, backend="process", num_workers=2) as vec:
        assert vec.reset(seed=0)[0].shape == (2, 4)
    length = 5
    with make(lambda: Walk(most=length), 2, backend="process", num_workers=2) as vec:
        vec.reset(seed=0)
        assert vec.get_attr("most") == (5, 5)
    assert fugu.make is make


def test_copies_that_differ_are_refused() -> None:
    sizes = iter([2, 2, 3])

    def factory() -> Any:
        env = Small()
        env.observation_space = fugu.Layout.of(Small.observation_space).space
        size = next(sizes)
        env.action_space = type(Small.action_space)(size)
        return env

    with (
        make(factory, 2, backend="serial", max_restarts=0) as vec,
        pytest.raises(WorkerError, match="All copies need the same agents and spaces"),
    ):
        vec.reset(seed=0)
