"""PPO's update: broken steps teach nothing, parts add up, ratios are written back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.optimizers import OptimizerConfig, make_optimizer
from fugu.algos.ppo import RATE_SCALES, Critics, PPOConfig, PPOLearner
from fugu.core.errors import UsageError
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.spaces import Layout

AGENTS, HORIZON = 8, 6
CONFIG = PPOConfig(horizon=HORIZON, epochs=2, minibatches=2, microbatch=10_000, draw="rows")


def group(action: Any) -> AgentGroup:
    observation = Layout.of(spaces.Box(-9, 9, (3,)))
    return AgentGroup("agent", tuple(range(AGENTS)), observation, Layout.of(action))


def filled(space: AgentGroup, policy: Policy, spoil: float | None) -> Segments:
    """Segments of random experience; what is broken holds `spoil`, if there is one."""
    random = np.random.default_rng(5)
    shape = SegmentShape(
        AGENTS, AGENTS, HORIZON, policy.distribution.num_samples, policy.state_size
    )
    segments = Segments(space, shape)
    everybody, yes = np.arange(AGENTS), np.ones(AGENTS, bool)
    states = np.zeros((AGENTS, policy.state_size), np.float32)
    for _ in range(HORIZON + 1):
        observations = random.normal(size=(AGENTS, 3)).astype(np.float32)
        with torch.no_grad():
            params, values, _ = policy(torch.from_numpy(observations), torch.from_numpy(states))
        samples, logs = policy.distribution.sample(params, None, random)
        masks = np.ones((AGENTS, space.mask_width), bool)
        segments.record_step(everybody, observations, masks, samples, logs, values.numpy(), states)
        rewards = random.normal(size=AGENTS).astype(np.float32)
        valid = random.random(AGENTS) > 0.2
        ended = random.random(AGENTS) < 0.1
        segments.record_reward(everybody, rewards, ended, ~yes, valid, yes)
    assert segments.full
    if spoil is not None:
        broken = ~segments.valid
        segments.rewards[broken] = segments.log_probabilities[broken] = spoil
        segments.final_values[0][broken] = spoil
        segments.observations.array[broken.T] = segments.samples[broken.T] = spoil
    return segments


def updated(
    action: Any,
    cfg: PPOConfig,
    spoil: float | None = None,
    core: Any = "none",
    age: float = 0.0,
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """The weights after an update."""
    torch.manual_seed(0)
    space = group(action)
    policy = make_policy(space, PolicyConfig(hidden_size=16, core=core))
    segments = filled(space, policy, spoil)
    segments.log_probabilities += age
    optimiser = make_optimizer(policy, OptimizerConfig(kind="adamw", learning_rate=0.01))
    learner = PPOLearner(policy, optimiser, Critics(cfg), np.random.default_rng(1))
    told = learner.update(segments, 0.0)
    return [weight.detach().clone() for weight in policy.parameters()], told


ACTIONS = {
    "discrete": spaces.Discrete(3),
    "continuous": spaces.Box(-1, 1, (2,)),
    "mixed": spaces.Dict(a=spaces.MultiDiscrete([2, 3]), b=spaces.Box(-1, 1, (1,))),
}


@pytest.mark.parametrize(("core", "draw"), [("none", "rows"), ("none", "steps"), ("lstm", "rows")])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("spoil", [np.nan, np.inf])
def test_broken_steps_change_no_weight_by_a_bit(
    action: str, core: str, draw: Any, spoil: float
) -> None:
    cfg = replace(CONFIG, draw=draw)
    clean, _ = updated(ACTIONS[action], cfg, 0.0, core)
    spoiled, told = updated(ACTIONS[action], cfg, spoil, core)
    assert all(torch.equal(a, b) for a, b in zip(clean, spoiled, strict=True))
    assert all(np.isfinite(value) for value in told.values())


@pytest.mark.parametrize("draw", ["rows", "steps"])
@pytest.mark.parametrize("action", ACTIONS)
def test_parts_of_a_minibatch_add_up_to_it(action: str, draw: Any) -> None:
    whole, _ = updated(ACTIONS[action], replace(CONFIG, draw=draw))
    parts, _ = updated(ACTIONS[action], replace(CONFIG, draw=draw, microbatch=HORIZON))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("action", ACTIONS)
def test_all_steps_teach_what_all_rows_teach(action: str) -> None:
    cfg = replace(CONFIG, epochs=3, minibatches=1)
    rows, told = updated(ACTIONS[action], cfg)
    steps, also = updated(ACTIONS[action], replace(cfg, draw="steps"))
    for one, other in zip(rows, steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert told == pytest.approx(also, rel=1e-4, abs=1e-6)


def change_by_noise(least: float, size: float) -> float:
    """How far an update moves a policy, whose advantages are noise of this size."""
    torch.manual_seed(0)
    space = group(ACTIONS["discrete"])
    policy = make_policy(space, PolicyConfig(hidden_size=16))
    segments = filled(space, policy, None)
    random = np.random.default_rng(2)
    segments.values[:], segments.final_values[:] = 0.0, 0.0
    segments.rewards[:] = size * random.normal(size=segments.rewards.shape)
    cfg = replace(CONFIG, advantage_std_min=least, entropy_coefficient=0.0, value_coefficient=0.0)
    before = [weight.detach().clone() for weight in policy.parameters()]
    optimizer = torch.optim.SGD(policy.parameters(), 0.1)
    PPOLearner(policy, optimizer, Critics(cfg), np.random.default_rng(1)).update(segments, 0.0)
    pairs = zip(before, policy.parameters(), strict=True)
    return sum(float((a - b.detach()).square().sum()) for a, b in pairs) ** 0.5


def test_advantages_that_are_only_noise_move_the_policy_little() -> None:
    """Where rewards are rare, standardized noise would move it as far as rewards do."""
    assert change_by_noise(0.0, size=1e-4) == pytest.approx(change_by_noise(0.0, size=1.0), rel=0.1)
    assert change_by_noise(0.01, size=1e-4) < 0.05 * change_by_noise(0.0, size=1e-4)
    assert change_by_noise(0.01, size=1.0) == change_by_noise(0.0, size=1.0)


def adapting(**changes: Any) -> tuple[PPOLearner, Segments]:
    torch.manual_seed(0)
    space = group(spaces.Discrete(3))
    policy = make_policy(space, PolicyConfig(hidden_size=16))
    optimiser = make_optimizer(policy, OptimizerConfig(kind="adamw", learning_rate=0.01))
    learner = PPOLearner(
        policy, optimiser, Critics(replace(CONFIG, **changes)), np.random.default_rng(1)
    )
    return learner, filled(space, policy, None)


def test_the_learning_rate_falls_if_policies_diverge_too_much_and_rises_if_too_little() -> None:
    learner, _ = adapting(desired_kl=0.01)
    for divergences, scale in (
        ([0.03, 0.02], 1 / 1.5), ([0.0], 1.0), ([0.0, 0.004], 1.5), ([0.0051, 0.0199], 1.5)
    ):  # fmt: skip
        learner._adapt_rate(float(np.mean(divergences)), 0.01)
        assert learner.state_dict()["rate_scale"] == pytest.approx(scale)
    for divergence, limit in ((9.0, RATE_SCALES[0]), (0.001, RATE_SCALES[1]), (0.0, 1.0)):
        for _ in range(50):
            learner._adapt_rate(divergence, 0.01)
        assert learner.state_dict()["rate_scale"] == pytest.approx(limit)
    other, _ = adapting(desired_kl=0.01)
    other.load_state_dict(learner.state_dict())
    assert other.state_dict() == learner.state_dict()


def test_the_learning_rate_of_a_converged_policy_returns_to_the_schedule() -> None:
    for start in (0.1, 1.0, 8.0):
        learner, _ = adapting(desired_kl=0.02)
        learner.load_state_dict({**learner.state_dict(), "rate_scale": np.array(start)})
        before = start
        for _ in range(10):
            learner._adapt_rate(0.02 / 500, 0.02)
            now = float(learner.state_dict()["rate_scale"])
            assert abs(np.log(now)) <= abs(np.log(before))
            before = now
        assert before == 1.0


@pytest.mark.parametrize(("final", "expected"), [(None, 0.02), (0.01, 0.0175), (0.06, 0.03)])
def test_the_desired_divergence_changes_evenly_and_is_that_of_the_last_epoch(
    final: float | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, segments = adapting(desired_kl=0.02, final_desired_kl=final, epochs=3, minibatches=2)
    given: list[Any] = []
    monkeypatch.setattr(learner, "_adapt_rate", lambda *args: given.append(args))
    told = learner.update(segments, 0.25)
    ((measured, desired),) = given
    assert desired == pytest.approx(expected)
    assert measured > told["approx_kl"]  # which is the mean of all epochs


def test_steps_are_drawn_where_rows_are_few_and_nothing_is_remembered() -> None:
    assert PPOConfig(minibatches=4).draws_steps(63, 0)
    assert not PPOConfig(minibatches=4).draws_steps(64, 0)
    assert not PPOConfig(minibatches=4).draws_steps(63, 256)
    assert not PPOConfig(minibatches=4, alpha=0.5).draws_steps(63, 0)
    auto, _ = updated(ACTIONS["discrete"], replace(CONFIG, draw="auto"))
    steps, _ = updated(ACTIONS["discrete"], replace(CONFIG, draw="steps"))
    rows, _ = updated(ACTIONS["discrete"], CONFIG)
    assert all(torch.equal(a, b) for a, b in zip(auto, steps, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(auto, rows, strict=True))


def test_steps_of_a_policy_that_remembers_belong_together() -> None:
    with pytest.raises(UsageError, match="'steps' with a policy that remembers"):
        updated(ACTIONS["discrete"], replace(CONFIG, draw="steps"), core="lstm")


def test_advantages_are_computed_anew_with_the_ratios_written_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fugu.algos.segment_view as module

    seen: list[Any] = []
    compute = module.compute_advantages

    def noted(*args: Any, **named: Any) -> Any:
        seen.append((named["ratios"].copy(), compute(*args, **named)))
        return seen[-1][1]

    monkeypatch.setattr(module, "compute_advantages", noted)
    updated(ACTIONS["discrete"], CONFIG)
    ratios = [pair[0] for pair in seen]
    assert (ratios[0] == 1).all()
    assert (ratios[1] != 1).any()
    assert not np.array_equal(seen[0][1], seen[1][1])


@pytest.mark.parametrize("action", ACTIONS)
def test_first_ratios_are_those_of_the_policy_as_it_is(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fugu.algos.segment_view as module

    seen: list[Any] = []
    compute = module.compute_advantages

    def noted(*args: Any, **named: Any) -> Any:
        seen.append((named["ratios"].copy(), named["valid"]))
        return compute(*args, **named)

    monkeypatch.setattr(module, "compute_advantages", noted)
    for age in (0.0, 0.5):  # by which actions were likelier when they were drawn
        seen.clear()
        cfg = replace(CONFIG, first_ratios="measured", microbatch=2 * HORIZON)
        updated(ACTIONS[action], cfg, age=age)
        ratios, valid = seen[0]
        np.testing.assert_allclose(ratios[valid], np.exp(-age), rtol=1e-5)
        assert (ratios[~valid] == 1).all()


@pytest.mark.parametrize("priorities", ["corrected", "published"])
def test_rows_are_drawn_by_priority(priorities: Any) -> None:
    plain, _ = updated(ACTIONS["discrete"], CONFIG)
    drawn, told = updated(ACTIONS["discrete"], replace(CONFIG, alpha=0.8, priorities=priorities))
    assert not all(torch.equal(a, b) for a, b in zip(plain, drawn, strict=True))
    assert np.isfinite(told["policy_loss"])


def test_an_update_ends_when_the_policy_has_gone_far_enough() -> None:
    far, _ = updated(ACTIONS["discrete"], CONFIG)
    near, _ = updated(ACTIONS["discrete"], replace(CONFIG, target_kl=1e-9))
    assert not all(torch.equal(a, b) for a, b in zip(far, near, strict=True))


def test_gae_is_computed_once_an_update_and_never_from_ratios(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fugu.algos.segment_view as module

    seen: list[Any] = []
    compute = module.compute_advantages

    def noted(*args: Any, **named: Any) -> Any:
        seen.append((args, named, compute(*args, **named).copy()))
        return seen[-1][2]

    monkeypatch.setattr(module, "compute_advantages", noted)
    updated(ACTIONS["discrete"], replace(CONFIG, epochs=4, advantage="gae"))
    assert len(seen) == 1
    (rewards, values, final, terminated, truncated), named, found = seen[0]
    assert named["ratios"] is None
    follow = 0.0
    for t in reversed(range(HORIZON)):  # as in the paper, and in CleanRL
        ended, valid = terminated[t] | truncated[t], named["valid"][t]
        ahead = np.where(terminated[t], 0.0, np.where(truncated[t], final[t], values[t + 1]))
        delta = rewards[t] + CONFIG.gamma * ahead - values[t]
        follow = delta + CONFIG.gamma * CONFIG.lambda_ * np.where(ended, 0.0, follow)
        follow = np.where(valid, follow, 0.0)
        np.testing.assert_allclose(found[t], follow, rtol=1e-4, atol=1e-5)


def test_gae_and_vtrace_learn_differently_from_the_second_minibatch_on() -> None:
    gae, _ = updated(ACTIONS["discrete"], replace(CONFIG, advantage="gae"))
    vtrace, _ = updated(ACTIONS["discrete"], replace(CONFIG, advantage="vtrace"))
    assert not all(torch.equal(a, b) for a, b in zip(gae, vtrace, strict=True))
    once = replace(CONFIG, epochs=1, minibatches=1)
    gae, _ = updated(ACTIONS["discrete"], replace(once, advantage="gae"))
    vtrace, _ = updated(ACTIONS["discrete"], replace(once, advantage="vtrace"))
    assert all(torch.equal(a, b) for a, b in zip(gae, vtrace, strict=True))


@pytest.mark.parametrize(("count", "parts"), [(63, 32), (10, 4), (7, 7), (5, 8), (64, 4)])
def test_minibatches_of_an_epoch_differ_by_one_segment_at_most(count: int, parts: int) -> None:
    bounds = PPOConfig(minibatches=parts).bounds(count)
    sizes = np.diff(bounds)
    assert bounds[0] == 0
    assert bounds[-1] == count
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("alpha", [0.0, 0.8])
def test_an_epoch_draws_as_many_segments_as_there_are(
    alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    step = PPOLearner._step

    def noted(self: PPOLearner, data: Any, draw: Any, cfg: Any) -> Any:
        sizes.append(len(draw.chosen))
        return step(self, data, draw, cfg)

    monkeypatch.setattr(PPOLearner, "_step", noted)
    updated(ACTIONS["discrete"], replace(CONFIG, epochs=1, minibatches=5, alpha=alpha))
    assert sum(sizes) == AGENTS
    assert max(sizes) - min(sizes) <= 1


def test_minibatches_of_a_single_step_teach_the_actor() -> None:
    cfg = replace(CONFIG, epochs=1, minibatches=AGENTS * HORIZON, draw="steps")
    cfg = replace(cfg, value_coefficient=0.0, entropy_coefficient=0.0)
    before, _ = updated(ACTIONS["discrete"], replace(cfg, max_gradient_norm=1e-30))
    after, told = updated(ACTIONS["discrete"], cfg)
    assert told["policy_loss"] != 0.0
    assert not all(torch.allclose(a, b, atol=1e-4) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("priorities", ["corrected", "published"])
def test_published_priorities_weight_the_policy_loss_alone(
    priorities: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fugu.algos.segment_view import SegmentView

    weights: list[Any] = []
    minibatch = SegmentView.minibatch

    def noted(self: SegmentView, indices: Any, part: slice) -> Any:
        weights.append(indices.weights[part].copy())
        return minibatch(self, indices, part)

    monkeypatch.setattr(SegmentView, "minibatch", noted)
    updated(ACTIONS["discrete"], replace(CONFIG, alpha=0.8, beta=1.0, priorities=priorities))
    weighted = any((each != 1.0).any() for each in weights)
    assert weighted == (priorities == "corrected")
    plain, _ = updated(
        ACTIONS["discrete"], replace(CONFIG, alpha=0.8, beta=0.0, priorities="published")
    )
    full, _ = updated(
        ACTIONS["discrete"], replace(CONFIG, alpha=0.8, beta=1.0, priorities="published")
    )
    assert not all(torch.equal(a, b) for a, b in zip(plain, full, strict=True))


def learner_of(cfg: PPOConfig) -> tuple[PPOLearner, AgentGroup]:
    torch.manual_seed(0)
    space = group(ACTIONS["discrete"])
    policy = make_policy(space, PolicyConfig(hidden_size=16))
    optimiser = make_optimizer(policy, OptimizerConfig(kind="adamw", learning_rate=0.01))
    return PPOLearner(policy, optimiser, Critics(cfg), np.random.default_rng(1)), space


@pytest.mark.parametrize(
    ("desired", "factor"), [(1e-9, 1 / 1.5), (0.3, 1.5), (1e9, 1.0), (None, 1.0)]
)
def test_the_learning_rate_follows_the_measured_kl(desired: float | None, factor: float) -> None:
    learner, space = learner_of(replace(CONFIG, desired_kl=desired))
    for expected in (0.01, 0.01 * factor):
        for parameters in learner.optimizer.param_groups:  # as the schedule sets it every update
            parameters["lr"] = 0.01
        found = learner.update(filled(space, learner.policy, None), 0.0)
        assert found["learning_rate"] == pytest.approx(expected)
    resumed, _ = learner_of(replace(CONFIG, desired_kl=desired))
    resumed.load_state_dict(learner.state_dict())
    assert resumed.update(filled(space, resumed.policy, None), 0.0)["learning_rate"] == (
        pytest.approx(0.01 * factor**2)
    )


def test_the_adapted_learning_rate_stays_within_bounds() -> None:
    learner, space = learner_of(replace(CONFIG, desired_kl=1e-9))
    for _ in range(15):
        learner.optimizer.param_groups[0]["lr"] = 0.01
        found = learner.update(filled(space, learner.policy, None), 0.0)
    assert found["learning_rate"] == pytest.approx(0.0001)
