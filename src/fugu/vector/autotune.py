"""Autotune: measure which backend, workers, environments and batches are fastest here."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from rich.bar import Bar
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fugu.envs.suite import KINDS
from fugu.track.text import size
from fugu.vector.make import make
from fugu.vector.measuring import EnvProfile
from fugu.vector.tuner import (
    Configuration,
    Policy,
    Trial,
    Tuning,
    TuningError,
    find_configuration,
)

__all__ = ["Configuration", "EnvProfile", "Trial", "Tuning", "TuningError", "tune"]

BAR_WIDTH = 20
_STYLES = {"measured": "", "failed": "red", "ruled out": "dim"}


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
    """Find the arguments of `fugu.make` that step an environment fastest on this machine.

    One environment is measured alone. Configurations are then compared by successive halving, each
    with a learner that is busy for `policy_seconds` between `recv` and `send`. The fastest is
    chosen, or a simpler one within 5 %. A native environment is only tried with the native pool.

    Every measurement has a process of its own, so that an environment that hangs or crashes is a
    row of the table.

    Args:
        env: As in `fugu.make`.
        num_envs: The number of environments; None tries several.
        policy_seconds: Seconds that the policy takes for a batch; or the policy, a function of a
            batch's observations (flat rows; with several groups a tuple of them), to be measured.
        seconds: Time to measure; starting the workers comes on top.
        seed: The seed of the environments, the actions and the order of the trials.
        max_memory: Bytes that all environments may take; None: half of the free memory.
        show: Print a table.
        **make_options: Other arguments of `fugu.make`. A `backend`, `num_workers` or `batch_size`
            given here is kept.

    Returns:
        A `Tuning`; `fugu.make(env, **tuning.make_options())` uses it.
    """
    progress = Console(stderr=True).status("Measuring", refresh_per_second=2)
    with progress if show else nullcontext():
        tuning = find_configuration(
            make,
            env,
            num_envs,
            policy_seconds=policy_seconds,
            seconds=seconds,
            seed=seed,
            max_memory=max_memory,
            **make_options,
        )
    if show:
        show_tuning(tuning)
    return tuning


def show_tuning(tuning: Tuning, console: Console | None = None) -> None:
    """Print what was measured, the configurations of the last round first, and the choice."""
    say = partial((console or Console()).print, soft_wrap=True, markup=False, highlight=False)
    profile, known = tuning.profile, tuning.profile.env_bytes
    memory = "unknown memory" if known is None else f"{size(known)} of memory"
    say(
        f"{tuning.env} on {tuning.cores} cores: {1e6 * profile.step_seconds:,.1f} us a step, "
        f"{1e3 * profile.start_seconds:,.1f} ms to start an environment, {memory} for each, "
        f"{1e3 * profile.policy_seconds:,.1f} ms for the policy."
    )
    say(_table(tuning))
    say(f"Choice: {tuning.env}: {tuning.choice}: {tuning.reason}", style="green")
    if tuning.choice.backend != "native" and (name := native_version(tuning.env)):
        say(f"fugu also has a native version, {name!r}, which its pool steps much faster.")
    if tuning.load > tuning.cores / 2:
        busy = f"Other programs were running (load {tuning.load:.1f})"
        say(f"{busy}: tune again when they are not.", style="yellow")


def _table(tuning: Tuning) -> Table:
    table = Table("backend")
    for name in ("workers", "environments", "batch", "rounds", "steps/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", min_width=BAR_WIDTH, overflow="fold")
    best = max(trial.steps_per_second for trial in tuning.trials)
    for trial in sorted(tuning.trials, key=lambda one: (-one.rounds, -one.steps_per_second)):
        one, rate = trial.configuration, f"{trial.steps_per_second:,.0f}"
        outcome: RenderableType = Bar(best, 0, trial.steps_per_second, width=BAR_WIDTH)
        if trial.status != "measured":
            rate, outcome = "", Text(f"{trial.status}: {headline(trial.note)}")
        elif trial.note:
            outcome = Text(trial.note)
        style = "bold green" if one == tuning.choice else _STYLES[trial.status]
        numbers = (one.num_workers, one.num_envs, one.batch_size, trial.rounds)
        table.add_row(one.backend, *map(str, numbers), rate, outcome, style=style)
    return table


def headline(note: str) -> str:
    """Return the line of a long note that says most: what was raised, else the first."""
    lines = [line for line in note.strip().splitlines() if line.strip()] or [""]
    raised = [line for line in lines[1:] if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return raised[-1] if raised else lines[0]


def native_version(env: str) -> str | None:
    """Return the native environment that has the same rules as a Gymnasium id, if there is one.

    >>> native_version("classic_control:MountainCar-v0"), native_version("LunarLander-v3")
    ('mountain_car', None)
    """
    names = {name.replace("_", ""): name for name in KINDS["Classic control"]}
    return names.get(env.rpartition(":")[2].partition("-v")[0].lower())
