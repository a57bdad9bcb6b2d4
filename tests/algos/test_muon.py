"""Muon: orthogonal updates, equality with torch's own, exact resume, and that it learns."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fugu import native
from fugu.algos.optimizers import Muon, Variant, orthogonalise
from fugu.core.errors import UsageError

VARIANTS: list[Variant] = ["puffer", "torch"]
# The second variant is said to reach about 0.7 to 1.2; one of its fixed cycles goes to 0.68.
BOUNDS = {"puffer": (0.7, 1.2), "torch": (0.67, 1.21)}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "shape", [(2, 9), (3, 64), (64, 3), (16, 48), (128, 64), (64, 128), (32, 288), (256, 1)]
)
def test_singular_values_come_near_1(variant: Variant, shape: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(shape[0])
    for scale in (1e-4, 1.0, 1e4):
        update = orthogonalise(scale * torch.randn((5, *shape), generator=random), variant)
        assert update.shape == (5, *shape)
        values = torch.linalg.svdvals(update)
        low, high = BOUNDS[variant]
        assert low < values.min()
        assert values.max() < high


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("side", [1, 4, 32, 128])
def test_square_matrices_but_for_what_is_almost_singular(variant: Variant, side: int) -> None:
    """Five steps multiply a small value by less than 500, so the smallest ones stay small."""
    matrix = torch.randn((4, side, side), generator=torch.Generator().manual_seed(side))
    left, given, right = torch.linalg.svd(matrix)
    share = given / torch.linalg.vector_norm(given, dim=1, keepdim=True)
    found = (left.mT @ orthogonalise(matrix, variant) @ right.mT).diagonal(dim1=1, dim2=2)
    low, high = BOUNDS[variant]
    assert found.max() < high
    assert found[share > 0.005].min() > low
    assert found.min() > -1e-4


def test_nothing_comes_of_nothing() -> None:
    assert not orthogonalise(torch.zeros(2, 3, 4)).any()


@pytest.mark.skipif(not native.available, reason="the core is not built")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 9), (9, 2), (7, 7), (118, 128), (130, 64), (96, 96)])
def test_the_core_does_what_torch_does_with_any_number_of_threads(
    variant: Variant, shape: tuple[int, int]
) -> None:
    given = torch.randn((3, *shape), generator=torch.Generator().manual_seed(shape[1]))
    before = given.clone()
    right = orthogonalise(given, variant, use_native=False)
    found = [orthogonalise(given, variant, threads) for threads in (1, 2, 5)]
    torch.testing.assert_close(found[0], right, rtol=0, atol=3e-6)
    assert all(torch.equal(found[0], other) for other in found)
    assert torch.equal(given, before)


def follow(optimiser: torch.optim.Optimizer, params: list[Tensor], steps: int, seed: int) -> None:
    """Steps along random gradients."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=random)
        optimiser.step()


def weights(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes]


@pytest.mark.parametrize("in_float32", [True, False])
def test_equals_the_one_of_torch(in_float32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch rounds to bfloat16 on the way; without that the two are equal but for float32."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has none")
    ours = weights((16, 32), (64, 8), (16, 32), (5, 5))
    theirs = copy.deepcopy(ours)
    settings: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9}
    follow(Muon(ours, variant="torch", **settings), ours, 10, seed=2)
    if in_float32:
        monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    follow(torch.optim.Muon(theirs, **settings), theirs, 10, seed=2)
    for mine, other in zip(ours, theirs, strict=True):
        error = (mine - other).norm() / other.norm()
        assert error < (1e-5 if in_float32 else 1e-3)


def test_one_step_of_the_puffer_variant_by_hand() -> None:
    matrix, vector, filters, table = params = weights((6, 3), (4,), (2, 3, 2, 2), (5, 4))
    before = [param.detach().clone() for param in params]
    groups = [{"params": params[:3]}, {"params": [table], "orthogonalise": False}]
    optimiser = Muon(groups, 0.1, momentum=0.5, weight_decay=0.01)
    gradients = [[torch.randn_like(param) for param in params] for _ in range(2)]
    expected = before
    buffers = [torch.zeros_like(param) for param in params]
    for step in gradients:
        for param, gradient in zip(params, step, strict=True):
            param.grad = gradient.clone()
        optimiser.step()
        buffers = [0.5 * buffer + gradient for buffer, gradient in zip(buffers, step, strict=True)]
        updates = [gradient + 0.5 * buffer for buffer, gradient in zip(buffers, step, strict=True)]
        updates[0] = orthogonalise(updates[0][None])[0] * 2.0**0.5
        updates[2] = orthogonalise(updates[2].reshape(1, 2, 12)).reshape(2, 3, 2, 2)
        expected = [
            0.999 * old - 0.1 * update for old, update in zip(expected, updates, strict=True)
        ]
    for param, wanted in zip((matrix, vector, filters, table), expected, strict=True):
        torch.testing.assert_close(param.detach(), wanted)


@pytest.mark.parametrize("variant", VARIANTS)
def test_resume_is_exact(variant: Variant) -> None:
    shapes: list[tuple[int, ...]] = [(8, 4), (8, 4), (4,), (2, 3, 2)]
    through, first = weights(*shapes), weights(*shapes)
    whole = Muon(through, 0.02, variant=variant)
    follow(whole, through, 5, seed=3)
    follow(whole, through, 5, seed=4)
    begun = Muon(first, 0.02, variant=variant)
    follow(begun, first, 5, seed=3)
    second = copy.deepcopy(first)
    resumed = Muon(second, 0.5, variant="torch" if variant == "puffer" else "puffer")
    resumed.load_state_dict(copy.deepcopy(begun.state_dict()))
    follow(resumed, second, 5, seed=4)
    for one, other in zip(through, second, strict=True):
        assert torch.equal(one, other)


def test_parameters_without_a_gradient_stay() -> None:
    params = weights((3, 3), (3, 3))
    before = params[1].detach().clone()
    params[0].grad = torch.ones(3, 3)
    Muon(params, weight_decay=0.1).step()
    assert torch.equal(params[1], before)


def test_closure_is_called_with_gradients_on() -> None:
    (weight,) = weights((3, 3))
    optimiser = Muon([weight], 0.1)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss.detach()

    losses = [float(optimiser.step(closure)) for _ in range(20)]
    assert losses[-1] < 0.2 * losses[0]


def regression(make: Any) -> float:
    """The loss after 60 steps on a linear map whose inputs are of very different sizes."""
    random = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -1.5, 16)
    inputs = torch.randn((256, 16), generator=random) * scales
    targets = inputs @ torch.randn((16, 8), generator=random)
    weight = nn.Parameter(torch.zeros(16, 8))
    optimiser = make([weight])
    for step in range(60):
        for group in optimiser.param_groups:
            group["lr"] = group.setdefault("first", group["lr"]) * (1.0 - step / 60)
        optimiser.zero_grad()
        loss = (inputs @ weight - targets).square().mean()
        loss.backward()
        optimiser.step()
    return float((inputs @ weight - targets).square().mean().detach())


@pytest.mark.parametrize("variant", VARIANTS)
def test_solves_a_regression_faster_than_sgd(variant: Variant) -> None:
    """Each at the best of its learning rates, the largest of which diverge."""
    plain = min(regression(lambda p, r=r: torch.optim.SGD(p, r)) for r in (1, 3, 6, 10, 15, 30))
    muon = min(regression(lambda p, r=r: Muon(p, r, variant=variant)) for r in (0.1, 0.2, 0.4))
    assert muon < 0.5 * plain


def test_errors_say_what_is_allowed() -> None:
    for settings, message in (
        ({"lr": -1.0}, "lr: given -1.0"),
        ({"momentum": float("nan")}, "momentum: given nan"),
        ({"variant": "other"}, "variant: given 'other'; allowed: 'puffer' or 'torch'"),
    ):
        with pytest.raises(UsageError, match=message):
            Muon(weights((2, 2)), **settings)  # type: ignore[arg-type]
