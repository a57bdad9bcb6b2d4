"""Optimisers by name, from one set of settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fugu.algos.adamw import BlockAdamW
from fugu.algos.laprop import LaProp
from fugu.algos.muon import Muon
from fugu.core.intervals import (
    CheckedConfig,
    Fraction,
    FractionBelowOne,
    NonNegativeFloat,
    PositiveFloat,
)
from fugu.native.arrays import refuse
from fugu.nets.learning import NativeLearner

OptimiserKind = Literal["muon", "muon_torch", "adamw", "laprop"]
ScheduleKind = Literal["constant", "linear", "cosine"]
EPSILONS = {"adamw": 1e-5, "laprop": 1e-20}  # unless the settings say otherwise


@dataclass(frozen=True)
class OptimiserConfig(CheckedConfig):
    """Settings of an optimiser and of its learning rate's course."""

    kind: OptimiserKind = "muon"
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


def make_optimiser(
    parameters: nn.Module | Iterable[Tensor],
    cfg: OptimiserConfig,
    core: NativeLearner | None = None,
) -> torch.optim.Optimizer:
    """The optimiser that `cfg` names; of a module, the parameters that want a gradient.

    Muon orthogonalises the update of every matrix, but not that of an `nn.Embedding`, which it can
    tell only if the module itself is given.

    Args:
        parameters: Of what is to learn.
        cfg: Settings.
        core: Who computes their gradients, if not torch.

    Raises:
        UsageError: If the kind is unknown or there is nothing to optimise.

    >>> network = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    >>> optimiser = make_optimiser(network, OptimiserConfig(learning_rate=0.01))
    >>> [(len(group["params"]), group["orthogonalise"]) for group in optimiser.param_groups]
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
    if eps is None:
        eps = EPSILONS.get(cfg.kind, 0.0)
    if cfg.kind == "adamw":
        if core and core.flat.learns_all:
            return BlockAdamW(core.flat, given, rate, betas, eps, decay, core.threads)
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
    muon.threads = core.threads if core else 0
    return muon


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every group of parameters this learning rate, from the next step on.

    >>> optimiser = make_optimiser([torch.zeros(1, requires_grad=True)], OptimiserConfig())
    >>> set_learning_rate(optimiser, 0.25)
    >>> optimiser.param_groups[0]["lr"]
    0.25
    """
    for group in optimiser.param_groups:
        group["lr"] = learning_rate
