"""Sweeps that Weights & Biases searches: this process is an agent that runs its trials."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import time
from pathlib import Path
from typing import Any

from fugu.core.config import to_tree
from fugu.core.errors import FuguError, MissingExtraError
from fugu.sweep.plan import Range, SweepPlan
from fugu.sweep.trials import LocalTrial, TrialCurve, TrialProcess, TrialTask

POLL_SECONDS = 0.5


def run_agent(
    plan: SweepPlan, folder: Path, *, project: str = "fugu", sweep: str | None = None
) -> str:
    """Create a sweep of Weights & Biases, or join one, and run trials; return the sweep's id.

    Of the plan's search, only the sampler, the number of trials and the metric count. `folder` is
    that of the runs, and `sweep` the id of one to join.
    """
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtraError("wandb", "wandb")
    wandb: Any = importlib.import_module("wandb")
    sweep_id: str = sweep or wandb.sweep(sweep=sweep_settings(plan), project=project)
    wandb.agent(
        sweep_id,
        function=lambda: run_trial(wandb, plan, folder),
        count=plan.search.trials,
        project=project,
    )
    return sweep_id


def sweep_settings(plan: SweepPlan) -> dict[str, Any]:
    """Return the plan as Weights & Biases describes a sweep."""
    return {
        "name": plan.name,
        "method": "random" if plan.search.sampler == "random" else "bayes",
        "metric": {"name": "score", "goal": plan.search.goal},
        "parameters": {each.parameter: _parameter(each) for each in plan.ranges},
    }


def run_trial(wandb: Any, plan: SweepPlan, folder: Path) -> None:
    """Train with the settings that the service chose, and log the metrics."""
    run = wandb.init()
    settings = plan.settings({each.parameter: run.config[each.parameter] for each in plan.ranges})
    runs = (folder / "runs").resolve()
    name = f"trial-{run.id}"
    exit_code, reason = 1, "the agent was stopped"
    try:
        cfg = plan.trial_config(settings, {"folder": str(runs), "name": name})
        run.config.update({"settings": json.dumps(settings)}, allow_val_change=True)
        log = folder.resolve() / "logs" / f"{name}.log"
        trial = LocalTrial(TrialTask(to_tree(cfg), str(runs / name), str(log)))
        try:
            exit_code, reason = _follow(run, plan, trial)
        finally:
            trial.kill()
    except FuguError as error:  # settings that exclude each other
        reason = str(error)
    finally:
        if exit_code:
            run.summary["failure"] = reason
        run.finish(exit_code=int(bool(exit_code)))


def _follow(run: Any, plan: SweepPlan, trial: TrialProcess) -> tuple[int, str]:
    """Log metrics until the trial ends; return its exit code and why it failed."""
    curve = TrialCurve(plan.search.metric)
    while True:
        progress = trial.poll()
        for row in progress.rows:
            if row["step"] <= curve.step:  # the last poll repeats all rows
                continue
            curve.add(row)
            metrics = {name: x for name, x in row.items() if name != "step" and x is not None}
            if math.isfinite(curve.score):
                metrics["score"] = curve.score
            run.log(metrics, step=curve.step)
        if progress.exit_code is not None:
            if progress.exit_code == 0 and not math.isfinite(curve.score):
                return 1, f"{plan.search.metric} is not a number"
            return progress.exit_code, progress.reason
        time.sleep(POLL_SECONDS)


def _parameter(each: Range) -> dict[str, Any]:
    if each.choices:
        return {"values": list(each.choices)}
    low, high = (each.encode(bound) for bound in each.bounds)
    if each.power_of_two:
        return {"values": list(range(low, high + 1))}
    if each.integer:
        kind = "q_log_uniform_values" if each.log else "int_uniform"
    else:
        kind = "log_uniform_values" if each.log else "uniform"
    return {"distribution": kind, "min": low, "max": high}
