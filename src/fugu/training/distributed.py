"""Ranks over torch.distributed, and what each takes of a run's copies, segments and checkpoints.

Gloo serves the CPU, nccl CUDA.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from fugu.algos.algorithm import State, Tensors
from fugu.algos.registry import algorithm_names, find_algorithm
from fugu.algos.settings import Config
from fugu.core.config import to_tree
from fugu.core.errors import FuguError, UsageError
from fugu.core.ranks import SINGLE_PROCESS, Moments, Ranks
from fugu.core.seeding import derive
from fugu.policies.policy import Policy
from fugu.store.checkpoint import Checkpoint
from fugu.training.inputs import RunInputs
from fugu.vector import make

T = TypeVar("T")
TIMEOUT = "FUGU_RANK_TIMEOUT"  # seconds after which a silent rank counts as lost
SECONDS = 600.0
AGENTS = 64  # as many copies as give so many
COUNTED = ("vec.num_envs", "vec.batch_size", "train.rows", "train.teams")  # divided among ranks
COMMON = ("policy_", "optimiser_")  # tensors that are the same at all ranks
PATIENCE = timedelta(days=1)  # for what the first rank does alone, such as an evaluation


class RankLostError(FuguError, RuntimeError):
    """Another rank has died, or was silent for too long."""


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """Yield the ranks that torchrun or Ray started this process as one of, or a single one."""
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
        # Not before the end: a store cannot serve two groups of one name.
        atexit.register(_leave, os.getpid())
    if dist.get_world_size() == 1:
        yield SINGLE_PROCESS
        return
    ranks = GroupRanks()
    yield ranks
    ranks.close()  # after an error nothing is waited for: the process ends


def timeout() -> timedelta:
    """Return how long ranks wait for each other."""
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
        """Destroy the groups that were set up for these ranks."""
        for group in (self._group, self._patient):
            dist.destroy_process_group(group)

    def sum(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums over all ranks."""
        total = torch.tensor(numbers, dtype=torch.float64)
        with _together("sum"):
            dist.all_reduce(total, group=self._group)
        found: NDArray[np.float64] = total.numpy()
        return found

    def add_up(self, named: dict[str, float]) -> dict[str, float]:
        """Return the sums of numbers whose names are the same at all ranks."""
        sums = self.sum(np.array(list(named.values()), np.float64))
        return dict(zip(named, sums.tolist(), strict=True))

    def largest(self, number: float) -> float:
        """Return the largest number of any rank."""
        found = torch.tensor(number, dtype=torch.float64)
        with _together("maximum"):
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return float(found)

    def moments(self, own: Moments) -> Moments:
        """Return the moments of the numbers of all ranks."""
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
        """Return the values of all ranks, at every rank."""
        found: list[Any] = [None] * self.size
        with _together("gathering"):
            dist.all_gather_object(found, value, group=self._group)
        return found

    def bring(self, value: T) -> list[T]:
        """Return the values of all ranks at the first one; nothing elsewhere."""
        found: list[Any] = [] if self.rank else [None] * self.size
        with _together("gathering"):
            dist.gather_object(value, found or None, group=self._group)
        return found

    def hand_out(self, values: list[T]) -> T:
        """Return the value that the first rank has for this one."""
        found: list[Any] = [None]
        with _together("handing out"):
            dist.scatter_object_list(found, None if self.rank else values, group=self._group)
        own: T = found[0]
        return own

    def share(self, value: T, *, patient: bool = False) -> T:
        """Return the value of the first rank, which may take long to find if `patient`."""
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
        """Return a generator of this rank's rows of what one process draws for all agents."""
        return RowsOfRank(seed, self.rank, self.size)

    def own_generator(self, seed: int) -> np.random.Generator:
        """Return a generator that differs from those of other ranks."""
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
    """Raise RankLostError if some rank does not take part in what all of them do."""
    try:
        yield
    except FuguError:
        raise
    except (RuntimeError, ValueError) as error:
        lines = str(error).strip().partition(". This is typically")[0].splitlines()
        raise RankLostError(
            f"ranks: another one is lost, or was silent for {timeout().total_seconds():g} s "
            f"({what}: {lines[0] if lines else type(error).__name__}). The run goes on from its "
            "last checkpoint when all are started again."
        ) from error


# ------------------------------------------------------------------ shares of a run


def count_copies(cfg: Config, inputs: RunInputs) -> int:
    """Return the copies of all ranks: as many as asked for, or as give 64 agents."""
    given: int = cfg.vec.num_envs
    if given:
        return given
    with make(inputs.env_of(cfg.env), 1, backend="serial", env_kwargs=cfg.env_kwargs) as one:
        copies = max(1, AGENTS // one.num_agents)
    unit: int = 1 if inputs.ranks.size == 1 else inputs.ranks.size * cfg.vec.group_size
    return -(-copies // unit) * unit


def share_of(cfg: Config, inputs: RunInputs) -> Config:
    """Return the settings of this rank: its share of what those of the run count."""
    size = inputs.ranks.size
    if size == 1:
        return cfg
    check_shares(cfg, size)
    whole = replace(cfg, vec=replace(cfg.vec, num_envs=count_copies(cfg, inputs)))
    shares: dict[str, dict[str, Any]] = {"vec": {}, "train": {}}
    for path, given in _counts(whole).items():
        section, _, name = path.partition(".")
        shares[section][name] = given // size
    if cfg.vec.num_workers is not None:
        shares["vec"]["num_workers"] = max(1, cfg.vec.num_workers // size)
    vec, train = replace(whole.vec, **shares["vec"]), replace(whole.train, **shares["train"])
    return replace(whole, vec=vec, train=train)


def check_shares(cfg: Config, size: int) -> None:
    """Raise UsageError if a run cannot be divided among so many ranks."""
    if not find_algorithm(cfg.algo).supports_ranks:
        names = [name for name in algorithm_names() if find_algorithm(name).supports_ranks]
        raise UsageError(
            f"nproc: given {size} with {cfg.algo}; allowed: more than 1 with {', '.join(names)}."
        )
    for path, given in _counts(cfg).items():
        unit = size * (cfg.vec.group_size if path == "vec.num_envs" else 1)
        if given % unit:
            raise UsageError(
                f"{path}: given {given} with {size} ranks; allowed: multiples of {unit}, "
                "so that each rank has as much."
            )
    single = {
        "league.enabled": cfg.league.enabled,
        "policy.recall": to_tree(cfg.policy).get("recall"),
        "train.best_episodes": to_tree(cfg.train).get("best_episodes"),
        "run.record_data": cfg.run.record_data,
        "run.trajectories": cfg.run.trajectories,
    }
    for path, value in single.items():
        if value:
            raise UsageError(f"{path}: given {value} with {size} ranks; allowed: with one.")


def _counts(cfg: Config) -> dict[str, int]:
    """Return the settings of `COUNTED` that the algorithm has and the user gave."""
    sections = {"vec": to_tree(cfg.vec), "train": to_tree(cfg.train)}
    paths = [path.partition(".") for path in COUNTED]
    found = {f"{section}.{name}": sections[section].get(name) for section, _, name in paths}
    return {path: int(count) for path, count in found.items() if count}


def broadcast(policy: Policy, ranks: Ranks) -> None:
    """Give all ranks the first one's weights, and normalize observations by what all see."""
    ranks.copy_first(tensor.data for tensor in chain(policy.parameters(), policy.buffers()))
    for scale in policy.scales:
        scale.ranks = ranks


def num_ranks(state: Mapping[str, Any]) -> int:
    """Return how many ranks wrote a checkpoint of this state."""
    return 1 + len(state.get("ranks", ()))


def gather_checkpoint(ranks: Ranks, tensors: Tensors, state: State) -> tuple[Tensors, State]:
    """Return the checkpoint of all ranks, at the first one; elsewhere what that rank has."""
    own: tuple[Tensors, State] = ({}, {})
    if ranks.rank:
        mine = {name: group for name, group in tensors.items() if not name.startswith(COMMON)}
        on_cpu = {
            name: {k: v.detach().cpu() if isinstance(v, Tensor) else v for k, v in group.items()}
            for name, group in mine.items()
        }
        own = on_cpu, {k: v for k, v in state.items() if k != "optimisers"}
    others = ranks.bring(own)[1:]
    if not others:
        return tensors, state
    whole = dict(tensors)
    for rank, (theirs, _) in enumerate(others, 1):
        whole |= {f"rank{rank}.{name}": group for name, group in theirs.items()}
    return whole, {**state, "ranks": [other for _, other in others]}


def hand_out_checkpoint(ranks: Ranks, checkpoint: Checkpoint | None) -> Checkpoint:
    """Return what this rank needs of a checkpoint, which only the first one has."""
    parts = []
    if checkpoint is not None:
        saved = num_ranks(checkpoint.state)
        if saved != ranks.size:
            raise UsageError(
                f"ranks: given {ranks.size} for a run of {saved}, whose environments and rows are "
                f"divided among as many; allowed: fugu resume RUN --nproc {saved}."
            )
        parts = [_part(checkpoint, rank) for rank in range(ranks.size)]
    return ranks.hand_out(parts)


def _part(checkpoint: Checkpoint, rank: int) -> Checkpoint:
    """Return a rank's own checkpoint, as one process would have written it."""
    others = checkpoint.state.get("ranks", [])
    state = {name: value for name, value in checkpoint.state.items() if name != "ranks"}
    if not rank:
        tensors = {k: v for k, v in checkpoint.tensors.items() if not k.startswith("rank")}
        return Checkpoint(tensors, state, checkpoint.libraries)
    prefix = f"rank{rank}."
    tensors = {
        name.removeprefix(prefix): group
        for name, group in checkpoint.tensors.items()
        if name.startswith((prefix, *COMMON))
    }
    return Checkpoint(tensors, {**state, **others[rank - 1]}, checkpoint.libraries)
