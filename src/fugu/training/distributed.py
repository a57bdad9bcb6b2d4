"""Ranks over torch.distributed: gloo for the CPU, nccl for CUDA."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from fugu.core.errors import FuguError, UsageError
from fugu.core.ranks import SINGLE_PROCESS, Moments, Ranks
from fugu.core.seeding import derive

T = TypeVar("T")
TIMEOUT = "FUGU_RANK_TIMEOUT"  # names the seconds after which a rank that says nothing is lost
SECONDS = 600.0
PATIENCE = timedelta(days=1)  # for what the first rank does alone, such as an evaluation


class RankLostError(FuguError, RuntimeError):
    """Another rank has died, or has said nothing for long."""


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that torchrun or Ray started this process as one of; alone if neither did."""
    if not dist.is_available():
        yield SINGLE_PROCESS
        return
    given = dist.is_initialized()
    if not given and (not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1"):
        yield SINGLE_PROCESS
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    if not given:
        both = torch.cuda.is_available() and dist.is_nccl_available()
        with _together("start"):
            dist.init_process_group("cpu:gloo,cuda:nccl" if both else "gloo", timeout=timeout())
        atexit.register(
            _leave, os.getpid()
        )  # not before: a store cannot serve two groups of one name
    if dist.get_world_size() == 1:
        yield SINGLE_PROCESS
        return
    ranks = GroupRanks()
    yield ranks
    ranks.close()  # after an error nothing is waited for: the process ends


def timeout() -> timedelta:
    """How long ranks wait for each other."""
    text = os.environ.get(TIMEOUT, str(SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < PATIENCE.total_seconds():
        raise UsageError(
            f"rank-timeout: given {text!r}; allowed: seconds, above 0 and up to a day."
        )
    return timedelta(seconds=seconds)


class GroupRanks(Ranks):
    """One of the processes of torch's default group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Sockets of the CPU for all but gradients, whatever Ray set up.
        with _together("start"):
            self._group: Any = dist.new_group(backend="gloo", timeout=timeout())
            self._patient: Any = dist.new_group(backend="gloo", timeout=PATIENCE)

    def close(self) -> None:
        """Let go of what was set up for these ranks."""
        for group in (self._group, self._patient):
            dist.destroy_process_group(group)

    def sum(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sums over all ranks."""
        total = torch.tensor(numbers, dtype=torch.float64)
        with _together("sum"):
            dist.all_reduce(total, group=self._group)
        found: NDArray[np.float64] = total.numpy()
        return found

    def add_up(self, named: dict[str, float]) -> dict[str, float]:
        """The sums over all ranks of numbers whose names are the same everywhere."""
        sums = self.sum(np.array(list(named.values()), np.float64))
        return dict(zip(named, sums.tolist(), strict=True))

    def largest(self, number: float) -> float:
        """The largest that any rank has."""
        found = torch.tensor(number, dtype=torch.float64)
        with _together("maximum"):
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return float(found)

    def moments(self, own: Moments) -> Moments:
        """Of the numbers of all ranks."""
        mean = np.asarray(own.mean)
        flat = np.concatenate([[own.count], mean.ravel(), np.ravel(own.variance)])
        row = torch.tensor(flat, dtype=torch.float64)
        rows = [torch.empty_like(row) for _ in range(self.size)]
        with _together("moments"):
            dist.all_gather(rows, row, group=self._group)
        table = torch.stack(rows).numpy()
        total = float(table[:, 0].sum())
        shares = table[:, 0] / max(1.0, total)
        means, variances = np.split(table[:, 1:], 2, 1)
        middle = shares @ means
        spread = shares @ (variances + np.square(means - middle))
        shaped = [part.reshape(mean.shape).astype(mean.dtype)[()] for part in (middle, spread)]
        return Moments(total, *shaped)

    def gather(self, value: T) -> list[T]:
        """What each rank has, at every rank."""
        found: list[Any] = [None] * self.size
        with _together("gathering"):
            dist.all_gather_object(found, value, group=self._group)
        return found

    def bring(self, value: T) -> list[T]:
        """What each rank has, at the first one; nothing elsewhere."""
        found: list[Any] = [] if self.rank else [None] * self.size
        with _together("gathering"):
            dist.gather_object(value, found or None, group=self._group)
        return found

    def hand_out(self, values: list[T]) -> T:
        """What the first rank has for this one."""
        found: list[Any] = [None]
        with _together("handing out"):
            dist.scatter_object_list(found, None if self.rank else values, group=self._group)
        own: T = found[0]
        return own

    def share(self, value: T, *, patient: bool = False) -> T:
        """What the first rank has, which may take long to find if the others are patient."""
        found: list[Any] = [value]
        with _together("sharing"):
            group = self._patient if patient else self._group
            dist.broadcast_object_list(found, group=group, device=torch.device("cpu"))
        own: T = found[0]
        return own

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Give parameters the sums of their gradients over all ranks, in one go.

        One that no rank has a gradient of keeps none, as in a single process.
        """
        given = list(parameters)
        found = [param.grad is not None for param in given]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in given]
        flags = torch.tensor(found, dtype=parts[0].dtype, device=parts[0].device)
        flat = torch.cat([*(part.reshape(-1) for part in parts), flags])
        with _together("gradients"):
            dist.all_reduce(flat)
        anywhere = flat[-len(given) :].tolist()
        sums = torch.split(flat[: -len(given)], [part.numel() for part in parts])
        for param, total, count in zip(given, sums, anywhere, strict=True):
            if param.grad is not None:  # where they stand, which may be the native core's block
                param.grad.copy_(total.view_as(param))
            elif count:
                param.grad = total.view_as(param).to(param.dtype)

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the numbers that they have at the first rank."""
        with _together("weights"):
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def row_generator(self, seed: int) -> np.random.Generator:
        """One that draws rows for the agents of all ranks and gives those of this one."""
        return RowsOfRank(seed, self.rank, self.size)

    def own_generator(self, seed: int) -> np.random.Generator:
        """One that draws otherwise than those of other ranks."""
        return np.random.default_rng(derive(seed, self.rank))


class RowsOfRank(np.random.Generator):
    """Draws what one process would draw for all agents, and gives the rows of a rank.

    So agents act alike however many ranks they are divided among.

    >>> whole = np.random.default_rng(1).random((4, 2), np.float32)
    >>> bool((RowsOfRank(1, 1, 2).random((2, 2), np.float32) == whole[2:]).all())
    True
    """

    def __init__(self, seed: int, rank: int, size: int) -> None:
        super().__init__(np.random.PCG64(seed))
        self._rank, self._size = rank, size

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Uniform numbers, `[rows, ...]`."""
        return self._own(super().random(self._whole(size), dtype), out)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """Normal numbers, `[rows, ...]`."""
        return self._own(super().standard_normal(self._whole(size), dtype), out)

    def _whole(self, size: Any) -> tuple[int, ...]:
        if not isinstance(size, tuple):
            raise UsageError(f"size: given {size!r}; allowed: a tuple whose first number is rows.")
        return size[0] * self._size, *size[1:]

    def _own(self, drawn: NDArray[Any], out: Any) -> NDArray[Any]:
        if out is not None:
            raise UsageError("out: given; allowed: none.")
        rows = len(drawn) // self._size
        return drawn[self._rank * rows : (self._rank + 1) * rows]


def _leave(owner: int) -> None:
    if dist.is_initialized() and os.getpid() == owner:  # not in a fork
        dist.destroy_process_group()


@contextlib.contextmanager
def _together(what: str) -> Iterator[None]:
    """Something that all ranks do; a clear error if one of them does not."""
    try:
        yield
    except FuguError:
        raise
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().partition(". This is typically")[0].splitlines()
        raise RankLostError(
            f"ranks: another one is lost, or was silent for {timeout().total_seconds():g} s "
            f"({what}: {said[0] if said else type(error).__name__}). The run goes on from its "
            "last checkpoint when all are started again."
        ) from error
