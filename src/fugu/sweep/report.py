"""What came of a sweep: a picture of the front, what mattered, and the best settings as a file."""

from __future__ import annotations

import importlib
import importlib.util
import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from fugu.core.config import Tree, merge
from fugu.core.toml import dump_toml
from fugu.core.writing import write_whole
from fugu.sweep.conductor import counted
from fugu.sweep.plan import Plan
from fugu.sweep.showing import front_trials
from fugu.sweep.space import nested
from fugu.track.picture import COLOURS
from fugu.training.config import PRESETS

ENOUGH = 4  # complete trials for importances to say something


@dataclass(frozen=True)
class SweepReport:
    """What came of a sweep.

    Attributes:
        name: Of the sweep.
        env: What was trained on.
        complete: Trials that went to their end.
        pruned: That were ended early.
        failed: That crashed, diverged, were killed or gave no score.
        best: The number of the trial with the best score; None if none was complete.
        score: Of that trial.
        cost: Of that trial.
        front: Trials that no other beats in score and cost, cheapest first.
        importances: Of each setting, for the score and for the cost; they sum up to 1.
        folder: Where all of it is.
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


def write_report(plan: Plan, study: Study, folder: Path) -> SweepReport:
    """Write `report.json`, `best.toml`, a file for each of the front, and `pareto.png`."""
    trials = counted(study.get_trials(deepcopy=False))
    front = front_trials(plan, trials)
    best = front[-1] if front else None  # the costliest of the front has the best score
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
        front=[_facts(trial) for trial in front],
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


def best_settings(plan: Plan, trial: FrozenTrial) -> Tree:
    """What `fugu train ENV --config` needs to train as a trial did."""
    preset = PRESETS[plan.preset] if plan.preset else {}
    settings = nested(json.loads(trial.user_attrs["settings"]))
    tree = merge(preset, plan.given, settings)
    tree.get("run", {}).pop("name", None)  # every run has its own
    return tree


def importances(plan: Plan, study: Study) -> dict[str, dict[str, float]]:
    """How much each setting mattered, by PED-ANOVA; empty with too few trials to say."""
    whole = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    names = {each.parameter: each.path for each in plan.space.ranges}
    if len(whole) < ENOUGH or len(names) < 2:
        return {}
    sign = -1.0 if plan.search.maximise else 1.0  # low values count as good there
    found = {}
    for index, weight, title in ((0, sign, "score"), (1, 1.0, "cost")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            told = optuna.importance.get_param_importances(
                study,
                evaluator=optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25),
                target=lambda trial, i=index, w=weight: w * trial.values[i],  # type: ignore[misc]
            )
        found[title] = {names[name]: round(value, 4) for name, value in told.items()}
    return found


def draw_front(plan: Plan, trials: list[FrozenTrial], path: Path) -> None:
    """Write a picture of all trials, with the front as a line."""
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    whole = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    pruned = [t for t in trials if t.state == TrialState.PRUNED and "cost" in t.user_attrs]
    colours = [trial.number for trial in whole]
    if pruned:
        points = [(t.user_attrs["cost"], t.user_attrs["score"]) for t in pruned]
        axes.scatter(*zip(*points, strict=True), marker="x", color="#adb5bd", label="pruned")
    if whole:
        points = [(trial.values[1], trial.values[0]) for trial in whole]
        dots = axes.scatter(
            *zip(*points, strict=True), c=colours, cmap="viridis", s=28, label="complete"
        )
        figure.colorbar(dots, ax=axes, label="trial")
    front = front_trials(plan, trials)
    if front:
        costs, scores = [t.values[1] for t in front], [t.values[0] for t in front]
        axes.step(costs, scores, where="post", color=COLOURS[1], lw=1.8, label="front", zorder=0)
        for trial in front:
            place = (trial.values[1], trial.values[0])
            axes.annotate(str(trial.number), place, xytext=(4, 4), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlabel(plan.search.cost)
    axes.set_ylabel(plan.search.metric.replace("_", " "))
    axes.set_title(f"{plan.name}: {plan.env}, {len(trials)} trials, sampler {plan.search.sampler}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e5e8eb", lw=0.8)
    axes.set_axisbelow(True)
    if whole or pruned:
        axes.legend(frameon=False)
    figure.savefig(path, dpi=140)


def _facts(trial: FrozenTrial) -> dict[str, Any]:
    settings = json.loads(trial.user_attrs["settings"])
    score, cost = trial.values
    run = trial.user_attrs.get("run")
    return {
        "trial": trial.number,
        "score": score,
        "cost": cost,
        "settings": settings,
        "run": run,
    }


def _write_settings(plan: Plan, trial: FrozenTrial, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    score, cost = trial.values
    head = (
        f"# Trial {trial.number} of the sweep {plan.name}: {plan.search.metric} {score:.6g}, "
        f"{plan.search.cost} {cost:.6g}.\n"
        f"# fugu train {plan.env} --config {path.name}\n"
    )
    write_whole(path, head + dump_toml(best_settings(plan, trial)))
