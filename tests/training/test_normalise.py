"""The scale of rewards: many times at once are as one after another, and only actions count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup, Buffers
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import make_policy
from fugu.rollout.actor import Actor, ReturnNormalizer
from fugu.spaces import Layout

AGENTS, TIMES, GAMMA = 37, 50, 0.97


def test_rows_are_noted_as_their_steps_are() -> None:
    random = np.random.default_rng(1)
    rewards = random.normal(size=(TIMES, AGENTS)).astype(np.float32)
    ended = random.random((TIMES, AGENTS)) < 0.1
    one_by_one, at_once = (ReturnNormalizer(AGENTS, GAMMA) for _ in range(2))
    for part in (slice(0, 20), slice(20, 20), slice(20, TIMES)):
        at_once.note_rows(rewards[part], ended[part])
    for came, over in zip(rewards, ended, strict=True):
        one_by_one.note(np.arange(AGENTS), came, over, np.ones(AGENTS, bool))
    assert at_once.divisor == one_by_one.divisor != 1.0
    for name, numbers in one_by_one.state_dict().items():
        assert np.array_equal(at_once.state_dict()[name], numbers)


def test_the_divisor_is_how_much_returns_vary() -> None:
    random = np.random.default_rng(2)
    rewards = random.normal(3.0, 2.0, (TIMES, AGENTS)).astype(np.float32)
    ended = random.random((TIMES, AGENTS)) < 0.2
    scale, returns = ReturnNormalizer(AGENTS, GAMMA), []
    for agent in range(AGENTS):
        total = 0.0
        for reward, over in zip(rewards[:, agent], ended[:, agent], strict=True):
            total = GAMMA * total + float(reward)
            returns.append(total)
            total = 0.0 if over else total
    assert scale.divisor == 1.0
    scale.note_rows(rewards, ended)
    np.testing.assert_allclose(scale.divisor, np.std(returns), rtol=1e-9)


def make_actor(agents: int) -> Actor:
    layout = Layout.of(spaces.Box(-1, 1, (1,)))
    group = AgentGroup("agent", tuple(range(agents)), layout, Layout.of(spaces.Discrete(2)))
    segments = Segments(group, SegmentShape(agents, agents, 8, 1))
    policy, random = make_policy(group, PolicyConfig(hidden_size=4)), np.random.default_rng(0)
    return Actor(policy, segments, ReturnNormalizer(agents, 1.0), torch.device("cpu"), random)


@torch.no_grad()
def show(actor: Actor, rewards: list[float], live: list[int], ends: list[int]) -> None:
    """Show an actor what reached its agents, which of them act next, and whose episode ended."""
    rows = Buffers.allocate(actor.store.group)
    rows.rewards[:], rows.live[:], rows.terminations[:] = rewards, live, ends
    rows.valid[:] = rows.action_masks[:] = True
    actor.act(np.arange(len(rewards)), rows)


def test_agents_that_do_not_act_do_not_count_in_the_scale() -> None:
    actor = make_actor(3)
    show(actor, [0, 0, 0], live=[1, 1, 0], ends=[0, 0, 0])  # the third never begins
    for _ in range(3):  # the second dies at once, and waits for the others to end
        show(actor, [2, 1, 0], live=[1, 0, 0], ends=[0, 1, 0])
    returns = [2.0, 1.0, 4.0, 6.0]
    np.testing.assert_allclose(actor.returns.divisor, np.std(returns), rtol=1e-6)


def test_rewards_between_two_turns_are_those_of_one_action() -> None:
    actor = make_actor(2)
    show(actor, [0, 0], live=[1, 0], ends=[0, 0])
    show(actor, [1, 0], live=[0, 1], ends=[0, 0])  # the first waits for its turn
    show(actor, [3, 5], live=[1, 0], ends=[0, 0])
    count, mean, _ = actor.returns.state_dict()["moments"]
    assert (count, mean) == (1, pytest.approx(4.0))
    show(actor, [0, 6], live=[0, 1], ends=[0, 0])
    count, mean, _ = actor.returns.state_dict()["moments"]
    assert (count, mean) == (2, pytest.approx((4.0 + 11.0) / 2))
