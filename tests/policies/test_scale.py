"""Normalised observations: exact moments, saved with the policy, unchanged within an update."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.layers import RunningScale
from fugu.policies.policy import Policy, make_policy
from fugu.spaces import Layout

MIXED = spaces.Dict(
    numbers=spaces.Box(-9, 9, (3,)),
    kind=spaces.Discrete(4),
    items=spaces.Box(-1, 1, (2,)),
)


def policy_of(space: spaces.Space) -> Policy:
    group = AgentGroup("agent", (0,), Layout.of(space), Layout.of(spaces.Discrete(2)))
    return make_policy(group, PolicyConfig(hidden_size=8, normalise=True))


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_moments_of_parts_are_those_of_the_whole(parts: int) -> None:
    random = np.random.default_rng(3)
    rows = random.normal(5.0, [1.0, 100.0, 1e-3], (210, 3))
    scale = RunningScale(3)
    scale.noting = True
    for part in np.array_split(rows, parts):
        scale(torch.tensor(part, dtype=torch.float32))
    seen = rows.astype(np.float32).astype(np.float64)
    assert np.allclose(scale.mean, seen.mean(0), rtol=1e-12)
    assert np.allclose(scale.variance, seen.var(0), rtol=1e-9)
    assert float(scale.count) == len(rows)


def test_far_numbers_are_cut_and_constant_ones_stay_finite() -> None:
    scale = RunningScale(1)
    scale.noting = True
    scale(torch.full((50, 1), 2.0))
    scale.noting = False
    out = scale(torch.tensor([[2.0], [2.1], [-1e9]]))
    assert out.flatten().tolist() == [0.0, 10.0, -10.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_pass_unchanged_before_any_was_noted(dtype: torch.dtype) -> None:
    numbers = torch.tensor([[-1e6], [11.0], [3e38]], dtype=dtype)
    assert torch.equal(RunningScale(1)(numbers), numbers)


def test_policies_note_only_when_told() -> None:
    policy = policy_of(spaces.Box(-9, 9, (3,)))
    rows = torch.randn(64, 3) * 4 + 2
    before = policy(rows, policy.initial_state(64))[0]
    policy(rows, policy.initial_state(64))
    assert float(policy.scales[0].count) == 0.0
    policy.note(rows)
    assert float(policy.scales[0].count) == 64.0
    assert not torch.equal(before, policy(rows, policy.initial_state(64))[0])


def test_the_moments_are_saved_with_the_policy() -> None:
    space = spaces.Box(-9, 9, (3,))
    policy, other = policy_of(space), policy_of(space)
    rows = torch.randn(64, 3) * 4 + 2
    policy.note(rows)
    other.load_state_dict(policy.state_dict())
    state = policy.initial_state(64)
    assert torch.equal(policy(rows, state)[0], other(rows, state)[0])


def test_structured_observations_have_their_numbers_scaled_and_their_categories_left() -> None:
    policy = policy_of(MIXED)
    assert sorted(scale.mean.numel() for scale in policy.scales) == [2, 3]
    layout = Layout.of(MIXED)
    rows = np.stack([layout.zeros(1)[0] for _ in range(32)])
    for i, row in enumerate(rows):
        sample = MIXED.sample()
        sample["numbers"] = np.full(3, i, np.float32)
        layout.pack(sample, row)
    policy.note(torch.from_numpy(rows))
    scale = next(scale for scale in policy.scales if scale.mean.numel() == 3)
    assert scale.mean.tolist() == pytest.approx([15.5] * 3)
