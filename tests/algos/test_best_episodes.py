"""Best episodes: which are kept, that they become likelier, and that they survive a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.exploration import SelfImitationBuffer
from fugu.algos.optimizers import OptimizerConfig, make_optimizer
from fugu.algos.ppo import Critics, PPOConfig, PPOLearner
from fugu.core.errors import UsageError
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.spaces import Layout

HORIZON = 8
RANDOM = np.random.default_rng(0)
GROUP = AgentGroup("agent", (0,), Layout.of(spaces.Box(-9, 9, (2,))), Layout.of(spaces.Discrete(4)))


def make_segments(
    rows: list[list[tuple[int, float, bool]]], core: Any = "none", broken: tuple[int, int] = (-1, 0)
) -> tuple[Policy, Segments]:
    """One row for each list of actions, rewards and ends; it begins in the middle of an episode."""
    torch.manual_seed(0)
    policy = make_policy(GROUP, PolicyConfig(hidden_size=16, core=core))
    agents = np.arange(len(rows))
    shape = SegmentShape(len(rows), len(rows), HORIZON, 1, policy.state_size)
    segments, random = Segments(GROUP, shape), np.random.default_rng(1)
    segments.starts_episode[:] = False
    zeros, yes = np.zeros(len(rows), np.float32), np.ones(len(rows), bool)
    states = np.zeros((len(rows), policy.state_size), np.float32)
    for time in range(HORIZON + 1):
        steps = [row[time] if time < len(row) else (0, 0.0, False) for row in rows]
        actions = np.array([[step[0]] for step in steps], np.float32)
        seen = random.normal(size=(len(rows), 2)).astype(np.float32)
        masks = np.ones((len(rows), GROUP.mask_width), bool)
        segments.record_step(agents, seen, masks, actions, zeros, zeros[:, None], states)
        valid = np.array([(row, time) != broken for row in agents])
        rewards = np.array([step[1] for step in steps], np.float32)
        ends = np.array([step[2] for step in steps])
        segments.record_reward(agents, rewards, ends, ~yes, valid, yes)
    return policy, segments


def kept_by(best: SelfImitationBuffer) -> list[tuple[float, tuple[int, ...]]]:
    state = best.state_dict()
    ends = np.cumsum(state["lengths"])
    actions = np.split(state["samples"][:, 0].astype(int), ends[:-1])
    deeds = [tuple(deed.tolist()) for deed in actions]
    return list(zip(state["totals"].tolist(), deeds, strict=True))


ROWS = [
    [(3, 9.0, True), (1, 0.0, False), (2, 1.0, True), (2, 3.0, True), (1, 9.0, False)],
    [(0, 0.0, True), (1, 0.0, False), (2, 2.0, True), (0, 0.5, True), (3, 0.0, True)],
]


def test_the_best_whole_episodes_are_kept_and_each_once() -> None:
    _, segments = make_segments(ROWS)
    best = SelfImitationBuffer(3)
    for _ in range(2):
        best.offer(segments, segments.take())
        assert sorted(kept_by(best)) == [(1.0, (1, 2)), (2.0, (1, 2)), (3.0, (2,))]
        assert best.worst == 1.0


def test_an_episode_that_starts_with_its_row_is_kept() -> None:
    _, segments = make_segments(ROWS)
    segments.starts_episode[segments.take()] = [True, False]
    best = SelfImitationBuffer(2)
    best.offer(segments, segments.take())
    assert kept_by(best) == [(9.0, (3,)), (3.0, (2,))]


def test_of_those_that_began_and_earned_alike_the_shortest_is_kept() -> None:
    long = [(0, 0.0, True), (1, 0.0, False), (2, 0.0, False), (3, 2.0, True), (0, 0.0, False)]
    short = [(0, 0.0, True), (3, 2.00001, True), (1, 1.0, True), (0, 0.0, False)]
    for rows in ([long, short], [short, long]):
        _, segments = make_segments(rows)
        segments.observations.table[:] = 0
        best = SelfImitationBuffer(9)
        best.offer(segments, segments.take())
        assert [deed for _, deed in kept_by(best)] == [(3,), (1,)]
        again = SelfImitationBuffer(9)
        again.load_state_dict(best.state_dict())
        again.offer(segments, segments.take())
        assert kept_by(again) == kept_by(best)


def test_a_shorter_episode_of_a_later_update_takes_the_place_of_a_longer_one() -> None:
    def row(steps: int) -> list[tuple[int, float, bool]]:
        waits = [(0, 0.0, False)] * (steps - 1)
        return [(0, 0.0, True), *waits, (3, 2.0, True), (0, 0.0, False)]

    best = SelfImitationBuffer(9)
    for steps, kept in ((5, 5), (4, 4), (3, 3), (5, 3)):
        _, segments = make_segments([row(steps)])
        segments.observations.table[:] = 0
        best.offer(segments, segments.take())
        assert [len(deed) for _, deed in kept_by(best)] == [kept]


def test_what_a_fault_broke_is_not_kept() -> None:
    _, segments = make_segments(ROWS, broken=(1, 1))
    segments.rewards[1, 1] = np.nan
    best = SelfImitationBuffer(9)
    best.offer(segments, segments.take())
    others = [(3.0, (2,)), (2.0, (2,)), (1.0, (1, 2)), (0.5, (0,)), (0.0, (3,))]
    assert kept_by(best) == others  # what comes after a fault is an episode of its own


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_they_become_likely(core: Any) -> None:
    policy, segments = make_segments(ROWS, core)
    best = SelfImitationBuffer(2)
    best.offer(segments, segments.take())
    optimiser = torch.optim.Adam(policy.parameters(), 0.01)
    before = best.loss(policy, RANDOM).item()
    assert before == pytest.approx(np.log(4), abs=0.1)
    for _ in range(100):
        optimiser.zero_grad()
        best.loss(policy, RANDOM).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert best.loss(policy, RANDOM).item() < 0.1


def test_padding_does_not_count() -> None:
    policy, segments = make_segments(ROWS)
    losses, lengths = [], []
    for capacity in (1, 2):
        best = SelfImitationBuffer(capacity)
        best.offer(segments, segments.take())
        losses.append(best.loss(policy, RANDOM).item())
        lengths.append(int(best.state_dict()["lengths"].sum()))
    assert lengths == [1, 3]
    rows = segments.observations.read(np.array([1]))[:, 1:3]
    params, _ = policy.forward_segments(rows, policy.initial_state(1), torch.zeros(1, 2).bool())
    said, _ = policy.distribution.evaluate(params, torch.tensor([[[1.0], [2.0]]]), None)
    assert 3 * losses[1] == pytest.approx(losses[0] - said.sum().item(), abs=1e-5)


def test_of_many_some_are_learned_at_a_time() -> None:
    rows = [[(0, 0.0, True), (i % 4, 1.0 + i, True), (0, 0.0, False)] for i in range(40)]
    policy, segments = make_segments(rows)
    best = SelfImitationBuffer(40)
    best.offer(segments, segments.take())
    assert len(best) == 40
    losses = [best.loss(policy, np.random.default_rng(seed)).item() for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def learner(policy: Policy, **settings: Any) -> PPOLearner:
    cfg = PPOConfig(horizon=HORIZON, epochs=1, minibatches=1, **settings)
    optimiser = make_optimizer(policy, OptimizerConfig(kind="adamw", learning_rate=0.01))
    return PPOLearner(policy, optimiser, Critics(cfg), np.random.default_rng(1))


def test_ppo_learns_from_them_only_if_told_to_and_saves_them() -> None:
    outcomes = {}
    for count, coefficient in ((0, 0.1), (2, 0.0), (2, 1.0)):
        policy, segments = make_segments(ROWS)
        ppo = learner(policy, best_episodes=count, best_coefficient=coefficient)
        told = ppo.update(segments, 0.0)
        assert ("best_loss" in told) == bool(ppo.state_dict()) == bool(count)
        outcomes[count, coefficient] = [p.detach().clone() for p in policy.parameters()]
    plain, weightless, imitating = outcomes.values()
    assert all(torch.equal(a, b) for a, b in zip(plain, weightless, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(plain, imitating, strict=True))
    again = learner(policy, best_episodes=2)
    again.load_state_dict(ppo.state_dict())
    assert torch.equal(again._best.loss(policy, RANDOM), ppo._best.loss(policy, RANDOM))
    with pytest.raises(UsageError, match=r"train\.best_episodes: given -1"):
        PPOConfig(best_episodes=-1)
