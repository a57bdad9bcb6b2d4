"""pong moves as a slow reference does; points, the other player's view, and the script."""

import math

import numpy as np
import pytest
from native_games import follow, make


def predict_pong(obs, actions, height=2.0, paddle=0.25, top=0.6, acceleration=1.04):
    """The right player's next observation while nobody scores, or None; in double precision."""
    right, left, x, y, vx, vy = obs[:6] * [5, 5, 8, 5, top, top]
    push = {0: 0.0, 1: -paddle, 2: paddle}
    limit = 5 - height / 2
    right = np.clip(right + push[actions[0]], -limit, limit)
    left = np.clip(left + push[actions[1]], -limit, limit)
    before, x, y = x, x + vx, y + vy
    if abs(y) > 4.82:
        y, vy = math.copysign(9.64, y) - y, -vy
    if abs(before) <= 7.22 < abs(x):
        own, reach = right if x > 0 else left, height / 2 + 0.18
        if abs(abs(y - own) - reach) < 1e-4 or abs(abs(x) - 7.22) < 1e-4:
            return None  # too close for rounding to tell
        if abs(y - own) < reach:
            speed, angle = (
                min(math.hypot(vx, vy) * acceleration, top),
                (y - own) / reach * math.pi / 3,
            )
            vx, vy = -math.copysign(speed * math.cos(angle), x), speed * math.sin(angle)
            x = math.copysign(7.22, x)
    return None if abs(x) > 8.17 else np.array([right, left, x, y, vx, vy]) / [5, 5, 8, 5, top, top]


def test_pong_moves_as_a_slow_reference_and_both_players_see_mirrored_fields():
    vec = make("pong", 16, opponent=1)
    obs, _ = vec.reset(seed=4)
    rng, hits, predicted = np.random.default_rng(1), 0, 0
    for _ in range(400):
        before = obs.copy()
        actions = follow(obs[:, 0], obs[:, 3] + rng.uniform(-0.25, 0.25, 32))
        obs, rewards, ends, _, _ = vec.step(actions)
        assert np.array_equal(rewards[::2], -rewards[1::2])
        np.testing.assert_array_equal(
            obs[::2], obs[1::2][:, [1, 0, 2, 3, 4, 5, 7, 6]] * [1, 1, -1, 1, -1, 1, 1, 1]
        )
        for i in np.flatnonzero((rewards[::2] == 0) & ~ends[::2]) * 2:
            expected = predict_pong(before[i].astype(float), actions[i : i + 2])
            if expected is not None:
                np.testing.assert_allclose(obs[i, :6], expected, atol=2e-5)
                predicted += 1
                hits += before[i, 4] * obs[i, 4] < 0
    assert hits > 50
    assert predicted > 5000


@pytest.mark.parametrize("opponent", [0, 1])
def test_pong_counts_points_until_somebody_wins(opponent):
    vec = make("pong", opponent=opponent, points=3)
    obs, _ = vec.reset(seed=1)
    score, games = [0, 0], 0
    for _ in range(4000):
        actions = follow(obs[:, 0], obs[:, 3])
        actions[0] = 1  # the first one hides in a corner
        obs, rewards, ends, cuts, infos = vec.step(actions)
        assert set(rewards) <= {-1.0, 0.0, 1.0}
        score[0] += rewards[0] > 0
        score[1] += rewards[0] < 0
        assert ends.all() == (max(score) == 3)
        assert not cuts.any()
        if ends.all():
            assert infos[0][0]["score"] == score[0] - score[1]
            score, games = [0, 0], games + 1
        assert obs[0, 6:] == pytest.approx(np.array(score) / 3)
    assert games > 3


def test_pong_script_is_beaten_by_the_edge_of_a_paddle_unless_it_is_fast():
    for speed, wins in ((0.14, True), (2.0, False)):
        vec = make("pong", 4, opponent_speed=speed, max_steps=4000)
        obs, _ = vec.reset(seed=7)
        scores = []
        for _ in range(4000):
            aim = obs[:, 3] + 0.16 * np.where(obs[:, 1] > 0, 1, -1)  # away from the other
            obs, _, _, _, infos = vec.step(follow(obs[:, 0], aim))
            scores += [info[0]["score"] for info in infos.values()]
        assert len(scores) >= 4
        assert (np.mean(scores) > 8) if wins else (max(scores) <= 0)
