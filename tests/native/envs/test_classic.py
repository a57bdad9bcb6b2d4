"""The classic tasks move as Gymnasium's do, step by step; a cart with a safe zone as well."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import fugu

BASE = 32  # bytes of FuguEnv, before an environment's own fields
COPIES = 4096


def make(name: str, copies: int = COPIES, **settings: Any) -> Any:
    return fugu.make(name, copies, backend="native", num_workers=1, env_kwargs=settings)


def fields(states: NDArray[np.uint8], count: int) -> NDArray[np.float32]:
    """The first numbers of each struct behind its base, `[copies, count]`, to read and write."""
    return states[:, BASE : BASE + 4 * count].view(np.float32)


def step_from(vec: Any, states: NDArray[np.float32], actions: NDArray[Any]) -> dict[str, Any]:
    """One step of each copy from a state of ours; observations are those before a new episode."""
    vec.reset(seed=0)
    raw = vec.state()
    fields(raw, states.shape[1])[:] = states
    raw[:, 24:28].view(np.int32)[:] = 0  # steps of the episode, so that none is cut off
    vec.set_state(raw)
    np.testing.assert_array_equal(fields(vec.state(), states.shape[1]), states)
    vec.send(actions)
    batch = vec.recv()
    ended = batch.terminations | batch.truncations
    return {
        "observations": np.where(ended[:, None], batch.final, batch.observations),
        "rewards": batch.rewards.copy(),
        "terminations": batch.terminations.copy(),
        "states": fields(vec.state(), states.shape[1]).copy(),
        "ended": ended,
    }


def gymnasium_steps(
    name: str, states: NDArray[np.float32], actions: Any, **settings: Any
) -> dict[str, Any]:
    env = gymnasium.make(name, **settings).unwrapped
    env.reset(seed=0)
    out: dict[str, list[Any]] = {n: [] for n in ("observations", "rewards", "terminations")}
    out["states"] = []
    for state, action in zip(states.astype(np.float64), actions, strict=True):
        env.state = state.copy()  # type: ignore[attr-defined]
        if hasattr(env, "steps_beyond_terminated"):
            env.steps_beyond_terminated = None
        observation, reward, terminated, _, _ = env.step(action)
        out["observations"].append(observation)
        out["rewards"].append(reward)
        out["terminations"].append(terminated)
        out["states"].append(np.array(env.state, np.float64))  # type: ignore[attr-defined]
    return {name: np.array(values) for name, values in out.items()}


def uniform(seed: int, *halves: float) -> NDArray[np.float32]:
    high = np.array(halves)
    return np.random.default_rng(seed).uniform(-high, high, (COPIES, len(high))).astype(np.float32)


def assert_same(ours: Any, theirs: Any, margin: NDArray[Any], **tolerance: float) -> None:
    """Equal but for rounding; ends too, except within rounding of the line that ends them."""
    for name in ("observations", "rewards"):
        np.testing.assert_allclose(ours[name], theirs[name], **tolerance)
    clear = np.abs(margin) > 1e-5
    assert clear.mean() > 0.98
    np.testing.assert_array_equal(ours["terminations"][clear], theirs["terminations"][clear])
    assert 0.01 < ours["terminations"].mean() < 0.99


def test_cartpole_steps_as_gymnasium_does() -> None:
    states = uniform(1, 2.5, 3.0, 0.22, 3.0)
    actions = np.random.default_rng(2).integers(0, 2, COPIES)
    ours = step_from(make("cartpole"), states, actions)
    theirs = gymnasium_steps("CartPole-v1", states, actions)
    x, angle = np.abs(theirs["states"][:, 0]), np.abs(theirs["states"][:, 2])
    margin = np.minimum(np.abs(x - 2.4), np.abs(angle - math.radians(12)))
    assert_same(ours, theirs, margin, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("goal_velocity", [0.0, 0.03])
def test_mountain_car_steps_as_gymnasium_does(goal_velocity: float) -> None:
    random = np.random.default_rng(3)
    positions = random.uniform(-1.2, 0.6, COPIES)
    positions[::4] = random.uniform(-1.2, -1.1, len(positions[::4]))  # near the wall
    positions[1::4] = random.uniform(0.42, 0.58, len(positions[1::4]))  # near the flag
    states = np.stack([positions, random.uniform(-0.07, 0.07, COPIES)], 1).astype(np.float32)
    actions = random.integers(0, 3, COPIES)
    ours = step_from(make("mountain_car", goal_speed=goal_velocity), states, actions)
    theirs = gymnasium_steps("MountainCar-v0", states, actions, goal_velocity=goal_velocity)
    past, fast = theirs["states"].T - np.array([[0.5], [goal_velocity]])
    margin = np.where(past < 0, past, np.minimum(past, np.abs(fast)))
    assert_same(ours, theirs, margin, rtol=1e-5, atol=5e-7)
    stopped = (ours["observations"] == np.float32([-1.2, 0])).all(1)
    assert stopped.sum() > 50


def test_acrobot_steps_as_gymnasium_does() -> None:
    states = uniform(4, math.pi, math.pi, 4.0, 6.0)
    actions = np.random.default_rng(5).integers(0, 3, COPIES)
    ours = step_from(make("acrobot"), states, actions)
    theirs = gymnasium_steps("Acrobot-v1", states, actions)
    first, second = theirs["states"].T[:2]
    margin = -np.cos(first) - np.cos(first + second) - 1.0
    assert_same(ours, theirs, margin, rtol=2e-5, atol=2e-5)


def test_acrobot_is_as_right_as_float32_allows_at_its_highest_speeds() -> None:
    """There a step multiplies errors, so ours is held against what rounding a state costs."""
    states = uniform(6, math.pi, math.pi, 4 * math.pi, 9 * math.pi)
    actions = np.random.default_rng(7).integers(0, 3, COPIES)
    ours = step_from(make("acrobot"), states, actions)["observations"]
    theirs = gymnasium_steps("Acrobot-v1", states, actions)["observations"]
    rounding = np.zeros(COPIES)
    for i in range(4):
        nearby = states.copy()
        nearby[:, i] = np.nextafter(states[:, i], np.float32(0))
        moved = gymnasium_steps("Acrobot-v1", nearby, actions)["observations"]
        rounding += np.abs(moved - theirs).max(1)
    error = np.abs(ours - theirs).max(1)
    assert (error < 5e-5 + 30 * rounding).all()
    assert (np.abs(ours[:, 5]) == np.float32(9 * math.pi)).any()  # speeds are bounded
    assert (np.abs(ours[:, 4]) == np.float32(4 * math.pi)).any()


@pytest.mark.parametrize("gravity", [10.0, 9.81])
def test_pendulum_steps_as_gymnasium_does(gravity: float) -> None:
    states = uniform(8, math.pi, 8.0)
    actions = np.random.default_rng(9).uniform(-2, 2, (COPIES, 1)).astype(np.float32)
    ours = step_from(make("pendulum", gravity=gravity), states, actions)
    theirs = gymnasium_steps("Pendulum-v1", states, actions, g=gravity)
    for name in ("observations", "rewards"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=2e-6)
    assert not ours["ended"].any()
    assert (np.abs(ours["states"][:, 0]) <= np.float32(math.pi)).all()  # angles do not grow
    assert (np.abs(theirs["states"][:, 0]) > math.pi).any()  # although it turned over
    assert (np.abs(ours["observations"][:, 2]) == 8).any()


def test_pendulum_plays_a_whole_episode_as_gymnasium_does() -> None:
    vec, env = make("pendulum", 1), gymnasium.make("Pendulum-v1")
    vec.reset(seed=3)
    env.reset(seed=0)
    env.unwrapped.state = fields(vec.state(), 2)[0].astype(np.float64)  # type: ignore[attr-defined]
    total = 0.0
    for t in range(1, 201):
        # Damps the swing: not chaotic, so that errors do not grow.
        _, _, spin = env.unwrapped._get_obs()  # type: ignore[attr-defined]
        action = np.clip(np.array([-spin], np.float32), -2, 2)
        theirs, reward, _, truncated, _ = env.step(action)
        total += float(reward)
        observations, rewards, terminations, truncations, infos = vec.step(action[None])
        np.testing.assert_allclose(rewards[0], reward, rtol=1e-3, atol=1e-3)
        assert not terminations[0]
        assert truncations[0] == truncated == (t == 200)
        if t < 200:
            np.testing.assert_allclose(observations[0], theirs, atol=1e-3)
    assert infos[0][0]["episode_return"] == pytest.approx(total, rel=1e-4)
    assert infos[0][0]["episode_length"] == 200


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("cartpole", [-0.05] * 4, [0.05] * 4),
        ("mountain_car", [-0.6, 0], [-0.4, 0]),
        ("acrobot", [-0.1] * 4, [0.1] * 4),
        ("pendulum", [-math.pi, -1], [math.pi, 1]),
    ],
)
def test_episodes_begin_anywhere_in_gymnasiums_range(
    name: str, low: list[float], high: list[float]
) -> None:
    vec = make(name)
    vec.reset(seed=11)
    states, bottom, top = fields(vec.state(), len(low)), np.float32(low), np.float32(high)
    assert (states >= bottom).all()
    assert (states <= top).all()
    width = top - bottom
    for quantile in (0.0, 0.25, 0.5, 0.75, 1.0):  # evenly: 4096 draws are right to 3 percent
        near = np.quantile(states, quantile, axis=0)
        assert (np.abs(near - (bottom + quantile * width)) <= 0.03 * width + 1e-7).all()
    if name != "mountain_car":
        assert np.abs(np.corrcoef(states.T) - np.eye(len(low))).max() < 0.07


@pytest.mark.parametrize(
    ("name", "action", "steps"),
    [("mountain_car", 1, 200), ("acrobot", 1, 500), ("pendulum", [0.0], 200)],
)
def test_an_episode_without_success_is_cut_off(name: str, action: Any, steps: int) -> None:
    vec = make(name, 2)
    vec.reset(seed=1)
    actions = np.array([action, action], np.float32 if name == "pendulum" else np.int64)
    for t in range(1, steps + 1):
        _, _, terminations, truncations, infos = vec.step(actions)
        assert not terminations.any()
        assert truncations.all() == truncations.any() == (t == steps)
    assert infos[0][0]["episode_length"] == steps
    if name != "pendulum":
        assert infos[0][0]["episode_return"] == -steps
        assert infos[0][0]["solved"] == 0


def play(vec: Any, policy: Any, steps: int) -> list[dict[str, Any]]:
    """The infos of all episodes that ended."""
    observations, _ = vec.reset(seed=5)
    ended: list[dict[str, Any]] = []
    for _ in range(steps):
        observations, *_, infos = vec.step(policy(observations))
        ended += [info for several in infos.values() for info in several]
    return ended


def test_mountain_car_is_solved_by_pushing_along_with_the_swing() -> None:
    episodes = play(make("mountain_car", 32), lambda o: np.where(o[:, 1] < 0, 0, 2), 400)
    assert len(episodes) >= 64
    assert all(info["solved"] == 1 and info["episode_length"] < 160 for info in episodes)
    assert all(info["episode_return"] == -info["episode_length"] for info in episodes)


def test_acrobot_is_solved_by_pumping_energy_and_the_last_step_is_free() -> None:
    episodes = play(make("acrobot", 32), lambda o: np.where(o[:, 4] < 0, 2, 0), 600)
    solved = [info for info in episodes if info["solved"]]
    assert len(solved) > 0.9 * len(episodes) > 0
    assert all(info["episode_return"] == 1 - info["episode_length"] for info in solved)


def test_pendulum_is_held_upright_by_a_swing_up_of_energy() -> None:
    def policy(o: NDArray[np.float32]) -> NDArray[np.float32]:
        cosine, sine, spin = o.T
        energy = spin**2 / 6 + 5 * (cosine - 1)  # of a rod, against standing upright
        swing = np.where(energy < 0, 2, -2) * np.sign(spin + 1e-6)
        hold = -12 * np.arctan2(sine, cosine) - 3 * spin
        return np.clip(np.where(cosine > 0.9, hold, swing), -2, 2)[:, None].astype(np.float32)

    returns = [info["episode_return"] for info in play(make("pendulum", 64), policy, 200)]
    assert np.mean(returns) > -300  # random play earns about -1200


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mountain_car", {"force": 0.01}),
        ("mountain_car", {"gravity": 0.0}),
        ("acrobot", {"torque": 3.0}),
        ("acrobot", {"gravity": 1.0}),
        ("pendulum", {"mass": 2.0}),
        ("pendulum", {"length": 2.0}),
    ],
)
def test_settings_change_the_motion(name: str, settings: dict[str, float]) -> None:
    usual, other = make(name, 8), make(name, 8, **settings)
    np.testing.assert_array_equal(usual.reset(seed=1)[0], other.reset(seed=1)[0])
    actions = np.full((8, 1), 2.0, np.float32) if name == "pendulum" else np.full(8, 2)
    assert not np.isclose(usual.step(actions)[0], other.step(actions)[0], rtol=1e-4).all(1).any()


def mean(infos: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([info[name] for info in infos]))


def test_the_constrained_cart_moves_as_cartpole_and_charges_outside_of_its_zone() -> None:
    names = {"lure": 0.5, "x_safe": 0.1}
    plain, ours = make("cartpole", 512), make("constrained_cartpole", 512, **names)
    random = np.random.default_rng(4)
    np.testing.assert_array_equal(plain.reset(seed=2)[0], ours.reset(seed=2)[0])
    unpaid, outside, totals = 0, 0, np.zeros(512)
    for _ in range(200):
        actions, same = random.integers(0, 2, 512), plain.state()
        same[:, BASE : BASE + 16] = ours.state()[:, BASE : BASE + 16]  # the pole magnifies rounding
        plain.set_state(same)
        ours.send(actions)
        batch = ours.recv()
        theirs, _, terminations, _, _ = plain.step(actions)
        np.testing.assert_allclose(batch.observations, theirs, rtol=1e-5, atol=2e-6)
        np.testing.assert_array_equal(batch.terminations, terminations)
        x = np.where(terminations, batch.final[:, 0], batch.observations[:, 0])
        np.testing.assert_array_equal(batch.costs[:, 0], np.abs(x) > np.float32(0.1))
        lured = 1 + 0.5 * np.clip(x / 2.4, 0, 1)
        np.testing.assert_allclose(batch.rewards, lured, rtol=1e-5)
        totals += batch.costs[:, 0]
        for env, (info,) in batch.infos.items():
            assert info["cost"] == totals[env]
            totals[env] = 0
        outside += int(batch.costs.sum())
        unpaid += int((batch.costs == 0).sum())
    assert outside > 1000 < unpaid


def balance(target: float) -> Any:
    """Balances the pole while the cart goes to the target."""

    def act(o: NDArray[np.float32]) -> NDArray[np.int64]:
        x, speed, angle, spin = o.T
        away = np.clip(x - target, -0.3, 0.3)
        return (angle + 0.3 * spin + 0.1 * away + 0.14 * speed > 0).astype(np.int64)

    return act


def test_a_careful_cart_pays_less_and_a_lured_one_earns_more() -> None:
    careful = play(make("constrained_cartpole", 32), balance(0.0), 500)
    greedy = play(make("constrained_cartpole", 32), balance(1.7), 500)
    assert mean(careful, "episode_length") == mean(greedy, "episode_length") == 500
    assert mean(careful, "cost") < 25
    assert mean(greedy, "cost") > 300
    assert mean(greedy, "episode_return") > mean(careful, "episode_return") + 100
    unlured = play(make("constrained_cartpole", 8, lure=0), balance(1.7), 500)
    assert mean(unlured, "episode_return") == 500


@pytest.mark.parametrize("name", ["mountain_car", "acrobot", "pendulum"])
def test_pictures_stay_within_their_canvas(name: str) -> None:
    vec = make(name, 1)
    vec.reset(seed=1)
    _, shapes = vec.apply(lambda env: env.display_list())[0]
    assert 10 < len(shapes) < 200
    for _, _, xs, ys, _, _ in shapes:
        assert -0.1 <= min(xs) <= max(xs) <= 6.1
        assert -0.1 <= min(ys) <= max(ys) <= 5.1
