"""Optimisers by name, and schedules."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fugu.algos.muon import Muon
from fugu.algos.optimisers import OptimiserConfig, make_optimiser, set_learning_rate
from fugu.algos.schedules import Schedule, learning_rate_at
from fugu.core.errors import UsageError

KINDS = ["muon", "muon_torch", "adamw"]


def train(network: nn.Module, optimiser: torch.optim.Optimizer, steps: int) -> float:
    inputs = torch.randn((64, 4), generator=torch.Generator().manual_seed(0))
    loss = torch.zeros(())
    for _ in range(steps):
        optimiser.zero_grad()
        loss = (network(inputs)[:, 0] - inputs.sum(1)).square().mean()
        loss.backward()
        optimiser.step()
    return float(loss.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_learns_and_resumes_exactly(kind: Any) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    cfg = OptimiserConfig(kind=kind, learning_rate=0.01)
    optimiser = make_optimiser(network, cfg)
    first = train(network, optimiser, 1)
    assert train(network, optimiser, 99) < 0.2 * first
    twin = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    twin.load_state_dict(network.state_dict())
    other = make_optimiser(twin, cfg)
    other.load_state_dict(copy.deepcopy(optimiser.state_dict()))  # else both share one state
    assert train(network, optimiser, 5) == train(twin, other, 5)


def test_settings_reach_the_optimiser() -> None:
    cfg = OptimiserConfig("adamw", 3e-4, beta1=0.8, beta2=0.95, weight_decay=0.1)
    (group,) = make_optimiser(nn.Linear(2, 2), cfg).param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.8, 0.95), 1e-5)
    assert group["weight_decay"] == 0.1
    muon = make_optimiser(nn.Linear(2, 2).parameters(), OptimiserConfig("muon_torch", momentum=0.7))
    assert isinstance(muon, Muon)
    (group,) = muon.param_groups
    assert (group["momentum"], group["variant"]) == (0.7, "torch")
    set_learning_rate(muon, 0.5)
    assert group["lr"] == 0.5


def test_frozen_parameters_are_left_out() -> None:
    network = nn.Linear(2, 2)
    network.bias.requires_grad_(False)
    (group,) = make_optimiser(network, OptimiserConfig()).param_groups
    assert len(group["params"]) == 1
    with pytest.raises(UsageError, match="parameters: given none"):
        make_optimiser(network.requires_grad_(False), OptimiserConfig())
    with pytest.raises(UsageError, match="kind: given 'sgd'"):
        make_optimiser(nn.Linear(1, 1), OptimiserConfig(kind="sgd"))  # type: ignore[arg-type]


@given(
    st.builds(
        Schedule,
        st.floats(0, 10),
        st.floats(0, 10),
        st.sampled_from(["constant", "linear", "cosine"]),
        st.floats(0, 0.9),
    ),
    st.floats(0, 1),
)
def test_schedules_stay_between_their_ends(schedule: Schedule, progress: float) -> None:
    number = schedule(progress)
    if progress < schedule.warmup:
        assert 0.0 <= number <= schedule.initial
        return
    low, high = sorted((schedule.initial, schedule.final))
    assert low - 1e-9 <= number <= high + 1e-9
    assert schedule(1.0) == (schedule.initial if schedule.kind == "constant" else schedule.final)
    assert schedule(schedule.warmup) == schedule.initial


def test_shapes_of_schedules() -> None:
    cosine = Schedule(1.0, 0.0, "cosine")
    assert cosine(0.25) == pytest.approx(0.5 + 0.5 * math.sqrt(0.5))
    assert Schedule(1.0, 0.5, "linear", warmup=0.5)(0.75) == 0.75
    assert Schedule(1.0, 0.5, "linear", warmup=1.0)(1.0) == 0.5
    assert Schedule(2.0)(0.7) == 2.0
    assert learning_rate_at(1.0, OptimiserConfig(learning_rate=2.0, final_share=0.1)) == 0.2
    constant = OptimiserConfig(learning_rate=2.0, schedule="constant", warmup=0.1)
    assert [learning_rate_at(p, constant) for p in (0.0, 0.05, 0.1, 1.0)] == [0.0, 1.0, 2.0, 2.0]


def test_wrong_schedules_are_refused() -> None:
    with pytest.raises(UsageError, match="kind: given 'step'"):
        Schedule(1.0, kind="step")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="warmup: given 2"):
        Schedule(1.0, warmup=2.0)
    with pytest.raises(UsageError, match="progress: given -0.1"):
        Schedule(1.0)(-0.1)
