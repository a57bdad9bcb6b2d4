"""Choosing: the best of what was measured, or something simpler that is as good. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from fugu.vector.tuning.records import Setting, Trial, TuningError

TOLERANCE = 0.05  # a share of the best rate that is not worth a more complex setting


def choose(trials: Sequence[Trial]) -> tuple[Setting, str]:
    """The setting to use, and why.

    >>> def trial(backend, workers, rate):
    ...     return Trial(Setting(backend, 8, workers, 8), "measured", rate)
    >>> choose([trial("serial", 1, 97.0), trial("process", 2, 100.0)])[0].backend
    'serial'
    >>> choose([trial("serial", 1, 50.0), trial("process", 2, 100.0)])[1]
    '100 steps/s, the fastest, 2.0x serial.'
    """
    measured = [trial for trial in trials if trial.status == "measured"]
    if not measured:
        raise TuningError(_nothing(trials))
    best = max(measured, key=lambda trial: trial.steps_per_second)
    enough = (1 - TOLERANCE) * best.steps_per_second
    good = [trial for trial in measured if trial.steps_per_second >= enough]
    chosen = min(good, key=lambda trial: trial.setting.complexity)
    return chosen.setting, _reason(chosen, best, measured)


def _reason(chosen: Trial, best: Trial, measured: list[Trial]) -> str:
    rate = f"{chosen.steps_per_second:,.0f} steps/s"
    if len(measured) == 1:
        return f"{rate}, the only setting that was measured."
    if chosen is not best:
        return (
            f"{rate}, within {TOLERANCE:.0%} of the fastest ({best.setting}: "
            f"{best.steps_per_second:,.0f}) and simpler."
        )
    serial = [trial for trial in measured if trial.setting.backend == "serial"]
    if chosen in serial or not serial:
        return f"{rate}, the fastest."
    rival = max(serial, key=lambda trial: trial.steps_per_second)
    return f"{rate}, the fastest, {best.steps_per_second / rival.steps_per_second:.1f}x serial."


def _nothing(trials: Sequence[Trial]) -> str:
    """Why nothing is left to choose from."""
    failed = [trial for trial in trials if trial.status == "failed"]
    if failed:
        return (
            f"given an environment that failed in every trial ({len(failed)}); allowed: one that "
            f"runs in some. fugu check tells what is wrong with it. {failed[0].setting}: "
            f"{failed[0].note}"
        )
    reasons = sorted({trial.note for trial in trials})
    return (
        "given settings that were all ruled out; allowed: at least one to measure. Give more "
        f"seconds or fewer num_envs. {'; '.join(reasons)}"
    )
