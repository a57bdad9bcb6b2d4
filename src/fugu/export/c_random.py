"""Chance in written C, in Python: the same state gives the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fugu.nets.net import Floats

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


class PolicyRandom:
    """What `fugu_policy_act` draws from: SplitMix64, and Box and Muller's normals.

    It has the two methods of a NumPy generator that `ActionSampler` calls. C draws for one row
    after the other, so draw for one row at a time.

    Args:
        state: What `*random` was before the call.

    Attributes:
        state: What it is afterwards.

    >>> random = PolicyRandom(1)
    >>> random.random((2,)).tolist(), hex(random.state)
    ([0.5665615200996399, 0.7457817196846008], '0x3c6ef372fe94f82b')
    """

    def __init__(self, state: int) -> None:
        self.state = state & MASK

    def unit(self) -> int:
        """A number of [0, 1) in units of 2^-24."""
        self.state = (self.state + GOLDEN) & MASK
        word = self.state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
        return (word ^ (word >> 31)) >> 40

    def random(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Floats:
        """Numbers of [0, 1)."""
        numbers = [self.unit() / 2**24 for _ in range(math.prod(shape))]
        return np.array(numbers, dtype).reshape(shape)

    def standard_normal(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Floats:
        """Numbers of mean 0 and deviation 1."""
        numbers = []
        for _ in range(math.prod(shape)):
            size = math.sqrt(-2.0 * math.log(1.0 - self.unit() / 2**24))
            numbers.append(size * math.cos(math.tau * self.unit() / 2**24))
        return np.array(numbers, dtype).reshape(shape)
