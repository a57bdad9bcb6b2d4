"""Sweeps whose search is done by Weights & Biases: this machine is an agent of theirs."""

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
from fugu.sweep.curves import TrialCurve
from fugu.sweep.plan import Plan
from fugu.sweep.ranges import Range
from fugu.sweep.trials import Launcher, LocalTrial, TrialTask

POLL_SECONDS = 0.5
RESERVED = ("step",)


def run_agent(plan: Plan, folder: Path, *, project: str = "fugu", sweep: str | None = None) -> str:
    """Begin a sweep there, or join one, and run its trials here; gives the sweep's id.

    Args:
        plan: What is trained and varied; of the search, the sampler, the trials and the metric.
        folder: Where the runs go.
        project: The project of Weights & Biases.
        sweep: The id of one that was begun; a new one if not given.
    """
    if importlib.util.find_spec("wandb") is None:
        raise MissingExtraError("wandb", "wandb")
    wandb: Any = importlib.import_module("wandb")
    chosen: str = sweep or wandb.sweep(sweep=sweep_settings(plan), project=project)
    wandb.agent(
        chosen,
        function=lambda: run_trial(wandb, plan, folder),
        count=plan.search.trials,
        project=project,
    )
    return chosen


def sweep_settings(plan: Plan) -> dict[str, Any]:
    """The sweep as Weights & Biases describes one."""
    return {
        "name": plan.name,
        "method": "random" if plan.search.sampler == "random" else "bayes",
        "metric": {
            "name": "score",
            "goal": "maximize" if plan.search.maximise else "minimize",
        },
        "parameters": {each.parameter: _parameter(each) for each in plan.space.ranges},
    }


def run_trial(wandb: Any, plan: Plan, folder: Path, launch: Launcher = LocalTrial) -> None:
    """Train with the settings that the agent was given, and log what comes of it."""
    run = wandb.init()
    drawn = {each.parameter: run.config[each.parameter] for each in plan.space.ranges}
    settings = plan.space.settings(drawn)
    kept = {"folder": str((folder / "runs").resolve()), "name": f"trial-{run.id}"}
    try:
        cfg = plan.trial_config(settings, kept)
    except FuguError as error:
        run.summary["failure"] = str(error)
        run.finish(exit_code=1)
        return
    run.config.update({"settings": json.dumps(settings)}, allow_val_change=True)
    place = Path(kept["folder"]) / kept["name"]
    log = folder.resolve() / "logs" / f"{place.name}.log"
    running = launch(TrialTask(to_tree(cfg), str(place), str(log)))
    status, reason = 1, "ended by its agent"
    try:
        status, reason = _follow(run, plan, running)
    finally:
        running.end()
        if status:
            run.summary["failure"] = reason
        run.finish(exit_code=int(bool(status)))


def _follow(run: Any, plan: Plan, running: Any) -> tuple[int, str]:
    """Log metrics as they come, until the training ends; its status and why it failed."""
    curve = TrialCurve(plan.search.metric)
    logged = -1
    while True:
        look = running.look()
        for row in look.rows:
            step = int(row["step"])
            if step <= logged:  # the last look has all rows once more
                continue
            logged = step
            curve.add(row)
            numbers = {k: v for k, v in row.items() if k not in RESERVED and v is not None}
            score = {"score": curve.score} if math.isfinite(curve.score) else {}
            run.log({**numbers, **score}, step=step)
        if look.status is not None:
            if look.status == 0 and not math.isfinite(curve.score):
                return 1, f"{plan.search.metric} is no number"
            return look.status, look.reason
        time.sleep(POLL_SECONDS)


def _parameter(each: Range) -> dict[str, Any]:
    if each.choices:
        return {"values": list(each.choices)}
    low, high = each.ends
    if each.scale == "power_of_two":
        return {"values": list(range(int(math.log2(low)), int(math.log2(high)) + 1))}
    if each.scale == "logit":
        return {"distribution": "uniform", "min": each.encode(low), "max": each.encode(high)}
    kinds = {
        (False, "uniform"): "uniform",
        (False, "log"): "log_uniform_values",
        (True, "uniform"): "int_uniform",
        (True, "log"): "q_log_uniform_values",
    }
    return {"distribution": kinds[each.integer, each.scale], "min": low, "max": high}
