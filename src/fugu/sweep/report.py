"""What a user sees of a sweep: its progress, and its report with the Pareto front."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fugu.core.config import Tree, merge
from fugu.core.toml import dump_toml
from fugu.core.writing import write_whole
from fugu.sweep.plan import SearchConfig, SweepPlan
from fugu.sweep.ranges import nest
from fugu.sweep.recovery import without_retried
from fugu.sweep.sampler import INTERRUPTED, pareto_front
from fugu.track.curves import COLOURS
from fugu.track.text import duration, number
from fugu.training.config import PRESETS

if TYPE_CHECKING:
    from fugu.sweep.controller import RunningTrial

MIN_COMPLETE = 4  # complete trials that importances are computed from
REFRESH_SECONDS = 1.0
MAX_FRONT = 8  # trials of the front that are shown while the sweep runs
STATES = {
    TrialState.COMPLETE: ("complete", "green"),
    TrialState.PRUNED: ("pruned", "yellow"),
    TrialState.FAIL: ("failed", "red"),
}


# ------------------------------------------------------------------ progress


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


# ------------------------------------------------------------------ report


@dataclass(frozen=True)
class SweepReport:
    """The results of a sweep.

    Attributes:
        name: Name of the sweep.
        env: The environment that was trained on.
        complete: Number of trials that were trained to their end.
        pruned: Number of trials that were stopped early.
        failed: Number of trials that crashed, diverged, were killed or reported no score.
        best: Number of the trial with the best score; None if no trial is complete.
        score: Score of that trial.
        cost: Cost of that trial.
        front: The Pareto front: trials that no other trial beats in score and cost, cheapest first.
        importances: Shares of each setting in the variance of the score, and of the cost.
        folder: The folder with all of it.
    """

    name: str
    env: str
    complete: int
    pruned: int
    failed: int
    best: int | None
    score: float | None
    cost: float | None
    front: list[dict[str, Any]]
    importances: dict[str, dict[str, float]]
    folder: str


def write_report(plan: SweepPlan, study: Study, folder: Path) -> SweepReport:
    """Write `report.json`, `best.toml`, a file for each trial of the front, and `pareto.png`."""
    trials = without_retried(study.get_trials(deepcopy=False))
    front = front_trials(plan.search, trials)
    best = front[-1] if front else None  # the most expensive of the front has the best score
    states = [trial.state for trial in trials]
    report = SweepReport(
        name=plan.name,
        env=plan.env,
        complete=states.count(TrialState.COMPLETE),
        pruned=states.count(TrialState.PRUNED),
        failed=states.count(TrialState.FAIL),
        best=best.number if best else None,
        score=best.values[0] if best else None,
        cost=best.values[1] if best else None,
        front=[trial_facts(trial) for trial in front],
        importances=importances(plan, study),
        folder=str(folder),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "report.json", json.dumps(asdict(report), indent=2) + "\n")
    for trial in front:
        _write_settings(plan, trial, folder / "front" / f"trial-{trial.number:04d}.toml")
    if best is not None:
        _write_settings(plan, best, folder / "best.toml")
    if trials and importlib.util.find_spec("matplotlib") is not None:
        draw_front(plan, trials, folder / "pareto.png")
    return report


def importances(plan: SweepPlan, study: Study) -> dict[str, dict[str, float]]:
    """Return the importance of each setting, by PED-ANOVA; empty with too few trials."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    paths = {each.parameter: each.path for each in plan.ranges}
    if len(complete) < MIN_COMPLETE or len(paths) < 2:
        return {}
    sign = -1.0 if plan.search.maximize else 1.0  # the evaluator takes low values for good ones
    found = {}
    for index, weight, title in ((0, sign, "score"), (1, 1.0, "cost")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shares = get_param_importances(
                study,
                evaluator=PedAnovaImportanceEvaluator(target_quantile=0.25),
                target=lambda trial, i=index, w=weight: w * trial.values[i],  # type: ignore[misc]
            )
        found[title] = {paths[name]: round(share, 4) for name, share in shares.items()}
    return found


def draw_front(plan: SweepPlan, trials: list[FrozenTrial], path: Path) -> None:
    """Write a picture of all trials, with the Pareto front as a line."""
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    pruned = [t for t in trials if t.state == TrialState.PRUNED and "cost" in t.user_attrs]
    if pruned:
        points = [(trial.user_attrs["cost"], trial.user_attrs["score"]) for trial in pruned]
        axes.scatter(*zip(*points, strict=True), marker="x", color="#adb5bd", label="pruned")
    if complete:
        scores, costs = zip(*(trial.values for trial in complete), strict=True)
        numbers = [trial.number for trial in complete]
        dots = axes.scatter(costs, scores, c=numbers, cmap="viridis", s=28, label="complete")
        figure.colorbar(dots, ax=axes, label="trial")
        front = front_trials(plan.search, trials)
        scores, costs = zip(*(trial.values for trial in front), strict=True)
        axes.step(costs, scores, where="post", color=COLOURS[1], lw=1.8, label="front", zorder=0)
        for trial, score, cost in zip(front, scores, costs, strict=True):
            place = (4, 4)
            axes.annotate(str(trial.number), (cost, score), place, textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlabel(plan.search.cost)
    axes.set_ylabel(plan.search.metric.replace("_", " "))
    axes.set_title(f"{plan.name}: {plan.env}, {len(trials)} trials, sampler {plan.search.sampler}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e5e8eb", lw=0.8)
    axes.set_axisbelow(True)
    if complete or pruned:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=140)


def _write_settings(plan: SweepPlan, trial: FrozenTrial, path: Path) -> None:
    """Write the settings with which `fugu train ENV --config` trains as a trial did."""
    preset = PRESETS[plan.preset] if plan.preset else {}
    tree: Tree = merge(preset, plan.given, nest(trial_settings(trial.user_attrs)))
    tree.get("run", {}).pop("name", None)  # each run has its own
    score, cost = trial.values
    head = (
        f"# Trial {trial.number} of the sweep {plan.name}: {plan.search.metric} {score:.6g}, "
        f"{plan.search.cost} {cost:.6g}.\n"
        f"# fugu train {plan.env} --config {path.name}\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, head + dump_toml(tree))
