"""Dreamer's formulas against numbers that were computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fugu.algos.dreamer.agent import ReturnScale, lambda_returns
from fugu.algos.dreamer.networks import (
    make_bins,
    symexp,
    symlog,
    two_hot,
    two_hot_loss,
    two_hot_mean,
)


def test_symlog_and_back() -> None:
    numbers = torch.tensor([-99.0, -1.0, 0.0, 1.0, math.e - 1.0])
    found = symlog(numbers)
    assert found.tolist() == pytest.approx([-4.605170, -0.693147, 0.0, 0.693147, 1.0], abs=1e-6)
    assert torch.allclose(symexp(found), numbers, rtol=1e-6, atol=1e-6)


def test_bins_reach_from_symexp_of_minus_20_to_20_and_are_symmetric() -> None:
    bins = make_bins(255)
    assert bins[-1].item() == pytest.approx(math.exp(20) - 1, rel=1e-6)
    assert bins[127].item() == 0.0
    assert torch.equal(bins, -bins.flip(0))
    assert bins[128].item() == pytest.approx(math.expm1(20 / 127), rel=1e-5)


def test_two_hot_shares() -> None:
    bins = torch.tensor([-4.0, -1.0, 0.0, 1.0, 4.0])
    targets = torch.tensor([-9.0, -4.0, -1.75, 0.0, 0.25, 4.0, 7.0])
    below, share = two_hot(targets, bins)
    assert below.tolist() == [0, 0, 0, 2, 2, 3, 3]
    assert share.tolist() == [0.0, 0.0, 0.75, 0.0, 0.25, 1.0, 1.0]
    means = bins[below] * (1 - share) + bins[below + 1] * share
    assert torch.equal(means, targets.clamp(-4.0, 4.0))


def test_two_hot_loss_is_the_cross_entropy_of_both_bins() -> None:
    bins = torch.tensor([-1.0, 0.0, 1.0])
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log()
    loss = two_hot_loss(logits.log_softmax(-1), torch.tensor([0.25]), bins)
    assert loss.item() == pytest.approx(-(0.75 * math.log(0.5) + 0.25 * math.log(0.3)), rel=1e-6)


def test_two_hot_mean_of_equal_logits_is_exactly_zero() -> None:
    assert two_hot_mean(torch.zeros(7, 255), make_bins(255)).tolist() == [0.0] * 7
    bins, chances = torch.tensor([-2.0, 0.0, 2.0]), torch.tensor([0.1, 0.6, 0.3])
    assert two_hot_mean(chances.log(), bins).item() == pytest.approx(0.4, rel=1e-6)


def test_two_hot_fitted_to_a_number_says_it() -> None:
    bins = make_bins(255)
    below, share = two_hot(torch.tensor([-123.4]), bins)
    chances = torch.full((255,), 1e-12)
    chances[below], chances[below + 1] = 1 - share, share
    assert two_hot_mean(chances.log(), bins).item() == pytest.approx(-123.4, rel=1e-3)


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).unsqueeze(-1)


@pytest.mark.parametrize(
    ("discounts", "traces", "expected"),
    [
        ((0.9, 0.9, 0.9, 0.9), (0.5, 0.5, 0.5, 0.5), (24.8725, 33.05, 39.0)),
        ((0.9, 0.9, 0.0, 0.9), (0.5, 0.5, 0.5, 0.5), (10.9, 2.0, 39.0)),  # terminal at 2
        ((0.9, 0.9, 0.9, 0.9), (0.5, 0.5, 0.0, 0.5), (23.05, 29.0, 39.0)),  # cut off at 2
        ((0.9, 0.9, 0.9, 0.9), (0.0, 0.0, 0.0, 0.0), (19.0, 29.0, 39.0)),  # one step
        ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0), (46.0, 45.0, 43.0)),  # sums
    ],
)
def test_lambda_returns(
    discounts: tuple[float, ...], traces: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    rewards, values = column(0.0, 1.0, 2.0, 3.0), column(10.0, 20.0, 30.0, 40.0)
    found = lambda_returns(rewards, values, column(*discounts), column(*traces))
    assert found.flatten().tolist() == pytest.approx(expected, rel=1e-6)


def test_return_scale_is_a_moving_mean_of_percentiles() -> None:
    scale = ReturnScale()
    returns = np.random.default_rng(0).normal(3.0, 50.0, (15, 40))
    low, high = np.percentile(returns, [5, 95])
    given = torch.tensor(returns, dtype=torch.float32)
    for count in (1, 2, 3):
        found = scale(given, (0.05, 0.95), rate=0.1, limit=1.0).item()
        assert found == pytest.approx(max(1.0, (high - low) * (1 - 0.9**count)), rel=1e-5)
    assert scale.low.item() == pytest.approx(low * (1 - 0.9**3), rel=1e-5)


def test_small_returns_are_not_scaled_up() -> None:
    assert ReturnScale()(torch.linspace(0, 0.5, 11), (0.05, 0.95), 0.5, 1.0).item() == 1.0
