"""How a sweep goes, on the terminal while it runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fugu.sweep.pareto import pareto_front
from fugu.sweep.plan import Plan
from fugu.track.text import duration, number

if TYPE_CHECKING:
    from fugu.sweep.conductor import Live

REFRESH_SECONDS = 1.0
SHOWN = 8  # trials of the front
COLOURS = {"COMPLETE": "green", "PRUNED": "yellow", "FAIL": "red", "RUNNING": "cyan"}


class View:
    """Shows a sweep; where the output is no terminal, a line for each trial goes to stderr.

    Args:
        plan: The sweep.
        show: Whether to show anything.
        console: Where to draw; the process's own output if not given.
    """

    def __init__(self, plan: Plan, show: bool = True, console: Console | None = None) -> None:
        self._plan, self._show = plan, show
        self._console = console or Console()
        self._screen: Screen | None = None
        self._began, self._due = time.monotonic(), 0.0

    def __enter__(self) -> View:
        """Begin to draw."""
        if self._show and self._console.is_terminal:
            self._screen = Screen(console=self._console, auto_refresh=False)
            self._screen.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the last picture on the screen."""
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    def update(self, trials: Sequence[FrozenTrial], live: Sequence[Live]) -> None:
        """Draw how it stands, at most once a second."""
        now = time.monotonic()
        if self._screen is None or now < self._due:
            return
        self._due = now + REFRESH_SECONDS
        self._screen.update(self.picture(trials, live), refresh=True)

    def tell(self, trial: FrozenTrial) -> None:
        """Say what came of a trial."""
        if self._show and self._screen is None:
            print(plain_line(self._plan, trial), file=sys.stderr, flush=True)

    def picture(self, trials: Sequence[FrozenTrial], live: Sequence[Live]) -> RenderableType:
        """What would be drawn now."""
        states = [trial.state for trial in trials if not trial.user_attrs.get("cut_off")]
        done = sum(state.is_finished() for state in states)
        total = self._plan.search.trials
        head = Text.assemble(
            (f"{self._plan.name}  ", "bold"),
            f"{done} of {total} trials  {duration(time.monotonic() - self._began)}  ",
            *(
                (f"{states.count(state)} {word}  ", colour)
                for state, word, colour in (
                    (TrialState.COMPLETE, "complete", "green"),
                    (TrialState.PRUNED, "pruned", "yellow"),
                    (TrialState.FAIL, "failed", "red"),
                )
            ),
        )
        bar = ProgressBar(total=max(total, done, 1), completed=done, width=60)
        return Group(head, bar, self._live_table(live), front_table(self._plan, trials, SHOWN))

    def _live_table(self, live: Sequence[Live]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("\nrunning", "\nsteps", "\nscore", "\ntime"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("\nsettings", overflow="fold")
        for each in live:
            share = each.curve.step / max(each.total_steps, 1)
            score = number(each.curve.score) if each.curve.points else "-"
            spent = duration(time.monotonic() - each.began)
            row = (str(each.trial.number), f"{share:.0%}", score, spent)
            table.add_row(*row, Text(settings_line(each.trial.user_attrs)))
        return table


def front_table(plan: Plan, trials: Sequence[FrozenTrial], most: int | None = None) -> Table:
    """The trials that no other beats, cheapest first."""
    front = front_trials(plan, trials)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("\nfront", f"\n{plan.search.metric}", f"\n{plan.search.cost}"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("\nsettings", overflow="fold")
    for trial in front[-most:] if most else front:
        score, cost = trial.values
        row = (str(trial.number), number(score), _cost(plan, cost))
        table.add_row(*row, Text(settings_line(trial.user_attrs)))
    return table


def front_trials(plan: Plan, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that no other beats in both score and cost, cheapest first."""
    whole = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    sign = 1.0 if plan.search.maximise else -1.0
    scores, costs = [sign * t.values[0] for t in whole], [t.values[1] for t in whole]
    return [whole[i] for i in pareto_front(scores, costs)]


def settings_line(told: dict[str, Any]) -> str:
    """Settings in one line.

    >>> settings_line({"settings": '{"train.gamma": 0.98765432, "train.epochs": 4}'})
    'gamma 0.9877, epochs 4'
    """
    settings = json.loads(told.get("settings", "{}"))
    return ", ".join(f"{path.rpartition('.')[2]} {_short(v)}" for path, v in settings.items())


def plain_line(plan: Plan, trial: FrozenTrial) -> str:
    """What came of a trial, in one line."""
    told = trial.user_attrs
    if trial.state == TrialState.FAIL:
        what = f"failed: {told.get('failure', '')}"
    else:
        word = "complete" if trial.state == TrialState.COMPLETE else "pruned"
        cost = _cost(plan, told["cost"])
        what = f"{word}: {plan.search.metric} {number(told['score'])} for {cost}"
    return f"{plan.name}: trial {trial.number} {what} ({settings_line(told)})"


def _cost(plan: Plan, cost: float) -> str:
    return f"{number(cost)} s" if plan.search.cost == "seconds" else f"{cost:,.0f} steps"


def _short(value: Any) -> str:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value) if numeric else str(value)
