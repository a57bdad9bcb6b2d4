"""LaProp with adaptive gradient clipping: gradients are scaled first and averaged then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

LEAST_NORM = 1e-3  # a parameter's norm counts as this at least, else it could never leave 0


class LaProp(torch.optim.Optimizer):
    """Each gradient is clipped by its parameter's norm, divided by its root mean square, averaged.

    - `g = g * min(1, clip * max(0.001, |p|) / |g|)`, by the norms of whole tensors;
    - `v = beta2 v + (1 - beta2) g^2`, `u = g / (sqrt(v / (1 - beta2^t)) + eps)`;
    - `m = beta1 m + (1 - beta1) u`, `p = p - rate m / (1 - beta1^t)`.

    Args:
        parameters: What to optimise.
        learning_rate: Of a step.
        betas: beta1 and beta2.
        eps: Added to the root of the mean square.
        clip: Largest norm of a gradient, in norms of its parameter.
        weight_decay: The share of a parameter, times the learning rate, that a step takes away.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> weight.grad = torch.tensor([123.0])
    >>> LaProp([weight], 0.1).step()
    >>> round(weight.item(), 4)
    0.9
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-20,
        clip: float = 0.3,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": learning_rate, "betas": betas, "eps": eps, "clip": clip}
        super().__init__(parameters, {**options, "weight_decay": weight_decay, "step": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step with the gradients that are there."""
        for group in self.param_groups:
            parameters = [param for param in group["params"] if param.grad is not None]
            if not parameters:
                continue
            for param in parameters:
                if not self.state[param]:
                    self.state[param]["square"] = torch.zeros_like(param)
                    self.state[param]["mean"] = torch.zeros_like(param)
            group["step"] += 1
            self._step_group(parameters, group)

    def _step_group(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [param.grad for param in parameters if param.grad is not None]
        squares = [self.state[param]["square"] for param in parameters]
        means = [self.state[param]["mean"] for param in parameters]
        (beta1, beta2), rate, time = group["betas"], group["lr"], group["step"]
        updates = torch._foreach_mul(gradients, _shares(parameters, gradients, group["clip"]))
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, updates, updates, 1.0 - beta2)
        scales = torch._foreach_div(squares, 1.0 - beta2**time)
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, group["eps"])
        torch._foreach_div_(updates, scales)
        torch._foreach_lerp_(means, updates, 1.0 - beta1)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1.0 - rate * group["weight_decay"])
        torch._foreach_add_(parameters, means, alpha=-rate / (1.0 - beta1**time))


def _shares(parameters: list[Tensor], gradients: list[Tensor], clip: float) -> list[Tensor]:
    """What each gradient is multiplied by, so that none is too long."""
    longest = torch.stack(torch._foreach_norm(parameters)).clamp_min(LEAST_NORM) * clip
    lengths = torch.stack(torch._foreach_norm(gradients))
    return list((longest / lengths.clamp_min(1e-30)).clamp_max(1.0).unbind())
