"""AdamW in one pass over a block of weights, by the native core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fugu import native
from fugu.nets.learning import FlatParameters

if TYPE_CHECKING or native.available:
    from fugu import _native


class BlockAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` of all parameters of a block whose gradients stay in place.

    Means and squares stand in blocks of their own, and what the optimiser keeps of a parameter is a
    view of them: it saves and loads what torch's does. It calls no hooks, and cannot be copied.

    Args:
        block: Of weights and gradients.
        params: Its parameters, in their order.
        lr: The learning rate.
        betas: Decay of the means of gradients and of their squares.
        eps: Added to the root of the latter.
        weight_decay: The share of a parameter, times `lr`, that each step takes away.
        threads: That share the work.

    >>> layer = torch.nn.Linear(1, 1)
    >>> block = FlatParameters(layer)
    >>> block.weights[:], block.grads[:] = 1.0, (10.0, -0.1)
    >>> BlockAdamW(block, layer.parameters(), lr=0.5).step()
    >>> block.weights.round(3).tolist()
    [0.5, 1.5]
    """

    def __init__(
        self,
        block: FlatParameters,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        threads: int = 1,
    ) -> None:
        self._block, self._threads = block, threads
        super().__init__(params, lr, betas, eps, weight_decay, fused=True)
        self._gather()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._gather()

    def _gather(self) -> None:
        """What is kept of each parameter, in blocks; zeros where nothing is yet."""
        self._means, self._squares = np.zeros((2, self._block.weights.size), np.float32)
        (group,) = self.param_groups
        self._steps = np.zeros(len(group["params"]), np.float32)  # all the same
        views = {
            "step": torch.from_numpy(self._steps).unbind(),
            "exp_avg": self._block.views(self._means),
            "exp_avg_sq": self._block.views(self._squares),
        }
        for name, parts in views.items():
            for parameter, part in zip(group["params"], parts, strict=True):
                kept = self.state[parameter]
                if name in kept:
                    part.copy_(kept[name])
                kept[name] = part
        if (self._steps != self._steps[0]).any():
            steps = ", ".join(f"{step:g}" for step in self._steps)
            raise ValueError(f"the optimiser took different numbers of steps: {steps:.80}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients; they stay where they are in any case."""
        self._block.grads[:] = 0.0
        self._block.show_grads()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step along the gradients of the block."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        (group,) = self.param_groups
        beta1, beta2 = group["betas"]
        self._steps += 1
        _native.adamw(
            self._block.weights,
            self._block.grads,
            self._means,
            self._squares,
            self._steps[0],
            group["lr"],
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            self._threads,
        )
        return loss

    # torch would time each step for its profiler, which takes longer than one of a small network.
    step.hooked = True  # type: ignore[attr-defined]
