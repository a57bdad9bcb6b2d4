"""What the machine can do: matrix products in torch, 2048 x 2048 x 2048, operations a second."""

from __future__ import annotations

import time
from statistics import median

import torch
from watching import answer, read_settings

SIZE = 2048


def peak(dtype: torch.dtype, times: int) -> float:
    """The median of some products."""
    left, right = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
    rates = []
    for _ in range(times + 2):
        began = time.perf_counter()
        torch.mm(left, right)
        rates.append(2 * SIZE**3 / (time.perf_counter() - began))
    return median(rates[2:])


def main() -> None:
    """Both number formats."""
    times = 5 if read_settings()["seconds"] < 5 else 25
    answer(float32=peak(torch.float32, times), bfloat16=peak(torch.bfloat16, times))


if __name__ == "__main__":
    main()
