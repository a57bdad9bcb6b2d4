"""Muon: momentum whose matrices are made orthogonal before they are applied."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fugu import native
from fugu.native.arrays import refuse

if native.available:
    from fugu import _native

Variant = Literal["puffer", "torch"]

# One triple a step: each is the best polynomial for the singular values that the last one left.
_COEFFICIENTS: dict[Variant, tuple[tuple[float, float, float], ...]] = {
    "puffer": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "torch": ((3.4445, -4.7750, 2.0315),) * 5,
}


def orthogonalise(
    matrices: Tensor, variant: Variant = "puffer", threads: int = 0, use_native: bool = True
) -> Tensor:
    """Matrices [batch, rows, columns] with their singular values brought near 1.

    By Newton-Schulz steps: float32 on the CPU, bfloat16 on CUDA.

    Args:
        matrices: Are left as they are.
        variant: Whose coefficients.
        threads: That the native core may use; 0: as many as torch does.
        use_native: False: by torch, on the CPU too.

    >>> update = orthogonalise(torch.tensor([[[3.0, 0.0], [0.0, 0.5]]]))
    >>> bool((torch.linalg.svdvals(update) - 1.0).abs().max() < 0.3)
    True
    """
    turned = matrices.shape[1] > matrices.shape[2]  # the products are of the shorter side
    if native.available and use_native and matrices.device.type == "cpu":
        tall = matrices if turned else matrices.mT
        x = tall.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        steps = np.array(_COEFFICIENTS[variant], np.float32)
        _native.orthogonalise(x.numpy(), steps, threads or torch.get_num_threads())
        return x if turned else x.mT
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    x = x.mT if turned else x
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for a, b, c in _COEFFICIENTS[variant]:
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if turned else x


class Muon(torch.optim.Optimizer):
    """Muon for matrices, plain momentum for the rest; weight decay is decoupled.

    A parameter of two or more axes is a matrix [first axis, all others], whose update is scaled by
    sqrt(max(1, rows / columns)). Vectors, and the parameters of a group with `orthogonalise` false
    (embeddings, whose rows have nothing to do with each other), get their momentum as it is.

    Variant "puffer" sums gradients as PufferLib does: buffer = momentum * buffer + gradient, and
    looks ahead by gradient + momentum * buffer. Variant "torch" is `torch.optim.Muon`: both are
    weighted means, and every Newton-Schulz step has the same coefficients.

    Args:
        params: Parameters, or groups of them.
        lr: The learning rate.
        momentum: How much of the buffer stays.
        weight_decay: The share of a parameter, times `lr`, that each step takes away.
        variant: "puffer" or "torch".

    Attributes:
        threads: That the native core may use; 0: as many as torch does.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> optimiser = Muon([weight], lr=0.1)
    >>> weight.grad = 100.0 * torch.eye(2)
    >>> optimiser.step()
    >>> bool((weight.detach() + 0.1 * torch.eye(2)).abs().max() < 0.03)
    True
    """

    threads = 0

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 0.015,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        variant: Variant = "puffer",
    ) -> None:
        for name, number in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if not 0.0 <= number < math.inf:
                raise refuse(name, f"{number}", "a finite number, 0 or more")
        if variant not in _COEFFICIENTS:
            raise refuse("variant", f"{variant!r}", " or ".join(map(repr, _COEFFICIENTS)))
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "variant": variant,
            "orthogonalise": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step along the gradients; parameters without one stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1.0 - group["lr"] * group["weight_decay"])
        momenta = self._momentum(params, group)
        # Matrices of one shape go through Newton-Schulz together.
        alike: defaultdict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for param, momentum in zip(params, momenta, strict=True):
            if param.ndim < 2 or not group["orthogonalise"]:
                param.add_(momentum, alpha=-group["lr"])
            elif param.numel():
                matrix = momentum.reshape(len(momentum), -1)
                alike[matrix.shape, matrix.dtype, matrix.device].append((param, matrix))
        for (shape, _, _), pairs in alike.items():
            matrices = torch.stack([matrix for _, matrix in pairs])
            scale = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
            updates = orthogonalise(matrices, group["variant"], self.threads)
            for (param, _), update in zip(pairs, updates.unbind(), strict=True):
                param.add_(update.reshape(param.shape), alpha=-scale)

    def _momentum(self, params: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Takes the gradients into the buffers and returns the updates."""
        for param in params:
            if "momentum_buffer" not in self.state[param]:
                self.state[param]["momentum_buffer"] = torch.zeros_like(param)
        buffers = [self.state[param]["momentum_buffer"] for param in params]
        gradients = [param.grad for param in params if param.grad is not None]
        momentum = group["momentum"]
        if group["variant"] == "torch":
            torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
            return list(torch._foreach_lerp(gradients, buffers, momentum))
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, gradients)
        return list(torch._foreach_add(gradients, buffers, alpha=momentum))
