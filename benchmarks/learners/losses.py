"""The inputs of a GRPO loss, the same for every library, and how its time is taken. Needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

EPISODES, STEPS, TOKENS = 16, 64, 4096
ADVANTAGE_SEED = 3
WARM = 3  # calls before time is taken
Loss = Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]


def make_inputs(seed: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits `[episodes, steps, tokens]`, and what was chosen, how probably, and how well."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(EPISODES, STEPS, TOKENS, generator=random)
    chosen = torch.randint(TOKENS, (EPISODES, STEPS), generator=random)
    old = logits.log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    old = old + 0.1 * torch.randn(old.shape, generator=random)
    advantages = torch.randn(EPISODES, generator=random)
    return logits, {"chosen": chosen, "old": old, "advantages": advantages}


def measure_loss(loss: Loss, seconds: float, seed: int) -> dict[str, float]:
    """Tokens a second of the loss and its gradient, and both, for comparison."""
    logits, inputs = make_inputs(seed)
    logits.requires_grad_()
    calls = 0
    began = time.perf_counter()
    while calls < WARM or time.perf_counter() - began < seconds:
        if calls == WARM:
            began = time.perf_counter()
        logits.grad = None
        value = loss(logits, inputs)
        value.backward()  # type: ignore[no-untyped-call]
        calls += 1
    took = time.perf_counter() - began
    assert logits.grad is not None
    return {
        "rate": (calls - WARM) * EPISODES * STEPS / took,
        "loss": value.item(),
        "gradient": logits.grad.norm().item(),
    }
