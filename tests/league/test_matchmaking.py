"""Whom the learner meets: by how hard they are to beat, on every side alike."""

from __future__ import annotations

import numpy as np
import pytest

from fugu.league.pool import WINDOW, Record, chances, draw_matches


def test_hard_opponents_are_drawn_most_and_equal_ones_when_it_should_be_even() -> None:
    scores = [0.1, 0.5, 0.9]
    hard, even = chances(scores, "hard"), chances(scores, "even")
    assert hard == pytest.approx(np.array([0.81, 0.25, 0.01]) / 1.07)
    assert even.argmax() == 1
    assert even[0] == pytest.approx(even[2])
    assert chances(scores, "uniform") == pytest.approx(np.full(3, 1 / 3))
    assert chances([1.0, 1.0], "hard").tolist() == [0.5, 0.5]


def test_old_games_fade() -> None:
    record = Record()
    assert record.score == 0.5
    record.add(wins=2 * WINDOW, draws=0, losses=0)
    assert record.score > 0.99
    for _ in range(20):
        record.add(wins=0, draws=0, losses=WINDOW / 5)
    assert record.games <= 2 * WINDOW
    assert record.score < 0.2


def test_the_learner_sits_on_every_side_and_meets_whom_it_should() -> None:
    random = np.random.default_rng(0)
    holders = draw_matches(20_000, 3, np.array([4, 4, 7]), 0.25, 0, random)
    mine = holders == 0
    assert set(mine.sum(1).tolist()) == {1, 3}
    assert mine.all(1).mean() == pytest.approx(0.25, abs=0.02)
    alone = mine.sum(1) == 1
    assert mine[alone].mean(0) == pytest.approx(np.full(3, 1 / 3), abs=0.02)
    others = holders[alone][~mine[alone]]
    assert (others == 4).mean() == pytest.approx(2 / 3, abs=0.02)
    assert set(others.tolist()) == {4, 7}
    assert (draw_matches(9, 2, np.zeros(0, np.int64), 0.0, 0, random) == 0).all()
