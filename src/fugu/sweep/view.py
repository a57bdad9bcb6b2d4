"""The progress of a sweep, on a terminal or as lines of text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fugu.sweep.plan import SearchConfig, SweepPlan
from fugu.sweep.sampler import INTERRUPTED, pareto_front
from fugu.track.text import duration, number

if TYPE_CHECKING:
    from fugu.sweep.controller import RunningTrial

REFRESH_SECONDS = 1.0
MAX_FRONT = 8  # trials of the front that are shown while the sweep runs
STATES = {
    TrialState.COMPLETE: ("complete", "green"),
    TrialState.PRUNED: ("pruned", "yellow"),
    TrialState.FAIL: ("failed", "red"),
}


class SweepView:
    """Shows a sweep on a terminal; elsewhere, writes a line for each finished trial to stderr.

    Args:
        plan: The plan of the sweep.
        show: Whether to show anything.
        console: Where to draw; None: standard output.
    """

    def __init__(self, plan: SweepPlan, show: bool = True, console: Console | None = None) -> None:
        self._plan, self._show = plan, show
        console = console or Console()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._started, self._due = time.monotonic(), 0.0

    def __enter__(self) -> SweepView:
        """Start to draw."""
        if self._show and self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last picture on the screen."""
        if self._live is not None:
            self._live.stop()

    def update(self, trials: Sequence[FrozenTrial], running: Sequence[RunningTrial]) -> None:
        """Draw the state of the sweep, at most once a second."""
        now = time.monotonic()
        if self._show and self._live is not None and now >= self._due:
            self._due = now + REFRESH_SECONDS
            self._live.update(self.render(trials, running), refresh=True)

    def log(self, trial: FrozenTrial) -> None:
        """Report a trial that has ended."""
        if self._show and self._live is None:
            print(trial_line(self._plan, trial), file=sys.stderr, flush=True)

    def render(
        self, trials: Sequence[FrozenTrial], running: Sequence[RunningTrial]
    ) -> RenderableType:
        """Return the current picture."""
        states = [trial.state for trial in trials if not trial.user_attrs.get(INTERRUPTED)]
        done, total = sum(state.is_finished() for state in states), self._plan.search.trials
        spent = duration(time.monotonic() - self._started)
        head = Text.assemble(
            (f"{self._plan.name}  ", "bold"),
            f"{done} of {total} trials  {spent}  ",
            *(
                (f"{states.count(state)} {word}  ", color)
                for state, (word, color) in STATES.items()
            ),
        )
        bar = ProgressBar(total=max(total, done, 1), completed=done, width=60)
        table = _table("\nrunning", "\nsteps", "\nscore", "\ntime", "\nsettings")
        for each in running:
            table.add_row(
                str(each.trial.number),
                f"{each.curve.step / max(each.total_steps, 1):.0%}",
                number(each.curve.score) if each.curve.points else "-",
                duration(time.monotonic() - each.started),
                settings_line(trial_settings(each.trial.user_attrs)),
            )
        front = [trial_facts(trial) for trial in front_trials(self._plan.search, trials)]
        return Group(head, bar, table, front_table(self._plan.search, front[-MAX_FRONT:]))


def front_trials(search: SearchConfig, trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the Pareto front: no other trial is both better and cheaper. Cheapest first."""
    sign = 1.0 if search.maximize else -1.0
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    values = np.array([trial.values for trial in complete]).reshape(-1, 2)
    return [complete[i] for i in pareto_front(sign * values[:, 0], values[:, 1])]


def trial_facts(trial: FrozenTrial) -> dict[str, Any]:
    """Return what a report says about a complete trial."""
    settings, run = trial_settings(trial.user_attrs), trial.user_attrs.get("run")
    score, cost = trial.values
    return {
        "trial": trial.number, "score": score, "cost": cost, "settings": settings, "run": run
    }  # fmt: skip


def front_table(search: SearchConfig, front: Iterable[Mapping[str, Any]]) -> Table:
    """Return a table of the Pareto front, whose entries are those of `trial_facts`."""
    table = _table("\nfront", f"\n{search.metric}", f"\n{search.cost}", "\nsettings")
    for each in front:
        cost, line = cost_text(search, each["cost"]), settings_line(each["settings"])
        table.add_row(str(each["trial"]), number(each["score"]), cost, line)
    return table


def trial_line(plan: SweepPlan, trial: FrozenTrial) -> str:
    """Return the result of a trial as one line."""
    facts, (word, _) = trial.user_attrs, STATES[trial.state]
    if trial.state == TrialState.FAIL:
        result = facts.get("failure", "")
    else:
        cost = cost_text(plan.search, facts["cost"])
        result = f"{plan.search.metric} {number(facts['score'])} for {cost}"
    settings = settings_line(trial_settings(facts))
    return f"{plan.name}: trial {trial.number} {word}: {result} ({settings})"


def trial_settings(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a trial's attributes hold, by their paths."""
    settings: dict[str, Any] = json.loads(facts.get("settings", "{}"))
    return settings


def settings_line(settings: Mapping[str, Any]) -> str:
    """Return settings as one line.

    >>> settings_line({"train.gamma": 0.98765432, "train.epochs": 4, "policy.core": "lstm"})
    'gamma 0.9877, epochs 4, core lstm'
    """
    return ", ".join(f"{path.rpartition('.')[2]} {_short(v)}" for path, v in settings.items())


def cost_text(search: SearchConfig, cost: float) -> str:
    """Return a cost with its unit."""
    return f"{number(cost)} s" if search.cost == "seconds" else f"{cost:,.0f} steps"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns[:-1]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    return table


def _short(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value) if is_number else str(value)
