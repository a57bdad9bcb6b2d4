"""Optimizers and learning rates: AdamW in one native pass, LaProp, Muon, schedules."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fugu import native
from fugu.core.intervals import (
    CheckedConfig,
    Fraction,
    FractionBelowOne,
    NonNegativeFloat,
    PositiveFloat,
)
from fugu.native.arrays import refuse
from fugu.nets.learning import FlatParameters, NativeLearner

if TYPE_CHECKING or native.available:
    from fugu import _native

OptimizerKind = Literal["muon", "muon_torch", "adamw", "laprop"]
ScheduleKind = Literal["constant", "linear", "cosine"]
EPSILONS = {"adamw": 1e-5, "laprop": 1e-20}  # unless the settings say otherwise


@dataclass(frozen=True)
class OptimizerConfig(CheckedConfig):
    """Settings of an optimizer and of its learning rate."""

    kind: OptimizerKind = "muon"
    """muon: as PufferLib has it; muon_torch: as torch has it; adamw; laprop: as Dreamer has it."""
    learning_rate: NonNegativeFloat = 0.015
    """The highest learning rate; about 3e-4 suits adamw."""
    beta1: FractionBelowOne = 0.9
    """Decay of the mean of gradients; used by adamw and laprop."""
    beta2: FractionBelowOne = 0.999
    """Decay of the mean of their squares; used by adamw and laprop."""
    eps: PositiveFloat | None = None
    """Added to the root of that mean; used by adamw and laprop. If not given, see `EPSILONS`."""
    weight_decay: NonNegativeFloat = 0.0
    """The share of a parameter, times the learning rate, that each step takes away."""
    momentum: FractionBelowOne = 0.95
    """How much of the momentum stays; used by muon and muon_torch."""
    schedule: ScheduleKind = "cosine"
    """The learning rate's course from the warmup's end on."""
    warmup: Fraction = 0.0
    """Share of the run in which the learning rate rises linearly to its peak; 0: none."""
    final_share: NonNegativeFloat = 0.0
    """The share of the learning rate that is left at the end."""


def make_optimizer(
    parameters: nn.Module | Iterable[Tensor],
    cfg: OptimizerConfig,
    native_learner: NativeLearner | None = None,
) -> torch.optim.Optimizer:
    """Return the optimizer that `cfg` names; of a module, its parameters that require gradients.

    Muon orthogonalises the update of every matrix, but not that of an `nn.Embedding`, which it can
    tell only if the module itself is given.

    Args:
        parameters: A module, or parameters.
        cfg: The settings.
        native_learner: What computes the gradients, if not torch.

    >>> network = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    >>> optimizer = make_optimizer(network, OptimizerConfig(learning_rate=0.01))
    >>> [(len(group["params"]), group["orthogonalise"]) for group in optimizer.param_groups]
    [(2, True), (1, False)]
    """
    embeddings: set[int] = set()
    if isinstance(parameters, nn.Module):
        tables = (nn.Embedding, nn.EmbeddingBag)
        modules = [module for module in parameters.modules() if isinstance(module, tables)]
        embeddings = {id(module.weight) for module in modules}
        parameters = [param for param in parameters.parameters() if param.requires_grad]
    given = list(parameters)
    if not given:
        raise refuse("parameters", "none", "one parameter or more", "Is everything frozen?")
    rate, decay = cfg.learning_rate, cfg.weight_decay
    betas, eps = (cfg.beta1, cfg.beta2), cfg.eps
    eps = EPSILONS.get(cfg.kind, 0.0) if eps is None else eps
    if cfg.kind == "adamw":
        if native_learner and native_learner.flat.learns_all:
            flat, threads = native_learner.flat, native_learner.threads
            return FlatAdamW(flat, given, rate, betas, eps, decay, threads)
        fused = all(param.device.type in ("cpu", "cuda") for param in given)  # one pass, not many
        return torch.optim.AdamW(given, rate, betas, eps, decay, fused=fused)
    if cfg.kind == "laprop":
        return LaProp(given, rate, betas, eps, weight_decay=decay)
    if cfg.kind not in ("muon", "muon_torch"):
        raise refuse("kind", f"{cfg.kind!r}", "'muon', 'muon_torch', 'adamw' or 'laprop'")
    groups: list[dict[str, Any]] = [
        {"params": [param for param in given if id(param) not in embeddings]},
        {"params": [param for param in given if id(param) in embeddings], "orthogonalise": False},
    ]
    groups = [group for group in groups if group["params"]]
    variant: Literal["puffer", "torch"] = "puffer" if cfg.kind == "muon" else "torch"
    muon = Muon(groups, rate, momentum=cfg.momentum, weight_decay=decay, variant=variant)
    muon.threads = native_learner.threads if native_learner else 0
    return muon


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group of parameters this learning rate, from the next step on.

    >>> optimizer = make_optimizer([torch.zeros(1, requires_grad=True)], OptimizerConfig())
    >>> set_learning_rate(optimizer, 0.25)
    >>> optimizer.param_groups[0]["lr"]
    0.25
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


# ---------------------------------------------------------------------- learning rates


def learning_rate_at(progress: float, cfg: OptimizerConfig, reached: float | None = None) -> float:
    """Return the learning rate of an update: a linear warmup, then the schedule.

    Args:
        progress: Share of the run that is done at the start of the update; 1 stands for all beyond.
        cfg: The settings.
        reached: Share of the run at its end, which the warmup follows, so that the first update of
            a run has more than 0; None: the same as `progress`.

    >>> cfg = OptimizerConfig(learning_rate=0.01, schedule="linear", warmup=0.2, final_share=0.1)
    >>> [round(learning_rate_at(progress, cfg), 6) for progress in (0.0, 0.1, 0.2, 0.6, 1.0)]
    [0.0, 0.005, 0.01, 0.0055, 0.001]
    >>> round(learning_rate_at(0.0, cfg, reached=0.05), 6)  # the first of four updates of warmup
    0.0025
    """
    if not progress >= 0.0:
        raise refuse("progress", f"{progress}", "0 to 1")
    peak, final = cfg.learning_rate, cfg.learning_rate * cfg.final_share
    if progress < cfg.warmup:
        reached = progress if reached is None else max(progress, reached)
        return peak * min(1.0, reached / cfg.warmup)
    if cfg.schedule == "constant":
        return peak
    if progress >= 1.0:
        return final
    way = (progress - cfg.warmup) / (1.0 - cfg.warmup)
    if cfg.schedule == "cosine":
        way = 0.5 - 0.5 * math.cos(math.pi * way)
    return peak + (final - peak) * way


# ---------------------------------------------------------------------- AdamW


class FlatAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` in one native pass over all weights of a block.

    Its state holds views of flat arrays, so it saves and loads what torch's does. It calls no
    hooks, and cannot be copied.

    Args:
        block: The weights and their gradients, which stay in place.
        params: The same as parameters, in their order.
        lr: The learning rate.
        betas: Decay of the means of gradients and of their squares.
        eps: Added to the root of the latter.
        weight_decay: The share of a parameter, times `lr`, that each step takes away.
        threads: Threads that share the work.

    >>> layer = torch.nn.Linear(1, 1)
    >>> block = FlatParameters(layer)
    >>> block.weights[:], block.grads[:] = 1.0, (10.0, -0.1)
    >>> FlatAdamW(block, layer.parameters(), lr=0.5).step()
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
        """Move the state of each parameter into flat arrays; zeros where there is none yet."""
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
            raise ValueError(f"the optimizer took different numbers of steps: {steps:.80}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to zero, in place."""
        self._block.grads[:] = 0.0
        self._block.show_grads()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step along the gradients of the block."""
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


# ---------------------------------------------------------------------- LaProp

LEAST_NORM = 1e-3  # a parameter's norm counts as this at least, else it could never leave 0


class LaProp(torch.optim.Optimizer):
    """Each gradient is clipped by its parameter's norm, divided by its root mean square, averaged.

    - `g = g * min(1, clip * max(0.001, |p|) / |g|)`, by the norms of whole tensors;
    - `v = beta2 v + (1 - beta2) g^2`, `u = g / (sqrt(v / (1 - beta2^t)) + eps)`;
    - `m = beta1 m + (1 - beta1) u`, `p = p - rate m / (1 - beta1^t)`.

    Args:
        parameters: The parameters.
        learning_rate: `rate`.
        betas: `beta1` and `beta2`.
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


# ---------------------------------------------------------------------- Muon

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
    """Return matrices `[batch, rows, columns]` with their singular values brought near 1.

    By Newton-Schulz steps: float32 on the CPU, bfloat16 on CUDA.

    Args:
        matrices: The matrices, which are not changed.
        variant: Whose coefficients are used, "puffer" or "torch".
        threads: Threads of the native kernel; 0: as many as torch has.
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
    >>> optimizer = Muon([weight], lr=0.1)
    >>> weight.grad = 100.0 * torch.eye(2)
    >>> optimizer.step()
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
        """Take one step along the gradients; parameters without one stay as they are."""
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
        """Add the gradients to the momenta, and return the updates."""
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
