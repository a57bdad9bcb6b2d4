"""Rewards and observations that are NaN or infinite are faults of their environment."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from vector_toys import Herd

from fugu._native import FiniteCheck
from fugu.envs.batch_env import BatchEnv, Moves
from fugu.envs.contract import AgentGroup, Buffers, Env
from fugu.spaces import Layout
from fugu.vector import Vector, WorkerError, make
from fugu.vector.backends.batch import BatchBackend
from fugu.vector.shared_buffers import SharedBuffers
from fugu.vector.vector import VectorSettings

BACKENDS = ["serial", "threads", "process"]


class Spoiled(gymnasium.Env):  # type: ignore[type-arg]
    """Spoils a number, once action 1 is taken; its episodes have ten steps."""

    observation_space = spaces.Dict(
        place=spaces.Box(-np.inf, np.inf, (2, 2)),
        speed=spaces.Box(-np.inf, np.inf, (), np.float64),
        count=spaces.Discrete(100),
    )
    action_space = spaces.Discrete(3)

    def __init__(self, where: str, value: float = np.nan) -> None:
        self.where, self.value, self.resets = where, value, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count, self.resets = 0, self.resets + 1
        bad = self.where == "reset" and self.resets == 2
        return self.observe(self.value if bad else 0.0), {}

    def observe(self, value: float) -> Any:
        place = np.array([[0, 0], [0, value]], np.float32)
        return {"place": place, "speed": np.float64(0), "count": self.count}

    def step(self, action: Any) -> Any:
        self.count += 1
        value = self.value if action == 1 else 0.0
        observation = self.observe(value if self.where in ("observation", "end") else 0.0)
        if self.where == "speed":
            observation["speed"] = np.float64(value)
        reward = value if self.where == "reward" else 1.0
        over = self.count == 10 or (self.where == "end" and action == 1)
        info = {"note": 1.0} if self.where == "reward" else {}
        return observation, reward, over, False, info


PLACES = {
    "observation": "nan in observation place[1][1]",
    "speed": "nan in observation speed",
    "reward": "nan as reward",
    "end": "nan in final observation place[1][1]",
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_finite_is_a_fault_that_is_named(backend: Any, where: str) -> None:
    workers = 1 if backend == "serial" else 2
    with make(partial(Spoiled, where), 3, backend=backend, num_workers=workers) as vec:
        vec.reset(seed=1)
        vec.step([0, 0, 0])
        vec.send([0, 0, 1])
        batch = vec.recv()
        assert batch.valid.tolist() == [True, True, False]
        assert np.isfinite(batch.rewards).all()
        (fault,) = vec.faults
        assert (fault.kind, fault.envs) == ("raised", (2,))
        assert f"environment 2: expected finite numbers; got {PLACES[where]}" in fault.detail
        if where != "end":  # there, the next episode has begun
            assert "episode 0, step 2)" in fault.detail
        vec.step([0, 0, 0])
        vec.send([0, 0, 0])
        assert vec.recv().valid.all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
def test_infinite_numbers_are_faults_too(value: float) -> None:
    with make(partial(Spoiled, "reward", value), 1, backend="serial") as vec:
        vec.reset(seed=1)
        vec.step([1])
        assert "inf as reward" in vec.faults[0].detail


def test_a_reset_that_is_not_finite_is_a_fault() -> None:
    with make(partial(Spoiled, "reset"), 1, backend="serial") as vec:
        vec.reset(seed=1)
        vec.send([0])
        assert vec.recv().valid.all()
        vec.async_reset(seed=2)
        assert not vec.recv().valid.any()
        assert "place[1][1]" in vec.faults[0].detail


def test_too_many_are_one_error_with_the_cause() -> None:
    with make(partial(Spoiled, "reward"), 1, backend="serial", max_restarts=2) as vec:
        vec.reset(seed=1)
        for _ in range(2):
            vec.step([1])
        assert len(vec.faults) == 2
        with pytest.raises(WorkerError, match="(?s)more than 2 restarts.*nan as reward"):
            vec.step([1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_they_are_handed_on_where_that_is_asked_for(backend: Any) -> None:
    with make(partial(Spoiled, "reward"), 2, backend=backend, check_finite=False) as vec:
        vec.reset(seed=1)
        vec.send([1, 0])
        batch = vec.recv()
        assert np.isnan(batch.rewards).tolist() == [True, False]
        assert batch.valid.all()
        assert not vec.faults


class SpoiledHerd(Herd):
    """A sheep whose second reward is NaN."""

    def step(self, actions: dict[str, Any]) -> Any:
        observations, rewards, *rest = super().step(actions)
        if self.time == 2:
            rewards["sheep_1"] = np.nan
        return observations, rewards, *rest


def test_agents_are_named() -> None:
    with make(SpoiledHerd, 1, backend="serial") as vec:
        vec.reset(seed=1)
        for _ in range(2):
            actions = tuple(group.action_layout.zeros(group.num_agents) for group in vec.groups)
            vec.step(actions)
        assert "nan as reward of agent 'sheep_1'" in vec.faults[0].detail


class OwnEnv(Env):
    """An environment that writes rows itself."""

    def __init__(self) -> None:
        layout = Layout.of(spaces.Box(-1, 1, (2,)))
        self.groups = (AgentGroup("agent", ("agent_0",), layout, Layout.of(spaces.Discrete(2))),)

    def bind(self, *buffers: Buffers) -> None:
        self.buffers = buffers
        buffers[0].valid[:] = True

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.buffers[0].observations[:] = 0
        self.buffers[0].live[:] = True

    def step(self) -> None:
        self.buffers[0].observations[0, 1] = np.nan if self.buffers[0].actions[0, 0] else 0.5

    def close(self) -> None:
        pass


def test_environments_that_write_rows_themselves_are_checked() -> None:
    with make(OwnEnv, 2, backend="serial") as vec:
        vec.reset(seed=1)
        vec.send([0, 1])
        assert vec.recv().valid.tolist() == [True, False]
        assert "nan in observation [1]" in vec.faults[0].detail


class SpoiledBatch(BatchEnv):
    """Copies that step at once; action 1 spoils."""

    def __init__(self, copies: int) -> None:
        super().__init__(copies, spaces.Box(-1, 1, (2,)), spaces.Discrete(2))

    def begin(self, seeds: Any) -> Any:
        return np.zeros((self.num_envs, 2), np.float32)

    def advance(self, actions: Any) -> Moves:
        seen = np.zeros((self.num_envs, 2), np.float32)
        seen[np.flatnonzero(actions), 1] = np.nan
        flags = np.zeros(self.num_envs, np.bool_)
        return Moves(seen, np.ones(self.num_envs), flags, flags)


@pytest.mark.parametrize("checks", [True, False])
def test_copies_that_step_at_once_are_checked(checks: bool) -> None:
    batches = [SpoiledBatch(2), SpoiledBatch(2)]
    buffers = SharedBuffers(batches[0].groups, 4, 0)
    backend = BatchBackend(batches, buffers, checks)
    with Vector(buffers, backend, VectorSettings(4)) as vec:
        vec.reset(seed=1)
        vec.step([0, 0, 0, 0])
        if checks:
            with pytest.raises(WorkerError, match=r"nan in observation \[1\] of copy 1 in batch 1"):
                vec.step([0, 0, 0, 1])
        else:
            vec.step([0, 0, 0, 1])


@given(
    st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
        lambda dtype: arrays.arrays(dtype, st.integers(1, 40).map(lambda n: (3, n)))
    )
)
def test_the_native_check_agrees_with_numpy(rows: Any) -> None:
    check = FiniteCheck()
    size = rows.dtype.itemsize
    check.add(rows.view(np.uint8), [(0, rows.shape[1], size)])
    assert check.finite() == bool(np.isfinite(rows).all())
    flags = FiniteCheck()
    flags.add(rows.view(np.uint8), [(0, rows.shape[1], size)], np.array([False, True, False]))
    assert flags.finite() == bool(np.isfinite(rows[1]).all())


def test_the_native_check_refuses_what_does_not_fit() -> None:
    rows = np.zeros((2, 8), np.uint8)
    for spans in ([(0, 3, 4)], [(9, 0, 4)], [(0, 1, 3)], [(0, 1)], [(4, 2**61, 8)]):
        with pytest.raises(ValueError, match=r"FiniteCheck\.add"):
            FiniteCheck().add(rows, spans)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one flag"):
        FiniteCheck().add(rows, [(0, 2, 4)], np.zeros(3, np.bool_))
