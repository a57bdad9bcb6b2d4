"""Any space is batched as Gymnasium batches it, and what was given changes only without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium_vectors import ENVS, ours, theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from peer_toys import NUM_ENVS, equal, registered
from strategies import LIMIT, any_space, same, value_of

import fugu
from fugu.vector.gymnasium_adapter import BatchedObservations

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("name", ["CartPole", "infos of every kind", "spaces of every kind"])
@pytest.mark.parametrize("copy", [True, False])
def test_what_was_given_changes_only_without_copies(name: str, copy: bool, backend: str) -> None:
    make, options = ENVS[name]
    peer, vector = theirs(make, copy=copy), ours(make, backend, copy=copy, **options)
    kept = []
    for each in (peer, vector):
        observations, _ = each.reset(seed=1)
        before = concatenate_copy(observations)
        peer.action_space.seed(1)
        each.step(peer.action_space.sample())
        kept.append(equal(numbers(observations), numbers(before)))
    assert kept == [copy, copy]
    peer.close()
    vector.close()


def concatenate_copy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: concatenate_copy(item) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(concatenate_copy, tree))
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def numbers(tree: Any) -> Any:
    """The arrays that Gymnasium overwrites: those at the top and below dicts."""
    if isinstance(tree, dict):
        return {k: numbers(v) for k, v in tree.items() if isinstance(v, dict | np.ndarray)}
    return tree


def test_final_observations_are_always_copies(backend: str) -> None:
    vector = ours(registered("CartPole-v1", max_episode_steps=3), backend, copy=False)
    vector.reset(seed=0)
    kept = []
    for _ in range(9):
        infos = vector.step(np.ones(NUM_ENVS, int))[4]
        kept += [(final, final.copy()) for final in infos.get("final_obs", ())]
    assert len(kept) == 9
    assert all(np.array_equal(final, then) for final, then in kept)
    vector.close()


@given(any_space(4), st.integers(0, 2**32))
@settings(max_examples=150)
def test_any_space_is_batched_as_gymnasium_batches_it(space: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = fugu.Layout.of(space, limits=LIMIT) if _limited(space) else fugu.Layout.of(space)
    values = [value_of(space, rng) for _ in range(NUM_ENVS)]
    rows = layout.zeros(NUM_ENVS)
    for value, row in zip(values, rows, strict=True):
        layout.pack(value, row)
    expected = concatenate(space, values, create_empty_array(space, NUM_ENVS))
    for copy in (True, False):
        form = BatchedObservations(layout, NUM_ENVS, copy=copy)
        assert same(form.batch(rows), expected)
        for row, value in zip(rows, values, strict=True):
            assert same(form.single(row), layout.unpack(row))
            assert equal(form.single(row), value) or _has_nan(value)


def _limited(space: Any) -> bool:
    from fugu.spaces.compile import limited_paths

    return bool(limited_paths(space))


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, tuple):
        return any(map(_has_nan, value))
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).any()
