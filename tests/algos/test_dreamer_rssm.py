"""The recurrent state-space model against slow loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fugu.algos.dreamer.config import DreamerPolicyConfig
from fugu.algos.dreamer.networks import Latents, Rssm, divergence

ACTIONS, TOKENS = 3, 7
SMALL = DreamerPolicyConfig(deter=24, hidden=10, stoch=5, classes=4, blocks=4)


@pytest.fixture
def rssm() -> Rssm:
    torch.manual_seed(0)
    return Rssm(ACTIONS, TOKENS, SMALL).double()


def norm(numbers: Tensor, scale: Tensor) -> Tensor:
    return numbers / (numbers.square().mean() + 1e-4).sqrt() * scale


def silu(numbers: Tensor) -> Tensor:
    return numbers / (1 + (-numbers).exp())


def slow_advance(rssm: Rssm, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
    """One row, block by block, each of which sees its own part of deter and all inputs."""

    def dense(layer: torch.nn.Sequential, inputs: Tensor) -> Tensor:
        linear, scale = layer[0], layer[1]
        return silu(norm(linear.weight @ inputs + linear.bias, scale.scale))

    inputs = torch.cat([dense(rssm.from_deter, deter), dense(rssm.from_stoch, stoch), action])
    width = SMALL.deter // SMALL.blocks
    mixed = []
    for block in range(SMALL.blocks):
        part = slice(block * width, (block + 1) * width)
        weight = torch.cat([rssm.mix_deter.weight[block], rssm.mix_inputs.weight[part].T])
        mixed.append(torch.cat([deter[part], inputs]) @ weight + rssm.mix_inputs.bias[part])
    hidden = silu(norm(torch.cat(mixed), rssm.mix_norm.scale))
    after = []
    for block in range(SMALL.blocks):
        part = slice(block * width, (block + 1) * width)
        bias = rssm.gates.bias
        assert bias is not None
        gates = hidden[part] @ rssm.gates.weight[block] + bias[block, 0]
        reset, candidate, update = gates.split(width)
        candidate = (reset.sigmoid() * candidate).tanh()
        update = (update - 1).sigmoid()
        after.append(update * candidate + (1 - update) * deter[part])
    return torch.cat(after)


def test_the_block_unit_equals_a_loop_over_blocks(rssm: Rssm) -> None:
    deter = torch.randn(6, SMALL.deter, dtype=torch.float64)
    stoch = torch.randn(6, 20, dtype=torch.float64)
    action = torch.randn(6, SMALL.hidden, dtype=torch.float64)
    rssm.gates.bias.data.normal_()
    rssm.mix_inputs.bias.data.normal_()
    found = rssm.advance(deter, stoch, action)
    for row in range(6):
        slow = slow_advance(rssm, deter[row], stoch[row], action[row])
        assert torch.allclose(found[row], slow, atol=1e-12)


def test_a_sequence_equals_single_steps_with_resets_in_between(rssm: Rssm) -> None:
    time, batch = 9, 4
    random = torch.Generator().manual_seed(1)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    tokens, actions = numbers(time, batch, TOKENS), numbers(time, batch, ACTIONS) * 2
    first = torch.zeros(time, batch, dtype=torch.bool)
    first[0, 0] = first[4, 1] = first[4, 2] = first[8, 3] = first[5, 1] = True
    deter, stoch = numbers(batch, SMALL.deter), numbers(batch, 20)
    uniforms = torch.rand(time, batch, 1, SMALL.stoch, generator=random, dtype=torch.float64)
    found = rssm.observe(tokens, actions, first, deter, stoch, uniforms)
    for row in range(batch):
        own_deter, own_stoch = deter[row : row + 1], stoch[row : row + 1]
        for step in range(time):
            action = actions[step, row : row + 1]
            if first[step, row]:
                own_deter, own_stoch = torch.zeros_like(own_deter), torch.zeros_like(own_stoch)
                action = torch.zeros_like(action)
            own_deter = rssm.advance(own_deter, own_stoch, rssm.embed_actions(action))
            seen = rssm.see_tokens(tokens[step, row : row + 1])
            chances = rssm.posterior(own_deter, seen)
            own_stoch = rssm.draw(chances, uniforms[step, row : row + 1])
            assert torch.allclose(found.deter[step, row], own_deter[0], atol=1e-12)
            assert torch.allclose(found.posterior[step, row], chances[0], atol=1e-12)
            assert torch.equal(found.stoch[step, row], own_stoch[0])


def test_nothing_passes_a_reset(rssm: Rssm) -> None:
    tokens = torch.randn(3, 1, TOKENS, dtype=torch.float64)
    actions = torch.randn(3, 1, ACTIONS, dtype=torch.float64, requires_grad=True)
    deter = torch.randn(1, SMALL.deter, dtype=torch.float64, requires_grad=True)
    first = torch.tensor([[False], [False], [True]])
    uniforms = torch.rand(3, 1, 1, SMALL.stoch, dtype=torch.float64)
    stoch = torch.zeros(1, 20, dtype=torch.float64)
    found = rssm.observe(tokens, actions, first, deter, stoch, uniforms)
    (before,) = torch.autograd.grad(found.deter[1].sum(), deter, retain_graph=True)
    assert before.abs().sum() > 0
    gradients = torch.autograd.grad(found.deter[2].sum(), (deter, actions), allow_unused=True)
    assert all(grad is None or not grad.any() for grad in gradients)


def test_categories_are_drawn_by_their_probabilities() -> None:
    rssm = Rssm(1, 1, DreamerPolicyConfig(deter=8, stoch=2, classes=3, hidden=4))
    chances = torch.tensor([[0.2, 0.0], [0.5, 1.0], [0.3, 0.0]]).expand(40_000, 3, 2)
    flat = rssm.draw(chances, torch.rand(40_000, 1, 2))
    assert torch.equal(rssm.one_hot(rssm.categories(flat)), flat)
    drawn = flat.view(-1, 3, 2)
    assert torch.equal(drawn.sum(1), torch.ones(40_000, 2))
    assert drawn.mean(0)[:, 0].tolist() == pytest.approx([0.2, 0.5, 0.3], abs=0.01)
    assert drawn.mean(0)[:, 1].tolist() == [0.0, 1.0, 0.0]
    assert rssm.draw(chances[:1], None).tolist() == [[0, 0, 1, 1, 0, 0]]


def test_gradients_go_straight_through_to_the_probabilities(rssm: Rssm) -> None:
    chances = torch.full((1, 4, 5), 0.25, dtype=torch.float64, requires_grad=True)
    drawn = rssm.draw(chances, torch.rand(1, 1, 5, dtype=torch.float64))
    assert torch.equal(drawn.detach().view(4, 5).sum(0), torch.ones(5, dtype=torch.float64))
    weights = torch.randn(1, 20, dtype=torch.float64)
    (drawn * weights).sum().backward()
    assert chances.grad is not None
    assert torch.equal(chances.grad.flatten(-2), weights)


def test_every_class_keeps_its_share_of_the_uniform_distribution(rssm: Rssm) -> None:
    rssm.prior_head[-1].bias.data[:5] = 1000.0  # the first class of each variable
    chances = rssm.prior(torch.zeros(1, SMALL.deter, dtype=torch.float64))
    assert chances[0, 0].tolist() == pytest.approx([0.99 + 0.01 / 4] * 5)
    assert chances[0, 1].tolist() == pytest.approx([0.01 / 4] * 5)


def test_divergence_of_categories() -> None:
    left = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])
    right = torch.tensor([[[0.25, 0.5], [0.75, 0.5]]])
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert divergence(left, right).item() == pytest.approx(expected, rel=1e-6)


def test_free_nats_train_neither_side_and_balance_trains_one_each(rssm: Rssm) -> None:
    deter = torch.randn(2, 1, SMALL.deter, dtype=torch.float64)
    near = rssm.prior(deter).detach().requires_grad_()
    sure = torch.full((2, 1, 4, 5), 0.001, dtype=torch.float64)
    sure[..., 0, :] = 0.997
    sure.requires_grad_()
    stoch = torch.zeros(2, 1, 20, dtype=torch.float64)
    for posterior, free in ((near, True), (sure, False)):
        dynamics, representation = rssm.divergences(Latents(deter, stoch, posterior), 1.0)
        rssm.zero_grad()
        dynamics.sum().backward()
        trained = bool(rssm.prior_head[-1].bias.grad.any())
        assert trained is not free
        assert posterior.grad is None
        rssm.zero_grad()
        representation.sum().backward()
        assert posterior.grad is not None
        assert bool(posterior.grad.any()) is not free
        assert not any(p.grad is not None and p.grad.any() for p in rssm.parameters())
        assert (dynamics == 1.0).all().item() is free
