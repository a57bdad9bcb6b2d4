"""Policies as a whole: in every environment of the suite, and with a user's own parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import nn

import fugu
from fugu import Layout
from fugu.core.errors import UsageError
from fugu.envs import suite
from fugu.envs.contract import AgentGroup
from fugu.policies import Core, Policy, PolicyConfig, make_policy, unpack
from fugu.policies.policy import SeparateEncoder

CORES = ["none", "lstm", "gru", "mingru", "transformer"]
OBSERVATION = spaces.Dict(
    grid=spaces.Box(0, 5, (3, 3), np.uint8), at=spaces.Box(-1, 1, (2,)), gear=spaces.Discrete(4)
)
ACTION = spaces.Dict(go=spaces.Discrete(3), by=spaces.Box(-2, 2, (2,)))


def group_of(observation: Space[Any], action: Space[Any]) -> AgentGroup:
    return AgentGroup("agent", (0,), Layout.of(observation), Layout.of(action))


def policy_of(num_critics: int = 1, **settings: Any) -> Policy:
    torch.manual_seed(0)
    cfg = PolicyConfig(**({"hidden_size": 16, "window": 5} | settings))
    return make_policy(group_of(OBSERVATION, ACTION), cfg, num_critics)


def observations_of(*shape: int) -> torch.Tensor:
    layout = Layout.of(OBSERVATION)
    OBSERVATION.seed(0)
    rows = layout.zeros(*shape)
    for row in rows.reshape(-1, layout.size):
        layout.pack(OBSERVATION.sample(), row)
    return torch.from_numpy(rows)


@pytest.mark.parametrize("critic", ["shared", "own"])
@pytest.mark.parametrize("core", CORES)
def test_segments_equal_steps(core: Any, critic: Any) -> None:
    policy = policy_of(core=core, num_critics=2, critic=critic)
    observations, resets = observations_of(4, 12), torch.rand(4, 12) < 0.2
    state = policy.initial_state(4)
    assert state.shape == (4, policy.state_size)
    start = torch.randn_like(state) if core in ("lstm", "gru", "mingru") else state
    params, values = policy.forward_segments(observations, start, resets)
    assert params.shape == (4, 12, policy.num_params)
    assert values.shape == (4, 12, 2)
    state = start
    for t in range(12):
        state = torch.where(resets[:, t, None], torch.zeros(()), state)
        step_params, step_values, state = policy(observations[:, t], state)
        torch.testing.assert_close(params[:, t], step_params, atol=1e-5, rtol=0)
        torch.testing.assert_close(values[:, t], step_values, atol=1e-5, rtol=0)


@pytest.mark.parametrize("critic", ["shared", "own"])
@pytest.mark.parametrize("core", CORES)
def test_every_parameter_learns(core: Any, critic: Any) -> None:
    policy = policy_of(core=core, continuous="tanh", critic=critic)
    observations, resets = observations_of(4, 6), torch.zeros(4, 6, dtype=torch.bool)
    params, values = policy.forward_segments(observations, policy.initial_state(4), resets)
    samples, _ = policy.distribution.sample(params.flatten(0, 1), None, np.random.default_rng(0))
    shaped = torch.from_numpy(samples).view(4, 6, -1)
    log_probs, entropies = policy.distribution.evaluate(params, shaped)
    (log_probs.sum() + 0.1 * entropies.sum() + values.square().sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


@pytest.mark.parametrize("core", CORES)
def test_a_critic_of_its_own_shares_nothing(core: Any) -> None:
    policy = policy_of(core=core, num_critics=2, critic="own")
    resets = torch.zeros(3, 4, dtype=torch.bool)
    params, values = policy.forward_segments(observations_of(3, 4), policy.initial_state(3), resets)
    reached: list[set[str]] = []
    for outputs in (params, values):
        policy.zero_grad()
        (outputs - 1).square().sum().backward(retain_graph=True)
        reached.append(
            {n for n, p in policy.named_parameters() if p.grad is not None and p.grad.any()}
        )
    assert reached[0] | reached[1] == {name for name, _ in policy.named_parameters()}
    assert not reached[0] & reached[1]


def test_a_critic_of_its_own_does_not_go_with_ones_own_parts() -> None:
    cfg = PolicyConfig(critic="own")
    with pytest.raises(UsageError, match="given 'own' with your own decoder"):
        make_policy(group_of(OBSERVATION, ACTION), cfg, decoder=nn.Linear(128, 8))


def test_auto_gives_critics_a_network_of_their_own_unless_parts_are_given() -> None:
    cfg, group = PolicyConfig(critic="auto"), group_of(OBSERVATION, ACTION)
    assert isinstance(make_policy(group, cfg).encoder, SeparateEncoder)
    mine = make_policy(group, PolicyConfig()).encoder
    assert make_policy(group, cfg, encoder=mine).encoder is mine


def test_the_heads_are_one_layer_that_begins_small_for_actions() -> None:
    policy = policy_of(num_critics=2, log_std=-0.5)
    head = policy.decoder
    assert isinstance(head, nn.Linear)
    actions, critics = head.weight[:5], head.weight[5:]
    torch.testing.assert_close(actions @ actions.T, 1e-4 * torch.eye(5), atol=1e-9, rtol=1e-5)
    torch.testing.assert_close(critics @ critics.T, torch.eye(2))
    assert (head.bias == 0).all()
    params, _, _ = policy(observations_of(3), policy.initial_state(3))
    assert params.shape == (3, 3 + 2 + 2)
    torch.testing.assert_close(params[:, 5:], torch.full((3, 2), -0.5))


def test_without_numbers_there_is_no_deviation_to_learn() -> None:
    policy = make_policy(group_of(OBSERVATION, spaces.Discrete(3)), PolicyConfig())
    assert policy.log_std is None
    assert "log_std" not in dict(policy.named_parameters())


@pytest.mark.parametrize("core", CORES)
def test_a_row_of_nan_stays_alone(core: Any) -> None:
    policy = policy_of(core=core)
    observations, resets = observations_of(4, 6), torch.zeros(4, 6, dtype=torch.bool)
    state, others = policy.initial_state(4), [0, 1, 3]
    clean = policy.forward_segments(observations, state, resets)
    unpack(Layout.of(OBSERVATION), observations)["at"][2] = torch.nan
    for ours, expected in zip(
        policy.forward_segments(observations, state, resets), clean, strict=True
    ):
        torch.testing.assert_close(ours[others], expected[others], atol=1e-6, rtol=0)
        assert ours[2].isnan().any()


@pytest.mark.parametrize("name", suite.names())
def test_every_environment_of_the_suite_is_acted_in(name: str) -> None:
    random = np.random.default_rng(0)
    with fugu.make(name, 3, backend="serial", seed=0) as vec:
        policies = [make_policy(group, PolicyConfig(core="lstm")) for group in vec.groups]
        states = [
            policy.initial_state(3 * group.num_agents)
            for policy, group in zip(policies, vec.groups, strict=True)
        ]
        vec.async_reset(0)
        for _ in range(5):
            batch, actions = vec.recv(), []
            for i, (policy, group) in enumerate(zip(policies, batch.groups, strict=True)):
                rows = group.rows
                with torch.no_grad():
                    observations = torch.from_numpy(rows.observations)
                    params, values, states[i] = policy(observations, states[i])
                samples, log_probs = policy.distribution.sample(
                    params, rows.action_masks, random, live=rows.live
                )
                assert values.isfinite().all()
                assert np.isfinite(log_probs).all()
                actions.append(policy.distribution.to_rows(samples))
            vec.send(actions[0] if len(actions) == 1 else tuple(actions))
        vec.recv()


# ---------------------------------------------------------------------- a user's own parts


class Ours(nn.Module):
    """Sees only where it is."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.linear = nn.Linear(2, width)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        tree = unpack(Layout.of(OBSERVATION), observations)
        hidden: torch.Tensor = self.linear(tree["at"])
        return hidden


class Sum(Core):
    """Remembers the running sum of what it saw."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)

    def forward(
        self, hidden: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden + state, hidden + state

    def forward_segments(
        self, hidden: torch.Tensor, state: torch.Tensor, resets: torch.Tensor
    ) -> torch.Tensor:
        outputs = []
        for t in range(hidden.shape[1]):
            state = torch.where(resets[:, t, None], 0.0, state) + hidden[:, t]
            outputs.append(state)
        return torch.stack(outputs, 1)


@pytest.mark.parametrize("core", CORES)
def test_an_encoder_of_ones_own_of_any_width(core: Any) -> None:
    group = group_of(OBSERVATION, ACTION)
    cfg = PolicyConfig(core=core, hidden_size=16, window=4)
    policy = make_policy(group, cfg, encoder=Ours())
    assert policy.encoder.training
    params, values, _ = policy(observations_of(3), policy.initial_state(3))
    assert params.shape == (3, policy.num_params)
    assert values.shape == (3, 1)
    segments, _ = policy.forward_segments(
        observations_of(3)[:, None], policy.initial_state(3), torch.zeros(3, 1, dtype=torch.bool)
    )
    torch.testing.assert_close(segments[:, 0], params)


def test_a_core_and_a_decoder_of_ones_own() -> None:
    group = group_of(OBSERVATION, ACTION)
    decoder = nn.Sequential(nn.Linear(24, 9), nn.Tanh(), nn.Linear(9, 6))
    policy = make_policy(group, PolicyConfig(), encoder=Ours(), core=Sum(24), decoder=decoder)
    assert policy.state_size == 24
    observations, resets = observations_of(2, 4), torch.zeros(2, 4, dtype=torch.bool)
    params, _ = policy.forward_segments(observations, policy.initial_state(2), resets)
    state = policy.initial_state(2)
    for t in range(4):
        expected, _, state = policy(observations[:, t], state)
        torch.testing.assert_close(params[:, t], expected)


def test_parts_that_do_not_fit_are_refused() -> None:
    group = group_of(OBSERVATION, ACTION)
    with pytest.raises(UsageError, match="decoder: given one of another width; allowed: 6 outputs"):
        make_policy(group, PolicyConfig(), decoder=nn.Linear(128, 5))
    with pytest.raises(UsageError, match=r"encoder: given a module that makes \(2,\) of rows"):
        make_policy(group, PolicyConfig(), encoder=nn.Sequential(Ours(1), nn.Flatten(0)))


def test_weights_round_trip() -> None:
    policy, other = policy_of(core="gru"), policy_of(core="gru")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(policy.state_dict())
    assert all("nodes" not in name for name in policy.state_dict())  # constants are not weights
    observations, state = observations_of(2), policy.initial_state(2)
    for ours, expected in zip(other(observations, state), policy(observations, state), strict=True):
        assert torch.equal(ours, expected)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(UsageError, match="window: given 0; allowed: 1 or more"):
        PolicyConfig(window=0)
