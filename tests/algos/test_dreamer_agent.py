"""Dreamer's agent: acting, imagination, and the losses of actor and critic by slow loops."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.dreamer.agent import DreamerAgent, DreamerLearner, Imagined
from fugu.algos.dreamer.config import DreamerConfig, DreamerPolicyConfig
from fugu.algos.optimizers import LaProp
from fugu.data.replay import Sequences
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout

SMALL = DreamerPolicyConfig(
    deter=16, hidden=8, stoch=4, classes=4, blocks=4, units=12, depth=2, layers=1, bins=41
)
CFG = DreamerConfig(batch_size=3, batch_length=6, imagination_starts=4, imagination_length=3)
GROUP = AgentGroup(
    "agent", (0,), Layout.of(spaces.Box(-9.0, 9.0, (2,))), Layout.of(spaces.Discrete(3))
)


@pytest.fixture
def agent() -> DreamerAgent:
    torch.manual_seed(0)
    found = DreamerAgent(GROUP, SMALL)
    for head in (found.critic, found.slow_critic, found.world.reward):
        head.network[-1].weight.data.normal_(0, 0.5)
    found.actor.network[-1].weight.data.normal_(0, 0.5)
    found.world.continues[-1].weight.data.normal_(0, 1.0)
    return found


def make_batch(seed: int = 0) -> Sequences:
    random = torch.Generator().manual_seed(seed)
    shape = (CFG.batch_length + 1, CFG.batch_size)
    last = torch.zeros(shape, dtype=torch.bool)
    last[3, 0] = last[4, 1] = last[6, 2] = True
    terminal = last.clone()
    terminal[4, 1] = False
    return Sequences(
        observations=torch.randn(*shape, 2, generator=random),
        samples=torch.randint(3, (*shape, 1), generator=random).float(),
        masks=torch.ones(*shape, 3, dtype=torch.bool),
        rewards=torch.randn(shape, generator=random),
        first=torch.cat([torch.zeros(1, 3, dtype=torch.bool), last[:-1]]),
        last=last,
        terminal=terminal,
        deter=torch.randn(3, 16, generator=random),
        stoch=torch.randint(4, (3, 4), generator=random),
        places=np.zeros(shape, np.int64),
    )


def test_acting_step_by_step_is_observing_with_the_most_probable_latents(
    agent: DreamerAgent,
) -> None:
    seen, samples = torch.randn(5, 3, 2), np.random.default_rng(0).integers(3, size=(5, 3, 1))
    state = agent.initial_state(3)
    rssm = agent.world.rssm
    deter, stoch = torch.zeros(3, 16), torch.zeros(3, 16)
    action = torch.zeros(3, 3)
    for step in range(5):
        params, values, state = agent(seen[step], state)
        deter = rssm.advance(deter, stoch, rssm.embed_actions(action))
        tokens = rssm.see_tokens(agent.world.encoder(seen[step]))
        stoch = rssm.draw(rssm.posterior(deter, tokens), None)
        features = torch.cat([deter, stoch], -1)
        said = agent.critic.mean(agent.critic(features))
        close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
        close(state[:, :32], features)  # sums have another order on some processors
        close(params, agent.actor(features))
        close(values[:, 0], said)
        state = agent.acted(state, samples[step].astype(np.float32))
        action = torch.eye(3)[samples[step, :, 0]]
        assert torch.equal(state[:, 32:], action)


def test_rows_do_not_see_each_other(agent: DreamerAgent) -> None:
    seen, state = torch.randn(4, 2), torch.randn(4, agent.state_size)
    before = agent(seen, state)[0]
    seen[2], state[2] = math.nan, math.nan
    after = agent(seen, state)[0]
    assert torch.allclose(before[[0, 1, 3]], after[[0, 1, 3]], atol=1e-6)


def test_imagination_follows_the_prior_and_the_actor(agent: DreamerAgent) -> None:
    starts = torch.randn(5, 32)
    imagined = agent.imagine(starts, 4, torch.Generator().manual_seed(3))
    assert imagined.features.shape == (5, 5, 32)
    assert torch.equal(imagined.features[0], starts)
    rssm = agent.world.rssm
    for step in range(4):
        now = imagined.features[step]
        action = rssm.embed_actions(agent.world.code(imagined.samples[step]))
        deter = rssm.advance(now[:, :16], now[:, 16:], action)
        assert torch.allclose(imagined.features[step + 1, :, :16], deter, atol=1e-6)
        drawn = imagined.features[step + 1, :, 16:]
        assert torch.equal(rssm.one_hot(rssm.categories(drawn)), drawn)
    assert not imagined.features.requires_grad


def value_of(head: Any, features: torch.Tensor) -> float:
    chances = head(features).softmax(-1).double()
    return float((chances * head.bins.double()).sum())


def cross_entropy(head: Any, features: torch.Tensor, target: float) -> float:
    """Of the two bins beside a target, looked for one by one."""
    logs, bins = head(features).log_softmax(-1).tolist(), head.bins.tolist()
    for i in range(len(bins) - 1):
        if bins[i] <= target < bins[i + 1]:
            share = (target - bins[i]) / (bins[i + 1] - bins[i])
            return -((1 - share) * logs[i] + share * logs[i + 1])
    raise AssertionError


def test_losses_of_actor_and_critic_equal_a_loop(agent: DreamerAgent) -> None:
    imagined = agent.imagine(torch.randn(2, 32), 3, torch.Generator().manual_seed(1))
    agent.return_scale.low.fill_(-300.0)
    agent.return_scale.high.fill_(500.0)
    slow = copy.deepcopy(agent)
    losses, returns = agent.behaviour_losses(imagined, CFG)
    policy, value = 0.0, 0.0
    expected = np.zeros((3, 2))
    with torch.no_grad():
        for row in range(2):
            track = imagined.features[:, row]
            values = [value_of(slow.critic, f) for f in track]
            rewards = [value_of(slow.world.reward, f) for f in track]
            goes_on = [float(torch.sigmoid(slow.world.continues(f))) for f in track]
            following = values[3]
            for t in (2, 1, 0):
                mixed = 0.05 * values[t + 1] + 0.95 * following
                following = rewards[t + 1] + goes_on[t + 1] * mixed
                expected[t, row] = following
        assert returns.numpy() == pytest.approx(expected, rel=1e-3, abs=1e-3)
        low, high = np.percentile(returns.numpy(), [5, 95])
        scale = (0.99 * 500 + 0.01 * high) - (0.99 * -300 + 0.01 * low)
        assert losses["return_scale"].item() == pytest.approx(scale, rel=1e-5)
        for row in range(2):
            weight = 1.0
            for t in range(3):
                now = imagined.features[t, row]
                weight *= float(torch.sigmoid(slow.world.continues(now)))
                target = float(returns[t, row])
                logs = slow.actor(now).log_softmax(-1)
                chosen = float(logs[int(imagined.samples[t, row, 0])])
                entropy = -float((logs.exp() * logs).sum())
                advantage = (target - value_of(slow.critic, now)) / scale
                policy -= weight * (chosen * advantage + 3e-4 * entropy) / 6
                errors = cross_entropy(slow.critic, now, target)
                errors += cross_entropy(slow.critic, now, value_of(slow.slow_critic, now))
                value += weight * errors / 6
    assert losses["policy"].item() == pytest.approx(policy, rel=1e-3, abs=1e-4)
    assert losses["value"].item() == pytest.approx(value, rel=1e-3)


def test_the_critics_loss_in_replay_equals_a_loop(agent: DreamerAgent) -> None:
    batch = make_batch()
    features = torch.randn(4, 3, 32)
    promised = torch.randn(2, 12) * 5
    found = agent.replay_value_loss(batch, features, promised, CFG).item()
    total, discount = 0.0, 1 - 1 / 333
    with torch.no_grad():
        for row in range(3):
            boots = promised[0].view(4, 3)[:, row].tolist()
            following = boots[3]
            for t in (2, 1, 0):
                at = t + 3 + 1  # the last four of seven steps
                lives = 0.0 if batch.terminal[at, row] else discount
                trace = 0.0 if batch.last[at, row] else 0.95
                mixed = (1 - trace) * boots[t + 1] + trace * following
                following = float(batch.rewards[at, row]) + lives * mixed
                if not batch.last[at - 1, row]:
                    now = features[t, row]
                    total += cross_entropy(agent.critic, now, following)
                    total += cross_entropy(agent.critic, now, value_of(agent.slow_critic, now))
    assert found == pytest.approx(total / 9, rel=1e-3)


def gradients(loss: torch.Tensor, agent: DreamerAgent) -> set[str]:
    agent.zero_grad()
    loss.backward(retain_graph=True)
    moved = {n for n, p in agent.named_parameters() if p.grad is not None and p.grad.any()}
    return {
        n.split(".")[0] if not n.startswith("world") else ".".join(n.split(".")[:2]) for n in moved
    }


def test_what_each_loss_trains(agent: DreamerAgent) -> None:
    batch, random = make_batch(), torch.Generator().manual_seed(0)
    latents = agent.world.observe(batch, random)
    features = latents.features
    world = agent.world.losses(batch, latents, features, CFG)
    ends = features[-4:]
    imagined = agent.imagine(ends.detach().flatten(0, 1), 3, random)
    behaviour, returns = agent.behaviour_losses(imagined, CFG)
    below = {"world.encoder", "world.rssm"}
    assert gradients(world["reconstruction"], agent) == below | {"world.decoder"}
    assert gradients(world["reward"], agent) == below | {"world.reward"}
    assert gradients(world["continue"], agent) == below | {"world.continues"}
    assert gradients(behaviour["policy"], agent) == {"actor"}
    assert gradients(behaviour["value"], agent) == {"critic"}
    replay = agent.replay_value_loss(batch, ends, returns, CFG)
    assert gradients(replay, agent) == below | {"critic"}


def test_a_step_moves_everything_and_the_slow_critic_a_little(agent: DreamerAgent) -> None:
    before = copy.deepcopy(agent)
    learner = DreamerLearner(
        agent, LaProp([p for p in agent.parameters() if p.requires_grad], 0.0), CFG
    )
    learner.step(make_batch(), 1e-2, torch.Generator().manual_seed(0))
    warm = 1e-2 / CFG.warmup_steps
    for (name, old), new in zip(before.named_parameters(), agent.parameters(), strict=True):
        moved = (new - old).abs().max().item()
        if name.startswith("slow_critic"):
            fast = dict(agent.named_parameters())[name.removeprefix("slow_")]
            assert torch.allclose(new, old + 0.02 * (fast - old), atol=1e-7)
        elif "masks" in name:
            assert moved == 0.0  # nothing was ever forbidden
        else:
            assert moved <= warm * 1.001
            assert moved > 0.0, name


def test_masks_are_predicted_once_they_were_seen(agent: DreamerAgent) -> None:
    features = torch.randn(6, 32)
    assert agent.world.allowed(features) is None
    agent.world.masked.fill_(True)
    assert agent.world.masks is not None
    agent.world.masks[-1].weight.data.zero_()
    agent.world.masks[-1].bias.data[:] = torch.tensor([-5.0, 4.0, -5.0])
    imagined = agent.imagine(features, 3, torch.Generator().manual_seed(0))
    assert (imagined.samples == 1.0).all()
    agent.world.masks[-1].bias.data[:] = torch.tensor([-5.0, -7.0, -3.0])  # none seems allowed
    imagined = agent.imagine(features, 3, torch.Generator().manual_seed(0))
    assert (imagined.samples == 2.0).all()
    batch = make_batch()
    batch.masks[..., 0] = False
    latents = agent.world.observe(batch, torch.Generator().manual_seed(0))
    losses = agent.world.losses(batch, latents, latents.features, CFG)
    wrong = math.log1p(math.exp(-5.0)) + math.log1p(math.exp(7.0)) + math.log1p(math.exp(3.0))
    counted = float((~batch.last[1:]).float().mean())
    assert losses["masks"].item() == pytest.approx(wrong * counted, rel=1e-4)


def test_imagined_stretches_without_end_are_worth_the_discounted_sum(agent: DreamerAgent) -> None:
    """A critic that is right, a reward of 1 for ever: the return is 333."""
    features = torch.zeros(16, 1, 32)
    with torch.no_grad():
        for head, number in ((agent.critic, 333.0), (agent.world.reward, 1.0)):
            head.network[-1].weight.zero_()
            below = int(torch.searchsorted(head.bins, number)) - 1
            share = (number - head.bins[below]) / (head.bins[below + 1] - head.bins[below])
            head.network[-1].bias.fill_(-40.0)
            head.network[-1].bias[below] = (1 - share).log()
            head.network[-1].bias[below + 1] = share.log()
        agent.world.continues[-1].weight.zero_()
        agent.world.continues[-1].bias.fill_(math.log(332.0))
        samples = torch.zeros(15, 1, 1)
        _, returns = agent.behaviour_losses(Imagined(features, samples, None), CFG)
    assert returns.flatten().tolist() == pytest.approx([333.0] * 15, rel=1e-3)
