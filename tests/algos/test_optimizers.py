"""Optimizers by name, and schedules."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fugu.algos.optimizers import (
    Muon,
    OptimizerConfig,
    learning_rate_at,
    make_optimizer,
    set_learning_rate,
)
from fugu.core.errors import UsageError

KINDS = ["muon", "muon_torch", "adamw"]


def train(network: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    inputs = torch.randn((64, 4), generator=torch.Generator().manual_seed(0))
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (network(inputs)[:, 0] - inputs.sum(1)).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_learns_and_resumes_exactly(kind: Any) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    cfg = OptimizerConfig(kind=kind, learning_rate=0.01)
    optimizer = make_optimizer(network, cfg)
    first = train(network, optimizer, 1)
    assert train(network, optimizer, 99) < 0.2 * first
    twin = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    twin.load_state_dict(network.state_dict())
    other = make_optimizer(twin, cfg)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # else both share one state
    assert train(network, optimizer, 5) == train(twin, other, 5)


def test_settings_reach_the_optimizer() -> None:
    cfg = OptimizerConfig("adamw", 3e-4, beta1=0.8, beta2=0.95, weight_decay=0.1)
    (group,) = make_optimizer(nn.Linear(2, 2), cfg).param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.8, 0.95), 1e-5)
    assert group["weight_decay"] == 0.1
    muon = make_optimizer(nn.Linear(2, 2).parameters(), OptimizerConfig("muon_torch", momentum=0.7))
    assert isinstance(muon, Muon)
    (group,) = muon.param_groups
    assert (group["momentum"], group["variant"]) == (0.7, "torch")
    set_learning_rate(muon, 0.5)
    assert group["lr"] == 0.5


def test_frozen_parameters_are_left_out() -> None:
    network = nn.Linear(2, 2)
    network.bias.requires_grad_(False)
    (group,) = make_optimizer(network, OptimizerConfig()).param_groups
    assert len(group["params"]) == 1
    with pytest.raises(UsageError, match="parameters: given none"):
        make_optimizer(network.requires_grad_(False), OptimizerConfig())
    with pytest.raises(UsageError, match="kind: given 'sgd'"):
        make_optimizer(nn.Linear(1, 1), OptimizerConfig(kind="sgd"))  # type: ignore[arg-type]


@given(
    st.floats(0, 10),
    st.floats(0, 1),
    st.sampled_from(["constant", "linear", "cosine"]),
    st.floats(0, 0.9),
    st.floats(0, 1),
)
def test_schedules_stay_between_their_ends(
    peak: float, share: float, kind: Any, warmup: float, progress: float
) -> None:
    cfg = OptimizerConfig(learning_rate=peak, final_share=share, schedule=kind, warmup=warmup)
    rate = learning_rate_at(progress, cfg)
    assert (0.0 if progress < warmup else peak * share) - 1e-9 <= rate <= peak
    assert learning_rate_at(1.0, cfg) == (peak if kind == "constant" else peak * share)
    assert learning_rate_at(warmup, cfg) == peak


def test_shapes_of_schedules() -> None:
    def rate(progress: float, **settings: Any) -> float:
        return learning_rate_at(progress, OptimizerConfig(learning_rate=2.0, **settings))

    assert rate(0.25, schedule="cosine") == pytest.approx(1.0 + math.sqrt(0.5))
    assert rate(0.75, schedule="linear", final_share=0.5, warmup=0.5) == 1.5
    assert rate(1.0, schedule="linear", final_share=0.5, warmup=1.0) == 1.0
    assert rate(0.7, schedule="constant") == 2.0
    warm = [rate(p, schedule="constant", warmup=0.1) for p in (0.0, 0.05, 0.1, 1.0)]
    assert warm == [0.0, 1.0, 2.0, 2.0]


def test_a_negative_progress_is_refused() -> None:
    with pytest.raises(UsageError, match="progress: given -0.1"):
        learning_rate_at(-0.1, OptimizerConfig())
