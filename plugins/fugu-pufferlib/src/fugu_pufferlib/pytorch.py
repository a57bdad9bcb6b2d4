"""Torch's side: structure back out of flat observations, and actions out of logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from fugu.policies.unpack import torch_dtype

# Of a leaf: dtype, shape, and where it begins and how long it is in numbers of the observation.
NativeDTypeValue = tuple[torch.dtype, tuple[int, ...], int, int]
NativeDType = NativeDTypeValue | dict[str, Any]
Logits = Tensor | tuple[Tensor, ...] | list[Tensor] | torch.distributions.Normal
Layer = TypeVar("Layer", bound=nn.Module)


def nativize_dtype(emulated: Mapping[str, Any]) -> NativeDType:
    """Where each part of an emulated observation is: of `env.emulated`, for `nativize_tensor`."""
    width = emulated["observation_dtype"].itemsize
    return _places(emulated["emulated_observation_dtype"], 0, width)


def _places(struct: np.dtype[Any], offset: int, width: int) -> NativeDType:
    if struct.fields is not None:
        return {
            name: _places(part[0], offset + part[1], width) for name, part in struct.fields.items()
        }
    dtype, shape = struct.subdtype or (struct, (1,))
    return torch_dtype(dtype), shape, offset // width, struct.itemsize // width


def nativize_tensor(observation: Tensor, native_dtype: NativeDType) -> Any:
    """The parts of observations `[batch, size]` as views, in a dict as the space has them."""
    if isinstance(native_dtype, dict):
        return {name: nativize_tensor(observation, part) for name, part in native_dtype.items()}
    dtype, shape, begin, length = native_dtype
    flat = observation.flatten(1)
    return flat.narrow(1, begin, length).view(dtype).view(len(flat), *shape)


def nativize_observation(observation: Tensor, emulated: Mapping[str, Any]) -> Any:
    """The same, of `env.emulated`."""
    return nativize_tensor(observation, nativize_dtype(emulated))


def flattened_tensor_size(native_dtype: NativeDType) -> int:
    """Numbers of all parts together."""
    if isinstance(native_dtype, dict):
        return sum(map(flattened_tensor_size, native_dtype.values()))
    return math.prod(native_dtype[1])


def layer_init(layer: Layer, std: float = math.sqrt(2), bias_const: float = 0.0) -> Layer:
    """The layer, with orthogonal weights and a constant bias."""
    parameters = dict(layer.named_parameters())
    nn.init.orthogonal_(parameters["weight"], std)
    nn.init.constant_(parameters["bias"], bias_const)
    return layer


def sample_logits(logits: Logits, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Actions (drawn, if none are given), their log-probabilities, and entropies.

    Args:
        logits: `[batch, choices]` of one head, a tuple of those of several, or a Normal
            `[batch, numbers]`.
        action: Of each row.

    >>> actions, logs, entropies = sample_logits(torch.zeros(4, 3))
    >>> actions.shape, actions.dtype, round(float(logs[0].exp()), 4)
    (torch.Size([4]), torch.int32, 0.3333)
    """
    if isinstance(logits, torch.distributions.Normal):
        return _sample_numbers(logits, action)
    heads = (logits,) if isinstance(logits, Tensor) else logits
    # One table of all heads, [heads, batch, choices]: what is missing of a head is impossible.
    table = nn.utils.rnn.pad_sequence([head.T for head in heads], padding_value=-math.inf)
    logs = torch.log_softmax(table.permute(1, 2, 0), -1)
    if action is None:
        drawn = torch.multinomial(logs.exp().flatten(0, 1), 1).int()
        chosen = drawn.view(logs.shape[:2])
    else:
        chosen = action.reshape(logs.shape[1], -1).T
    log_probs = logs.gather(-1, chosen.long().unsqueeze(-1)).squeeze(-1).sum(0)
    finite = logs.clamp(min=torch.finfo(logs.dtype).min)  # 0 times minus infinity is no number
    entropies = -(logs.exp() * finite).sum(-1).sum(0)
    return chosen[0] if isinstance(logits, Tensor) else chosen.T, log_probs, entropies


def _sample_numbers(
    normal: torch.distributions.Normal, action: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    batch, untyped = len(normal.loc), cast(Any, normal)
    taken = (untyped.sample() if action is None else action).reshape(batch, -1)
    log_probs: Tensor = untyped.log_prob(taken.view_as(normal.loc)).reshape(batch, -1).sum(1)
    entropies: Tensor = untyped.entropy().reshape(batch, -1).sum(1)
    return taken, log_probs, entropies
