"""Candidates: which settings are worth trying, judged by the profile alone. Pure functions."""

from __future__ import annotations

from math import sqrt

from fugu.core.errors import UsageError
from fugu.vector.tuning.records import BACKENDS, Backend, Machine, Profile, Setting
from fugu.vector.tuning.request import Request

HANDOVER = 10e-6  # seconds to hand a batch over and back, at the least; measured with idle workers
THREAD_GAIN = 1.3  # of two threads over one, below which stepping holds the GIL
COPIES_PER_CORE = (4, 16, 64)  # to try if nobody says how many
LEAST_SECONDS = 3.0  # that a setting may need to begin, however short the tuning is to be
WORKER_START = 0.1  # seconds, about, until a new process is ready


def propose(request: Request, profile: Profile, machine: Machine) -> list[Setting]:
    """All settings in question, the simpler ones first; `objection` says which not to try."""
    found = []
    for num_envs in copies(request, profile, machine):
        for backend in BACKENDS:
            if request.backend in (None, backend):
                found += _of_backend(backend, num_envs, request, profile, machine)
    return sorted(found, key=lambda setting: setting.complexity)


def copies(request: Request, profile: Profile, machine: Machine) -> list[int]:
    """Numbers of copies to try: the one asked for, or powers of two that fit into memory."""
    most = request.max_memory // profile.bytes_per_copy
    if request.num_envs is not None:
        if request.num_envs > most:
            raise UsageError(
                f"num_envs: given {request.num_envs} copies of {profile.bytes_per_copy:,} bytes; "
                f"allowed: {most} within max_memory={request.max_memory:,}. Give fewer copies, or "
                "a larger max_memory."
            )
        return [request.num_envs]
    group = request.group_size
    cores = 1 << (machine.cores - 1).bit_length()
    wanted = [-(-cores * factor // group) * group for factor in COPIES_PER_CORE]
    return [count for count in wanted if count <= most] or [_largest_power(most // group) * group]


def _largest_power(most: int) -> int:
    return 1 << max(most.bit_length() - 1, 0)


def _of_backend(
    backend: Backend, num_envs: int, request: Request, profile: Profile, machine: Machine
) -> list[Setting]:
    if backend == "serial":
        alone = request.num_workers in (None, 1)
        return [Setting(backend, num_envs, 1, request.batch_size or num_envs)] if alone else []
    counts = worker_counts(num_envs, request, profile, machine)
    if backend == "threads" and request.backend is None and not _threads_help(profile):
        return [Setting(backend, num_envs, counts[-1], request.batch_size or num_envs)]
    return [
        Setting(backend, num_envs, workers, batch_size)
        for workers in counts
        for batch_size in batch_sizes(num_envs, request, quarters=workers == counts[-1])
    ]


def worker_counts(num_envs: int, request: Request, profile: Profile, machine: Machine) -> list[int]:
    """Numbers of workers to try, the fewest first.

    With more workers than cores the slow steps of one hide behind the steps of another, if steps
    differ much even when those of all copies of a worker are added up.
    """
    if request.num_workers is not None:
        return [request.num_workers]
    cores = machine.cores
    counts = {cores} if request.num_envs is None else {1, max(cores // 2, 1), cores}
    if profile.steps.spread / sqrt(max(num_envs / cores, 1)) > 1:
        counts.add(2 * cores)
    return sorted({min(count, num_envs) for count in counts})


def batch_sizes(num_envs: int, request: Request, *, quarters: bool) -> list[int]:
    """Sizes of batches to try: all, half, and a quarter of the copies."""
    if request.batch_size is not None:
        return [request.batch_size]
    parts = (1, 2, 4) if quarters and request.num_envs is not None else (1, 2)
    return [num_envs // part for part in parts if num_envs % part == 0]


def objection(setting: Setting, request: Request, profile: Profile, policy_seconds: float) -> str:
    """Why a setting need not be tried; empty if it should be."""
    needed = needed_seconds(setting, profile, policy_seconds)
    if needed > max(request.seconds, LEAST_SECONDS):
        return f"needs about {needed:.0f} s to begin and to step once; seconds={request.seconds:g}"
    if setting.backend == "serial" or request.backend is not None:
        return ""
    if setting.backend == "threads" and not _threads_help(profile):
        if profile.thread_gain is None:
            return "two copies could not be stepped in two threads"
        return f"stepping holds the GIL: two threads are {profile.thread_gain:.2f}x one"
    saved = most_saved(setting, profile, policy_seconds)
    if saved <= 0:
        return "one worker that the learner waits for saves nothing"
    if saved < HANDOVER:
        return f"saves {saved * 1e6:.1f} us a round; a hand-over takes {HANDOVER * 1e6:.0f}"
    return ""


def _threads_help(profile: Profile) -> bool:
    return profile.thread_gain is not None and profile.thread_gain >= THREAD_GAIN


def needed_seconds(setting: Setting, profile: Profile, policy_seconds: float) -> float:
    """About how long it takes to begin and to step every copy once."""
    copies_each = setting.num_envs / setting.num_workers
    waits = 1 if profile.polled else copies_each  # those that are polled wait together
    start = WORKER_START if setting.backend == "process" else 0.0
    begin = (profile.make_seconds + profile.reset_seconds) * copies_each
    rounds = setting.num_envs / setting.batch_size
    return start + begin + profile.steps.mean * waits + policy_seconds * rounds


def most_saved(setting: Setting, profile: Profile, policy_seconds: float) -> float:
    """The most that workers can save over serial, in seconds a round of all copies.

    Workers share the steps; and while the learner is busy with one batch, the others are stepped.
    """
    serial = profile.steps.mean * setting.num_envs
    rounds = setting.num_envs / setting.batch_size
    hidden = min(policy_seconds * rounds, serial) if rounds > 1 else 0.0
    return serial * (1 - 1 / setting.num_workers) + hidden
