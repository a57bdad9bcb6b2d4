"""Ratings recover a known order, and say truly how sure they are."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from fugu.league.ledger import Tally
from fugu.league.ratings import SCALE, elo_ratings, open_skill_ratings, replayed

PLAYERS = list(range(10, 22))  # numbers of a database, not places


def simulate(
    strengths: NDArray[np.float64], games: int, draws: float, seed: int, pairs: float = 1.0
) -> list[Tally]:
    """Games of every two players, or of a share of the pairs, by the model of Bradley and Terry."""
    random = np.random.default_rng(seed)
    found = []
    for i in range(len(strengths)):
        for j in range(i + 1, len(strengths)):
            if random.random() >= pairs:
                continue
            drawn = int(random.binomial(games, draws))
            chance = 1.0 / (1.0 + np.exp((strengths[j] - strengths[i]) / SCALE))
            won = int(random.binomial(games - drawn, chance))
            found.append(Tally(PLAYERS[i], PLAYERS[j], won, drawn, games - drawn - won))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_known_order_is_recovered(seed: int) -> None:
    random = np.random.default_rng(100 + seed)
    strengths = random.permutation(np.linspace(-400, 400, len(PLAYERS)))
    tallies = simulate(strengths, 40, 0.2, seed, pairs=0.7)
    for rate in (elo_ratings, open_skill_ratings):
        ratings = rate(PLAYERS, tallies)
        means = [ratings[player].mean for player in PLAYERS]
        assert spearmanr(strengths, means).statistic >= 0.95


def test_coins_have_no_order() -> None:
    strengths = np.linspace(-400, 400, len(PLAYERS))
    correlations = []
    for seed in range(10):
        ratings = elo_ratings(PLAYERS, simulate(np.zeros(len(PLAYERS)), 40, 0.2, seed))
        means = [ratings[player].mean for player in PLAYERS]
        correlations.append(abs(spearmanr(strengths, means).statistic))
    assert np.mean(correlations) < 0.6


def test_intervals_hold_what_they_promise() -> None:
    strengths = np.linspace(-300, 300, len(PLAYERS))
    inside = []
    for seed in range(40):
        ratings = elo_ratings(PLAYERS, simulate(strengths, 50, 0.0, seed))
        for strength, player in zip(strengths, PLAYERS, strict=True):
            low, high = ratings[player].interval
            inside.append(low <= 1000 + strength <= high)
    assert 0.90 <= np.mean(inside) <= 0.99


def test_more_games_make_it_surer() -> None:
    strengths = np.linspace(-300, 300, len(PLAYERS))
    for rate in (elo_ratings, open_skill_ratings):
        few = rate(PLAYERS, simulate(strengths, 4, 0.2, 0))
        many = rate(PLAYERS, simulate(strengths, 60, 0.2, 0))
        assert all(many[player].deviation < few[player].deviation for player in PLAYERS)


def test_neither_the_order_of_results_nor_who_is_named_first_matters_to_elo() -> None:
    tallies = simulate(np.linspace(-300, 300, len(PLAYERS)), 20, 0.3, 1)
    turned = [Tally(t.second, t.first, t.losses, t.draws, t.wins) for t in reversed(tallies)]
    one, other = elo_ratings(PLAYERS, tallies), elo_ratings(PLAYERS, turned)
    for player in PLAYERS:
        assert one[player].mean == pytest.approx(other[player].mean, abs=1e-6)
        assert one[player].deviation == pytest.approx(other[player].deviation, abs=1e-6)


def test_who_never_lost_stays_finite_and_draws_count_half() -> None:
    best = elo_ratings([1, 2], [Tally(1, 2, 1_000_000, 0, 0)])
    assert 1500 < best[1].mean < 10_000
    even = elo_ratings([1, 2], [Tally(1, 2, 0, 30, 0)])
    assert even[1].mean == pytest.approx(1000)
    ahead = elo_ratings([1, 2], [Tally(1, 2, 10, 20, 0)])
    won = elo_ratings([1, 2], [Tally(1, 2, 20, 0, 10)])
    assert ahead[1].mean == pytest.approx(won[1].mean)
    assert elo_ratings([], []) == {}


def test_long_series_are_shown_in_their_proportions() -> None:
    games = replayed(Tally(1, 2, 6000, 3000, 1000), 50)
    assert [games.count(kind) for kind in (1, 0, -1)] == [30, 15, 5]
    assert games[:10].count(1) == 6
