"""Configurations of vectors: which ones autotune tries, and the record of what it measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal

from fugu.core.config import from_tree
from fugu.core.errors import FuguError, UsageError
from fugu.core.intervals import CheckedConfig, NonNegativeFloat, PositiveFloat, PositiveInt
from fugu.vector.measuring import EnvProfile

Backend = Literal["native", "serial", "threads", "process"]
ENVS_PER_CORE = (4, 16, 64)  # numbers of environments to try
NATIVE_ENVS_PER_CORE = (64, 256, 1024)


class TuningError(FuguError, RuntimeError):
    """Nothing could be measured, so nothing can be chosen."""


@dataclass(frozen=True)
class Configuration:
    """One way to run environments; its fields are arguments of `fugu.make`.

    >>> str(Configuration("process", 8, 2, 4)), str(Configuration("serial", 8, 1, 8))
    ('process, 2 workers, 8 environments in batches of 4', 'serial, 8 environments')
    """

    backend: Backend
    num_envs: int
    num_workers: int
    batch_size: int

    def __str__(self) -> str:
        workers = "" if self.backend == "serial" else f", {_plural(self.num_workers, 'worker')}"
        batches = f" in batches of {self.batch_size}" if self.batch_size != self.num_envs else ""
        return f"{self.backend}{workers}, {_plural(self.num_envs, 'environment')}{batches}"


@dataclass(frozen=True)
class Trial:
    """A configuration and its result.

    Attributes:
        configuration: The configuration.
        status: "measured", "failed", or "ruled out" without a measurement.
        steps_per_second: Steps of environments per second in its last round.
        rounds: The number of rounds in which it was tried.
        note: Why it failed or was ruled out, or how many faults it had.
    """

    configuration: Configuration
    status: Literal["measured", "failed", "ruled out"] = "measured"
    steps_per_second: float = 0.0
    rounds: int = 0
    note: str = ""


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`, which `fugu.make(env, **tuning.make_options())` uses.

    Attributes:
        env: The name of the environment.
        choice: The configuration that was chosen.
        reason: Why it was chosen.
        profile: One environment, measured alone.
        trials: All configurations, the simplest first.
        cores: The number of cores that could be used.
        load: The number of cores that were busy before the tuning.
    """

    env: str
    choice: Configuration
    reason: str
    profile: EnvProfile
    trials: tuple[Trial, ...]
    cores: int
    load: float

    def make_options(self) -> dict[str, Any]:
        """Return arguments of `fugu.make`: backend, num_envs, num_workers, batch_size."""
        return asdict(self.choice)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as JSON has it."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Any) -> Tuning:
        """Return the tuning that `to_dict` turned into data."""
        try:
            return from_tree(Tuning, data)
        except (TypeError, AttributeError) as error:  # a field is missing, or it is not a dict
            raise UsageError(f"Tuning: expected what to_dict() returned; got {error}.") from None


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class TuningRequest(CheckedConfig):
    """What the caller asks for; None where the tuner chooses."""

    backend: Literal["auto", "native", "serial", "threads", "process"] | None
    num_envs: PositiveInt | None
    num_workers: PositiveInt | None
    batch_size: PositiveInt | None
    group_size: PositiveInt
    max_memory: PositiveInt
    policy_seconds: NonNegativeFloat
    seconds: PositiveFloat
    seed: int
    start_method: Literal["forkserver", "spawn", "fork"]


def find_candidates(
    request: TuningRequest, env_bytes: int, cores: int, *, is_native: bool
) -> list[Configuration]:
    """Return the configurations to try, the simplest first: serial, then by number of workers.

    Args:
        request: What the caller asks for.
        env_bytes: Memory of one environment.
        cores: The number of cores that may be used.
        is_native: Whether the native pool can step the environment.
    """
    backends: tuple[Backend, ...] = ("native",) if is_native else ("serial", "threads", "process")
    if request.backend is not None and request.backend != "auto":
        backends = (request.backend,)
    counts = _env_counts(request, env_bytes, cores, is_native=is_native)
    workers, parts = [cores], [1, 2]
    if request.num_envs is not None:
        workers, parts = [max(cores // 2, 1), cores], [1, 2, 4]
    found = []
    if "serial" in backends and (request.num_workers in (None, 1) or len(backends) == 1):
        found = [Configuration("serial", count, 1, request.batch_size or count) for count in counts]
    for num_workers, part, num_envs in product(workers, parts, counts):
        size = request.batch_size or num_envs // part
        for backend in backends:
            if backend != "serial" and (request.batch_size or num_envs % part == 0):
                count = request.num_workers or min(num_workers, num_envs)
                found.append(Configuration(backend, num_envs, count, size))
    return list(dict.fromkeys(found))


def _env_counts(
    request: TuningRequest, env_bytes: int, cores: int, *, is_native: bool
) -> list[int]:
    """Return the numbers of environments to try: the given one, or those that fit into memory."""
    most, group = request.max_memory // env_bytes, request.group_size
    if request.num_envs is None:
        factors = NATIVE_ENVS_PER_CORE if is_native else ENVS_PER_CORE
        wanted = [-(-cores * factor // group) * group for factor in factors]
        return [count for count in wanted if count <= most] or [max(most // group, 1) * group]
    if request.num_envs > most:
        raise UsageError(
            f"num_envs: expected at most {most}, since an environment takes {env_bytes:,} bytes "
            f"and max_memory is {request.max_memory:,}; got {request.num_envs}."
        )
    return [request.num_envs]
