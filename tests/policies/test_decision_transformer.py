"""The Decision Transformer: who sees whom, and playing step by step as in learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.policies import ActionDistribution
from fugu.policies.decision_transformer import (
    DecisionTransformer,
    DecisionTransformerPolicyConfig,
    make_decision_transformer,
)
from fugu.spaces import Layout

OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (3,)),
    "tree": spaces.Dict(
        gear=spaces.Discrete(5),
        view=spaces.Box(0, 255, (24, 24, 3), np.uint8),
        speed=spaces.Box(-1, 1, (2,)),
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(4, start=3),
    "heads": spaces.MultiDiscrete([3, 2]),
    "numbers": spaces.Box(-2, 2, (2,)),
    "mixed": spaces.Dict(go=spaces.Discrete(3), to=spaces.Box(-1, 1, (2,))),
}
BATCH, WINDOW = 3, 6


def make(
    observation: str = "vector", action: str = "mixed", **settings: Any
) -> tuple[DecisionTransformer, Layout]:
    layouts = Layout.of(OBSERVATIONS[observation]), Layout.of(ACTIONS[action])
    small = {"hidden_size": 16, "heads": 2, "blocks": 2, "window": WINDOW, "timesteps": 32}
    cfg = DecisionTransformerPolicyConfig(**{**small, **settings})
    torch.manual_seed(0)
    policy = make_decision_transformer(AgentGroup("agent", (0,), *layouts), cfg)
    assert isinstance(policy, DecisionTransformer)
    for weight in policy.parameters():  # so that outputs differ by more than rounding
        weight.data += 0.1 * torch.randn_like(weight)
    return policy.eval(), layouts[0]


def rows_of(layout: Layout, count: int, seed: int = 0) -> torch.Tensor:
    layout.space.seed(seed)
    rows = layout.zeros(count)
    for row in rows:
        layout.pack(layout.space.sample(), row)
    return torch.from_numpy(rows)


def samples_of(distribution: ActionDistribution, count: int, seed: int = 0) -> torch.Tensor:
    params = torch.zeros(count, distribution.num_params)
    drawn, _ = distribution.sample(params, None, np.random.default_rng(seed))
    return torch.from_numpy(distribution.to_samples(distribution.to_rows(drawn)))


def sequences(policy: DecisionTransformer, layout: Layout, seed: int = 0) -> dict[str, Any]:
    count = BATCH * WINDOW
    generator = torch.Generator().manual_seed(seed)
    return {
        "observations": rows_of(layout, count, seed).view(BATCH, WINDOW, -1),
        "samples": samples_of(policy.distribution, count, seed).view(BATCH, WINDOW, -1),
        "returns": torch.rand(BATCH, WINDOW, generator=generator) * 5,
        "times": torch.arange(WINDOW).expand(BATCH, WINDOW) + torch.arange(BATCH)[:, None],
        "mask": torch.ones(BATCH, WINDOW, dtype=torch.bool),
    }


@torch.no_grad()
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_later_changes_a_prediction(observation: str, action: str) -> None:
    policy, layout = make(observation, action)
    given, other = sequences(policy, layout), sequences(policy, layout, seed=1)
    before = policy.forward_sequences(**given)
    for name in ("observations", "samples", "returns", "times"):
        for step in range(WINDOW):
            changed = {**given, name: given[name].clone()}
            changed[name][:, step] = other[name][:, step] + (17 if name == "times" else 0)
            after = policy.forward_sequences(**changed)
            # An action is known one prediction later than what was seen before it.
            first = step + 1 if name == "samples" else step
            assert torch.equal(after[:, :first], before[:, :first]), (name, step)
            if first < WINDOW:
                assert not torch.equal(after[:, first], before[:, first]), (name, step)


@torch.no_grad()
def test_an_action_does_not_reach_its_own_prediction() -> None:
    policy, layout = make()
    given = sequences(policy, layout)
    before = policy.forward_sequences(**given)
    shuffled = given["samples"].clone()
    for step in range(WINDOW):  # the present action of every sequence, one step at a time
        shuffled[:, step] = given["samples"].roll(1, 0)[:, step]
        after = policy.forward_sequences(**{**given, "samples": shuffled})
        assert torch.equal(after[:, step], before[:, step])
        shuffled[:, step] = given["samples"][:, step]


@torch.no_grad()
def test_padding_changes_nothing() -> None:
    policy, layout = make()
    given = sequences(policy, layout)
    given["mask"][:, :2] = False
    before = policy.forward_sequences(**given)
    other = sequences(policy, layout, seed=5)
    for name in ("observations", "samples", "returns"):
        given[name] = given[name].clone()
        given[name][:, :2] = other[name][:, :2]
    assert torch.equal(policy.forward_sequences(**given)[:, 2:], before[:, 2:])
    short = {name: value[:, 2:] for name, value in given.items()}
    assert torch.allclose(policy.forward_sequences(**short), before[:, 2:], atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
def test_playing_is_what_is_learned(action: str, delayed: bool) -> None:
    """Step by step, with rewards taken off, as whole sequences of the last steps."""
    policy, layout = make("tree", action, delayed=delayed)
    policy.core.scale.fill_(4.0)
    policy.ask(7.0)
    steps, random = 9, np.random.default_rng(3)
    seen = rows_of(layout, steps * BATCH).view(steps, BATCH, -1)
    state, to_go = policy.initial_state(BATCH), torch.full((BATCH,), 7.0)
    done, returns = [], []
    for time in range(steps):
        params, values, state = policy(seen[time], state)
        assert values.shape == (BATCH, 0)
        samples, _ = policy.distribution.sample(params, None, random)
        state = policy.acted(state, samples)
        given = policy.distribution.to_samples(policy.distribution.to_rows(samples))
        done.append(torch.from_numpy(given))
        returns.append(to_go.clone())
        first = max(0, time + 1 - WINDOW)
        count = time + 1 - first
        whole = policy.forward_sequences(
            seen[first : time + 1].transpose(0, 1),
            torch.stack(done[first:], 1),
            torch.stack(returns[first:], 1),
            torch.arange(first, time + 1).expand(BATCH, count),
            torch.ones(BATCH, count, dtype=torch.bool),
        )
        assert torch.allclose(whole[:, -1], params, atol=1e-5)
        rewards = random.random(BATCH, np.float32)
        state = policy.earned(state, rewards)
        if not delayed:
            to_go = to_go - torch.from_numpy(rewards)


@torch.no_grad()
def test_copies_in_different_places_do_not_mix() -> None:
    policy, layout = make()
    seen = rows_of(layout, 4)
    state = policy.initial_state(2)
    for time in range(3):
        _, _, state = policy(seen[time].expand(2, -1), state)
        state[1] = 0.0  # this one begins anew at every step
    together, _, _ = policy(seen[3].expand(2, -1), state)
    alone, _, _ = policy(seen[3:], policy.initial_state(1))
    assert torch.allclose(together[1], alone[0], atol=1e-6)
    assert not torch.allclose(together[0], alone[0], atol=1e-4)


@torch.no_grad()
def test_cloning_does_not_see_what_is_asked_for() -> None:
    policy, layout = make()
    given = sequences(policy, layout)
    more = {**given, "returns": given["returns"] + 1}
    assert not torch.equal(policy.forward_sequences(**given), policy.forward_sequences(**more))
    policy.core.conditioned.fill_(0.0)
    assert torch.equal(policy.forward_sequences(**given), policy.forward_sequences(**more))


@pytest.mark.parametrize("continuous", ["clipped", "tanh"])
def test_samples_are_read_back_from_rows(continuous: Any) -> None:
    for space in ACTIONS.values():
        distribution = ActionDistribution(Layout.of(space), continuous)
        samples = samples_of(distribution, 50)
        again = distribution.to_samples(distribution.to_rows(samples))
        assert samples.numpy() == pytest.approx(again, abs=1e-4)
    bound = ActionDistribution(Layout.of(spaces.Box(-2, 2, (1,))), continuous)
    rows = np.array([[2.0], [-2.0], [0.5]], np.float32)
    assert bound.to_rows(bound.to_samples(rows)) == pytest.approx(rows, abs=1e-5)


def test_wrong_settings_are_refused() -> None:
    for settings, name in (
        ({"heads": 3}, "heads"),
        ({"dropout": 1.0}, "dropout"),
        ({"core": "lstm"}, "core"),
        ({"blocks": 0}, "blocks"),
    ):
        with pytest.raises(UsageError, match=name):
            DecisionTransformerPolicyConfig(**{"hidden_size": 16, **settings})
    policy, _ = make()
    with pytest.raises(UsageError, match="forward_sequences"):
        policy.forward_segments(torch.zeros(1, 1, 3), policy.initial_state(1), torch.zeros(1, 1))
