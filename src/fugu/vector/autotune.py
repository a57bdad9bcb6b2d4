"""Autotune: measure which backend, workers, copies and batches step an environment fastest here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fugu.vector.making import make
from fugu.vector.tuning.policies import Policy
from fugu.vector.tuning.records import Machine, Profile, Setting, Trial, Tuning, TuningError
from fugu.vector.tuning.showing import progress, show_tuning
from fugu.vector.tuning.tuner import find_setting

__all__ = ["Machine", "Profile", "Setting", "Trial", "Tuning", "TuningError", "tune"]


def tune(
    env: str | Callable[..., Any],
    num_envs: int | None = None,
    *,
    policy_seconds: Policy = 0.0,
    seconds: float = 6.0,
    seed: int = 0,
    max_memory: int | None = None,
    show: bool = True,
    **make_options: Any,
) -> Tuning:
    """Find the settings of `fugu.make` that step an environment fastest on this machine.

    One copy is profiled alone. What the profile does not rule out is then tried, each setting for
    an equal share of the time, in three visits in random order, under a learner that is busy for
    `policy_seconds` between `recv` and `send`. The fastest is chosen, or a simpler one within 5 %.

    All of it runs in a process of its own, so that an environment that hangs or crashes is a row
    of the table, its memory is seen apart, and this process stays as it is.

    Args:
        env: As in `fugu.make`.
        num_envs: Copies; None tries some powers of two.
        policy_seconds: Seconds that the policy takes for a batch; or the policy itself, to be
            called with the observations of a batch (flat rows; with several groups a tuple of
            them) and measured here.
        seconds: For the measuring; starting the workers comes on top.
        seed: Of the resets, the actions and the order of the trials.
        max_memory: Bytes that all copies may take; half of what is free if not given.
        show: Show progress, tables and a plot.
        **make_options: Other settings of `fugu.make`. A `backend`, `num_workers` or `batch_size`
            given here is kept.

    Returns:
        A `Tuning`; `fugu.make(env, **tuning.make_options())` uses it.
    """
    with progress(show) as report:
        tuning = find_setting(
            make,
            env,
            num_envs,
            policy_seconds=policy_seconds,
            seconds=seconds,
            seed=seed,
            max_memory=max_memory,
            report=report,
            **make_options,
        )
    if show:
        show_tuning(tuning)
    return tuning
