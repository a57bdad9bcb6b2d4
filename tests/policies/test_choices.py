"""Choices in few passes, beside the obvious way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fugu.policies import distribution
from fugu.policies.distribution import evaluate_choices


def obvious(logits: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(logits, -1)
    return logs.gather(-1, indices).squeeze(-1), -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4), (1, 1), (0, 6)])
@pytest.mark.parametrize(("of_chosen", "of_entropies"), [(1.0, 0.3), (1.0, 0.0), (0.0, 1.0)])
def test_values_and_gradients(
    shape: tuple[int, ...], of_chosen: float, of_entropies: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distribution, "CHUNK", 8)  # several parts, the last one shorter
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
        assert isinstance(loss, Tensor)
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
