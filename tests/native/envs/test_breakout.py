"""breakout: points for bricks, lives, walls, and a ball that the paddle turns."""

import math

import numpy as np
import pytest
from native_games import follow, make

POINTS = np.repeat([7, 7, 4, 4, 1, 1], 18)


def test_breakout_rewards_the_bricks_that_went_and_logs_their_sum():
    vec = make("breakout", 8)
    obs, _ = vec.reset(seed=1)
    total, seen = np.zeros(8), 0
    for _ in range(600):
        before = obs.copy()
        obs, rewards, ends, cuts, infos = vec.step(follow(obs[:, 0], obs[:, 1]))
        assert not cuts.any()
        total += rewards
        for i in range(8):
            if ends[i]:
                assert infos[i][0]["score"] == infos[i][0]["episode_return"] == total[i]
                total[i] = 0
            else:
                gone = before[i, 10:] - obs[i, 10:]
                assert gone.min() >= 0
                assert rewards[i] == gone @ POINTS
                assert obs[i, 8] == pytest.approx(obs[i, 10:].mean())
                seen += int(gone.sum())
    assert seen > 100


def test_breakout_ends_with_864_points_when_both_walls_are_gone():
    vec = make("breakout", 4, paddle_width=15, lives=100, frame_skip=8)
    obs, _ = vec.reset(seed=3)
    rng, scores, walls = np.random.default_rng(0), [], set()
    for _ in range(6000):
        # A ball off the middle of the paddle, so that it goes everywhere.
        aim = obs[:, 1] + rng.uniform(-0.6, 0.6, 4)
        obs, _, ends, _, infos = vec.step(follow(obs[:, 0], aim))
        walls |= set(obs[:, 9])
        scores += [infos[i][0]["score"] for i in np.flatnonzero(ends)]
        if len(scores) >= 3:
            break
    assert scores[:3] == [864, 864, 864]
    assert walls == {0, 1}


def test_breakout_ends_when_all_lives_are_used_up():
    for lives in (1, 3):
        vec = make("breakout", lives=lives, paddle_width=0.5)
        obs, _ = vec.reset(seed=1)
        left = [round(obs[0, 7] * lives)]
        for _ in range(2000):
            obs, _, ends, cuts, _ = vec.step(np.array([1]))  # waits in the left corner
            if ends[0]:
                break
            if round(obs[0, 7] * lives) != left[-1]:
                left.append(round(obs[0, 7] * lives))
        assert ends[0]
        assert not cuts[0]
        assert left == list(range(lives, 0, -1))


def test_breakout_frame_skip_is_as_many_moments():
    single, skipping = make("breakout", frame_skip=1), make("breakout", frame_skip=4)
    single.reset(seed=5)
    skipping.reset(seed=5)
    for i in range(150):
        action = np.array([i // 3 % 3])
        total = 0.0
        for _ in range(4):
            seen, points, _, _, _ = single.step(action)
            total += points[0]
        obs, reward, ends, _, _ = skipping.step(action)
        if ends[0]:
            break
        assert reward[0] == total
        np.testing.assert_array_equal(obs, seen)
    assert i > 50


def test_breakout_paddle_turns_and_speeds_up_the_ball():
    vec = make("breakout", frame_skip=1, acceleration=1.1, ball_speed=0.1, top_speed=0.2)
    obs, _ = vec.reset(seed=2)
    speeds = [obs[0, 6]]
    for _ in range(3000):
        before = obs.copy()
        obs, _, ends, _, _ = vec.step(follow(obs[:, 0], obs[:, 1] + 0.05))
        if before[0, 5] > 0 > obs[0, 5] and obs[0, 2] > 0.5:
            offset = obs[0, 3] * 9 / (1 + 0.2)
            assert obs[0, 4] / obs[0, 6] == pytest.approx(math.sin(math.pi / 3 * offset), abs=1e-4)
            speeds.append(obs[0, 6])
        assert math.hypot(obs[0, 4], obs[0, 5]) == pytest.approx(obs[0, 6], abs=1e-4)
        assert not ends[0]
    expected = [min(0.5 * 1.1**i, 1.0) for i in range(len(speeds))]
    assert speeds == pytest.approx(expected, abs=1e-4)
    assert speeds[-1] == 1.0


def test_breakout_is_cut_off_with_its_score_logged():
    vec = make("breakout", max_steps=50)
    vec.reset(seed=1)
    for step in range(1, 51):
        _, _, ends, cuts, infos = vec.step(np.array([0]))
        assert not ends[0]
        assert cuts[0] == (step == 50)
    assert infos[0][0]["score"] == infos[0][0]["episode_return"]
