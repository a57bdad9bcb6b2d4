"""What the machine can do.

Matrix products in torch, 2048 x 2048 x 2048, operations a second; and steps a second of breakout
with random actions, 2,048 copies.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np
import torch
from watching import answer, read_settings

import fugu

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


def steps(times: int) -> float:
    """The median of some stretches of steps."""
    random, rates = np.random.default_rng(0), []
    actions = random.integers(0, 3, (16, SIZE))
    with fugu.make("breakout", SIZE) as vec:
        vec.reset(seed=0)
        for _ in range(times):
            began = time.perf_counter()
            for chosen in actions:
                vec.step(chosen)
            rates.append(len(actions) * SIZE / (time.perf_counter() - began))
    return median(rates)


def main() -> None:
    """Both number formats, and the environment."""
    times = 5 if read_settings()["seconds"] < 5 else 25
    products = {"float32": peak(torch.float32, times), "bfloat16": peak(torch.bfloat16, times)}
    answer(**products, breakout=steps(times))


if __name__ == "__main__":
    main()
