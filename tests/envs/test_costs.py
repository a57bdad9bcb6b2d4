"""Costs of environments in Python: from infos into the slab, by names, on every way there."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import fugu
from fugu.core.errors import EnvError, UsageError
from fugu.envs.wrappers import PLANAR, THRESHOLDS, VelocityCost


class Toll(gymnasium.Env[Any, Any]):
    """Episodes of four steps; a step costs its number, and ten times its number."""

    observation_space, action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        seen = np.full(1, self.time, np.float32)
        return seen, 1.0, False, self.time == 4, self.told(self.time)

    def told(self, time: int) -> dict[str, Any]:
        costs = {"constraint_costs": np.array([time, 10 * time])}
        return {"cost": float(time), "cost_speed": 10 * time, "nested": {"a": time}, **costs}


class SixValues(Toll):
    """As safety-gymnasium's: the cost stands third."""

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, _ = super().step(action)
        return seen, reward, float(self.time), terminated, truncated, {}


class Silent(Toll):
    def told(self, time: int) -> dict[str, Any]:
        return {"cost": 1.0} if time < 3 else {}


class Masked(Toll):
    """With masks there is no shortcut through the native stepper."""

    def action_masks(self) -> Any:
        return np.ones(2, bool)


def paid(vec: Any, steps: int) -> tuple[list[Any], list[Any]]:
    costs, infos = [], []
    vec.async_reset(1)
    batch = vec.recv()
    assert not batch.costs.any()
    for _ in range(steps):
        vec.send(np.zeros((vec.num_envs, 1), np.int64))
        batch = vec.recv()
        costs.append(batch.costs[0].tolist())
        infos += [info for told in batch.infos.values() for info in told]
    return costs, infos


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize(
    "names",
    [
        ("cost", "cost_speed"),
        ("constraint_costs/0", "constraint_costs/1"),
        ("nested/a", "cost_speed"),
    ],
)
def test_costs_are_found_by_name(names: tuple[str, ...], backend: Any) -> None:
    with fugu.make(Toll, 2, backend=backend, costs=names) as vec:
        assert vec.groups[0].num_costs == 2
        costs, _ = paid(vec, 6)
    assert costs == [[1, 10], [2, 20], [3, 30], [4, 40], [1, 10], [2, 20]]


@pytest.mark.parametrize("env", [Toll, Masked, SixValues])
def test_episodes_tell_the_sums_of_costs(env: Any) -> None:
    with fugu.make(env, 1, backend="serial", costs=("cost",)) as vec:
        costs, infos = paid(vec, 8)
    assert costs == [[1], [2], [3], [4]] * 2
    assert [info["cost"] for info in infos] == [10.0, 10.0]


def test_nobody_asks_and_nothing_is_paid() -> None:
    with fugu.make(Toll, 1, backend="serial") as vec:
        costs, infos = paid(vec, 4)
    assert costs == [[]] * 4
    assert infos[0]["cost"] == 2.5  # a mean, as of every entry


def test_a_missing_cost_is_an_error() -> None:
    env = fugu.emulate(Silent, costs=("cost",))
    env.reset(1)
    env.step()
    env.step()
    with pytest.raises(EnvError, match="without a number 'cost'"):
        env.step()


def test_six_values_need_the_name() -> None:
    env = fugu.emulate(SixValues)
    env.reset(1)
    with pytest.raises(EnvError, match="costs="):
        env.step()


@pytest.mark.parametrize("wrong", ["cost", ("",)])
def test_names_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="costs: given"):
        fugu.emulate(Toll, costs=wrong)


def test_agents_pay_each_for_itself() -> None:
    pytest.importorskip("pettingzoo")
    from pettingzoo import ParallelEnv

    class Two(ParallelEnv):  # type: ignore[misc]
        possible_agents = ["a", "b"]

        def observation_space(self, agent: Any) -> Any:
            return spaces.Box(0, 1, (1,))

        def action_space(self, agent: Any) -> Any:
            return spaces.Discrete(2)

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            self.agents = ["a", "b"]
            return {agent: np.zeros(1, np.float32) for agent in self.agents}, {}

        def step(self, actions: Any) -> Any:
            seen = {agent: np.zeros(1, np.float32) for agent in self.agents}
            no = dict.fromkeys(self.agents, False)
            infos = {"a": {"cost": 1.0}, "b": {"cost": 5.0}}
            return seen, dict.fromkeys(self.agents, 0.0), no, no, infos

    env = fugu.emulate(Two, costs=("cost",))
    env.reset(1)
    env.step()
    assert env.buffers[0].costs.tolist() == [[1.0], [5.0]]


# ------------------------------------------------------------------ velocity


@pytest.mark.parametrize("robot", THRESHOLDS)
def test_going_too_fast_costs(robot: str) -> None:
    pytest.importorskip("mujoco")
    with fugu.make(f"velocity:{robot}-v5", 1, backend="serial", costs=("cost",)) as vec:
        assert vec.groups[0].num_costs == 1
    from fugu.envs.resolve import resolve

    env = resolve(f"velocity:{robot}")()
    assert isinstance(env, VelocityCost)
    assert env.threshold == THRESHOLDS[robot]
    env.reset(seed=0)
    env.action_space.seed(0)
    seen = []
    for _ in range(300):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        speed = info["x_velocity"]
        if robot in PLANAR:
            speed = np.hypot(speed, info["y_velocity"])
        seen.append(info["cost"])
        assert info["cost"] == (speed > THRESHOLDS[robot])
        if terminated or truncated:
            env.reset()
    assert 0.0 in seen


def test_robots_without_a_threshold_are_refused() -> None:
    pytest.importorskip("mujoco")
    from fugu.envs.resolve import resolve

    with pytest.raises(UsageError, match="Nearest: velocity:"):
        resolve("velocity:Reacher-v5")()
