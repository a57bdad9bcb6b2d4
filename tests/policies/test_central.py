"""Central critics: what actors and critics read, one agent's networks each, states of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces

from fugu import Layout
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.policies import PolicyConfig, make_policy
from fugu.policies.central import CentralPolicy, CriticLayout, make_central_policy, make_player

FLOATS = spaces.Box(-1, 1, (4,))
MIXED = spaces.Dict(at=spaces.Box(-1, 1, (3,)), gear=spaces.Discrete(4))
SPACES = {"floats": FLOATS, "mixed": MIXED}
AGENTS = 3


def group_of(space: Space[Any]) -> AgentGroup:
    return AgentGroup("agent", ("a", "b", "c"), Layout.of(space), Layout.of(spaces.Discrete(5)))


def policy_of(
    space: Space[Any], *, ids: bool = True, shared: bool = True, local: bool = False, **cfg: Any
) -> CentralPolicy:
    torch.manual_seed(0)
    group = group_of(space)
    rest = () if local else ((group.observation_layout, AGENTS),)
    layout = CriticLayout.of(group, agent_ids=ids or not shared, rest=rest)
    parts = (
        layout.own,
        *((layout.agent,) if layout.agent and ids and shared else ()),
        *layout.rest,
    )
    settings = PolicyConfig(**({"hidden_size": 16} | cfg))
    return make_central_policy(group, settings, layout, agent_ids=ids, shared=shared, critic=parts)


def rows_of(policy: CentralPolicy, count: int) -> torch.Tensor:
    """Random observations and states, of agents in turn."""
    layout, random = policy.layout.own.layout, np.random.default_rng(3)
    layout.space.seed(1)

    def seen(number: int) -> Any:
        found = layout.zeros(number)
        for row in found:
            layout.pack(layout.space.sample(), row)
        return found

    rows = policy.layout.zeros(count)
    policy.layout.write_own(rows, seen(count), random.integers(0, 30, count))
    for part in policy.layout.rest:
        flat = seen(count * part.count).view(np.uint8).reshape(count, -1)
        rows.view(np.uint8)[:, part.offset : part.end] = flat
    return torch.from_numpy(rows)


def spoiled(policy: CentralPolicy, rows: torch.Tensor) -> torch.Tensor:
    """The same with garbage for what only the critic sees."""
    other = rows.clone()
    other[:, policy.layout.actor_size :] = 77
    return other


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("shared", [True, False])
def test_actors_never_see_what_is_the_critics(space: str, shared: bool) -> None:
    policy = policy_of(SPACES[space], shared=shared)
    rows, state = rows_of(policy, 12), policy.initial_state(12)
    params, values, _ = policy(rows, state)
    other, others_values, _ = policy(spoiled(policy, rows), state)
    torch.testing.assert_close(params, other, rtol=0, atol=0)
    assert not torch.equal(values, others_values)
    alone, nothing, _ = policy(rows[:, : policy.layout.actor_size], state)
    torch.testing.assert_close(params, alone, rtol=0, atol=0)
    assert nothing.isnan().all()


@pytest.mark.parametrize("space", SPACES)
def test_a_player_acts_on_observations_and_names_alone(space: str) -> None:
    group, cfg = group_of(SPACES[space]), PolicyConfig(hidden_size=16)
    policy = policy_of(SPACES[space])
    player = make_player(make_policy, True, True, group, cfg)
    player.load_state_dict(policy.state_dict())
    assert not [name for name in player.state_dict() if name.startswith("critics")]
    rows = rows_of(policy, 6)
    own = policy.layout.read(rows, policy.layout.own).numpy()
    agents = policy.layout.read(rows, policy.layout.agent).numpy().argmax(-1)  # type: ignore[arg-type]
    expected, _, _ = policy(rows, policy.initial_state(6))
    seen = torch.from_numpy(player.look(own, agents + 3 * np.arange(6)))
    params, _, _ = player(seen, player.initial_state(6))
    torch.testing.assert_close(params, expected)


def test_a_local_critic_sees_what_its_actor_sees() -> None:
    policy = policy_of(FLOATS, local=True)
    assert policy.layout.size == policy.layout.actor_size == 4 + AGENTS
    _, values, _ = policy(rows_of(policy, 5), policy.initial_state(5))
    assert not values.isnan().any()


def test_names_tell_shared_networks_apart_and_their_absence_does_not() -> None:
    for ids in (True, False):
        policy = policy_of(FLOATS, ids=ids)
        seen = np.repeat(np.ones((1, 4), np.float32), AGENTS, 0)
        rows = torch.from_numpy(policy.look(seen, np.arange(AGENTS)))
        params, _, _ = policy(rows, policy.initial_state(AGENTS))
        assert torch.equal(params[0], params[1]) != ids


def test_agents_with_networks_of_their_own_use_these_and_no_others() -> None:
    policy = policy_of(FLOATS, ids=False, shared=False)
    assert (len(policy.actors), len(policy.critics)) == (AGENTS, AGENTS)
    rows = rows_of(policy, 30)
    who = policy.layout.read(rows, policy.layout.agent).argmax(-1)  # type: ignore[arg-type]
    params, values, _ = policy(rows, policy.initial_state(30))
    for i, (actor, critic) in enumerate(zip(policy.actors, policy.critics, strict=True)):
        mine = rows[who == i]
        expected, _, _ = actor(
            policy.layout.read(mine, policy.layout.own), torch.zeros(len(mine), 0)
        )
        torch.testing.assert_close(params[who == i], expected)
        said, _ = critic(mine, torch.zeros(len(mine), 0))
        torch.testing.assert_close(values[who == i], said)
    policy.zero_grad()
    again, _, _ = policy(rows, policy.initial_state(30))
    again[who == 1].sum().backward()
    touched = [any(p.grad.abs().sum() > 0 for p in a.parameters()) for a in policy.actors]  # type: ignore[union-attr]
    assert touched == [False, True, False]


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "transformer"])
@pytest.mark.parametrize("shared", [True, False])
def test_segments_equal_steps_for_recurrent_actors_and_critics(core: Any, shared: bool) -> None:
    policy = policy_of(FLOATS, shared=shared, core=core, window=4)
    steps, lines = 9, 6
    rows = rows_of(policy, lines).unsqueeze(1).repeat(1, steps, 1)
    name = policy.layout.actor_size - AGENTS
    rows[:, :, :name] = torch.randn(lines, steps, name)
    rows[:, :, policy.layout.actor_size :] = torch.randn(
        lines, steps, policy.layout.size - policy.layout.actor_size
    )
    resets = torch.rand(lines, steps) < 0.2
    state = policy.initial_state(lines)
    params, values = policy.forward_segments(rows, state, resets)
    for t in range(steps):
        state = torch.where(resets[:, t, None], torch.zeros(()), state)
        step_params, step_values, state = policy(rows[:, t], state)
        torch.testing.assert_close(params[:, t], step_params, atol=1e-5, rtol=0)
        torch.testing.assert_close(values[:, t], step_values, atol=1e-5, rtol=0)


def test_a_broken_first_step_does_not_change_whose_row_it_is() -> None:
    policy = policy_of(FLOATS, shared=False)
    rows = rows_of(policy, 6).unsqueeze(1).repeat(1, 3, 1)
    whole, _ = policy.forward_segments(rows, policy.initial_state(6), torch.zeros(6, 3).bool())
    rows[:, 0] = 0
    broken, _ = policy.forward_segments(rows, policy.initial_state(6), torch.zeros(6, 3).bool())
    torch.testing.assert_close(broken[:, 1:], whole[:, 1:])


def test_observations_of_both_halves_are_normalised() -> None:
    policy = policy_of(FLOATS, normalise=True)
    rows = rows_of(policy, 50)
    before, _, _ = policy(rows, policy.initial_state(50))
    assert len(policy.scales) == 5  # own and name twice, and what all see
    policy.note(rows)
    assert all(scale.count > 0 for scale in policy.scales)
    after, _, _ = policy(rows, policy.initial_state(50))
    assert not torch.equal(before, after)


def test_a_factory_of_ones_own_makes_actors_without_names() -> None:
    group, cfg = group_of(FLOATS), PolicyConfig(hidden_size=8)

    def factory(*arguments: Any) -> Any:
        return make_policy(*arguments, encoder=torch.nn.Linear(4, 12))

    player = make_player(factory, False, True, group, cfg)
    seen = torch.from_numpy(player.look(np.zeros((3, 4), np.float32), np.arange(3)))
    assert player(seen, player.initial_state(3))[0].shape == (3, 5)
    with pytest.raises(UsageError, match="agent_ids"):
        make_player(factory, True, True, group, cfg)
