"""Gradients of the native core against torch's autograd of the same loss."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu import native
from fugu.algos.ppo import PPOConfig, _ppo_loss
from fugu.algos.ppo_loss import ValueLoss, loss_settings
from fugu.algos.segment_view import Minibatch
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.nets.learning import FlatParameters, NativeLearner
from fugu.nets.native import targets
from fugu.policies.config import PolicyConfig
from fugu.policies.cores import MinGruCore
from fugu.policies.policy import Policy, make_policy
from fugu.spaces import Layout

pytestmark = pytest.mark.skipif(not native.available, reason="the core is not built")

ROWS, LENGTH = 37, 8  # no multiple of a tile, nor of a vector
VECTOR = spaces.Box(-2, 2, (11,), np.float32)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": VECTOR,
    "bytes": spaces.Box(0, 255, (9,), np.uint8),
    "cells": spaces.Box(0, 3, (2, 3), np.uint8),
    "table": spaces.MultiDiscrete([200, 3]),
    "tree": spaces.Dict(
        {"far": spaces.Box(-9, 9, (2, 2)), "kind": spaces.Discrete(5), "on": spaces.MultiBinary(3)}
    ),
    "options": spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "several": spaces.MultiDiscrete([2, 5, 5]),
    "continuous": spaces.Box(-1, 1, (2,)),
    "mixed": spaces.Dict({"go": spaces.Discrete(4), "to": spaces.Box(-1, 1, (3,))}),
}

LOSS = PPOConfig(value_loss="clipped", huber_delta=1.0)


def make(
    observation: spaces.Space[Any], action: spaces.Space[Any], critics: int = 1, **settings: Any
) -> tuple[Policy, Layout]:
    torch.manual_seed(1)
    layout = Layout.of(observation)
    group = AgentGroup("agent", (0,), layout, Layout.of(action))
    policy = make_policy(group, PolicyConfig(**{"hidden_size": 24, **settings}), critics)
    with torch.no_grad():
        for parameter in policy.parameters():  # biases too, and no output that is almost 0
            parameter += 0.1 * torch.randn_like(parameter)
    return policy, layout


def experience(policy: Policy, layout: Layout, masked: bool, seed: int = 3) -> Minibatch:
    random = np.random.default_rng(seed)
    observation, steps, critics = layout.space, (ROWS, LENGTH), policy.num_critics
    observation.seed(seed)
    packed = np.zeros((ROWS * LENGTH, layout.size), layout.dtype)
    for row in packed:
        layout.pack(observation.sample(), row)
    distribution = policy.distribution
    masks = None
    if masked and distribution.num_choices:
        allowed = random.random((*steps, distribution.num_choices)) < 0.7
        begin = 0
        for count in distribution.choices:
            allowed[..., begin + random.integers(count)] = True
            begin += count
        masks = torch.from_numpy(allowed)
    state = torch.from_numpy(random.normal(size=(ROWS, policy.state_size)).astype(np.float32))
    broken = random.random(steps) < 0.1
    resets = torch.from_numpy(random.random(steps) < 0.15)
    resets[:, 1:] |= torch.from_numpy(broken[:, :-1])
    resets[:, 0] = False
    flat = torch.from_numpy(packed).view(ROWS, LENGTH, -1)
    with torch.no_grad():
        params, values = policy.forward_segments(flat, state, resets)
    samples, log_probs = distribution.sample(
        params.flatten(0, 1), None if masks is None else masks.flatten(0, 1), random
    )

    def near(numbers: Any, spread: float) -> torch.Tensor:
        noise = random.normal(scale=spread, size=np.shape(numbers)).astype(np.float32)
        return torch.as_tensor(np.asarray(numbers, np.float32) + noise)

    weights = np.where(broken, 0.0, random.random((ROWS, 1))).astype(np.float32)
    return Minibatch(
        observations=flat,
        samples=torch.from_numpy(samples).view(ROWS, LENGTH, -1),
        masks=masks,
        states=state,
        resets=resets,
        old_log_probabilities=near(log_probs.reshape(steps), 0.2),
        old_values=near(values, 0.3),
        advantages=near(np.zeros(steps), 1.0),
        returns=near(values, 0.5 * critics),
        weights=torch.from_numpy(weights),
    )


def by_torch(policy: Policy, batch: Minibatch, cfg: PPOConfig) -> tuple[Any, Any, Any]:
    broken = batch.weights == 0
    seen = batch.observations.clone()
    seen[broken] = 0
    policy.zero_grad()
    loss, ratios, metrics = _ppo_loss(policy, replace(batch, observations=seen), cfg, 50.0)
    loss.backward()  # type: ignore[no-untyped-call]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters()]
    found = torch.cat([grad.flatten() for grad in grads]).double().numpy()
    return found, ratios.detach().numpy(), [float(value) for value in metrics.values()]


def by_core(
    policy: Policy, layout: Layout, batch: Minibatch, cfg: PPOConfig, **how: Any
) -> tuple[Any, Any, Any]:
    learner = NativeLearner(policy, layout, **{"threads": 2, **how})
    # Rows of the tables, and of the update, in orders of their own, with some more between them.
    random = np.random.default_rng(5)
    drawn = SimpleNamespace(
        rows=random.permutation(ROWS + 3)[:ROWS],
        own=random.permutation(ROWS + 1)[:ROWS],
        times=None,
    )
    tables, advantages = written(policy, batch, drawn)
    ratios = np.zeros((LENGTH, ROWS + 1), np.float32)
    sums = learner.learn(
        tables,
        drawn,
        batch.weights.amax(1).numpy(),
        batch.advantages.numpy().T,
        advantages,
        policy.distribution.choices,
        loss_settings(cfg, 50.0),
        ratios,
    )
    found = ratios[:, drawn.own].T.ravel()
    return learner.flat.grads.astype(np.float64), found, sums


def written(policy: Policy, batch: Minibatch, drawn: Any) -> tuple[Any, Any]:
    """The tables, as segments have them, and the advantages that make the returns."""
    rows, total, critics = drawn.rows, ROWS + 3, policy.num_critics
    seen = batch.observations.contiguous().numpy()
    masks = np.ones((ROWS, LENGTH, policy.distribution.num_choices), np.bool_)
    ended = np.zeros((ROWS, LENGTH), np.bool_)
    ended[:, :-1] = batch.resets.numpy()[:, 1:]

    def by_row(numbers: Any) -> Any:
        table = np.zeros((total, *numbers.shape[1:]), numbers.dtype)
        table[rows] = numbers
        return table

    def by_time(numbers: Any) -> Any:
        return np.ascontiguousarray(by_row(numbers).T)

    values = np.zeros((critics, LENGTH + 1, total), np.float32)
    values[:, :-1] = by_time(batch.old_values.numpy())
    advantages = np.zeros((critics, LENGTH, ROWS + 1), np.float32)
    advantages[:, :, drawn.own] = (batch.returns - batch.old_values).numpy().T
    tables = SimpleNamespace(
        observation_bytes=by_row(seen.view(np.uint8).reshape(ROWS, LENGTH, -1)),
        samples=by_row(batch.samples.numpy()),
        masks=by_row(masks if batch.masks is None else batch.masks.numpy()),
        states=by_row(batch.states.numpy()),
        log_probabilities=by_time(batch.old_log_probabilities.numpy()),
        rewards=np.zeros((LENGTH, total), np.float32),
        values=values,
        final_values=values[:, :-1].copy(),
        terminations=by_time(ended),
        truncations=np.zeros((LENGTH, total), np.bool_),
        valid=by_time(batch.weights.numpy() != 0),
    )
    return tables, advantages


def distance(found: Any, right: Any) -> float:
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("core", ["none", "lstm", "gru", "mingru"])
@pytest.mark.parametrize("masked", [False, True])
def test_heads_and_cores(core: str, action: str, masked: bool) -> None:
    policy, layout = make(VECTOR, ACTIONS[action], core=core, hidden_size=48)
    batch = experience(policy, layout, masked)
    right = by_torch(policy, batch, LOSS)
    found = by_core(policy, layout, batch, LOSS)
    assert distance(found[0], right[0]) < 1e-5
    np.testing.assert_allclose(found[1], right[1], rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(found[2], right[2], rtol=1e-5, atol=1e-4)
    smooth = PPOConfig(clip=9.0, value_loss="mse")  # rounding crosses no bound there
    if isinstance(policy.core, MinGruCore):  # nor the bend of what it remembers
        with torch.no_grad():
            policy.core.gates.bias[48:] += 4.0
    right = by_torch(policy, batch, smooth)
    short = by_core(policy, layout, batch, smooth, bfloat16=True)
    assert 1e-7 < distance(short[0], right[0]) < 1e-2


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("critic", ["shared", "own"])
def test_observations(observation: str, critic: str) -> None:
    policy, layout = make(OBSERVATIONS[observation], ACTIONS["discrete"], critic=critic, layers=2)
    batch = experience(policy, layout, False)
    right = by_torch(policy, batch, LOSS)
    assert distance(by_core(policy, layout, batch, LOSS)[0], right[0]) < 1e-5


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh", "silu"])
@pytest.mark.parametrize("width", [1, 7, 64, 129])
def test_layers(activation: str, width: int) -> None:
    policy, layout = make(
        VECTOR, ACTIONS["mixed"], activation=activation, hidden_size=width, layers=3
    )
    batch = experience(policy, layout, True)
    right = by_torch(policy, batch, LOSS)
    assert distance(by_core(policy, layout, batch, LOSS)[0], right[0]) < 1e-5


def test_actions_of_nothing_are_refused() -> None:
    policy, layout = make(VECTOR, spaces.Tuple(()), 1)
    batch = experience(policy, layout, False)
    with pytest.raises(ValueError, match="choices"):
        by_core(policy, layout, batch, LOSS)


@pytest.mark.parametrize("loss", get_args(ValueLoss))
@pytest.mark.parametrize("critics", [1, 3])
def test_losses(loss: Any, critics: int) -> None:
    policy, layout = make(VECTOR, ACTIONS["several"], critics)
    batch = experience(policy, layout, True)
    cfg = PPOConfig(
        clip=0.1,
        value_loss=loss,
        value_clip=0.1,
        huber_delta=0.2,
        value_coefficient=0.7,
        entropy_coefficient=0.1,
    )
    right, found = by_torch(policy, batch, cfg), by_core(policy, layout, batch, cfg)
    assert distance(found[0], right[0]) < 1e-5
    np.testing.assert_allclose(found[2], right[2], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", targets())
@pytest.mark.parametrize("bfloat16", [False, True])
def test_every_kind_of_processor(target: str, bfloat16: bool) -> None:
    policy, layout = make(VECTOR, ACTIONS["mixed"], core="lstm", layers=2)
    batch, cfg = experience(policy, layout, True), PPOConfig(clip=9.0, value_loss="mse")
    right = by_torch(policy, batch, cfg)
    found = by_core(policy, layout, batch, cfg, target=target, bfloat16=bfloat16)
    assert distance(found[0], right[0]) < (2e-2 if bfloat16 else 1e-5)


class WithNorms(torch.nn.Module):
    """Layer norms, which no setting makes."""

    def __new__(cls, inputs: int, hidden: int) -> Any:
        layers = [torch.nn.Linear(inputs, hidden), torch.nn.LayerNorm(hidden), torch.nn.SiLU()]
        more = [torch.nn.Linear(hidden, hidden, bias=False), torch.nn.LayerNorm(hidden)]
        return torch.nn.Sequential(*layers, *more)


def test_layers_of_ones_own() -> None:
    torch.manual_seed(2)
    layout = Layout.of(VECTOR)
    group = AgentGroup("agent", (0,), layout, Layout.of(ACTIONS["discrete"]))
    policy = make_policy(group, PolicyConfig(), encoder=WithNorms(11, 20))
    batch = experience(policy, layout, False)
    right = by_torch(policy, batch, LOSS)
    assert distance(by_core(policy, layout, batch, LOSS)[0], right[0]) < 1e-5


def test_sets_share_what_is_largest() -> None:
    items = spaces.Box(-1, 1, (4, 3), np.float32)
    policy, layout = make(items, ACTIONS["discrete"], encoder="set")
    batch = experience(policy, layout, False)
    batch.observations[:, ::2] = 0.0  # all items alike: equals share the gradient
    right = by_torch(policy, batch, LOSS)
    assert distance(by_core(policy, layout, batch, LOSS)[0], right[0]) < 1e-5


def test_gradients_are_slopes_of_the_loss() -> None:
    """Finite differences of the loss that torch computes, some of them."""
    policy, layout = make(VECTOR, ACTIONS["mixed"], core="gru", hidden_size=8)
    batch, cfg = experience(policy, layout, False), PPOConfig(clip=9.0, value_loss="mse")
    grads = by_core(policy, layout, batch, cfg)[0]
    batch.observations[batch.weights == 0] = 0.0
    flat = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    for place in np.random.default_rng(0).choice(len(flat), 24, replace=False):
        losses = []
        for step in (1e-2, -1e-2):
            moved = flat.clone()
            moved[place] += step
            torch.nn.utils.vector_to_parameters(moved, policy.parameters())
            with torch.no_grad():
                losses.append(float(_ppo_loss(policy, batch, cfg, 50.0).loss))
        slope = (losses[0] - losses[1]) / 2e-2
        assert slope == pytest.approx(grads[place], rel=2e-2, abs=3e-4)


def test_threads_share_the_rows_in_a_fixed_order() -> None:
    policy, layout = make(VECTOR, ACTIONS["several"], core="lstm")
    batch, cfg = experience(policy, layout, True), LOSS
    first, again = (by_core(policy, layout, batch, cfg, threads=2)[0] for _ in range(2))
    assert first.tobytes() == again.tobytes()
    assert distance(by_core(policy, layout, batch, cfg, threads=1)[0], first) < 1e-6


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_what_is_no_number_in_a_broken_step_changes_no_bit(core: str) -> None:
    policy, layout = make(VECTOR, ACTIONS["mixed"], core=core)
    batch = experience(policy, layout, False)
    clean = by_core(policy, layout, batch, LOSS)
    batch.observations[batch.weights == 0] = float("nan")
    spoiled = by_core(policy, layout, batch, LOSS)
    assert clean[0].tobytes() == spoiled[0].tobytes()
    assert np.isfinite(clean[0]).all()


def test_weights_are_shared_with_torch() -> None:
    policy, layout = make(VECTOR, ACTIONS["discrete"])
    learner = NativeLearner(policy, layout)
    rows, state = np.ones((5, 11), np.float32), np.zeros((5, 0), np.float32)
    before = learner.forward(rows, state)[0]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter *= 2.0
    learner.reload()
    after = learner.forward(rows, state)[0]
    right = policy(torch.from_numpy(rows), torch.zeros(5, 0))[0].detach().numpy()
    np.testing.assert_allclose(after, right, rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, after)
    copied = {name: value.clone() for name, value in policy.state_dict().items()}
    policy.load_state_dict(copied)
    assert learner.flat.holds(next(policy.parameters()).detach().numpy())


@pytest.mark.parametrize(
    ("observation", "settings", "word"),
    [
        (spaces.Box(0, 255, (48, 48, 3), np.uint8), {}, "permute"),
        (VECTOR, {"core": "transformer"}, "attend"),
        (spaces.Sequence(spaces.Discrete(3)), {}, "places"),
    ],
)
def test_what_cannot_be_learned_is_refused(
    observation: Any, settings: dict[str, Any], word: str
) -> None:
    limits = {"limits": {"": 4}} if isinstance(observation, spaces.Sequence) else {}
    layout = Layout.of(observation, **limits)
    group = AgentGroup("agent", (0,), layout, Layout.of(ACTIONS["discrete"]))
    policy = make_policy(
        group, PolicyConfig(hidden_size=8, window=4, **{"core": "none", **settings})
    )
    with pytest.raises(UsageError, match=word):
        NativeLearner(policy, layout)


def test_gradients_are_clipped_as_torch_clips_them() -> None:
    policy, _ = make(VECTOR, ACTIONS["mixed"])
    block = FlatParameters(policy)
    given = np.random.default_rng(3).normal(size=block.grads.size).astype(np.float32)
    for most in (0.5, 1e6):
        block.grads[:] = given
        block.show_grads()
        parameters = [torch.nn.Parameter(p.detach().clone()) for p in policy.parameters()]
        for own, parameter in zip(parameters, policy.parameters(), strict=True):
            assert parameter.grad is not None
            own.grad = parameter.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(parameters, most)
        assert block.clip_grads(most) == pytest.approx(float(norm), rel=1e-6)
        right = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        np.testing.assert_allclose(block.grads, right.numpy(), rtol=1e-6)
