"""Networks as pure functions of JAX: compiled, mapped, and differentiated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_kinds import KINDS, Kind, observations_of

from fugu.core.errors import UsageError
from fugu.export.jax_net import JaxEngine, batched, jax_function, jax_leaves
from fugu.nets.net import Net, OneHot, Place
from fugu.nets.reading import read_policy
from fugu.spaces import Layout


def kind_of(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)


@pytest.mark.parametrize("name", ["gru", "tree"])
def test_one_many_and_compiled_are_the_same(name: str) -> None:
    policy, layout = kind_of(name).make()
    net = read_policy(policy, layout)
    forward, weights = jax_function(net)
    leaves = jax_leaves(net, observations_of(layout, 4))
    state = np.random.default_rng(0).normal(size=(4, net.state_size)).astype(np.float32)
    many = batched(forward)(weights, leaves, state)
    compiled = jax.jit(forward)
    for i in range(4):
        alone = {path: leaf[i] for path, leaf in leaves.items()}
        for function in (forward, compiled):
            for one, all_of_them in zip(function(weights, alone, state[i]), many, strict=True):
                assert one.dtype == jnp.float32
                np.testing.assert_allclose(one, all_of_them[i], rtol=1e-5, atol=1e-6)
    # Mapped twice: teams of agents, of which there are several.
    teams = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), (leaves, state))
    twice = jax.vmap(jax.vmap(forward, (None, 0, 0)), (None, 0, 0))(weights, *teams)
    np.testing.assert_allclose(twice[0].reshape(4, -1), many[0], rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_torch() -> None:
    policy, layout = kind_of("gru").make()
    net = read_policy(policy, layout)
    forward, weights = jax_function(net)
    rows = observations_of(layout, 8)
    state = np.random.default_rng(0).normal(size=(8, net.state_size)).astype(np.float32)

    def loss(weights, leaves, state):  # type: ignore[no-untyped-def]
        params, values, after = batched(forward)(weights, leaves, state)
        return (params**2).sum() + values.sum() + (after**2).sum()

    found = jax.grad(loss)(weights, jax_leaves(net, rows), state)
    params, values, after = policy(torch.from_numpy(rows), torch.from_numpy(state))
    ((params**2).sum() + values.sum() + (after**2).sum()).backward()
    learned = [parameter.grad.numpy() for parameter in policy.parameters()]  # type: ignore
    compared = 0
    for parts in found.values():
        for gradient in parts.values():
            same_shape = [mine for mine in learned if mine.shape == gradient.shape]
            compared += any(
                np.allclose(gradient, mine, rtol=1e-3, atol=1e-4) for mine in same_shape
            )
    assert compared == len(learned)
    assert all(np.abs(gradient).max() > 0 for gradient in learned)


def test_weights_are_what_is_given() -> None:
    policy, layout = kind_of("mlp").make()
    net = read_policy(policy, layout)
    forward, weights = jax_function(net)
    leaves = jax_leaves(net, observations_of(layout, 1)[:1])
    leaf, state = {name: part[0] for name, part in leaves.items()}, jnp.zeros(0)
    nothing = jax.tree.map(jnp.zeros_like, weights)
    assert not forward(nothing, leaf, state)[0].any()
    assert forward(weights, leaf, state)[0].any()


def test_nothing_is_set_for_the_whole_process() -> None:
    before = jax.config.values.copy()
    policy, layout = kind_of("mlp").make()
    engine = JaxEngine(read_policy(policy, layout))
    engine.forward(observations_of(layout, 3), np.zeros((3, 0), np.float32))
    assert jax.config.values == before


def test_choices_beyond_what_jax_counts_are_refused() -> None:
    layouts = Layout.of(spaces.Discrete(4, start=2**40)), Layout.of(spaces.Discrete(2))
    net = Net(*layouts, continuous="clipped", state_size=0)
    parts = {"start": np.array([2**40]), "counts": np.array([4])}
    net.params = net.add(OneHot, 1, 4, place=Place(0, np.dtype(np.int64)), **parts)
    with pytest.raises(UsageError, match="choices beyond 32 bits"):
        jax_function(net)
