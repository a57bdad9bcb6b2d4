"""The report of a sweep: its Pareto front, which settings mattered, and files to train with."""

from __future__ import annotations

import importlib
import importlib.util
import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from fugu.core.config import Tree, merge
from fugu.core.toml import dump_toml
from fugu.core.writing import write_whole
from fugu.sweep.plan import SweepPlan
from fugu.sweep.ranges import nest
from fugu.sweep.recovery import without_retried
from fugu.sweep.view import front_trials, trial_facts, trial_settings
from fugu.track.picture import COLOURS
from fugu.training.config import PRESETS

MIN_COMPLETE = 4  # complete trials that importances are computed from


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
