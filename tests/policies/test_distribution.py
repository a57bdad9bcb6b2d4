"""Distributions of actions, against torch's own, and in any action space."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import keys, multi_binaries, multi_discretes, shapes
from torch.distributions import (
    AffineTransform,
    Categorical,
    Normal,
    TanhTransform,
    TransformedDistribution,
)

from fugu import Layout
from fugu.core.errors import SpaceError, UsageError
from fugu.envs.masks import mask_heads
from fugu.policies import ActionDistribution
from fugu.policies import distribution as distribution_module
from fugu.policies.distribution import evaluate_choices

MIXED = spaces.Dict(
    move=spaces.MultiDiscrete([[3, 2], [3, 3]]),
    push=spaces.Box(np.float32([-1, 0, -np.inf, 2]), np.float32([1, 10, np.inf, np.inf])),
    press=spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(5, start=-3))),
)


def distribution_of(space: Space[Any], continuous: Any = "clipped") -> ActionDistribution:
    return ActionDistribution(Layout.of(space, strict=True), continuous)


def params_of(actions: ActionDistribution, batch: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    params = torch.randn(batch, actions.num_params, generator=generator)
    params[:, actions.num_outputs :] *= 0.5  # of standard deviations
    return params


def masks_of(actions: ActionDistribution, batch: int, seed: int = 0) -> torch.Tensor:
    """Random masks that allow something in every head."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for choices in mask_heads(actions.layout):
        part = torch.rand(batch, choices, generator=generator) < 0.5
        always = torch.randint(choices, (batch, 1), generator=generator)
        parts.append(part.scatter(1, always, True))
    return torch.cat(parts, 1)


# ---------------------------------------------------------------------- spaces

floats = st.builds(
    lambda bounds, shape, dtype: spaces.Box(*bounds, shape, dtype),
    st.sampled_from(
        [(-1, 1), (0.1, 0.3), (2, 2), (-np.inf, np.inf), (-np.inf, 3), (-3, np.inf), (-6e4, 6e4)]
    ),
    shapes,
    st.sampled_from([np.float16, np.float32, np.float64]),
)
discretes = st.builds(
    lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 20), st.integers(-5, 2**40)
)
parts = st.one_of(floats, discretes, multi_discretes(), multi_binaries)
action_spaces = st.recursive(
    parts,
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, max_size=3).map(spaces.Dict),
        st.lists(inner, max_size=3).map(lambda items: spaces.Tuple(tuple(items))),
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(
    space=action_spaces,
    continuous=st.sampled_from(["clipped", "tanh"]),
    scale=st.sampled_from([1.0, 1e4, 1e30]),
    greedy=st.booleans(),
)
def test_what_the_environment_gets_is_in_its_space(
    space: Space[Any], continuous: Any, scale: float, greedy: bool
) -> None:
    actions = distribution_of(space, continuous)
    assert actions.num_choices == sum(mask_heads(actions.layout))
    params = params_of(actions, 6)
    params[:, actions.num_choices : actions.num_outputs] *= scale
    samples, log_probs = actions.sample(params, None, np.random.default_rng(1), greedy)
    assert samples.shape == (6, actions.num_samples)
    assert (samples.dtype, log_probs.dtype) == (np.float32, np.float32)
    rows = actions.to_rows(samples)
    assert (rows.shape, rows.dtype) == ((6, actions.layout.size), actions.layout.dtype)
    for row in rows:
        value = actions.layout.unpack(row)
        assert space.contains(value)
        actions.layout.pack(value, actions.layout.zeros())  # which refuses what is out of bounds


def test_params_and_samples_stand_in_the_order_of_masks() -> None:
    actions = distribution_of(MIXED)
    heads = mask_heads(actions.layout)
    assert actions.num_params == sum(heads) + 2 * 4
    assert actions.num_samples == len(heads) + 4
    mask = np.zeros((1, sum(heads)), np.bool_)
    chosen = [choices - 1 for choices in heads]
    mask[0, np.cumsum(heads) - 1] = True  # the last choice of every head
    samples, _ = actions.sample(params_of(actions, 1), mask, np.random.default_rng(0))
    assert samples[0, : len(heads)].tolist() == chosen
    action = actions.layout.unpack(actions.to_rows(samples)[0])
    assert action["move"].tolist() == [[2, 1], [2, 2]]
    assert action["press"][0].tolist() == [1, 1]
    assert action["press"][1] == 1  # -3 + 4


def test_numbers_are_clipped_scaled_or_squashed_to_their_bounds() -> None:
    raw = np.float32([[0.5, 20.0, -1000.0, -4.0]])
    space = MIXED["push"]
    clipped = distribution_of(space).to_rows(raw)
    np.testing.assert_array_equal(clipped, [[0.5, 10.0, -1000.0, 2.0]])
    squashed = distribution_of(space, "tanh").to_rows(raw)
    np.testing.assert_allclose(squashed, [[math.tanh(0.5), 10.0, -1000.0, 2.0]], rtol=1e-6)
    scaled = distribution_of(space, "scaled")
    raw = np.float32([[0.5, 0.2, -1000.0, -4.0], [1.5, -7.0, 3.0, 4.0]])
    np.testing.assert_allclose(
        scaled.to_rows(raw), [[0.5, 6.0, -1000.0, 2.0], [1.0, 0.0, 3.0, 4.0]], rtol=1e-6
    )
    np.testing.assert_allclose(scaled.to_samples(scaled.to_rows(raw[:1])), [[0.5, 0.2, -1000, 2]])


def test_bounds_that_mean_none_scale_nothing() -> None:
    space = spaces.Box(np.float32([-3e38, -100]), np.float32([3e38, 100]))
    rows = distribution_of(space, "scaled").to_rows(np.float32([[0.5, 0.5]]))
    np.testing.assert_allclose(rows, [[0.5, 50.0]])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 9, (2,), np.int32), "given a Box of int32; allowed: a Box of floats"),
        (spaces.Dict(a=spaces.Text(3)), "action space at 'a': given Text; allowed: Discrete"),
        (spaces.Discrete(2**30), "given a head of 1073741824 choices"),
        (spaces.OneOf((spaces.Discrete(2),)), "given OneOf"),
    ],
)
def test_spaces_that_cannot_be_acted_in_are_refused(space: Space[Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        distribution_of(space)


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize("masked", [False, True])
def test_choices_agree_with_torch(masked: bool) -> None:
    actions = distribution_of(MIXED["move"])
    params = params_of(actions, 64)
    masks = masks_of(actions, 64) if masked else None
    samples, log_probs = actions.sample(params, masks, np.random.default_rng(0))
    ours, entropies = actions.evaluate(params, torch.from_numpy(samples), masks)
    expected, expected_entropies = torch.zeros(64), torch.zeros(64)
    first = 0
    for head, choices in enumerate([3, 2, 3, 3]):
        logits = params[:, first : first + choices]
        if masks is not None:
            logits = logits.masked_fill(~masks[:, first : first + choices], -1e8)
        theirs = Categorical(logits=logits)
        expected += theirs.log_prob(torch.from_numpy(samples[:, head]))
        expected_entropies += theirs.entropy()
        first += choices
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropies, expected_entropies, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.from_numpy(log_probs), ours, atol=1e-5, rtol=0)


def test_normals_agree_with_torch() -> None:
    actions = distribution_of(spaces.Box(-1, 1, (3, 2)))
    params = params_of(actions, 64)
    samples, log_probs = actions.sample(params, None, np.random.default_rng(0))
    ours, entropies = actions.evaluate(params, torch.from_numpy(samples))
    theirs = Normal(params[:, :6], params[:, 6:].exp())
    expected = theirs.log_prob(torch.from_numpy(samples)).sum(-1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropies, theirs.entropy().sum(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.from_numpy(log_probs), ours, atol=1e-5, rtol=0)


def test_squashed_normals_agree_with_torch() -> None:
    low, high = np.float32([-1, 0, -2]), np.float32([1, 10, 0.5])
    actions = distribution_of(spaces.Box(low, high), "tanh")
    params = params_of(actions, 64).double()
    samples, log_probs = actions.sample(params, None, np.random.default_rng(0))
    raw = torch.from_numpy(samples).double()
    ours, _ = actions.evaluate(params, raw)
    middle, half = torch.from_numpy((high + low) / 2), torch.from_numpy((high - low) / 2)
    scaling = AffineTransform(middle.double(), half.double())
    base = Normal(params[:, :3], params[:, 3:].exp())
    theirs = TransformedDistribution(base, [TanhTransform(), scaling])
    expected = theirs.log_prob(scaling(raw.tanh())).sum(-1)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.from_numpy(log_probs).double(), ours, atol=1e-5, rtol=0)
    np.testing.assert_allclose(actions.to_rows(samples), scaling(raw.tanh()), atol=1e-6)


def test_squashed_log_probabilities_stay_finite_far_out() -> None:
    actions = distribution_of(spaces.Box(-1, 1, (1,)), "tanh")
    params = torch.tensor([[200.0, 0.0], [-200.0, 0.0]], requires_grad=True)
    samples, log_probs = actions.sample(params, None, np.random.default_rng(0))
    ours, entropies = actions.evaluate(params, torch.from_numpy(samples))
    # log(1 - tanh(u)^2) = log 4 - 2 |u|, far out.
    assert (ours > 390).all()
    np.testing.assert_allclose(log_probs, ours.detach(), rtol=1e-5)
    (ours.sum() + entropies.sum()).backward()
    assert params.grad is not None
    assert params.grad.isfinite().all()


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-2.0, 0.4)])
def test_squashed_entropy_is_the_mean_surprise(mean: float, log_std: float) -> None:
    actions = distribution_of(spaces.Box(-3, 5, (1,)), "tanh")
    params = torch.tensor([mean, log_std], dtype=torch.float64).expand(400_000, 2)
    samples, _ = actions.sample(params, None, np.random.default_rng(0))
    log_probs, entropies = actions.evaluate(params, torch.from_numpy(samples).double())
    assert abs(float(entropies[0]) + float(log_probs.mean())) < 0.01


def test_bounded_and_unbounded_numbers_stand_side_by_side() -> None:
    """Only the first two dimensions have two bounds, and so a tanh."""
    actions = distribution_of(MIXED["push"], "tanh")
    params, samples = params_of(actions, 8), torch.randn(8, 4)
    ours, _ = actions.evaluate(params, samples)
    slopes = torch.log(1 - samples[:, :2].double().tanh() ** 2).sum(-1) + math.log(5.0)
    plain = Normal(params[:, :4], params[:, 4:].exp()).log_prob(samples).sum(-1)
    torch.testing.assert_close(ours, (plain - slopes).float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("continuous", ["clipped", "tanh"])
def test_samples_evaluate_to_the_log_probabilities_they_came_with(continuous: Any) -> None:
    actions = distribution_of(MIXED, continuous)
    params, masks = params_of(actions, 256), masks_of(actions, 256)
    for greedy in (False, True):
        samples, log_probs = actions.sample(params, masks, np.random.default_rng(0), greedy)
        ours, _ = actions.evaluate(params, torch.from_numpy(samples), masks)
        torch.testing.assert_close(torch.from_numpy(log_probs), ours, atol=1e-5, rtol=1e-6)


def test_leading_axes_and_half_precision_are_taken() -> None:
    actions = distribution_of(MIXED, "tanh")
    params, masks = params_of(actions, 24), masks_of(actions, 24)
    samples = torch.from_numpy(actions.sample(params, masks, np.random.default_rng(0))[0])
    flat = actions.evaluate(params, samples, masks)
    shaped = actions.evaluate(
        params.view(4, 6, -1), samples.view(4, 6, -1), masks.to(torch.uint8).view(4, 6, -1)
    )
    for ours, expected in zip(shaped, flat, strict=True):
        torch.testing.assert_close(ours, expected.view(4, 6))
    assert actions.evaluate(params.bfloat16(), samples, masks)[0].dtype == torch.float32


def test_samples_come_as_often_as_their_probability_says() -> None:
    actions = distribution_of(spaces.Dict(a=spaces.Discrete(4), b=spaces.Box(-9, 9, (1,))))
    row = torch.tensor([[0.0, 1.0, -1.0, 0.5, 2.0, math.log(0.5)]])
    count = 200_000
    samples, _ = actions.sample(row.expand(count, -1), None, np.random.default_rng(0))
    frequencies = np.bincount(samples[:, 0].astype(int), minlength=4) / count
    np.testing.assert_allclose(frequencies, row[0, :4].softmax(-1), atol=0.005)
    assert abs(samples[:, 1].mean() - 2.0) < 0.005
    assert abs(samples[:, 1].std() - 0.5) < 0.005


def test_same_generator_same_actions() -> None:
    actions = distribution_of(MIXED)
    params = params_of(actions, 32)
    first = actions.sample(params, None, np.random.default_rng(5))[0]
    np.testing.assert_array_equal(first, actions.sample(params, None, np.random.default_rng(5))[0])
    assert not np.array_equal(first, actions.sample(params, None, np.random.default_rng(6))[0])


# ---------------------------------------------------------------------- masks and rows at rest


def test_what_is_forbidden_is_never_sampled_and_has_no_gradient() -> None:
    actions = distribution_of(MIXED)
    params, masks = params_of(actions, 512).requires_grad_(), masks_of(actions, 512)
    samples, _ = actions.sample(params, masks, np.random.default_rng(0))
    first = 0
    for head, choices in enumerate(mask_heads(actions.layout)):
        allowed = masks[:, first : first + choices]
        index = torch.from_numpy(samples[:, head : head + 1]).long()
        assert allowed.gather(1, index).all()
        first += choices
    log_probs, entropies = actions.evaluate(params, torch.from_numpy(samples), masks)
    (log_probs.sum() + entropies.sum()).backward()
    assert params.grad is not None
    logits = params.grad[:, : actions.num_choices]
    assert (logits[~masks] == 0).all()
    several = masks[:, :3].sum(1) > 1
    assert (logits[:, :3][several][masks[:, :3][several]] != 0).any()


def test_rows_at_rest_give_zeros_whatever_stands_in_them() -> None:
    actions = distribution_of(MIXED["move"])
    params, masks = params_of(actions, 4), masks_of(actions, 4)
    live = np.array([True, False, True, False])
    resting = torch.from_numpy(~live)
    poisoned = params.clone()
    poisoned[resting] = torch.nan
    masks[resting] = False
    samples, log_probs = actions.sample(
        poisoned, masks, np.random.default_rng(0), live=torch.from_numpy(live)
    )
    clean, clean_log_probs = actions.sample(
        params, masks.numpy(), np.random.default_rng(0), live=live
    )
    np.testing.assert_array_equal(samples, clean)
    np.testing.assert_array_equal(log_probs, clean_log_probs)
    assert (samples[~live] == 0).all()
    assert (log_probs[~live] == 0).all()
    poisoned.requires_grad_()
    ours, entropies = actions.evaluate(poisoned, torch.from_numpy(samples), masks)
    assert (ours[resting] == 0).all()
    assert (entropies[resting] == 0).all()
    (ours.sum() + entropies.sum()).backward()
    assert poisoned.grad is not None
    assert poisoned.grad.isfinite().all()
    assert (poisoned.grad[resting] == 0).all()
    assert (poisoned.grad[~resting] != 0).any()


def test_squashed_rows_at_rest_give_zeros() -> None:
    actions = distribution_of(spaces.Box(0, 8, (2,)), "tanh")
    params = params_of(actions, 3)
    params[1] = torch.nan
    live = np.array([True, False, True])
    samples, log_probs = actions.sample(params, None, np.random.default_rng(0), live=live)
    assert samples[1].tolist() == [0, 0]
    assert log_probs[1] == 0
    assert (log_probs[live] != 0).all()


def test_a_live_row_that_may_do_nothing_is_an_error() -> None:
    actions = distribution_of(spaces.Discrete(3))
    masks = torch.tensor([[True, True, True], [False, False, False]])
    with pytest.raises(UsageError, match="row 1, head 0: given no choice that is allowed"):
        actions.sample(torch.zeros(2, 3), masks, np.random.default_rng(0))


def test_empty_batches_and_empty_spaces() -> None:
    actions = distribution_of(MIXED)
    samples, log_probs = actions.sample(params_of(actions, 0), None, np.random.default_rng(0))
    assert samples.shape == (0, actions.num_samples)
    assert log_probs.shape == (0,)
    assert actions.to_rows(samples).shape == (0, actions.layout.size)
    nothing = distribution_of(spaces.Tuple(()))
    log_probs, entropies = nothing.evaluate(torch.zeros(3, 0), torch.zeros(3, 0))
    assert log_probs.tolist() == entropies.tolist() == [0, 0, 0]


# ---------------------------------------------------------------------- one kernel for choices


def obvious(logits: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logs = torch.log_softmax(logits, -1)
    return logs.gather(-1, indices).squeeze(-1), -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4), (1, 1), (0, 6)])
@pytest.mark.parametrize(("of_chosen", "of_entropies"), [(1.0, 0.3), (1.0, 0.0), (0.0, 1.0)])
def test_values_and_gradients(
    shape: tuple[int, ...], of_chosen: float, of_entropies: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution_module, "CHUNK", 8)  # several parts, the last one shorter
    random = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(shape, generator=random, dtype=torch.float64)
    indices = torch.randint(shape[-1], (*shape[:-1], 1), generator=random)
    weights = torch.randn(shape[:-1], generator=random, dtype=torch.float64)
    outcomes = []
    for evaluate in (evaluate_choices, obvious):
        given = logits.clone().requires_grad_()
        chosen, entropies = evaluate(given, indices)
        loss = sum(
            factor * (weights * part).sum()
            for factor, part in ((of_chosen, chosen), (of_entropies, entropies))
            if factor
        )
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        outcomes.append((chosen, entropies, given.grad))
    for ours, theirs in zip(*outcomes, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_what_is_impossible_has_no_gradient() -> None:
    logits = torch.tensor([[0.5, -1e9, 1.0], [200.0, -200.0, 0.0]], requires_grad=True)
    chosen, entropies = evaluate_choices(logits, torch.tensor([[0], [1]]))
    (chosen + entropies).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 1] == 0.0
    assert chosen[1] == -400.0  # though its probability is 0 in float32
