"""The request: what a tuning may choose, and what is fixed from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fugu.core.errors import UsageError
from fugu.vector.tuning.records import BACKENDS, Backend


@dataclass(frozen=True)
class Request:
    """What is fixed; None where it is to be found.

    Attributes:
        num_envs: Copies.
        backend: One of `BACKENDS`.
        num_workers: Workers.
        batch_size: Environments in a batch.
        group_size: Copies that share a seed; `num_envs` is a multiple of it.
        max_memory: Bytes that all copies may take.
        seconds: For all of the measuring.
    """

    num_envs: int | None
    backend: Backend | None
    num_workers: int | None
    batch_size: int | None
    group_size: int
    max_memory: int
    seconds: float

    def __post_init__(self) -> None:
        for name in ("num_envs", "num_workers", "batch_size", "group_size", "max_memory"):
            value = getattr(self, name)
            if value is not None and not (is_integer(value) and value >= 1):
                raise UsageError(f"{name}: given {value!r}; allowed: an integer from 1.")
        if self.backend is not None and self.backend not in BACKENDS:
            allowed = ", ".join(("auto", *BACKENDS))
            raise UsageError(f"backend: given {self.backend!r}; allowed: {allowed}.")
        check_seconds("seconds", self.seconds, above=True)
        for name in ("num_workers", "batch_size"):
            self._check_within(name)
        if self.num_envs is not None and self.num_envs % self.group_size:
            raise UsageError(
                f"group_size: given {self.group_size}; allowed: a divisor of "
                f"num_envs={self.num_envs}."
            )

    def _check_within(self, name: str) -> None:
        value, num_envs = getattr(self, name), self.num_envs
        if value is not None and (num_envs is None or value > num_envs):
            allowed = "together with num_envs" if num_envs is None else f"1 to {num_envs}, num_envs"
            raise UsageError(f"{name}: given {value}; allowed: {allowed}.")


def check_seconds(name: str, value: Any, *, above: bool) -> None:
    """Raise unless it is a time, `above` 0 or 0 as well."""
    is_number = is_integer(value) or isinstance(value, float)
    if not is_number or not (0 < value < 1e6 or (value == 0 and not above)):
        least = "above 0" if above else "of 0 or more"
        raise UsageError(f"{name}: given {value!r}; allowed: a number of seconds {least}.")


def is_integer(value: Any) -> bool:
    """Whether it is a whole number, NumPy's included, and no bool."""
    return hasattr(value, "__index__") and not isinstance(value, bool)
