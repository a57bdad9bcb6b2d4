"""Torch views of layouts: eager, compiled, on batches of any rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import LIMIT, any_space, same, value_of

from fugu import Layout
from fugu.core.errors import PackError
from fugu.policies import unpack


def flatten(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in flatten(item)]
    if isinstance(tree, tuple):
        return [leaf for item in tree for leaf in flatten(item)]
    return [tree]


def batch_of(layout: Layout, seed: int, count: int = 4) -> torch.Tensor:
    rng, rows = np.random.default_rng(seed), layout.zeros(count)
    for row in rows:
        layout.pack(value_of(layout.space, rng), row)
    return torch.from_numpy(rows)


@pytest.mark.timeout(600)
@settings(max_examples=100)
@given(space=any_space(5), seed=st.integers(0, 2**32 - 1))
def test_compiled_whole_it_gives_the_same(space: Space[Any], seed: int) -> None:
    torch._dynamo.reset()
    layout = Layout.of(space, limits=LIMIT)
    batch = batch_of(layout, seed)

    def leaves(flat: torch.Tensor) -> list[torch.Tensor]:
        return flatten(unpack(layout, flat))

    compiled = torch.compile(leaves, fullgraph=True)(batch)
    expected = leaves(batch)
    assert len(compiled) == len(expected) == len(layout.leaves)
    for ours, theirs in zip(compiled, expected, strict=True):
        assert same(ours.numpy(), theirs.numpy())


def test_it_computes_and_differentiates_inside_a_compiled_policy() -> None:
    space = spaces.Dict(
        image=spaces.Box(0, 255, (4, 4, 3), np.uint8),
        vector=spaces.Box(-1, 1, (5,)),
        gear=spaces.Discrete(4, start=-1),
    )
    layout = Layout.of(space)
    embedding, linear = torch.nn.Embedding(4, 8), torch.nn.Linear(48 + 5, 8)

    def policy(batch: torch.Tensor) -> torch.Tensor:
        tree = unpack(layout, batch)
        pixels = tree["image"].flatten(1).float() / 255
        return linear(torch.cat([pixels, tree["vector"]], 1)) + embedding(tree["gear"] + 1)

    space.seed(1)
    rows = layout.zeros(16)
    for row in rows:
        layout.pack(space.sample(), row)
    batch = torch.from_numpy(rows)
    eager = policy(batch)
    compiled = torch.compile(policy, fullgraph=True)(batch)
    torch.testing.assert_close(compiled, eager)
    eager.sum().backward()
    expected = linear.weight.grad.clone()
    linear.weight.grad = None
    compiled.sum().backward()
    torch.testing.assert_close(linear.weight.grad, expected)


@pytest.mark.parametrize("lead", [(), (7,), (2, 3), (2, 3, 4)])
def test_leading_axes_are_kept_and_nothing_is_copied(lead: tuple[int, ...]) -> None:
    layout = Layout.of(spaces.Tuple((spaces.Box(0, 1, (2, 2)), spaces.Discrete(3))))
    batch = torch.from_numpy(layout.zeros(*lead))
    box, number = unpack(layout, batch)
    assert box.shape == (*lead, 2, 2)
    assert number.shape == lead
    number.fill_(2)
    assert (unpack(layout, batch)[1] == 2).all()


def test_a_gather_of_rows_keeps_its_views() -> None:
    """As in a minibatch: rows picked from a larger tensor."""
    layout = Layout.of(spaces.Dict(a=spaces.Box(0, 255, (3,), np.uint8), b=spaces.Box(-1, 1, (2,))))
    batch = batch_of(layout, 3, 10)
    picked = unpack(layout, batch[torch.tensor([7, 1, 1])])
    assert torch.equal(picked["a"], unpack(layout, batch)["a"][[7, 1, 1]])


@pytest.mark.parametrize(
    "batch", [torch.zeros(3, 24), torch.zeros(3, 23, dtype=torch.uint8), torch.zeros(3, 6).int()]
)
def test_a_batch_of_another_width_or_type_is_refused(batch: torch.Tensor) -> None:
    layout = Layout.of(spaces.Tuple((spaces.Box(0, 1, (2, 2)), spaces.Discrete(3))))
    with pytest.raises(PackError, match=r"allowed: torch.uint8 tensor of shape \(\.\.\., 24\)"):
        unpack(layout, batch)
