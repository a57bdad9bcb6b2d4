"""The scale of rewards: many times at once are as one after another."""

from __future__ import annotations

import numpy as np

from fugu.training.normalise import RewardScale

AGENTS, TIMES, GAMMA = 37, 50, 0.97


def test_rows_are_noted_as_their_steps_are() -> None:
    random = np.random.default_rng(1)
    rewards = random.normal(size=(TIMES, AGENTS)).astype(np.float32)
    ended = random.random((TIMES, AGENTS)) < 0.1
    one_by_one, at_once = (RewardScale(AGENTS, GAMMA) for _ in range(2))
    for part in (slice(0, 20), slice(20, 20), slice(20, TIMES)):
        at_once.note_rows(rewards[part], ended[part])
    for came, over in zip(rewards, ended, strict=True):
        one_by_one.note(np.arange(AGENTS), came, over, np.ones(AGENTS, bool))
    assert at_once.divisor == one_by_one.divisor != 1.0
    for name, numbers in one_by_one.state_dict().items():
        assert np.array_equal(at_once.state_dict()[name], numbers)


def test_the_divisor_is_how_much_returns_vary() -> None:
    random = np.random.default_rng(2)
    rewards = random.normal(3.0, 2.0, (TIMES, AGENTS)).astype(np.float32)
    ended = random.random((TIMES, AGENTS)) < 0.2
    scale, returns = RewardScale(AGENTS, GAMMA), []
    for agent in range(AGENTS):
        total = 0.0
        for reward, over in zip(rewards[:, agent], ended[:, agent], strict=True):
            total = GAMMA * total + float(reward)
            returns.append(total)
            total = 0.0 if over else total
    assert scale.divisor == 1.0
    scale.note_rows(rewards, ended)
    np.testing.assert_allclose(scale.divisor, np.std(returns), rtol=1e-9)
