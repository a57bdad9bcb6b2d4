"""Policies taken apart: the plain meaning of the net is what torch gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_kinds import KINDS, Kind, drive
from torch import Tensor, nn

from fugu import Layout
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.nets.reading import read_policy
from fugu.nets.reference import run_reference
from fugu.policies import PolicyConfig, make_policy


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_net_means_what_its_policy_does(kind: Kind) -> None:
    policy, layout = kind.make()
    net = read_policy(policy, layout)
    drive(policy, layout, lambda rows, state: run_reference(net, rows, state), 12, 9)


def group_of(observation: Any) -> AgentGroup:
    layouts = Layout.of(observation), Layout.of(spaces.Discrete(2))
    return AgentGroup("agent", (0,), *layouts)


def test_plain_layers_of_a_user_are_read() -> None:
    group = group_of(spaces.Box(-1, 1, (4,)))
    encoder = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Sigmoid(), nn.Identity())
    policy = make_policy(group, PolicyConfig(), encoder=encoder)
    net = read_policy(policy, group.observation_layout)
    drive(policy, group.observation_layout, lambda *given: run_reference(net, *given), 3, 5)


class Strange(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.float().sort(-1).values


def test_an_unknown_part_is_named() -> None:
    group = group_of(spaces.Box(-1, 1, (4,)))
    policy = make_policy(group, PolicyConfig(), encoder=Strange())
    with pytest.raises(UsageError, match="cannot be taken apart: Strange"):
        read_policy(policy, group.observation_layout)


class Twice(nn.Linear):
    def forward(self, rows: Tensor) -> Tensor:
        return 2 * super().forward(rows)


class Backwards(nn.Sequential):
    def forward(self, rows: Tensor) -> Tensor:
        for layer in reversed(self):
            rows = layer(rows)
        return rows


@pytest.mark.parametrize(
    "encoder",
    [Twice(4, 4), Backwards(nn.Tanh(), nn.Linear(4, 4)), nn.LayerNorm(4, elementwise_affine=False)],
    ids=str,
)
def test_a_layer_that_derives_from_a_known_one_is_not_taken_for_it(encoder: nn.Module) -> None:
    group = group_of(spaces.Box(-1, 1, (4,)))
    policy = make_policy(group, PolicyConfig(), encoder=nn.Sequential(encoder, nn.Tanh()))
    with pytest.raises(UsageError, match=f"cannot be taken apart: {type(encoder).__name__}"):
        read_policy(policy, group.observation_layout)


def test_another_gelu_is_not_taken_for_ours() -> None:
    group = group_of(spaces.Box(-1, 1, (4,)))
    encoder = nn.Sequential(nn.Linear(4, 8), nn.GELU(approximate="tanh"))
    policy = make_policy(group, PolicyConfig(), encoder=encoder)
    with pytest.raises(UsageError, match="cannot be taken apart: GELU"):
        read_policy(policy, group.observation_layout)


def test_weights_are_counted() -> None:
    group = group_of(spaces.Box(-1, 1, (4,)))
    policy = make_policy(group, PolicyConfig(hidden_size=16))
    net = read_policy(policy, group.observation_layout)
    assert net.num_weights == sum(p.numel() for p in policy.parameters())
    before = np.array(net.operations[1].weight)  # type: ignore[attr-defined]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    np.testing.assert_array_equal(net.operations[1].weight, before)  # type: ignore[attr-defined]
