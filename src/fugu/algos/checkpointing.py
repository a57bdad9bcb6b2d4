"""Save networks, optimizers, random generators and environments in checkpoints, and load them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fugu.algos.algorithm import Tensors
from fugu.rollout.collector import Collector


def save_network(
    tensors: Tensors, number: int, network: nn.Module, optimiser: torch.optim.Optimizer
) -> dict[str, Any]:
    """Add a network's weights and its optimizer's tensors; return the rest of the optimizer."""
    tensors[f"policy_{number}"] = dict(network.state_dict())
    tensors[f"optimiser_{number}"], rest = flatten_optimiser(optimiser.state_dict())
    return rest


def load_network(
    tensors: Mapping[str, Any],
    number: int,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    rest: dict[str, Any],
) -> None:
    """Load what `save_network` saved."""
    network.load_state_dict(as_tensors(tensors[f"policy_{number}"]))
    restore_optimiser(optimiser, as_tensors(tensors[f"optimiser_{number}"]), rest)


def save_rng(generators: Sequence[np.random.Generator]) -> list[Any]:
    """Return the states of generators."""
    return [generator.bit_generator.state for generator in generators]


def load_rng(generators: Sequence[np.random.Generator], kept: Sequence[Any]) -> None:
    """Restore the states of generators."""
    for generator, state in zip(generators, kept, strict=True):
        generator.bit_generator.state = state


def save_environments(tensors: Tensors, collector: Collector) -> None:
    """Wait for all environments and add their states if they have any."""
    snapshot = collector.pause()
    if snapshot is not None:
        tensors["environments"] = snapshot


def load_environments(tensors: Mapping[str, Any], collector: Collector) -> bool:
    """Resume environments from the states that `save_environments` added; False without any."""
    snapshot = tensors.get("environments")
    if snapshot is None:
        return False
    collector.resume(as_arrays(snapshot))
    return True


def as_tensors(kept: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a checkpoint's entries as tensors."""
    return {name: as_tensor(value) for name, value in kept.items()}


def as_arrays(kept: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return a checkpoint's entries as arrays."""
    return {name: as_array(value) for name, value in kept.items()}


def as_tensor(value: Any) -> torch.Tensor:
    """Return a checkpoint's entry as a tensor."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a checkpoint's entry as an array."""
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def flatten_optimiser(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of an optimizer's state by `parameter.name`, and everything else."""
    flat, numbers = {}, {}
    for parameter, entries in state["state"].items():
        for name, value in entries.items():
            key = f"{parameter}.{name}"
            if isinstance(value, torch.Tensor):
                flat[key] = value
            else:
                numbers[key] = value
    return flat, {"numbers": numbers, "param_groups": state["param_groups"]}


def restore_optimiser(
    optimiser: torch.optim.Optimizer, flat: dict[str, Any], rest: dict[str, Any]
) -> None:
    """Load what `flatten_optimiser` returned; raise ValueError if it is of other weights.

    Settings such as betas and weight decay stay as they are: a run may resume with others.
    """
    given = unflatten_optimiser(flat, rest)
    for own, told in zip(
        optimiser.state_dict()["param_groups"], given["param_groups"], strict=True
    ):
        wrong = [name for name, value in own.items() if not _alike(value, told[name])]
        if wrong or own["params"] != told["params"]:
            name = wrong[0] if wrong else "params"
            raise ValueError(f"the optimiser's {name} is {told[name]!r:.80}")
    groups = optimiser.param_groups
    weights = [weight for group in groups for weight in group["params"]]
    for number, entries in given["state"].items():
        if not 0 <= number < len(weights):
            raise ValueError(f"the optimiser has no weight {number}")
        for name, value in entries.items():
            shape = () if name == "step" else weights[number].shape
            if not isinstance(value, torch.Tensor) or value.shape != shape:
                raise ValueError(f"the optimiser's {name} is not of a weight's shape")
        if entries.keys() not in _KEPT:
            raise ValueError(f"the optimiser keeps {', '.join(entries)}")
    names = optimiser.defaults.keys() - {"lr", "step"}  # which change while a run goes on
    settings = [{name: group[name] for name in names} for group in groups]
    optimiser.load_state_dict(given)
    for group, own in zip(optimiser.param_groups, settings, strict=True):
        group.update(own)


# What optimisers keep of a weight: AdamW, LaProp, Muon.
_KEPT = ({"step", "exp_avg", "exp_avg_sq"}, {"square", "mean"}, {"momentum_buffer"})


def _alike(own: Any, given: Any) -> bool:
    """Return whether a setting of one optimizer fits another."""
    if isinstance(own, list | tuple):
        same = isinstance(given, list | tuple) and len(own) == len(given)
        return same and all(map(_alike, own, given))
    if isinstance(own, float):
        return isinstance(given, float | int) and not isinstance(given, bool)
    return type(own) is type(given)


def unflatten_optimiser(flat: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Undo `flatten_optimiser`."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**flat, **rest["numbers"]}.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = value
    return {"state": state, "param_groups": rest["param_groups"]}
