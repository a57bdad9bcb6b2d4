"""Environments with costs: what they charge, and that safety and reward pull apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fugu

optimize = pytest.importorskip("scipy.optimize")

BASE = 32  # bytes of FuguEnv, before an environment's own fields
Array = NDArray[Any]


def make(name: str, copies: int, **settings: Any) -> Any:
    return fugu.make(name, copies, backend="native", num_workers=1, env_kwargs=settings)


def play(vec: Any, policy: Callable[[Array], Array], steps: int, seed: int = 1) -> dict[str, Any]:
    """Everything that happened: arrays `[steps, copies]`, and the infos of episodes that ended."""
    observations, _ = vec.reset(seed=seed)
    rows: dict[str, list[Array]] = {"rewards": [], "costs": [], "ended": []}
    infos: list[dict[str, Any]] = []
    for _ in range(steps):
        vec.send(policy(observations))
        batch = vec.recv()
        observations = batch.observations
        rows["rewards"].append(batch.rewards.copy())
        rows["costs"].append(batch.costs[:, 0].copy())
        rows["ended"].append(batch.terminations | batch.truncations)
        infos += [info for several in batch.infos.values() for info in several]
    return {**{name: np.array(values) for name, values in rows.items()}, "infos": infos}


def mean(infos: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([info[name] for info in infos]))


# ---------------------------------------------------------------------- the grid, as a table


def hazards_of(vec: Any, size: int) -> Array:
    """Which cells cost, from the struct: row, column, cost, size, layout, slip, step_penalty."""
    return vec.state()[0, BASE + 28 : BASE + 28 + size * size].astype(bool)


def table(size: int, slip: float) -> Array:
    """Chances `[cell, action, next cell]` of the rules in words; the goal is the last cell."""
    moves = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    chances = np.zeros((size * size, 4, size * size))
    for cell in range(size * size):
        for action in range(4):
            for turn, chance in ((0, 1 - slip), (1, slip / 2), (-1, slip / 2)):
                down, right = moves[(action + turn) % 4]
                row = min(max(cell // size + down, 0), size - 1)
                column = min(max(cell % size + right, 0), size - 1)
                chances[cell, action, row * size + column] += chance
    return chances


def optimum(
    size: int, slip: float, hazard: Array, gamma: float, limit: float | None
) -> tuple[float, float, Array]:
    """The best discounted return with discounted cost within `limit`, its cost, its policy.

    A linear program over occupancy measures x[cell, action] >= 0: what flows out of a cell is what
    begins there and what flows in. The goal ends an episode, so nothing flows out of it.
    """
    chances, cells = table(size, slip), size * size - 1
    start, goal = size * (size - 1), size * size - 1
    reward = chances[:cells, :, goal] - 0.01
    cost = (chances[:cells] @ hazard).ravel()
    flow = np.repeat(np.eye(cells), 4, axis=0) - gamma * chances[:cells, :, :cells].reshape(
        cells * 4, cells
    )
    found = optimize.linprog(
        -reward.ravel(),
        A_ub=None if limit is None else cost[None],
        b_ub=None if limit is None else [limit],
        A_eq=flow.T,
        b_eq=np.eye(cells)[start],
    )
    assert found.status == 0
    visits = found.x.reshape(cells, 4)
    policy = np.full((size * size, 4), 0.25)
    policy[:cells] = np.where(
        visits.sum(1, keepdims=True) > 1e-9,
        visits / np.maximum(visits.sum(1)[:, None], 1e-12),
        0.25,
    )
    return -float(found.fun), float(cost @ found.x), policy


def sampler(policy: Array, seed: int = 0) -> Callable[[Array], Array]:
    random, sums = np.random.default_rng(seed), policy.cumsum(1)

    def act(observations: Array) -> Array:
        cells = observations.argmax(1)
        return np.minimum((random.random(len(cells))[:, None] > sums[cells]).sum(1), 3)

    return act


def discounted(played: dict[str, Any], name: str, gamma: float) -> tuple[float, float]:
    """The mean of the first episodes' discounted sums, and its standard error."""
    before = np.cumsum(played["ended"], 0) - played["ended"]
    weights = gamma ** np.arange(len(before))[:, None] * (before == 0)
    sums = (weights * played[name]).sum(0)
    return float(sums.mean()), float(sums.std() / np.sqrt(len(sums)))


@pytest.mark.parametrize(("size", "layout", "slip"), [(5, 0, 0.1), (3, 0, 0.0), (6, 7, 0.5)])
def test_the_grid_moves_by_its_table(size: int, layout: int, slip: float) -> None:
    vec = make("hazard_grid", 256, size=size, layout=layout, slip=slip, max_steps=0)
    observations, _ = vec.reset(seed=3)
    assert (observations.argmax(1) == size * (size - 1)).all()
    hazard, goal = hazards_of(vec, size), size * size - 1
    random, counts = np.random.default_rng(1), np.zeros((size * size, 4, size * size))
    for _ in range(1500):
        before, actions = observations.argmax(1), random.integers(0, 4, 256)
        vec.send(actions)
        batch = vec.recv()
        observations = batch.observations.copy()
        seen = np.where(batch.terminations[:, None], batch.final, observations)
        after = seen.argmax(1)
        assert (seen.sum(1) == 1).all()
        np.add.at(counts, (before, actions, after), 1)
        np.testing.assert_array_equal(batch.terminations, after == goal)
        np.testing.assert_array_equal(batch.costs[:, 0], hazard[after])
        np.testing.assert_allclose(batch.rewards, (after == goal) - 0.01, rtol=1e-6)
    totals, chances = counts.sum(2), table(size, slip)
    assert (totals[:goal] > 50).all()
    assert (counts[chances == 0] == 0).all()
    deviation = np.sqrt(totals[..., None] * chances * (1 - chances))
    assert (np.abs(counts - totals[..., None] * chances) <= 5 * deviation + 1e-6).all()


@pytest.mark.parametrize("size", [3, 5, 8])
def test_the_shortest_way_crosses_hazards_and_a_safe_one_exists(size: int) -> None:
    seen = set()
    for layout in range(12):
        vec = make("hazard_grid", 1, size=size, layout=layout)
        vec.reset(seed=layout)
        hazard = hazards_of(vec, size).reshape(size, size)
        vec.reset(seed=99)
        assert (hazards_of(vec, size) == hazard.ravel()).all()  # not of the episode
        assert hazard[-1].any()  # the bottom row is the only way in size - 1 steps
        assert not hazard[0].any()  # up, along the top, and down again
        assert not hazard[:, [0, -1]].any()
        assert layout > 0 or hazard.sum() == hazard[-1].sum() == size - 2
        seen.add(hazard.tobytes())
    assert len(seen) > (1 if size == 3 else 8)


def test_the_grids_constrained_optimum_is_computed_and_reached() -> None:
    size, slip, gamma = 5, 0.1, 0.95
    vec = make("hazard_grid", 2048, size=size, slip=slip, max_steps=0)
    vec.reset(seed=1)
    hazard = hazards_of(vec, size)
    values = []
    for limit in (None, 0.5, 0.1):
        value, cost, policy = optimum(size, slip, hazard, gamma, limit)
        played = play(vec, sampler(policy), 120)
        reward, reward_error = discounted(played, "rewards", gamma)
        paid, paid_error = discounted(played, "costs", gamma)
        assert abs(reward - value) < 5 * reward_error
        assert abs(paid - cost) < 5 * paid_error
        assert limit is None or cost == pytest.approx(limit)  # the limit binds
        values.append((value, cost))
        print(f"limit {limit}: return {value:.4f} at cost {cost:.4f}; played {reward:.4f}")
    assert values[0][0] > values[1][0] + 0.02 > values[2][0] + 0.03
    assert values[0][1] > 2 * values[1][1]


def test_the_grid_logs_costs_and_is_cut_off() -> None:
    right = play(make("hazard_grid", 2, slip=0), lambda o: np.full(len(o), 1), 4)
    np.testing.assert_array_equal(right["costs"][:, 0], [1, 1, 1, 0])
    np.testing.assert_allclose(right["rewards"][:, 0], [-0.01, -0.01, -0.01, 0.99], rtol=1e-6)
    assert right["infos"][0]["cost"] == 3
    assert right["infos"][0]["solved"] == 1
    # Into the first hazard, then against the floor until the end.
    ways = iter([1] + [2] * 9)
    stuck = play(make("hazard_grid", 1, slip=0, max_steps=10), lambda o: np.array([next(ways)]), 10)
    assert stuck["costs"].sum() == stuck["infos"][0]["cost"] == 10
    assert stuck["infos"][0]["solved"] == 0
    assert stuck["infos"][0]["episode_length"] == 10
    dear = play(make("hazard_grid", 1, step_penalty=0.5), lambda o: np.array([0]), 1)
    assert dear["rewards"][0, 0] == -0.5


# ---------------------------------------------------------------------- the point robot


def point(vec: Any, hazards: int = 8) -> dict[str, Array]:
    """Its struct: robot, velocity, goal, heading, spin, cost, goals, settings, hazards."""
    raw = vec.state()[:, BASE:].copy()
    numbers = raw[:, : 4 * (13 + 32)].view(np.float32).astype(np.float64)
    return {
        "robot": numbers[:, 0:2],
        "velocity": numbers[:, 2:4],
        "goal": numbers[:, 4:6],
        "heading": numbers[:, 6],
        "spin": numbers[:, 7],
        "hazards": numbers[:, 13 : 13 + 2 * hazards].reshape(len(raw), hazards, 2),
    }


def lidar(robot: Array, heading: float, things: Array) -> Array:
    """What 16 bins see, one thing after the other."""
    bins = np.zeros(16)
    for x, y in things - robot:
        close = max(0.0, 1 - np.hypot(x, y) / 3)
        place = ((np.arctan2(y, x) - heading) % (2 * np.pi)) / (2 * np.pi) * 16
        i, part = int(place) % 16, place - int(place)
        for k, value in ((i, close), (i + 1, part * close), (i - 1, (1 - part) * close)):
            bins[k % 16] = max(bins[k % 16], value)
    return bins


def seek(o: Array) -> Array:
    """Straight to the goal."""
    ahead = (np.arange(16) + 0.5) * np.pi / 8
    goal = o[:, 3:19]
    angle = np.arctan2((goal * np.sin(ahead)).sum(1), (goal * np.cos(ahead)).sum(1))
    return np.stack([np.clip(np.cos(angle), 0.1, 1), np.clip(2 * angle, -1, 1)], 1).astype("f4")


def avoid(o: Array) -> Array:
    """To the goal, by the direction that leads there best without a hazard close ahead."""
    ahead = (np.arange(16) + 0.5) * np.pi / 8
    goal, hazard = o[:, 3:19], o[:, 19:35]
    toward = np.arctan2((goal * np.sin(ahead)).sum(1), (goal * np.cos(ahead)).sum(1))
    danger = np.maximum(hazard - 0.82, 0) * 40  # nearer than about half a metre
    danger = danger + 0.5 * (np.roll(danger, 1, 1) + np.roll(danger, -1, 1))
    merit = np.cos(ahead - toward[:, None]) + 0.3 * np.cos(ahead) - danger
    angle = ahead[merit.argmax(1)]
    angle = np.where(angle > np.pi, angle - 2 * np.pi, angle)
    threat = danger[:, [15, 0]].max(1)
    force = np.where(threat > 0.5, -o[:, 0], 0.5 * np.clip(np.cos(angle), 0, 1))
    return np.stack([np.clip(force, -1, 1), np.clip(2 * angle, -1, 1)], 1).astype(np.float32)


@pytest.mark.parametrize("hazards", [0, 8, 16])
def test_the_point_robot_moves_sees_and_pays_by_its_rules(hazards: int) -> None:
    vec = make("point_goal", 64, hazards=hazards, max_steps=200)
    observations, _ = vec.reset(seed=1)
    random, jumps, paid = np.random.default_rng(2), 0, 0
    was = point(vec, hazards)
    for t in range(199):
        actions = seek(observations) if t % 3 else random.uniform(-1, 1, (64, 2)).astype("f4")
        vec.send(actions)
        batch = vec.recv()
        observations, now = batch.observations, point(vec, hazards)
        force, turn = actions.T.astype(np.float64)
        facing = np.stack([np.cos(was["heading"]), np.sin(was["heading"])], 1)
        velocity = was["velocity"] + (1.5 * force[:, None] * facing - was["velocity"]) / 15
        spin = was["spin"] + 0.2 * (3 * turn - was["spin"])
        place = was["robot"] + 0.02 * velocity
        velocity = np.where(np.abs(place) > 2, 0, velocity)
        place = np.clip(place, -2, 2)
        turned = was["heading"] + 0.02 * spin - now["heading"]
        np.testing.assert_allclose(np.cos(turned), 1, atol=1e-5)
        np.testing.assert_allclose(now["velocity"], velocity, atol=1e-5)
        np.testing.assert_allclose(now["spin"], spin, atol=1e-5)
        np.testing.assert_allclose(now["robot"], place, atol=1e-5)

        far = np.linalg.norm(was["goal"] - place, axis=1)
        reached = far < 0.3
        progress = np.linalg.norm(was["goal"] - was["robot"], axis=1) - far
        np.testing.assert_allclose(batch.rewards, progress + reached, atol=1e-5)
        np.testing.assert_array_equal((now["goal"] != was["goal"]).any(1), reached)
        np.testing.assert_array_equal(now["hazards"], was["hazards"])
        gap = np.linalg.norm(now["hazards"] - now["robot"][:, None], axis=2)
        inside = (gap < 0.2).any(1) if hazards else np.zeros(64, bool)
        np.testing.assert_array_equal(batch.costs[:, 0], inside)
        jumps, paid = jumps + int(reached.sum()), paid + int(inside.sum())
        if t % 20 == 0:
            for i in range(64):
                at = now["robot"][i], now["heading"][i]
                seen = np.concatenate(
                    [lidar(*at, now["goal"][i][None]), lidar(*at, now["hazards"][i])]
                )
                np.testing.assert_allclose(observations[i, 3:], seen, atol=2e-4)
                ahead = np.array([np.cos(at[1]), np.sin(at[1])])
                speeds = now["velocity"][i] @ np.array([ahead, [-ahead[1], ahead[0]]]).T / 1.5
                np.testing.assert_allclose(observations[i, :2], speeds, atol=1e-5)
                assert observations[i, 2] == pytest.approx(now["spin"][i] / 3, abs=1e-5)
        was = now
    assert jumps > 20
    assert (paid > 100) == (hazards > 0)


def test_the_point_robots_arena_is_laid_out_fairly() -> None:
    vec = make("point_goal", 512)
    vec.reset(seed=6)
    now = point(vec)
    assert np.abs(now["goal"]).max() <= 1.5 >= np.abs(now["hazards"]).max()
    gap = np.linalg.norm(now["hazards"] - now["robot"][:, None], axis=2)
    assert gap.min() > 0.2  # nobody begins within a hazard
    assert np.linalg.norm(now["hazards"] - now["goal"][:, None], axis=2).min() > 0.2
    assert np.linalg.norm(now["goal"] - now["robot"], axis=1).min() > 0.3
    apart = np.linalg.norm(now["hazards"][:, :, None] - now["hazards"][:, None], axis=3)
    assert apart[:, ~np.eye(8, dtype=bool)].min() > 0.35
    assert len(np.unique(now["hazards"][:, 0], axis=0)) == 512


def test_a_careful_robot_pays_less_than_a_greedy_one_and_still_finds_goals() -> None:
    greedy = play(make("point_goal", 64), seek, 1000)
    careful = play(make("point_goal", 64), avoid, 1000)
    for played in (greedy, careful):
        assert len(played["infos"]) == 64
        np.testing.assert_allclose(mean(played["infos"], "cost"), played["costs"].sum(0).mean())
        assert played["ended"].sum() == played["ended"][-1].sum() == 64
    assert mean(careful["infos"], "cost") < 0.3 * mean(greedy["infos"], "cost")
    assert mean(greedy["infos"], "goals") > mean(careful["infos"], "goals") > 2
    assert mean(play(make("point_goal", 8, hazards=0), seek, 1000)["infos"], "cost") == 0


@pytest.mark.parametrize("name", ["hazard_grid", "constrained_cartpole", "point_goal"])
def test_they_declare_one_cost(name: str) -> None:
    vec = make(name, 1)
    assert vec.groups[0].num_costs == 1
    vec.reset(seed=1)
    _, shapes = vec.apply(lambda env: env.display_list())[0]
    assert 10 < len(shapes) < 200
