"""One training of `zoo.py`, as `fugu train ENV --train.total-steps N --seed S` does it.

Settings: env, steps (None: those of the environment), seed, threads (0: fugu chooses), evaluation
(arguments of the environment in evaluations), episodes, policy (the folder to write). The run is
kept in the working folder; a training that was cut off is resumed from its last checkpoint.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from watching import answer, read_settings

import fugu
from fugu.store.run import Run
from fugu.track.sinks import read_metrics
from fugu.training.evaluate import engine_of, load_policies, play
from fugu.zoo.publish import save_policy

COPIES = 20  # of an evaluation; a divisor of its episodes, so that they are exactly so many


def train(settings: dict[str, Any]) -> tuple[Run, float]:
    """Train, or take the finished run of an evaluation that was cut off; the run and seconds."""
    for run in Run.list():
        if run.status == "finished":
            return run, run_seconds(run)
    given: dict[str, Any] = {}
    more: dict[str, Any] = {}
    if settings["steps"] is not None:
        given["total_steps"] = settings["steps"]
    if settings["threads"]:  # others train beside it: the same numbers, without processes
        given["threads"] = settings["threads"]
        more["vec"] = {"backend": "serial"}
    result = fugu.train(
        settings["env"],
        show=False,
        auto_resume=True,
        callbacks=(Ticker(),),
        seed=settings["seed"],
        **({"train": given} if given else {}),
        **more,
    )
    assert result.run is not None
    if result.status != "finished":
        raise SystemExit("stopped before the end")
    return result.run, max(result.seconds, run_seconds(result.run))


def run_seconds(run: Run) -> float:
    """Return the seconds of training that a run's metrics count, over all its sessions."""
    return max(
        (float(entry["seconds"] or 0) for entry in read_metrics(run.metrics_path)), default=0
    )


def marks(run: Run) -> list[tuple[int, float]]:
    """Return steps and seconds at the end of the first update and of the last."""
    found = [
        (int(entry["step"]), float(entry["seconds"]))
        for entry in read_metrics(run.metrics_path)
        if entry.get("step") and entry.get("seconds")
    ]
    return [found[0], found[-1]] if len(found) > 1 else []


class Ticker:
    """Prints the steps so far every few seconds, for the progress bar of whoever started this."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, trainer: Any, progress: Any) -> None:
        """Print a line if the last one is old enough."""
        if time.monotonic() - self._last > 2.0:
            self._last = time.monotonic()
            facts = {"steps": progress.steps, "total": trainer.cfg.train.total_steps}
            print("PROGRESS " + json.dumps(facts), flush=True)


def evaluate(run: Run, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the figures of greedy episodes; None if none ended."""
    cfg, policies = load_policies(run)
    kwargs = {**cfg.env_kwargs, **settings["evaluation"]}
    copies = COPIES if settings["episodes"] % COPIES == 0 else 1
    with fugu.make(cfg.env, copies, env_kwargs=kwargs, **cfg.train.emulation) as vec:
        found = play(policies, vec, settings["episodes"], seed=0, engine=engine_of(cfg))
    return found.to_dict() if found.returns else None


def main() -> None:
    """Train, evaluate, keep the policy, and answer."""
    settings = read_settings()
    run, seconds = train(settings)
    returns = [
        (int(entry["step"] or 0), float(entry["episodes"]), float(entry["episode_return"]))
        for entry in read_metrics(run.metrics_path)
        if entry.get("episodes") and entry.get("episode_return") is not None
    ]
    began = time.perf_counter()
    evaluation = evaluate(run, settings)
    policy = Path(settings["policy"])
    if not policy.exists():
        save_policy(run, policy)
    latest = run.latest()
    assert latest is not None
    answer(
        marks=marks(run),
        evaluation=evaluation,
        evaluation_seconds=time.perf_counter() - began,
        seconds=seconds,
        steps=int(latest.name.removeprefix("step_")),
        total_steps=run.config["train"]["total_steps"],
        returns=returns,
        engines=run.facts.get("engines"),
    )


if __name__ == "__main__":
    main()
