"""Random actions are legal, and the same ones for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from fugu.envs.contract import AgentGroup, Buffers
from fugu.spaces import Layout
from fugu.vector.random_actions import RandomActions

ACTION_SPACES = {
    "one head": spaces.Discrete(5, start=3),
    "several heads": spaces.MultiDiscrete([3, 4]),
    "many agents' keys": spaces.MultiBinary(3),
    "a tree": spaces.Dict(
        turn=spaces.Discrete(4), push=spaces.Box(-1, 1, (2,)), more=spaces.MultiDiscrete([2, 3])
    ),
    "no head": spaces.Box(-1, 1, (3,)),
}


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_actions_are_legal_and_the_same_for_the_same_seed(name: str) -> None:
    layout = Layout.of(ACTION_SPACES[name], strict=True)
    observations = Layout.of(spaces.Discrete(2))
    group = AgentGroup("agents", tuple(range(50)), observations, layout)
    rows, generator = Buffers.allocate(group), np.random.default_rng(0)
    samplers = [RandomActions(group, 50, seed) for seed in (1, 1, 2)]
    same = True
    for forbids in (False, True, True):
        rows.action_masks[:] = True
        if forbids and group.mask_width:
            rows.action_masks[:] = generator.random(rows.action_masks.shape) < 0.6
            rows.action_masks[:, legal_ones(layout.space)] = True
        first, second, other = (sampler.sample(rows) for sampler in samplers)
        np.testing.assert_array_equal(first, second)
        same &= np.array_equal(first, other)
        for action, mask in zip(first, rows.action_masks, strict=True):
            value = layout.unpack(action)
            assert layout.space.contains(value), value
            assert all(mask[choice] for choice in choices(layout.space, value)), (value, mask)
    assert not same


def heads(space: Any, value: Any) -> list[tuple[int, int]]:
    """Return (number of choices, the chosen one) of every discrete head."""
    match space:
        case spaces.Discrete():
            return [(int(space.n), int(value) - int(space.start))]
        case spaces.MultiDiscrete():
            return list(zip(space.nvec.tolist(), value.tolist(), strict=True))
        case spaces.MultiBinary():
            return [(2, int(entry)) for entry in value]
        case spaces.Dict():
            return [head for key, item in space.items() for head in heads(item, value[key])]
    return []


def choices(space: Any, value: Any) -> list[int]:
    """Return the index in the mask of every chosen entry."""
    counts = [count for count, _ in heads(space, value)]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [start + choice for start, (_, choice) in zip(starts, heads(space, value), strict=True)]


def legal_ones(space: Any) -> list[int]:
    """Return one choice of every head, so that something is always allowed."""
    counts = [count for count, _ in heads(space, space.sample())]
    return [sum(counts[: i + 1]) - 1 for i in range(len(counts))]
