"""Safe PPO: multipliers, advantages and costs against values computed by hand or by torch."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.optimizers import OptimizerConfig, make_optimizer
from fugu.algos.ppo import Critics, PPOConfig, PPOLearner
from fugu.algos.safe_ppo import (
    CostCritics,
    LagrangeMultiplier,
    PidMultiplier,
    SafePPOConfig,
    make_multiplier,
    safe_advantages,
)
from fugu.core.errors import UsageError
from fugu.data.segments import EpisodeCosts, Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.native.advantage import advantages_reference
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.spaces import Layout

AGENTS, HORIZON = 8, 6
CONFIG = SafePPOConfig(horizon=HORIZON, epochs=2, minibatches=2, microbatch=10_000, cost_limit=1.0)

# ------------------------------------------------------------------ multipliers


def test_lagrange_multipliers_take_adams_steps() -> None:
    ours = LagrangeMultiplier(2, initial=0.5, rate=0.035)
    theirs = torch.full((2,), 0.5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([theirs], lr=0.035)
    limits, random = np.array([25.0, 1.0]), np.random.default_rng(0)
    for _ in range(200):
        costs = random.uniform(0, 2, 2) * limits
        adam.zero_grad()
        (-theirs * torch.from_numpy(costs - limits)).sum().backward()
        adam.step()
        theirs.data.clamp_(min=0.0)
        ours.update(costs, limits)
        np.testing.assert_allclose(ours.values, theirs.detach().numpy(), atol=1e-12)


def test_lagrange_multipliers_stay_between_0_and_the_cap() -> None:
    multiplier = LagrangeMultiplier(1, initial=0.05, rate=0.1, cap=0.12)
    multiplier.update(np.array([9.0]), np.array([1.0]))
    assert multiplier.values == [0.12]
    for _ in range(40):
        multiplier.update(np.array([0.0]), np.array([1.0]))
    assert multiplier.values == [0.0]


def test_pid_multipliers_by_hand() -> None:
    pid = PidMultiplier(
        1, initial=0.0, proportional=0.1, integral=0.01, derivative=0.5, smoothing=0.5, delay=2
    )
    limits = np.array([10.0])
    # excess 10, 10, -10; smoothed 5, 7.5, -1.25; sums 0.1, 0.2, 0.1; smoothed costs 10, 15, 7.5
    # that of two updates before (0 at first): 0, 0, 10; growth 10, 15, 0
    found = []
    for cost in (20.0, 20.0, 0.0):
        pid.update(np.array([cost]), limits)
        found.append(float(pid.values[0]))
    assert found == pytest.approx([0.5 + 0.1 + 5.0, 0.75 + 0.2 + 7.5, 0.0])


def test_pid_growth_is_measured_over_the_delay() -> None:
    pid = PidMultiplier(1, initial=0.0, proportional=0.0, integral=0.0, derivative=1.0, delay=10)
    smoothed = [0.0]
    for step in range(30):
        cost = float(step)
        smoothed.append(0.95 * smoothed[-1] + 0.05 * cost)
        pid.update(np.array([cost]), np.array([0.0]))
        before = smoothed[max(0, len(smoothed) - 11)]
        assert pid.values[0] == pytest.approx(smoothed[-1] - before)


@pytest.mark.parametrize("kind", ["lagrange", "pid"])
def test_multipliers_go_on_from_their_state(kind: Any) -> None:
    cfg, limits = replace(CONFIG, multiplier=kind), np.array([1.0, 2.0])
    random = np.random.default_rng(1)
    one, other = make_multiplier(cfg, 2), make_multiplier(cfg, 2)
    for _ in range(15):
        one.update(random.uniform(0, 4, 2), limits)
    other.load_state_dict({name: array.copy() for name, array in one.state_dict().items()})
    for _ in range(15):
        costs = random.uniform(0, 4, 2)
        one.update(costs, limits)
        other.update(costs, limits)
    np.testing.assert_array_equal(one.values, other.values)


# ------------------------------------------------------------------ settings


def test_limits_follow_their_schedules() -> None:
    assert CONFIG.limits_at(0.7, 3).tolist() == [1.0, 1.0, 1.0]
    cfg = replace(CONFIG, cost_limit=(40.0, 10.0), final_cost_limit=(20.0, 10.0))
    assert cfg.limits_at(0.0, 2).tolist() == [40.0, 10.0]
    assert cfg.limits_at(0.25, 2).tolist() == [35.0, 10.0]
    assert cfg.limits_at(1.0, 2).tolist() == [20.0, 10.0]
    with pytest.raises(UsageError, match="given 2 limits; allowed: one for all, or 3"):
        cfg.limits_at(0.0, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cost_limit": -1.0},
        {"final_cost_limit": (1.0, -2.0)},
        {"cost_limit": ()},
        {"cost_gamma": 1.5},
        {"initial_multiplier": 200.0},
        {"pid_delay": 0},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        replace(CONFIG, **wrong)


# ------------------------------------------------------------------ advantages


def test_advantages_of_costs_are_centred_and_not_scaled() -> None:
    valid = np.array([[True, True], [True, False]])
    reward = np.array([[1.0, 2.0], [3.0, 99.0]], np.float32)
    cost = np.array([[0.0, 60.0], [30.0, 99.0]], np.float32)
    other = np.array([[1.0, 1.0], [4.0, 99.0]], np.float32)
    found = safe_advantages(np.stack([reward, cost, other]), np.array([0.5, 2.0]), valid)
    deviation = np.sqrt(2 / 3)
    scaled = [-1 / deviation, 0.0, 1 / deviation]  # of 1, 2, 3
    expected = [
        (scaled[0] - 0.5 * (0 - 30) - 2.0 * (1 - 2)) / 3.5,
        (scaled[1] - 0.5 * (60 - 30) - 2.0 * (1 - 2)) / 3.5,
        (scaled[2] - 0.5 * (30 - 30) - 2.0 * (4 - 2)) / 3.5,
    ]
    np.testing.assert_allclose(found[valid], expected, rtol=1e-5)


def test_without_multipliers_advantages_are_ppos() -> None:
    random = np.random.default_rng(0)
    valid = random.random((5, 4)) > 0.2
    both = random.normal(size=(2, 5, 4)).astype(np.float32)
    found = safe_advantages(both, np.zeros(1), valid)
    inside = both[0][valid]
    np.testing.assert_array_equal(found, (both[0] - inside.mean()) / (inside.std() + 1e-8))


# ------------------------------------------------------------------ costs of episodes


def test_costs_of_episodes_are_summed_agent_by_agent() -> None:
    costs = EpisodeCosts(3, 2)
    yes, no = np.array([True, True]), np.array([False, False])
    costs.note(np.array([0, 1]), np.array([[1, 10], [2, 20]], np.float32), no, yes)
    costs.note(np.array([1, 2]), np.array([[3, 30], [5, 50]], np.float32), no, yes)
    assert costs.finished.shape == (0, 2)
    # agent 1 ends; agent 0 breaks, so that what it paid is forgotten
    ended, valid = np.array([True, True]), np.array([False, True])
    costs.note(np.array([0, 1]), np.array([[np.nan, 1], [4, 40]], np.float32), ended, valid)
    assert costs.finished.tolist() == [[9.0, 90.0]]
    costs.note(np.array([0, 2]), np.array([[7, 70], [6, 60]], np.float32), yes, yes)
    assert costs.finished.tolist() == [[9.0, 90.0], [7.0, 70.0], [11.0, 110.0]]
    costs.clear()
    costs.note(np.array([1]), np.array([[8, 80]], np.float32), yes[:1], yes[:1])
    assert costs.finished.tolist() == [[8.0, 80.0]]


# ------------------------------------------------------------------ updates


def group(constraints: int) -> AgentGroup:
    observation, action = Layout.of(spaces.Box(-9, 9, (3,))), Layout.of(spaces.Discrete(3))
    return AgentGroup("agent", tuple(range(AGENTS)), observation, action, constraints)


def filled(space: AgentGroup, policy: Policy, reward_unit: float = 1.0) -> Segments:
    """Segments of random experience, some of it broken, and episodes that ended."""
    random = np.random.default_rng(5)
    shape = SegmentShape(
        AGENTS, AGENTS, HORIZON, policy.distribution.num_samples, 0, policy.num_critics,
        space.num_costs,
    )  # fmt: skip
    segments = Segments(space, shape)
    everybody, yes = np.arange(AGENTS), np.ones(AGENTS, bool)
    states = np.zeros((AGENTS, 0), np.float32)
    for _ in range(HORIZON + 1):
        observations = random.normal(size=(AGENTS, 3)).astype(np.float32)
        with torch.no_grad():
            params, values, _ = policy(torch.from_numpy(observations), torch.from_numpy(states))
        samples, logs = policy.distribution.sample(params, None, random)
        masks = np.ones((AGENTS, space.mask_width), bool)
        segments.record_step(everybody, observations, masks, samples, logs, values.numpy(), states)
        rewards = random.normal(size=AGENTS).astype(np.float32) * np.float32(reward_unit)
        costs = random.uniform(0, 2, (AGENTS, space.num_costs)).astype(np.float32)
        valid, ended = random.random(AGENTS) > 0.1, random.random(AGENTS) < 0.3
        segments.record_reward(everybody, rewards, ended, ~yes, valid, yes, costs)
    return segments


def learner_of(cfg: SafePPOConfig, constraints: int) -> PPOLearner:
    torch.manual_seed(0)
    policy = make_policy(group(constraints), PolicyConfig(hidden_size=16), 1 + constraints)
    optimiser = make_optimizer(policy, OptimizerConfig(kind="adamw", learning_rate=0.01))
    return PPOLearner(policy, optimiser, CostCritics(cfg, constraints), np.random.default_rng(1))


def weights_of(learner: PPOLearner) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in learner.policy.parameters()]


def test_multipliers_move_before_the_policy_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(CONFIG, 1)
    segments = filled(group(1), learner.policy)
    mean = segments.episode_costs.finished.mean()
    expected = LagrangeMultiplier(1, initial=CONFIG.initial_multiplier)
    expected.update(np.array([mean]), np.array([1.0]))
    used = []
    combine = CostCritics.combine

    def noted(self: CostCritics, *args: Any) -> Any:
        used.append(self.multiplier.values.copy())
        return combine(self, *args)

    monkeypatch.setattr(CostCritics, "combine", noted)
    told = learner.update(segments, 0.0)
    assert len(used) == CONFIG.epochs * CONFIG.minibatches
    assert all(values == expected.values for values in used)
    assert told["cost"] == pytest.approx(mean)
    assert told["multiplier"] == expected.values[0]
    assert told["cost_limit"] == 1.0
    assert 0.0 < told["violations"] <= 1.0


def test_multipliers_stay_while_no_episode_ends() -> None:
    learner = learner_of(CONFIG, 1)
    segments = filled(group(1), learner.policy)
    segments.episode_costs.clear()
    told = learner.update(segments, 0.0)
    assert told["multiplier"] == CONFIG.initial_multiplier


def test_episodes_count_once() -> None:
    learner = learner_of(CONFIG, 1)
    segments = filled(group(1), learner.policy)
    assert len(segments.episode_costs.finished)
    learner.update(segments, 0.0)
    assert not len(segments.episode_costs.finished)


def test_each_constraint_has_a_critic_and_a_multiplier() -> None:
    cfg = replace(CONFIG, cost_limit=(0.0, 1e6))
    learner = learner_of(cfg, 2)
    told = learner.update(filled(group(2), learner.policy), 0.0)
    assert told["multiplier_0"] > cfg.initial_multiplier > told["multiplier_1"]
    assert (told["violations_0"], told["violations_1"]) == (1.0, 0.0)
    assert {"cost_0_explained_variance", "cost_1_explained_variance"} <= told.keys()


@pytest.mark.parametrize("normalise", [True, False])
def test_the_scale_of_rewards_is_not_that_of_costs(normalise: bool) -> None:
    """Rewards in another unit, divided by it, change nothing at all."""
    cfg = replace(CONFIG, normalise_costs=normalise, initial_multiplier=1.0)
    found = []
    for unit in (1.0, 1024.0):
        learner = learner_of(cfg, 1)
        for _ in range(2):
            told = learner.update(filled(group(1), learner.policy, unit), 0.0, unit)
        found.append((weights_of(learner), told))
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))
    assert found[0][1] == found[1][1]


def test_advantages_of_costs_are_in_their_own_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever critics count in: the same kernel, in the costs' units, gives the same."""
    import fugu.algos.safe_ppo as module

    seen: list[Any] = []

    def noted(advantages: Any, *rest: Any, **named: Any) -> Any:
        seen.append(advantages)
        return safe_advantages(advantages, *rest, **named)

    learner = learner_of(replace(CONFIG, draw="rows"), 1)
    learner.update(filled(group(1), learner.policy), 0.0)
    divisor = float(learner.critics._divisors[0])
    assert divisor > 2.0  # discounted sums of costs of 1
    segments = filled(group(1), learner.policy)
    rows = segments.take()
    own = np.zeros((HORIZON, AGENTS), np.float32)
    advantages_reference(
        np.ascontiguousarray(segments.costs[0][:, rows]),
        np.ascontiguousarray(segments.values[1][:, rows] * np.float32(divisor)),
        np.ascontiguousarray(segments.final_values[1][:, rows] * np.float32(divisor)),
        None,
        segments.terminations[:, rows],
        segments.truncations[:, rows],
        segments.valid[:, rows],
        None,
        own,
        None,
        CONFIG.gamma,
        CONFIG.gamma * CONFIG.lambda_,
        CONFIG.rho_clip,
        CONFIG.c_clip,
    )
    monkeypatch.setattr(module, "safe_advantages", noted)
    order = np.random.default_rng()
    order.bit_generator.state = learner._random.bit_generator.state
    learner.update(segments, 0.0)
    chosen = order.permutation(AGENTS)[: AGENTS // 2]
    np.testing.assert_allclose(seen[0][1], own[:, chosen], rtol=1e-4, atol=1e-5)


def test_where_nothing_is_valid_nothing_is_written() -> None:
    advantages = np.ones((2, 3, 2), np.float32)
    found = safe_advantages(advantages, np.ones(1), np.zeros((3, 2), bool))
    assert np.isfinite(found).all()
    assert (advantages == 1.0).all()


def test_without_constraints_it_is_ppo() -> None:
    learner = learner_of(CONFIG, 0)
    segments = filled(group(0), learner.policy)
    told = learner.update(segments, 0.0)
    plain_cfg = PPOConfig(horizon=HORIZON, epochs=2, minibatches=2, microbatch=10_000)
    other = learner_of(CONFIG, 0)
    plain = PPOLearner(other.policy, other.optimizer, Critics(plain_cfg), np.random.default_rng(1))
    assert plain.update(filled(group(0), plain.policy), 0.0) == told
    assert all(
        torch.equal(a, b) for a, b in zip(weights_of(learner), weights_of(plain), strict=True)
    )


def test_costs_teach_to_avoid_what_costs() -> None:
    """One action pays and costs: without a multiplier it is taken, with one it is left."""
    shares = {}
    for weight in (0.0, 5.0):
        cfg = replace(CONFIG, initial_multiplier=weight, multiplier_rate=0.0, epochs=4)
        learner = learner_of(cfg, 1)
        for _ in range(20):
            segments = filled(group(1), learner.policy)
            segments.rewards[:] = segments.samples[:, :, 0].T == 1
            segments.costs[0] = segments.rewards
            learner.update(segments, 0.0)
        with torch.no_grad():
            params, _, _ = learner.policy(torch.randn(200, 3), torch.zeros(200, 0))
        shares[weight] = float(params.softmax(-1)[:, 1].mean())
    assert shares[5.0] < 0.1
    assert shares[0.0] > 0.6


@pytest.mark.parametrize("kind", ["lagrange", "pid"])
def test_learners_go_on_from_their_state(kind: Any) -> None:
    cfg = replace(CONFIG, multiplier=kind)
    one, other = learner_of(cfg, 2), learner_of(cfg, 2)
    for _ in range(3):
        one.update(filled(group(2), one.policy), 0.0)
    other.policy.load_state_dict(one.policy.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    other._random.bit_generator.state = one._random.bit_generator.state
    other.load_state_dict({k: np.array(v) for k, v in one.state_dict().items()})
    told = [learner.update(filled(group(2), learner.policy), 0.5) for learner in (one, other)]
    assert told[0] == told[1]
    assert all(torch.equal(a, b) for a, b in zip(weights_of(one), weights_of(other), strict=True))
