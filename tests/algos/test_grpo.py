"""GRPO's advantages, loss and update, against numbers made by hand and a published formula."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.algorithm import compile_policy
from fugu.algos.grpo import (
    GRPOConfig,
    GRPOLearner,
    Minibatch,
    Steps,
    group_advantages,
    grpo_loss,
    k3,
    objective,
    rewards_to_go,
    step_weight,
)
from fugu.algos.optimizers import OptimizerConfig, make_optimizer
from fugu.core.errors import UsageError
from fugu.data.episodes import Episode
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.spaces import Layout

OBSERVATION = Layout.of(spaces.Box(-9, 9, (3,)))
DISCRETE = AgentGroup("agent", (0,), OBSERVATION, Layout.of(spaces.Discrete(4)))
MIXED = AgentGroup(
    "agent",
    (0,),
    OBSERVATION,
    Layout.of(spaces.Dict(a=spaces.MultiDiscrete([2, 3]), b=spaces.Box(-1, 1, (1,)))),
)


def rewards(*episodes: list[float]) -> list[Any]:
    return [np.array(episode, np.float32) for episode in episodes]


# ---------------------------------------------------------------------- advantages


def test_outcomes_are_compared_with_their_team() -> None:
    team = rewards([1.0, 2.0], [0.0], [5.0, 1.0, 0.0])  # returns 3, 0 and 6: mean 3, deviation 3
    plain = group_advantages(team, GRPOConfig(normalise_std=False))
    assert [a.tolist() for a in plain] == [[0.0, 0.0], [-3.0], [3.0, 3.0, 3.0]]
    scaled = group_advantages(team, GRPOConfig())
    assert scaled[1][0] == pytest.approx(-3.0 / (3.0 + 1e-4))
    assert scaled[2] == pytest.approx(3.0 / (3.0 + 1e-4))


def test_a_return_of_all_alike_is_no_advantage() -> None:
    assert np.concatenate(group_advantages(rewards([1.0, 1.0], [2.0]), GRPOConfig())).any() == 0


def test_process_advantages_compare_what_is_to_come_at_the_same_step() -> None:
    cfg = GRPOConfig(advantages="process", gamma=0.5, normalise_std=False)
    team = rewards([1.0, 2.0, 4.0], [0.0, 8.0])  # to go: 3, 4, 4 and 4, 8
    assert rewards_to_go(team[0], 0.5).tolist() == [3.0, 4.0, 4.0]
    first, second = group_advantages(team, cfg)
    assert first.tolist() == [-0.5, -2.0, 0.0]  # nobody else was there at the third step
    assert second.tolist() == [0.5, 2.0]
    scaled = group_advantages(team, replace(cfg, normalise_std=True))
    deviation = math.sqrt((0.25 + 4.0 + 0.0 + 0.25 + 4.0) / 5)
    assert scaled[0] == pytest.approx(np.array([-0.5, -2.0, 0.0]) / (deviation + 1e-4))


def test_weights_of_steps() -> None:
    team = [episode(2), episode(6)]
    expected = {"episode": [1 / 2, 1 / 6], "group": [2 / 8, 2 / 8], "constant": [1 / 10, 1 / 10]}
    for length, weights in expected.items():
        cfg = GRPOConfig(length=length, constant_length=10)  # type: ignore[arg-type]
        assert [step_weight(e, team, cfg) for e in team] == pytest.approx(weights)


# ---------------------------------------------------------------------- loss


def test_k3_by_hand() -> None:
    new, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    expected = [math.exp(-0.5) + 0.5 - 1, math.exp(1.0) - 1.0 - 1]
    assert k3(new, reference).tolist() == pytest.approx(expected)
    logits = torch.tensor([0.3, -0.2, 0.7]).log_softmax(0), torch.tensor([1.0, 0.0, -1.0])
    mine, theirs = logits[0].double(), logits[1].log_softmax(0).double()
    exact = (mine.exp() * (mine - theirs)).sum()
    assert float((mine.exp() * k3(mine, theirs)).sum()) == pytest.approx(float(exact))


def batch(ratios: Any, advantages: Any, weights: Any, reference: Any = None) -> tuple[Any, ...]:
    """Log-probabilities with these ratios to the old ones, all of which are -1."""
    log_probabilities = (torch.tensor(ratios).log() - 1.0).requires_grad_()
    nothing = torch.zeros_like(log_probabilities)
    parts = Minibatch(
        nothing,
        nothing,
        None,
        nothing - 1.0,
        None if reference is None else torch.tensor(reference),
        torch.tensor(advantages),
        torch.tensor(weights),
    )
    return log_probabilities, nothing, parts


def test_clipping_is_asymmetric() -> None:
    ratios = [[1.27, 1.35, 0.75, 0.75, 1.35, 0.5]]
    advantages = [[1.0, 1.0, 1.0, -1.0, -1.0, -2.0]]
    logs, entropies, parts = batch(ratios, advantages, [[1.0] * 6])
    cfg = GRPOConfig(clip_low=0.2, clip_high=0.28)
    loss, sums = objective(logs, entropies, parts, cfg, 1.0)
    # What gains nothing more: above 1.28 with a good action, below 0.8 with a bad one.
    assert float(loss.detach()) == pytest.approx(-(1.27 + 1.28 + 0.75 - 0.8 - 1.35 - 1.6), rel=1e-5)
    assert float(sums["clip_fraction"]) == 3
    loss.backward()
    assert (logs.grad != 0).tolist() == [[True, False, True, False, True, False]]


def test_padding_weighs_nothing() -> None:
    logs, entropies, parts = batch([[1.1, 1.2]], [[1.0, 5.0]], [[0.5, 0.0]], [[-1.0, 99.0]])
    loss, _ = objective(logs, entropies, parts, GRPOConfig(beta=0.1), 2.0)
    distance = -1.0 - (math.log(1.1) - 1.0)
    kl = math.exp(distance) - distance - 1
    assert float(loss.detach()) == pytest.approx(0.5 * (-1.1 + 0.1 * kl) / 2, rel=1e-5)
    loss.backward()
    assert logs.grad[0, 1] == 0


@pytest.mark.parametrize("length", ["episode", "group", "constant"])
def test_the_loss_is_the_published_one(length: Any) -> None:
    """As TRL computes it (`GRPOTrainer._compute_loss`), of one team."""
    torch.manual_seed(1)
    lengths, beta, low, high, longest = torch.tensor([5, 2, 3]), 0.04, 0.2, 0.28, 7
    logs, old, reference = (-torch.rand(3, 5) for _ in range(3))
    returns = torch.tensor([0.3, 1.0, -0.2])
    advantages = (returns - returns.mean()) / (returns.std() + 1e-4)
    mask = (torch.arange(5) < lengths[:, None]).float()

    coef_1 = torch.exp(logs - old)
    coef_2 = torch.clamp(coef_1, 1 - low, 1 + high)
    per_token = -torch.min(coef_1 * advantages[:, None], coef_2 * advantages[:, None])
    per_token = per_token + beta * (torch.exp(reference - logs) - (reference - logs) - 1)
    published = {
        "episode": ((per_token * mask).sum(-1) / mask.sum(-1)).mean(),  # loss_type "grpo"
        "group": (per_token * mask).sum() / mask.sum(),  # "bnpo", "dapo"
        "constant": (per_token * mask).sum() / (3 * longest),  # "dr_grpo"
    }[length]

    cfg = GRPOConfig(
        length=length, constant_length=longest, beta=beta, clip_low=low, clip_high=high
    )
    team = [episode(int(n)) for n in lengths]
    mine = group_advantages(
        [np.r_[np.zeros(n - 1), r] for n, r in zip(lengths, returns, strict=True)], cfg
    )
    table, weights = torch.zeros(3, 5), torch.zeros(3, 5)
    for i, (own, each) in enumerate(zip(mine, team, strict=True)):
        table[i, : each.length] = torch.from_numpy(own)
        weights[i, : each.length] = step_weight(each, team, cfg)
    nothing = torch.zeros(3, 5)
    parts = Minibatch(nothing, nothing, None, old, reference, table, weights)
    loss, _ = objective(logs, nothing, parts, cfg, 3.0)
    torch.testing.assert_close(loss, published)


# ---------------------------------------------------------------------- update


def episode(steps: int, seed: int = 0, group: AgentGroup = DISCRETE, policy: Any = None) -> Episode:
    """What a policy does in a random episode; without one, anything."""
    random = np.random.default_rng(seed)
    observations = random.normal(size=(steps, 3)).astype(np.float32)
    masks = np.ones((steps, group.mask_width), np.bool_)
    if policy is None:
        samples, logs = np.zeros((steps, 1), np.float32), np.zeros(steps, np.float32)
    else:
        params, _ = policy.forward_segments(
            torch.from_numpy(observations)[None],
            policy.initial_state(1),
            torch.zeros(1, steps, dtype=torch.bool),
        )
        samples, logs = policy.distribution.sample(params[0], None, random)
    return Episode(observations, samples, masks, logs, random.normal(size=steps).astype(np.float32))


def make_learner(cfg: GRPOConfig, group: AgentGroup = DISCRETE, core: Any = "none") -> GRPOLearner:
    torch.manual_seed(0)
    policy = make_policy(group, PolicyConfig(hidden_size=16, core=core, log_std=-0.5), 0)
    optimiser = make_optimizer(policy, OptimizerConfig(kind="adamw", learning_rate=0.01))
    return GRPOLearner(policy, optimiser, cfg, np.random.default_rng(1), group)


def teams(policy: Policy, group: AgentGroup, count: int = 3) -> list[list[Episode]]:
    with torch.no_grad():
        return [
            [episode(2 + (7 * i + 3 * j) % 9, 10 * i + j, group, policy) for j in range(4)]
            for i in range(count)
        ]


def updated(cfg: GRPOConfig, group: AgentGroup, core: Any) -> tuple[list[Any], dict[str, float]]:
    learner = make_learner(cfg, group, core)
    for team in teams(learner.policy, group):
        learner.offer(team)
    told = learner.update()
    return [weight.detach().clone() for weight in learner.policy.parameters()], told


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("group", [DISCRETE, MIXED], ids=["discrete", "mixed"])
def test_parts_of_a_minibatch_add_up(core: str, group: AgentGroup) -> None:
    cfg = GRPOConfig(epochs=2, minibatches=2, beta=0.1, entropy_coefficient=0.01)
    whole, told = updated(cfg, group, core)
    parts, same = updated(replace(cfg, microbatch=12), group, core)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert told == pytest.approx(same, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_reference_stays_behind_if_the_policy_is_compiled(
    core: str, resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    cfg, found = GRPOConfig(epochs=2, minibatches=1, beta=0.1), []
    for compiled in (False, True):
        learner = make_learner(cfg, core=core)
        if compiled:
            compile_policy(learner.policy)
        for _ in range(3):
            for team in teams(learner.policy, DISCRETE):
                learner.offer(team)
            told = learner.update()
            if resumed:
                learner.load_state_dict(learner.state_dict())
        found.append(told["kl"])
    assert found[0] > 1e-4
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_padding_does_not_change_the_loss() -> None:
    """A recurrent policy sees padded rows; each episode alone, which has none, gives the same."""
    cfg = GRPOConfig()
    learner = make_learner(cfg, core="gru")
    (team,) = teams(learner.policy, DISCRETE, 1)
    steps = Steps(learner.policy, [team], cfg)
    weights = list(learner.policy.parameters())

    def gradients(*parts: list[int]) -> list[torch.Tensor]:
        losses = [
            grpo_loss(learner.policy, steps.minibatch(np.array(part)), cfg, 4)[0] for part in parts
        ]
        return list(torch.autograd.grad(torch.stack(losses).sum(), weights))

    whole, alone = gradients([0, 1, 2, 3]), gradients([0], [1], [2], [3])
    assert steps.minibatch(np.arange(4)).weights.eq(0).any()  # some of it is padding
    for one, other in zip(whole, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_first_step_follows_the_plain_gradient() -> None:
    """With ratios of 1 the gradient is that of the log-probability times the advantage."""
    cfg = GRPOConfig(epochs=1, minibatches=1, max_gradient_norm=1e9)
    learner = make_learner(cfg)
    (team,) = teams(learner.policy, DISCRETE, 1)
    learner.offer(team)
    expected = torch.zeros(())
    for each, advantage in zip(team, group_advantages([e.rewards for e in team], cfg), strict=True):
        params, _, _ = learner.policy(
            torch.from_numpy(each.observations), learner.policy.initial_state(each.length)
        )
        logs = params.log_softmax(-1).gather(1, torch.from_numpy(each.samples).long())[:, 0]
        expected = expected - (logs * torch.from_numpy(advantage)).mean() / 4
    gradients = torch.autograd.grad(expected, list(learner.policy.parameters()))
    learner.optimizer.step = lambda: None  # type: ignore[method-assign, assignment]
    learner.update()
    for weight, gradient in zip(learner.policy.parameters(), gradients, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-4, atol=1e-6)


def test_no_critic_is_there() -> None:
    learner = make_learner(GRPOConfig())
    assert learner.policy.num_critics == 0
    assert learner.policy.decoder.weight.shape[0] == 4


def test_the_entropy_bonus_falls_with_progress() -> None:
    def entropy(progress: float) -> float:
        cfg = GRPOConfig(epochs=30, entropy_coefficient=5.0, final_entropy_coefficient=0.0)
        learner = make_learner(cfg)
        learner.policy.decoder.bias.data[0] = 2.0  # it prefers one action
        for team in teams(learner.policy, DISCRETE):
            learner.offer(team)
        return learner.update(progress)["entropy"]

    assert entropy(0.0) > entropy(1.0) + 0.2


def test_teams_without_a_difference_are_replaced() -> None:
    cfg = GRPOConfig(teams=2, dynamic_sampling=True, most_sampling=3)
    learner = make_learner(cfg)
    flat = [
        replace(e, rewards=np.ones(e.length, np.float32) / e.length)
        for e in teams(learner.policy, DISCRETE, 1)[0]
    ]
    good = teams(learner.policy, DISCRETE, 2)
    learner.offer(good[0])
    learner.offer(flat)
    assert not learner.full
    learner.offer(good[1])
    assert learner.full
    told = learner.update()
    assert (told["teams"], told["teams_left_out"]) == (2, 1)
    for _ in range(6):  # it does not wait for ever
        assert not learner.full
        learner.offer(flat)
    assert learner.full
    before = [weight.clone() for weight in learner.policy.parameters()]
    assert learner.update()["teams"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, learner.policy.parameters(), strict=True))


def test_without_dynamic_sampling_they_count() -> None:
    learner = make_learner(GRPOConfig(teams=1))
    learner.offer(
        [
            replace(e, rewards=np.zeros(e.length, np.float32))
            for e in teams(learner.policy, DISCRETE, 1)[0]
        ]
    )
    assert learner.full


def test_the_kl_holds_the_policy_near_its_reference() -> None:
    def distance(beta: float) -> float:
        learner = make_learner(GRPOConfig(beta=beta, epochs=20))
        first = make_learner(GRPOConfig()).policy
        for team in teams(learner.policy, DISCRETE):
            learner.offer(team)
        learner.update()
        seen = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            mine, theirs = (
                p(seen, p.initial_state(200))[0].log_softmax(-1) for p in (learner.policy, first)
            )
        return float((mine.exp() * (mine - theirs)).sum(-1).mean())

    assert distance(50.0) < 0.1 * distance(0.0)


def test_states_go_back_exactly() -> None:
    cfg = GRPOConfig(teams=3, beta=0.1)
    one, other = make_learner(cfg), make_learner(cfg)
    three = teams(one.policy, DISCRETE)
    for team in three:
        one.offer(team)
    one.update()
    one.offer(three[0])
    one.offer(three[2])  # two teams wait when the state is saved
    other.policy.load_state_dict(one.policy.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    other.load_state_dict({k: torch.as_tensor(v).clone() for k, v in one.state_dict().items()})
    other._random.bit_generator.state = one._random.bit_generator.state
    for learner in (one, other):
        learner.offer(three[1])
        learner.update()
    for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "value"), [("teams", 0), ("ahead", -1), ("clip_low", -0.1), ("gamma", 1.5)]
)
def test_settings_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"train.{name}: given {value}"):
        GRPOConfig(**{name: value})
