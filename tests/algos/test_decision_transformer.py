"""The Decision Transformer's loss and sequences against values computed by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.decision_transformer import (
    DecisionBatch,
    DecisionLearner,
    DecisionTransformerConfig,
    SequenceSampler,
    best_episodes,
    decision_loss,
    returns_to_go,
)
from fugu.core.errors import UsageError
from fugu.data.offline import Dataset, DatasetWriter, Episode
from fugu.envs.contract import AgentGroup
from fugu.policies.decision_transformer import (
    DecisionTransformer,
    DecisionTransformerPolicyConfig,
    make_decision_transformer,
)
from fugu.spaces import Layout


def policy_of(action: Any, **settings: Any) -> DecisionTransformer:
    layouts = Layout.of(spaces.Box(-1, 1, (2,))), Layout.of(action)
    cfg = DecisionTransformerPolicyConfig(hidden_size=8, blocks=1, window=3, **settings)
    torch.manual_seed(1)
    policy = make_decision_transformer(AgentGroup("agent", (0,), *layouts), cfg)
    assert isinstance(policy, DecisionTransformer)
    return policy.eval()


def batch_of(samples: Any, mask: Any) -> DecisionBatch:
    given = torch.as_tensor(samples, dtype=torch.float32)
    shape = given.shape[:2]
    return DecisionBatch(
        torch.randn(*shape, 2, generator=torch.Generator().manual_seed(2)),
        given,
        torch.ones(shape),
        torch.arange(shape[1]).expand(shape),
        torch.tensor(mask, dtype=torch.bool),
    )


def answering(policy: DecisionTransformer, params: list[float]) -> None:
    """Whatever it sees, these are its outputs."""
    torch.nn.init.zeros_(policy.decoder.weight)  # type: ignore[arg-type]
    policy.decoder.bias.data = torch.tensor(params)  # type: ignore[union-attr]


def test_choices_have_their_log_likelihood() -> None:
    policy = policy_of(spaces.MultiDiscrete([2, 3]))
    answering(policy, [0.0, math.log(3), 0.0, math.log(2), 0.0])
    batch = batch_of([[[0, 0], [1, 1], [0, 2]]], [[False, True, True]])
    loss, told = decision_loss(policy, batch, DecisionTransformerConfig())
    # Heads give 1/4, 3/4 and 1/4, 1/2, 1/4; the first step is padding.
    expected = -(math.log(3 / 4) + math.log(1 / 2) + math.log(1 / 4) + math.log(1 / 4)) / 2
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert float(told["accuracy"]) == pytest.approx(2 / 4)
    likelihood, _ = policy.distribution.evaluate(
        policy.forward_sequences(
            batch.observations, batch.samples, batch.returns, batch.times, batch.mask
        ),
        batch.samples,
    )
    assert loss.item() == pytest.approx(-likelihood[batch.mask].mean().item(), rel=1e-5)


def test_numbers_have_a_squared_error_and_their_deviation_its_likelihood() -> None:
    policy = policy_of(spaces.Box(-4, 4, (2,)))
    answering(policy, [1.0, -1.0])
    batch = batch_of([[[2.0, -1.0], [1.0, 3.0]]], [[True, True]])
    loss, told = decision_loss(policy, batch, DecisionTransformerConfig())
    assert loss.item() == pytest.approx((1 + 0 + 0 + 16) / 4)
    assert float(told["squared_error"]) == pytest.approx(17 / 4)
    loss.backward()  # type: ignore[no-untyped-call]
    # d/ds of 0.5 error^2 exp(-2s) + s at s = 0 is 1 - error^2, the mean over steps.
    assert policy.log_std is not None
    assert policy.log_std.grad is not None
    assert policy.log_std.grad.tolist() == pytest.approx([1 - 0.5, 1 - 8.0])
    bias = policy.decoder.bias.grad  # type: ignore[union-attr]
    assert bias.tolist() == pytest.approx([-2 / 4, -8 / 4])  # type: ignore[union-attr]


def test_numbers_may_have_a_normals_likelihood() -> None:
    policy = policy_of(spaces.Box(-4, 4, (1,)), log_std=math.log(2))
    answering(policy, [1.0])
    batch = batch_of([[[2.0], [5.0]]], [[True, True]])
    loss, _ = decision_loss(policy, batch, DecisionTransformerConfig(loss="normal"))
    assert loss.item() == pytest.approx((0.125 + 2.0) / 2 + math.log(2))


def test_squashed_numbers_are_compared_in_units_of_half_their_range() -> None:
    policy = policy_of(spaces.Box(-4, 4, (1,)), continuous="tanh")
    answering(policy, [0.5])
    sample = policy.distribution.to_samples(torch.tensor([[3.0]]).numpy())
    loss, _ = decision_loss(policy, batch_of(sample[None], [[True]]), DecisionTransformerConfig())
    assert loss.item() == pytest.approx((math.tanh(0.5) - 0.75) ** 2, rel=1e-4)


def test_padding_gives_no_gradient() -> None:
    policy = policy_of(spaces.Discrete(3))
    gradients = []
    for first in (0, 2):
        batch = batch_of([[[first], [1], [2]]], [[False, True, True]])
        policy.zero_grad()
        decision_loss(policy, batch, DecisionTransformerConfig())[0].backward()  # type: ignore[no-untyped-call]
        gradients.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_dropout_is_on_only_while_it_learns() -> None:
    policy = policy_of(spaces.Discrete(3), dropout=0.5)
    optimiser = torch.optim.SGD(policy.parameters(), 0.0)
    DecisionLearner(policy, optimiser, DecisionTransformerConfig())
    assert not policy.training


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="batch_size"):
        DecisionTransformerConfig(batch_size=0)
    with pytest.raises(UsageError, match="return_scale"):
        DecisionTransformerConfig(return_scale=-1.0)


# ------------------------------------------------------------------ sequences


def numbered(tmp_path: Path, lengths: list[int]) -> Dataset:
    """Episodes whose observations and actions count through all steps; rewards are 1, 2, 4, ..."""
    layouts = Layout.of(spaces.Box(-1e6, 1e6, (1,))), Layout.of(spaces.Discrete(1000))
    group = AgentGroup("agent", (0,), *layouts)
    with DatasetWriter(tmp_path, group) as writer:
        first = 0
        for length in lengths:
            steps = np.arange(first, first + length)
            ends = np.zeros((2, length), np.bool_)
            writer.add(
                Episode(
                    np.append(steps, -1).astype(np.float32)[:, None],
                    steps[:, None],
                    2.0 ** np.arange(length, dtype=np.float32),
                    *ends,
                )
            )
            first += length
    return Dataset(tmp_path)


def test_sequences_are_padded_on_the_left_and_know_what_is_to_come(tmp_path: Path) -> None:
    data = numbered(tmp_path, [2, 5])
    assert returns_to_go(data).tolist() == [3, 2, 31, 30, 28, 24, 16]
    assert returns_to_go(data, delayed=True).tolist() == [3, 3, 31, 31, 31, 31, 31]
    sampler = SequenceSampler(data, 3)
    # Episodes stand in the order of their returns, which is that of the dataset here.
    found = sampler.take(np.array([0, 1, 3, 6]))
    assert found.mask.astype(int).tolist() == [[0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 0, 1]]
    assert found.times.tolist() == [[0, 0, 1], [0, 0, 1], [1, 2, 3], [0, 0, 4]]
    assert found.observations[..., 0].tolist() == [[0, 0, 1], [0, 0, 1], [3, 4, 5], [0, 0, 6]]
    assert found.actions[..., 0].tolist() == [[0, 0, 1], [0, 0, 1], [3, 4, 5], [0, 0, 6]]
    assert found.returns.tolist() == [[0, 3, 2], [0, 0, 2], [30, 28, 24], [0, 0, 16]]


def test_episodes_are_drawn_by_their_length(tmp_path: Path) -> None:
    data = numbered(tmp_path, [1, 3, 6])
    drawn = SequenceSampler(data, 2).draw(6000, np.random.default_rng(0))
    firsts = drawn.observations[..., 0][np.arange(6000), (~drawn.mask).sum(1)]
    shares = np.bincount(firsts.astype(int), minlength=10) / 6000
    assert shares == pytest.approx(np.full(10, 0.1), abs=0.015)


def test_percentiles_take_the_best_episodes_by_their_steps(tmp_path: Path) -> None:
    data = numbered(tmp_path, [4, 2, 3, 1])  # returns 15, 3, 7, 1
    assert best_episodes(data, 100).tolist() == [3, 1, 2, 0]
    assert best_episodes(data, 70).tolist() == [2, 0]
    assert best_episodes(data, 69).tolist() == [0]
    assert best_episodes(data, 1).tolist() == [0]
    sampler = SequenceSampler(data, 4, percentile=70)
    drawn = sampler.draw(500, np.random.default_rng(0))
    assert set(drawn.actions[drawn.mask][:, 0].tolist()) == {0, 1, 2, 3, 6, 7, 8}
    with pytest.raises(UsageError, match="above 0"):
        best_episodes(data, 0)
