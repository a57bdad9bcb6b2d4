"""LaProp against its formulas written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fugu.algos.optimizers import LaProp, OptimizerConfig, make_optimizer


def reference(weight: np.ndarray, gradients: list[np.ndarray], rate: float) -> np.ndarray:
    square, mean = np.zeros_like(weight), np.zeros_like(weight)
    for time, given in enumerate(gradients, 1):
        longest = 0.3 * max(1e-3, float(np.linalg.norm(weight)))
        gradient = given / max(1.0, float(np.linalg.norm(given)) / longest)
        square = 0.999 * square + 0.001 * gradient**2
        update = gradient / (np.sqrt(square / (1 - 0.999**time)) + 1e-20)
        mean = 0.9 * mean + 0.1 * update
        weight = weight - rate * mean / (1 - 0.9**time)
    return weight


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_steps_are_those_of_the_formulas(scale: float) -> None:
    random = np.random.default_rng(0)
    weights = [random.normal(size=shape) * scale for shape in ((3, 4), (5,))]
    gradients = [[random.normal(size=w.shape) * size for size in (9, 0.01, 1)] for w in weights]
    params = [torch.nn.Parameter(torch.tensor(weight)) for weight in weights]
    optimiser = LaProp(params, 0.01)
    for time in range(3):
        for param, each in zip(params, gradients, strict=True):
            param.grad = torch.tensor(each[time])
        optimiser.step()
    for param, weight, each in zip(params, weights, gradients, strict=True):
        assert param.detach().numpy() == pytest.approx(reference(weight, each, 0.01), rel=1e-9)


def test_it_is_made_by_name_and_goes_on_from_its_state() -> None:
    def steps(count: int, optimiser: torch.optim.Optimizer, param: torch.nn.Parameter) -> None:
        for _ in range(count):
            param.grad = param.detach() * 3.0 + 1.0
            optimiser.step()

    cfg = OptimizerConfig("laprop", learning_rate=0.05)
    whole = torch.nn.Parameter(torch.ones(3))
    steps(6, make_optimizer([whole], cfg), whole)
    part = torch.nn.Parameter(torch.ones(3))
    first = make_optimizer([part], cfg)
    steps(3, first, part)
    second = make_optimizer([part], cfg)
    second.load_state_dict(first.state_dict())
    steps(3, second, part)
    assert torch.equal(part, whole)


def test_what_has_no_gradient_stays() -> None:
    still, moved = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    moved.grad = torch.ones(2)
    LaProp([still, moved], 0.1, weight_decay=0.5).step()
    assert still.tolist() == [1.0, 1.0]
    assert moved.tolist() == pytest.approx([0.85, 0.85])


def test_a_group_without_gradients_does_not_hold_up_the_next() -> None:
    still, moved = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    moved.grad = torch.ones(2)
    LaProp([{"params": [still]}, {"params": [moved]}], 0.1).step()
    assert torch.equal(still, torch.ones(2))
    assert (moved < 1.0).all()
