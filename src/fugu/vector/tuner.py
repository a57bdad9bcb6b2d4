"""The tuner: successive halving over the configurations of a vector."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from inspect import signature
from itertools import product
from typing import Any, Literal

import numpy as np

from fugu import native
from fugu.core.config import from_tree
from fugu.core.errors import FuguError, UsageError
from fugu.core.intervals import CheckedConfig, NonNegativeFloat, PositiveFloat, PositiveInt
from fugu.core.machine import free_memory, load, usable_cores
from fugu.envs.native_env import native_library
from fugu.envs.resolve import resolve
from fugu.vector.backends.process import check_guard
from fugu.vector.measuring import (
    ENV_LIMIT,
    EXCHANGE_SECONDS,
    EnvProfile,
    MeasurementError,
    StalledError,
    measure_vector,
    profile_env,
    run_isolated,
)
from fugu.vector.vector import Vector
from fugu.vector.worker import Setup

Backend = Literal["native", "serial", "threads", "process"]
Policy = float | Callable[[Any], Any]
ENVS_PER_CORE = (4, 16, 64)  # numbers of environments to try
NATIVE_ENVS_PER_CORE = (64, 256, 1024)
ROUNDS = 3  # of successive halving
TOLERANCE = 0.05  # a gain that is not worth a more complex configuration
PROFILE_SHARE = 1 / 6  # of the seconds
POLICY_SECONDS = 0.1  # to time a policy for one size of batch
START_LIMIT = 3.0  # seconds that a configuration may need to start, however short the tuning is
TRIAL_LIMIT = 10.0  # seconds that a trial may take beyond what is expected of it
NOTE_LENGTH = 2000


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


def find_configuration(
    make_vector: Callable[..., Vector],
    env: str | Callable[..., Any],
    num_envs: int | None,
    *,
    policy_seconds: Policy = 0.0,
    seconds: float = 6.0,
    seed: int = 0,
    max_memory: int | None = None,
    **make_options: Any,
) -> Tuning:
    """Do what `fugu.vector.autotune.tune` does, with `make_vector` to make vectors."""
    if not native.available:
        raise FuguError(f"tuning needs the native extension: {native.reason}")
    check_guard()
    options = dict(make_options)
    given = {
        **{name: options.pop(name, None) for name in ("backend", "num_workers", "batch_size")},
        "num_envs": num_envs,
        "group_size": options.get("group_size", 1),
        "max_memory": free_memory() // 2 if max_memory is None else max_memory,
        "policy_seconds": 0.0 if callable(policy_seconds) else policy_seconds,
        "seconds": seconds,
        "seed": seed,
        "start_method": options.get("start_method", "forkserver"),
    }
    request = from_tree(TuningRequest, given)
    factory = resolve(env, **dict(options.pop("env_kwargs", None) or {}))
    is_native = native_library(factory) is not None
    load_before, tuner = load(), Tuner(make_vector, factory, options, request, policy_seconds)
    trials = tuner.run(is_native=is_native)
    choice, reason = choose(trials)
    if choice.backend == "native":
        reason += " The native pool is the fastest way to step a native environment."
    source = getattr(env, "func", env)
    name = env if isinstance(env, str) else getattr(source, "__name__", type(source).__name__)
    return Tuning(str(name), choice, reason, tuner.profile, trials, usable_cores(), load_before)


class Tuner:
    """Measures an environment and its configurations, each time in a new process.

    Args:
        make_vector: `fugu.make`.
        factory: Makes one environment.
        options: Arguments of `fugu.make` that are not tuned.
        request: What the caller asks for.
        policy: The seconds of the policy for a batch, or the policy.

    Attributes:
        profile: One environment, measured alone.
    """

    def __init__(
        self,
        make_vector: Callable[..., Vector],
        factory: Callable[[], Any],
        options: dict[str, Any],
        request: TuningRequest,
        policy: Policy,
    ) -> None:
        self._make_vector, self._factory, self._options = make_vector, factory, options
        self._request, self._policy = request, policy
        self._policy_seconds: dict[int, float] = {}  # by size of batch
        self._stalled: set[str] = set()  # backends whose other configurations would stall too
        known = signature(make_vector).parameters  # the others are settings of fugu.emulate
        emulation = {key: value for key, value in options.items() if key not in known}
        setup = Setup(factory, emulation, options.get("step_timeout", 60.0))
        task = setup, request.seconds * PROFILE_SHARE, request.seed
        try:
            found = run_isolated(request.start_method, ENV_LIMIT, profile_env, *task)
        except MeasurementError as error:
            raise TuningError(
                "expected an environment that can be made, reset and stepped; got an error: "
                f"{error}. fugu check finds out what is wrong."
            ) from None
        self.profile, self._shapes = found

    def run(self, *, is_native: bool) -> tuple[Trial, ...]:
        """Race all configurations that are worth trying."""
        request, env_bytes = self._request, self.profile.env_bytes or 1
        candidates = find_candidates(request, env_bytes, usable_cores(), is_native=is_native)
        for size in {candidate.batch_size for candidate in candidates}:
            self._policy_seconds[size] = time_policy(self._policy, size, self._shapes)
        largest = max(self._policy_seconds)
        self.profile = replace(self.profile, policy_seconds=self._policy_seconds[largest])
        objections = {candidate: self._objection(candidate) for candidate in candidates}
        running = [candidate for candidate in candidates if not objections[candidate]]
        seconds = request.seconds * (1 - PROFILE_SHARE)
        trials = race(running, self._measure, seconds, request.seed)
        ruled_out = [Trial(one, "ruled out", note=why) for one, why in objections.items() if why]
        return (*trials, *ruled_out)

    def _objection(self, candidate: Configuration) -> str:
        """Return why a candidate need not be measured; empty if it should be."""
        policy_seconds = self._policy_seconds[candidate.batch_size]
        needed = expected_seconds(candidate, self.profile, policy_seconds)
        saved = saved_seconds(candidate, self.profile, policy_seconds)
        given = self._request.backend not in (None, "auto") or self._request.num_workers is not None
        if needed > max(self._request.seconds, START_LIMIT):
            return f"needs about {needed:.0f} s to start"
        if given or candidate.backend in ("native", "serial") or saved >= EXCHANGE_SECONDS:
            return ""
        return f"saves at most {1e6 * saved:.0f} us a step"  # exchanging batches costs more

    def _measure(self, candidate: Configuration, seconds: float) -> Trial:
        if candidate.backend in self._stalled:
            return Trial(candidate, "ruled out", note="this backend stalled in another trial")
        policy_seconds = self._policy_seconds[candidate.batch_size]
        needed = expected_seconds(candidate, self.profile, policy_seconds)
        options = {**self._options, **asdict(candidate)}
        task = self._make_vector, self._factory, options, policy_seconds, seconds
        limit = TRIAL_LIMIT + 2 * seconds + 5 * needed
        try:
            rate, faults = run_isolated(
                self._request.start_method, limit, measure_vector, *task, self._request.seed
            )
        except MeasurementError as error:
            if isinstance(error, StalledError):
                self._stalled.add(candidate.backend)
            return Trial(candidate, "failed", note=str(error)[-NOTE_LENGTH:])
        note = f"faults that were repaired by a restart: {faults}" if faults else ""
        return Trial(candidate, "measured", rate, note=note)


def find_candidates(
    request: TuningRequest, env_bytes: int, cores: int, *, is_native: bool
) -> list[Configuration]:
    """Return the configurations to try, the simplest first: serial, then by number of workers."""
    backends: tuple[Backend, ...] = ("native",) if is_native else ("serial", "threads", "process")
    if request.backend is not None and request.backend != "auto":
        backends = (request.backend,)
    most, group = request.max_memory // env_bytes, request.group_size
    if request.num_envs is None:
        workers, parts = [cores], [1, 2]
        factors = NATIVE_ENVS_PER_CORE if is_native else ENVS_PER_CORE
        wanted = [-(-cores * factor // group) * group for factor in factors]
        counts = [count for count in wanted if count <= most] or [max(most // group, 1) * group]
    elif request.num_envs <= most:
        workers, parts = [max(cores // 2, 1), cores], [1, 2, 4]
        counts = [request.num_envs]
    else:
        raise UsageError(
            f"num_envs: expected at most {most}, since an environment takes {env_bytes:,} bytes "
            f"and max_memory is {request.max_memory:,}; got {request.num_envs}."
        )
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


def expected_seconds(candidate: Configuration, profile: EnvProfile, policy_seconds: float) -> float:
    """Estimate the time to start a configuration and to step every environment once."""
    envs_each = candidate.num_envs / candidate.num_workers
    in_turn = 1 if profile.polled else envs_each  # those that are polled wait at the same time
    batches = candidate.num_envs / candidate.batch_size
    start_seconds = profile.start_seconds * envs_each
    return start_seconds + profile.step_seconds * in_turn + policy_seconds * batches


def saved_seconds(candidate: Configuration, profile: EnvProfile, policy_seconds: float) -> float:
    """Estimate how much faster than serial a step of every environment can be at best.

    Workers share the steps, and step some environments while the policy is busy with others.
    """
    serial = profile.step_seconds * candidate.num_envs
    batches = candidate.num_envs / candidate.batch_size
    hidden = min(policy_seconds * batches, serial) if batches > 1 else 0.0
    return serial * (1 - 1 / candidate.num_workers) + hidden


def time_policy(policy: Policy, batch_size: int, shapes: Sequence[tuple[int, int, str]]) -> float:
    """Return the seconds that a policy takes for a batch, measured unless they are given."""
    if not callable(policy):
        return float(policy)
    parts = tuple(np.zeros((batch_size * agents, size), dtype) for agents, size, dtype in shapes)
    observations = parts[0] if len(parts) == 1 else parts
    policy(observations)  # the first call may compile or allocate
    times: list[float] = []
    end = time.perf_counter() + POLICY_SECONDS
    while not times or time.perf_counter() < end:
        began = time.perf_counter()
        policy(observations)
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def race(
    candidates: Sequence[Configuration],
    measure: Callable[[Configuration, float], Trial],
    seconds: float,
    seed: int,
) -> tuple[Trial, ...]:
    """Measure configurations by successive halving and return the last trial of each.

    Each round has an equal share of the time and measures the faster half of the round before, in
    random order.
    """
    results: dict[Configuration, Trial] = {}
    running, generator = list(candidates), random.Random(seed)
    rounds = min(ROUNDS, len(running))
    for number in range(1, rounds + 1):
        share = seconds / rounds / max(len(running), 1)
        for candidate in generator.sample(running, len(running)):
            results[candidate] = replace(measure(candidate, share), rounds=number)
        running = [one for one in running if results[one].status == "measured"]
        running.sort(key=lambda one: results[one].steps_per_second, reverse=True)
        running = running[: max(2, (len(running) + 1) // 2)]
    return tuple(results[candidate] for candidate in candidates)


def choose(trials: Sequence[Trial]) -> tuple[Configuration, str]:
    """Return the fastest configuration of the last round, or a simpler one within 5 %, and why.

    Trials come with the simplest configuration first.

    >>> def trial(backend, workers, rate):
    ...     return Trial(Configuration(backend, 8, workers, 8), "measured", rate)
    >>> choose([trial("serial", 1, 97.0), trial("process", 2, 100.0)])[0].backend
    'serial'
    >>> choose([trial("serial", 1, 50.0), trial("process", 2, 100.0)])[1]
    '100 steps/s, the fastest.'
    """
    measured = [trial for trial in trials if trial.status == "measured"]
    if not measured:
        example = next((trial for trial in trials if trial.status == "failed"), trials[0])
        raise TuningError(
            "expected an environment that runs and starts in time; got one that failed in every "
            "trial. fugu check finds out why; if it is slow, give more seconds or a smaller "
            f"num_envs. {example.configuration}: {example.note}"
        )
    last = max(trial.rounds for trial in measured)
    finalists = [trial for trial in measured if trial.rounds == last]
    best = max(finalists, key=lambda trial: trial.steps_per_second)
    enough = (1 - TOLERANCE) * best.steps_per_second
    chosen = next(trial for trial in finalists if trial.steps_per_second >= enough)
    reason = "the fastest"
    if chosen is not best:
        fastest = f"{best.configuration}: {best.steps_per_second:,.0f}"
        reason = f"within {TOLERANCE:.0%} of the fastest ({fastest}) and simpler"
    return chosen.configuration, f"{chosen.steps_per_second:,.0f} steps/s, {reason}."


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
