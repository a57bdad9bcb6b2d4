"""The tuner: profile, propose, try, choose."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fugu import native
from fugu.core.errors import FuguError, UsageError
from fugu.envs.resolve import resolve
from fugu.vector.crews import check_guard
from fugu.vector.tuning.bench import Bench, BenchError, StalledError
from fugu.vector.tuning.candidates import needed_seconds, objection, propose
from fugu.vector.tuning.choosing import choose
from fugu.vector.tuning.policies import Policy, PolicyClock
from fugu.vector.tuning.profiling import Rows, measure_thread_gain, profile_copy
from fugu.vector.tuning.records import Machine, Profile, Setting, Trial, Tuning, TuningError
from fugu.vector.tuning.request import Request, is_integer
from fugu.vector.tuning.trials import MakeVector, Timing, time_setting
from fugu.vector.worker import Setup

PROFILE_SHARE = 1 / 5  # of the seconds, but at most:
PROFILE_SECONDS = 1.0
PROFILE_LIMIT = 60.0  # after which an environment counts as hung
VISITS = 3  # to each setting, so that what else runs for a while here spoils no setting's windows
TRIAL_LIMIT = 10.0  # seconds that a trial may take beyond what is expected of it
NOTE_LENGTH = 2000
VECTOR_OPTIONS = (
    "ordered",
    "group_size",
    "start_method",
    "step_timeout",
    "start_timeout",
    "max_restarts",
    "check_finite",
    "poison",
)

Report = Callable[[str, int, int], None]
"""Is told what begins now, how many things are done, and how many there are."""


def find_setting(
    make_vector: MakeVector,
    env: str | Callable[..., Any],
    num_envs: int | None,
    *,
    policy_seconds: Policy = 0.0,
    seconds: float = 6.0,
    seed: int = 0,
    max_memory: int | None = None,
    report: Report = lambda text, done, total: None,
    **make_options: Any,
) -> Tuning:
    """What `fugu.vector.autotune.tune` does, with `make_vector` to make vectors and no pictures."""
    if not native.available:
        raise FuguError(f"tuning needs the native extension: {native.reason}")
    check_guard()
    if not is_integer(seed):
        raise UsageError(f"seed: given {seed!r}; allowed: an integer.")
    machine, options = Machine.here(), dict(make_options)
    backend = options.pop("backend", None)
    request = Request(
        num_envs,
        None if backend == "auto" else backend,
        options.pop("num_workers", None),
        options.pop("batch_size", None),
        options.get("group_size", 1),
        machine.memory // 2 if max_memory is None else max_memory,
        seconds,
    )
    clock = PolicyClock(policy_seconds)  # refuses what is no time, before much is done
    factory = resolve(env, **dict(options.pop("env_kwargs", None) or {}))
    emulation = {key: value for key, value in options.items() if key not in VECTOR_OPTIONS}
    setup = Setup(factory, emulation, options.get("step_timeout", 60.0))
    run_trial = partial(time_setting, make_vector, factory)
    with Bench(options.get("start_method", "forkserver")) as bench:
        tuner = Tuner(bench, setup, partial(run_trial, options=options), request, int(seed), report)
        profile, trials = tuner.run(machine, clock)
    choice, reason = choose(trials)
    return Tuning(_name(env), profile, trials, choice, reason, machine, float(seconds), int(seed))


class Tuner:
    """Measures one environment."""

    def __init__(
        self,
        bench: Bench,
        setup: Setup,
        run_trial: Callable[..., Timing],
        request: Request,
        seed: int,
        report: Report,
    ) -> None:
        self._bench, self._setup, self._run_trial = bench, setup, run_trial
        self._request, self._seed, self._report = request, seed, report
        self._stalled: set[str] = set()  # backends that would only take more time

    def run(self, machine: Machine, clock: PolicyClock) -> tuple[Profile, tuple[Trial, ...]]:
        """Profile one copy, then try what is worth it."""
        self._report("profiling one copy", 0, 1)
        profile, groups = self._profile()
        settings = propose(self._request, profile, machine)
        busy = {s.batch_size: clock.seconds(s.batch_size, groups) for s in settings}
        profile = replace(profile, policy_seconds=busy[max(busy)])
        planned = [self._plan(setting, profile, busy[setting.batch_size]) for setting in settings]
        return profile, self._try_all(planned, profile)

    def _plan(self, setting: Setting, profile: Profile, busy: float) -> Trial:
        why = objection(setting, self._request, profile, busy)
        return Trial(setting, "ruled out" if why else "planned", policy_seconds=busy, note=why)

    def _try_all(self, planned: list[Trial], profile: Profile) -> tuple[Trial, ...]:
        trials = list(planned)
        visits = self._visits(planned, profile)
        for done, (i, seconds) in enumerate(visits):
            self._report(str(trials[i].setting), done + 1, len(visits) + 1)
            if trials[i].status in ("planned", "measured"):
                trials[i] = self._try(trials[i], profile, seconds)
        return tuple(trials)

    def _visits(self, planned: list[Trial], profile: Profile) -> list[tuple[int, float]]:
        """Whom to try, by number, and for how long, some times over, each time in another order."""
        open_ones = [i for i, trial in enumerate(planned) if trial.status == "planned"]
        share = (self._request.seconds - self._profile_seconds) / max(len(open_ones), 1)
        rounds: list[list[tuple[int, float]]] = [[] for _ in range(VISITS)]
        for i in open_ones:
            trial = planned[i]
            slow = needed_seconds(trial.setting, profile, trial.policy_seconds) > share
            count = 1 if slow else VISITS
            for visits in rounds[:count]:
                visits.append((i, share / count))
        generator = random.Random(self._seed)
        for visits in rounds:
            generator.shuffle(visits)
        return [visit for visits in rounds for visit in visits]

    def _try(self, trial: Trial, profile: Profile, seconds: float) -> Trial:
        if trial.setting.backend in self._stalled:
            why = "this backend stalled in another trial"
            return Trial(trial.setting, "ruled out", policy_seconds=trial.policy_seconds, note=why)
        expected = needed_seconds(trial.setting, profile, trial.policy_seconds)
        task = partial(
            self._run_trial,
            setting=trial.setting,
            policy_seconds=trial.policy_seconds,
            seconds=seconds,
            seed=self._seed,
        )
        try:
            timing = self._bench.run(TRIAL_LIMIT + 2 * seconds + 5 * expected, task)
        except BenchError as error:
            if isinstance(error, StalledError):
                self._stalled.add(trial.setting.backend)
            note = str(error)[-NOTE_LENGTH:]
            return Trial(trial.setting, "failed", policy_seconds=trial.policy_seconds, note=note)
        windows = trial.windows + timing.windows
        return replace(
            trial,
            status="measured",
            steps_per_second=float(np.median(windows)),
            windows=windows,
            start_seconds=max(trial.start_seconds, timing.start_seconds),
            note=f"{timing.faults} broken steps were mended" if timing.faults else trial.note,
        )

    @property
    def _profile_seconds(self) -> float:
        return min(self._request.seconds * PROFILE_SHARE, PROFILE_SECONDS)

    def _profile(self) -> tuple[Profile, list[Rows]]:
        seconds = self._profile_seconds
        try:
            profile, groups = self._bench.run(
                PROFILE_LIMIT, profile_copy, self._setup, seconds * 0.7, self._seed
            )
        except BenchError as error:
            raise TuningError(
                f"given an environment that cannot be profiled: {error}. Allowed: one that can be "
                "made, reset and stepped. fugu check tells what is wrong with it."
            ) from None
        try:
            gain = self._bench.run(
                PROFILE_LIMIT,
                measure_thread_gain,
                self._setup,
                profile.steps.mean,
                seconds * 0.3,
                self._seed,
            )
        except BenchError as error:
            note = f"two copies in two threads failed: {error}"
            return replace(profile, notes=(*profile.notes, note[:NOTE_LENGTH])), groups
        return replace(profile, thread_gain=gain), groups


def _name(env: Any) -> str:
    """What to call the environment."""
    if isinstance(env, str):
        return env
    inner = env.func if isinstance(env, partial) else env
    return str(getattr(inner, "__name__", type(inner).__name__))
