"""AdamW on a block against torch's, of which it is one pass."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fugu import native
from fugu.algos.optimizers import FlatAdamW
from fugu.nets.learning import FlatParameters

pytestmark = pytest.mark.skipif(not native.available, reason="the core is not built")

if native.available:
    from fugu import _native

RANDOM = np.random.default_rng(1)


def make(
    layers: nn.Module, threads: int = 1, **settings: Any
) -> tuple[FlatParameters, nn.Module, FlatAdamW]:
    own = copy.deepcopy(layers)
    block = FlatParameters(own)
    block.show_grads()
    return block, own, FlatAdamW(block, own.parameters(), 0.01, threads=threads, **settings)


def gradients(block: FlatParameters) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Of very different sizes, and some none at all."""
    sizes = 10.0 ** RANDOM.uniform(-8, 4, block.grads.shape)
    found = RANDOM.normal(size=block.grads.shape) * sizes * (RANDOM.random(block.grads.shape) > 0.1)
    return found.astype(np.float32)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.999), 1e-5), ((0.6, 0.9), 1e-2)])
def test_steps_are_torchs(betas: tuple[float, float], eps: float, weight_decay: float) -> None:
    layers = nn.Sequential(nn.Linear(7, 33), nn.LayerNorm(33), nn.Linear(33, 1))
    block, _, optimiser = make(layers, betas=betas, eps=eps, weight_decay=weight_decay)
    peer = torch.optim.AdamW(
        layers.parameters(), 0.01, betas, eps, weight_decay=weight_decay, foreach=False
    )
    for step in range(50):
        block.grads[:] = gradients(block)
        for parameter, grad in zip(layers.parameters(), block.views(block.grads), strict=True):
            parameter.grad = grad.clone()
        rate = 0.01 * (1 - step / 60)
        optimiser.param_groups[0]["lr"] = peer.param_groups[0]["lr"] = rate
        optimiser.step()
        peer.step()
        theirs = torch.cat([parameter.detach().ravel() for parameter in layers.parameters()])
        np.testing.assert_allclose(block.weights, theirs.numpy(), rtol=2e-5, atol=2e-6)


def test_it_goes_on_from_what_torch_kept_and_torch_from_what_it_kept() -> None:
    layers = nn.Linear(5, 3)
    block, own, optimiser = make(layers)
    peer = torch.optim.AdamW(layers.parameters(), 0.01, weight_decay=0.0, foreach=False)
    for turn in range(6):
        block.grads[:] = gradients(block)
        for parameter, grad in zip(layers.parameters(), block.views(block.grads), strict=True):
            parameter.grad = grad.clone()
        optimiser.step()
        peer.step()
        kept, other = optimiser.state_dict()["state"], peer.state_dict()["state"]
        for number, entries in other.items():
            for name, value in entries.items():
                torch.testing.assert_close(kept[number][name], value, rtol=1e-5, atol=1e-12)
        if turn % 2:  # each goes on from what the other kept
            both = copy.deepcopy((optimiser.state_dict(), peer.state_dict()))
            optimiser.load_state_dict(both[1])
            peer.load_state_dict(both[0])
    for mine, theirs in zip(own.parameters(), layers.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)


def test_it_resumes_to_the_bit_and_threads_change_none() -> None:
    layers = nn.Linear(300, 301)  # more than one thread's part
    block, own, optimiser = make(layers, threads=1)
    shared, _, threaded = make(layers, threads=3)
    given = [gradients(block) for _ in range(6)]
    for grads in given:
        block.grads[:], shared.grads[:] = grads, grads
        optimiser.step()
        threaded.step()
    assert np.array_equal(block.weights, shared.weights)
    again, _, resumed = make(own)
    kept = copy.deepcopy(optimiser.state_dict())
    resumed.load_state_dict(kept)
    for grads in given:
        block.grads[:], again.grads[:] = grads, grads
        optimiser.step()
        resumed.step()
    assert np.array_equal(block.weights, again.weights)
    assert float(kept["state"][0]["step"]) == 6.0  # what was kept stays as it was


def test_gradients_of_torch_are_written_into_the_block() -> None:
    block, own, optimiser = make(nn.Linear(2, 1))
    block.grads[:] = 7.0
    optimiser.zero_grad()
    own(torch.ones(1, 2)).sum().backward()
    assert block.grads.tolist() == [1.0, 1.0, 1.0]


def test_different_numbers_of_steps_are_refused() -> None:
    _, _, optimiser = make(nn.Linear(2, 1))
    optimiser.step()
    kept = copy.deepcopy(optimiser.state_dict())
    kept["state"][1]["step"] += 1
    with pytest.raises(ValueError, match="different numbers of steps: 1, 2"):
        optimiser.load_state_dict(kept)


def test_a_closure_says_the_loss() -> None:
    block, _, optimiser = make(nn.Linear(1, 1))
    before = block.weights.copy()

    def closure() -> float:
        assert torch.is_grad_enabled()
        block.grads[:] = 1.0
        return 3.0

    assert optimiser.step(closure) == 3.0
    np.testing.assert_allclose(block.weights, before - 0.01, rtol=1e-5)


def test_shapes_that_do_not_fit_are_refused() -> None:
    four, five = np.zeros((2, 4), np.float32), np.zeros(5, np.float32)
    numbers = (1.0, 0.1, 0.9, 0.999, 1e-8, 0.0, 1)
    with pytest.raises(ValueError, match="adamw: shapes do not fit"):
        _native.adamw(four[0], five, four[0], four[1], *numbers)
    with pytest.raises(TypeError):
        _native.adamw(four[0].astype(np.float64), *four, four[1], *numbers)
