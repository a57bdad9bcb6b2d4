"""Advantages of tensors: the native kernel on the CPU, its Triton twin on CUDA."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fugu.core.errors import MissingExtraError
from fugu.native import advantage as on_cpu
from fugu.native.arrays import refuse


def advantages(
    rewards: Tensor,
    values: Tensor,
    final_values: Tensor,
    terminations: Tensor,
    truncations: Tensor,
    *,
    gamma: float,
    lambda_: float,
    rho_clip: float = math.inf,
    c_clip: float = math.inf,
    ratios: Tensor | None = None,
    valid: Tensor | None = None,
    live: Tensor | None = None,
    out: Tensor | None = None,
    returns_out: Tensor | None = None,
    threads: int = 0,
) -> Tensor:
    """Advantages of time-major tensors [horizon, rows], as `fugu.native.advantage.advantages`.

    Tensors of the CPU are read and written where they stand. No gradient flows through. On CUDA
    nothing waits for the device; `threads` has no meaning there.

    Raises:
        UsageError: If a shape, a dtype or a number will not do, or tensors stand on two devices.
        MissingExtraError: If tensors stand on CUDA and Triton is not installed.

    >>> ones, no = torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    >>> advantages(ones, torch.zeros(4, 1), ones, no, no, gamma=1.0, lambda_=0.5)[:, 0].tolist()
    [1.75, 1.5, 1.0]
    """
    result = torch.empty_like(rewards) if out is None else out
    tensors = {
        "rewards": rewards, "values": values, "final_values": final_values,
        "terminations": terminations, "truncations": truncations,
        "ratios": ratios, "valid": valid, "live": live, "out": result, "returns_out": returns_out,
    }  # fmt: skip
    numbers: dict[str, Any] = {
        "gamma": gamma,
        "lambda_": lambda_,
        "rho_clip": rho_clip,
        "c_clip": c_clip,
    }
    device = rewards.device
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise refuse(name, f"a tensor on {tensor.device}", f"{device}, as the rewards")
    if device.type == "cuda":
        _on_cuda({**tensors, **numbers})
    elif device.type == "cpu":
        arrays: dict[str, Any] = {
            name: None if tensor is None else tensor.detach().numpy()
            for name, tensor in tensors.items()
        }
        on_cpu.advantages(**arrays, **numbers, threads=threads)
    else:
        raise refuse("rewards", f"a tensor on {device}", "the CPU or CUDA")
    return result


def _on_cuda(arguments: dict[str, Any]) -> None:
    try:
        from fugu.algos.advantage_triton import advantages_triton
    except ImportError as error:
        raise MissingExtraError("triton", "train") from error
    advantages_triton(**arguments)
