"""Ranks: the processes that train one run together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Moments:
    """Count, mean and variance of numbers along their first axis; 0 of no numbers."""

    count: float
    mean: Any
    variance: Any


def moments_of(numbers: NDArray[Any]) -> Moments:
    """Return the moments of an array along its first axis.

    >>> moments_of(np.array([1.0, 3.0])).variance
    np.float64(1.0)
    """
    count = len(numbers)
    if not count:
        nothing = np.zeros(numbers.shape[1:], numbers.dtype)[()]
        return Moments(0, nothing, nothing)
    mean = np.add.reduce(numbers, 0) / count  # a minibatch has few: var() would take twice as long
    apart = numbers - mean
    return Moments(count, mean, np.add.reduce(apart * apart, 0) / count)


class Ranks:
    """The interface to other ranks, as a process that trains alone has it.

    All ranks must make the same calls in the same order.
    """

    rank: int = 0
    """The number of this rank; rank 0 logs and saves for all."""
    size: int = 1
    """The number of ranks."""

    def sum(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums over all ranks."""
        return numbers

    def add_up(self, named: dict[str, float]) -> dict[str, float]:
        """Return the sums over all ranks of numbers with the same names everywhere."""
        return named

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set at any rank."""
        return bool(self.sum(np.array([float(flag)]))[0])

    def largest(self, number: float) -> float:
        """Return the largest number of all ranks."""
        return number

    def moments(self, own: Moments) -> Moments:
        """Return the moments of the numbers of all ranks."""
        return own

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, at every rank."""
        return [value]

    def bring(self, value: T) -> list[T]:
        """Return the values of all ranks at rank 0, and nothing elsewhere."""
        return [value]

    def hand_out(self, values: list[T]) -> T:
        """Return the value that rank 0 has for this rank."""
        return values[0]

    def share(self, value: T, *, patient: bool = False) -> T:
        """Return the value of rank 0, which may take long to compute if the others are patient."""
        return value

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Replace the gradients of parameters by their sums over all ranks."""

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Replace the contents of tensors by those at rank 0."""

    def row_generator(self, seed: int) -> np.random.Generator:
        """Return a generator of rows for the agents of all ranks; this rank gets its own."""
        return np.random.default_rng(seed)

    def own_generator(self, seed: int) -> np.random.Generator:
        """Return a generator that differs from those of other ranks."""
        return np.random.default_rng(seed)

    def __deepcopy__(self, _: dict[int, Any]) -> Ranks:
        return self


SINGLE_PROCESS = Ranks()
