"""The advantage kernel in Triton, for CUDA.

One program serves a block of rows and walks them back in time, each row in a lane of its own. The
arithmetic is that of native/kernels/advantage.hpp, step for step and without contraction. With
`TRITON_INTERPRET=1`, set before this file is imported, it runs on the CPU and equals the reference
bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fugu.native.arrays import refuse

BLOCK = 128
"""Rows of one program: few, so that a few thousand rows fill a device."""


# Sizes of 1 would become constants, which have no type.
@triton.jit(do_not_specialize=["horizon", "rows"])  # type: ignore[untyped-decorator]
def kernel(  # type: ignore[no-untyped-def]
    rewards, values, final_values, ratios, terminations, truncations, valid, live, out, returns,
    horizon, rows, gamma, decay, rho_clip, c_clip,
    has_ratios: tl.constexpr, has_valid: tl.constexpr, has_live: tl.constexpr,
    has_returns: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Advantages of contiguous arrays [horizon, rows]; the flags are bytes."""
    row = tl.program_id(0) * block + tl.arange(0, block)
    here = row < rows
    next_value = tl.load(values + horizon.to(tl.int64) * rows + row, mask=here, other=0.0)
    trace = tl.zeros((block,), tl.float32)
    lost = tl.zeros((block,), tl.int1)  # whether the step before lost its next value in a pause
    for back in range(horizon):
        at = (horizon - 1 - back).to(tl.int64) * rows + row
        terminated = tl.load(terminations + at, mask=here, other=0) != 0
        truncated = tl.load(truncations + at, mask=here, other=0) != 0
        ended = terminated | truncated
        acted = here
        if has_live:
            acted = here & (tl.load(live + at, mask=here, other=0) != 0)
        whole = here
        if has_valid:
            whole = here & (tl.load(valid + at, mask=here, other=0) != 0)
        value = tl.load(values + at, mask=here, other=0.0)
        reward = tl.load(rewards + at, mask=here, other=0.0)
        final_value = tl.load(final_values + at, mask=here & truncated, other=0.0)
        following = tl.where(truncated, final_value, next_value)
        following = tl.where(terminated, 0.0, following)
        rho = tl.zeros((block,), tl.float32) + 1.0
        if has_ratios:
            rho = tl.load(ratios + at, mask=here, other=0.0)
        c = tl.where(rho > c_clip, c_clip, rho)
        rho = tl.where(rho > rho_clip, rho_clip, rho)
        advantage = rho * (reward + gamma * following - value)
        advantage = advantage + tl.where(ended, 0.0, decay * c * trace)
        advantage = tl.where(acted & whole & (ended | ~lost), advantage, 0.0)
        tl.store(out + at, advantage, mask=here)
        if has_returns:
            tl.store(returns + at, tl.where(acted & whole, advantage + value, 0.0), mask=here)
        # A pause belongs to the step before it: it hands on what it got, or the end it saw.
        next_value = tl.where(acted, value, tl.where(terminated, 0.0, next_value))
        trace = tl.where(acted, advantage, tl.where(ended | ~whole, 0.0, trace))
        lost = ~acted & (~whole | (~terminated & (truncated | lost)))


def advantages_triton(
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
) -> Tensor:
    """Advantages of tensors [horizon, rows] on one device, as `fugu.algos.advantage.advantages`.

    Raises:
        UsageError: If a shape, a dtype or a number will not do.
    """
    for name, number, most in (
        ("gamma", gamma, 1.0), ("lambda_", lambda_, 1.0),
        ("rho_clip", rho_clip, math.inf), ("c_clip", c_clip, math.inf),
    ):  # fmt: skip
        if not 0.0 <= number <= most:
            raise refuse(name, f"{number}", f"0 to {most}")
    if rewards.ndim != 2:
        raise refuse("rewards", f"shape {tuple(rewards.shape)}", "[horizon, rows]")
    horizon, rows = shape = tuple(rewards.shape)
    floats, flags = (torch.float32,), (torch.bool, torch.uint8)
    result = torch.empty_like(rewards, memory_format=torch.contiguous_format)
    if out is not None:
        result = _output("out", out, shape)
    returns = None if returns_out is None else _output("returns_out", returns_out, shape)
    arrays: list[Any] = [
        _input("rewards", rewards, floats, shape),
        _input("values", values, floats, (horizon + 1, rows)),
        _input("final_values", final_values, floats, shape),
        None if ratios is None else _input("ratios", ratios, floats, shape),
        _input("terminations", terminations, flags, shape),
        _input("truncations", truncations, flags, shape),
        None if valid is None else _input("valid", valid, flags, shape),
        None if live is None else _input("live", live, flags, shape),
    ]
    present = [ratios is not None, valid is not None, live is not None, returns is not None]
    stand_ins = [result if array is None else array for array in (*arrays, result, returns)]
    numbers = map(float, (gamma, gamma * lambda_, rho_clip, c_clip))
    if horizon and rows:
        kernel[(triton.cdiv(rows, BLOCK),)](
            *stand_ins, horizon, rows, *numbers, *present, BLOCK,
            enable_fp_fusion=False,
        )  # fmt: skip
    return result


def _input(
    name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]
) -> Tensor:
    if tensor.dtype not in dtypes or tuple(tensor.shape) != shape:
        allowed = f"{' or '.join(map(str, dtypes))} of shape {shape}"
        raise refuse(name, f"{tensor.dtype} of shape {tuple(tensor.shape)}", allowed)
    tensor = tensor.detach()
    return (tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor).contiguous()


def _output(name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    _input(name, tensor, (torch.float32,), shape)
    if not tensor.is_contiguous():
        raise refuse(name, "a tensor that is not contiguous", "a contiguous one")
    return tensor.detach()
