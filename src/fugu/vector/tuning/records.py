"""Records of a tuning: what was measured, what was tried, what was chosen. All of it is JSON."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from fugu.core.errors import FuguError, UsageError
from fugu.core.machine import free_memory, load, system, usable_cores

T = TypeVar("T")
Status = Literal["planned", "measured", "failed", "ruled out"]
Backend = Literal["serial", "threads", "process"]
BACKENDS: tuple[Backend, ...] = ("serial", "threads", "process")  # the simplest first


class TuningError(FuguError, RuntimeError):
    """Nothing could be measured, so nothing can be chosen."""


@dataclass(frozen=True)
class Setting:
    """One way to run the copies.

    Attributes:
        backend: "serial", "threads" or "process".
        num_envs: Copies.
        num_workers: Workers that step them.
        batch_size: Environments in a batch.

    >>> str(Setting("process", 8, 2, 4)), str(Setting("serial", 8, 1, 8))
    ('process, 2 workers, 8 copies in batches of 4', 'serial, 8 copies')
    """

    backend: Backend
    num_envs: int
    num_workers: int
    batch_size: int

    @property
    def complexity(self) -> tuple[int, ...]:
        """What is simpler comes first: serial, fewer workers, whole batches, fewer copies."""
        rounds = -(-self.num_envs // self.batch_size)
        backend = BACKENDS.index(self.backend)
        return int(backend > 0), self.num_workers, rounds, self.num_envs, backend

    def make_options(self) -> dict[str, Any]:
        """Arguments for `fugu.make`."""
        return asdict(self)

    def __str__(self) -> str:
        workers = f", {plural(self.num_workers, 'worker')}" if self.backend != "serial" else ""
        copies = "1 copy" if self.num_envs == 1 else f"{self.num_envs} copies"
        batches = f" in batches of {self.batch_size}" if self.batch_size != self.num_envs else ""
        return f"{self.backend}{workers}, {copies}{batches}"


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the steps of one copy, those that end an episode and begin the next among them.

    Attributes:
        count: Steps that were timed.
        mean: Of all.
        median: Half of them take less.
        deviation: Standard deviation.
        percentile_99: All but one in a hundred take less.
        quantiles: From the quickest to the slowest, evenly spaced in rank.
    """

    count: int
    mean: float
    median: float
    deviation: float
    percentile_99: float
    quantiles: tuple[float, ...]

    @property
    def spread(self) -> float:
        """How much longer than the median the slow steps take, in medians."""
        return (self.percentile_99 - self.median) / max(self.median, 1e-9)


@dataclass(frozen=True)
class Profile:
    """One copy, alone.

    Attributes:
        steps: Its step times.
        make_seconds: To make one.
        reset_seconds: To reset one.
        reset_share: Share of the time that goes into resets.
        steps_per_episode: On average; None if no episode ended.
        copy_bytes: Memory that a further copy takes; None if no further one could be made.
        slab_bytes: Bytes of its rows in the slab.
        thread_gain: How much quicker two threads step two copies than one thread does: about 1 if
            stepping holds the GIL, 2 if it does not; None if that could not be measured.
        policy_seconds: Of the policy, for the largest batch that was tried.
        polled: Whether it waits for something outside and is polled.
        notes: What went wrong on the way.
    """

    steps: StepTimes
    make_seconds: float
    reset_seconds: float
    reset_share: float
    steps_per_episode: float | None
    copy_bytes: int | None
    slab_bytes: int
    thread_gain: float | None = None
    policy_seconds: float = 0.0
    polled: bool = False
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_copy(self) -> int:
        """Memory for one copy and its rows."""
        return max((self.copy_bytes or 0) + self.slab_bytes, 1)

    @staticmethod
    def from_dict(data: Any) -> Profile:
        """From what `asdict` gives."""
        return build(
            Profile, data, steps=lambda times: build(StepTimes, times, quantiles=tuple), notes=tuple
        )


@dataclass(frozen=True)
class Trial:
    """One setting and how it went.

    Attributes:
        setting: The setting.
        status: "measured", "failed", or "ruled out" before it was tried.
        steps_per_second: Steps of environments in a second, the median of the windows; 0 if it
            was not measured.
        windows: Steps in a second within each short window.
        start_seconds: Until all copies were ready for the first time, at the most.
        policy_seconds: Busy work of the learner between two batches.
        note: Why it failed or was ruled out, or what else is to be said.
    """

    setting: Setting
    status: Status
    steps_per_second: float = 0.0
    windows: tuple[float, ...] = ()
    start_seconds: float = 0.0
    policy_seconds: float = 0.0
    note: str = ""

    @staticmethod
    def from_dict(data: Any) -> Trial:
        """From what `asdict` gives."""
        return build(Trial, data, setting=lambda value: build(Setting, value), windows=tuple)


@dataclass(frozen=True)
class Machine:
    """The machine it was measured on.

    Attributes:
        cores: Cores that may be used.
        memory: Bytes of memory that were free.
        load: Cores that were in use before.
        system: Its name.
        python: Version of Python.
    """

    cores: int
    memory: int
    load: float
    system: str
    python: str

    @staticmethod
    def here() -> Machine:
        """This one."""
        python = platform.python_version()
        return Machine(usable_cores(), free_memory(), load(), system(), python)

    @property
    def busy(self) -> bool:
        """Whether so much else ran that timings may mislead."""
        return self.load > self.cores / 2


@dataclass(frozen=True)
class Tuning:
    """What `tune` found. `fugu.make(env, **tuning.make_options())` uses it.

    Attributes:
        env: The environment's name.
        profile: One copy, alone.
        trials: All settings, those that were ruled out too.
        choice: The setting that was chosen.
        reason: Why.
        machine: Where.
        seconds: Time that was given for the measuring.
        seed: Of the order, the resets and the actions.
    """

    env: str
    profile: Profile
    trials: tuple[Trial, ...]
    choice: Setting
    reason: str
    machine: Machine
    seconds: float
    seed: int

    @property
    def summary(self) -> str:
        """The choice in one sentence."""
        return f"{self.env}: {self.choice}: {self.reason}"

    def make_options(self) -> dict[str, Any]:
        """Arguments for `fugu.make`: backend, num_envs, num_workers, batch_size."""
        return self.choice.make_options()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Any) -> Tuning:
        """What `to_dict` gave, so that a run that is resumed need not measure again."""
        return build(
            Tuning,
            data,
            profile=Profile.from_dict,
            trials=lambda trials: tuple(Trial.from_dict(trial) for trial in trials),
            choice=lambda value: build(Setting, value),
            machine=lambda value: build(Machine, value),
        )


def build(kind: Callable[..., T], data: Any, **parts: Callable[[Any], Any]) -> T:
    """A dataclass from its dict; `parts` make the fields that are not plain."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    title = getattr(kind, "__name__", "record")
    given = sorted(map(str, data)) if isinstance(data, Mapping) else f"a {type(data).__name__}"
    if given != sorted(names):
        raise UsageError(
            f"{title}: given {given}; allowed: a dict with exactly {sorted(names)}. "
            "Give what Tuning.to_dict gave, or tune again."
        )
    return kind(
        **{name: parts[name](data[name]) if name in parts else data[name] for name in names}
    )


def plural(count: int, noun: str) -> str:
    """A number and its noun.

    >>> plural(1, "worker"), plural(2, "worker")
    ('1 worker', '2 workers')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"
