"""Ranks: the processes that train together, as each of them sees the others."""

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
    """Of numbers along their first axis.

    Attributes:
        count: How many there are.
        mean: Of each column; 0 of none.
        variance: Of each column; 0 of none.
    """

    count: float
    mean: Any
    variance: Any


def moments_of(numbers: NDArray[Any]) -> Moments:
    """Of one array.

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
    """A process that trains alone, and the form of one that does not.

    Whatever is asked of all ranks, each of them asks, in the same order as the others.

    Attributes:
        rank: Which one this is; the first logs and saves for all.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    def sum(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sums over all ranks."""
        return numbers

    def add_up(self, named: dict[str, float]) -> dict[str, float]:
        """The sums over all ranks of numbers whose names are the same everywhere."""
        return named

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return bool(self.sum(np.array([float(flag)]))[0])

    def largest(self, number: float) -> float:
        """The largest that any rank has."""
        return number

    def moments(self, own: Moments) -> Moments:
        """Of the numbers of all ranks."""
        return own

    def gather(self, value: T) -> list[T]:
        """What each rank has, at every rank."""
        return [value]

    def bring(self, value: T) -> list[T]:
        """What each rank has, at the first one; nothing elsewhere."""
        return [value]

    def hand_out(self, values: list[T]) -> T:
        """What the first rank has for this one."""
        return values[0]

    def share(self, value: T, *, patient: bool = False) -> T:
        """What the first rank has, which may take long to find if the others are patient."""
        return value

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Give parameters the sums of their gradients over all ranks."""

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the numbers that they have at the first rank."""

    def row_generator(self, seed: int) -> np.random.Generator:
        """One that draws rows for the agents of all ranks and gives those of this one."""
        return np.random.default_rng(seed)

    def own_generator(self, seed: int) -> np.random.Generator:
        """One that draws otherwise than those of other ranks."""
        return np.random.default_rng(seed)

    def __deepcopy__(self, _: dict[int, Any]) -> Ranks:
        return self


SINGLE_PROCESS = Ranks()
