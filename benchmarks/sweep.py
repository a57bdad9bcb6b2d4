"""A sweep of CartPole: how many steps do the best settings need, against settings at random?

30 trials of the cost-aware sampler and 30 at random, over the same ranges, with one seed each. A
trial has solved CartPole at the first step at which the mean return of its last hundred episodes is
475 or more; one that never has counts as the longest training there is. The claim compares the best
of the one with the median of the other; the best of 30 at random is shown beside it.

    python benchmarks/sweep.py                     # some tens of minutes on two cores
    python benchmarks/sweep.py --figure front.png  # and a picture
"""

from __future__ import annotations

import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import tyro
from claims import Claim, Options, finish
from rich.console import Console
from rich.table import Table

from fugu.sweep.plan import SearchConfig, make_plan
from fugu.sweep.running import ExecutionConfig, start_sweep
from fugu.sweep.sampler import SamplerName
from fugu.sweep.trials import TrialCurve
from fugu.track.sinks import read_metrics

SOLVED, LONGEST = 475.0, 200_000
RANGES = {
    "train": {
        "total_steps": {"low": 20_000, "high": LONGEST, "log": True, "integer": True},
        "learning_rate": {"low": 1e-4, "high": 0.1, "log": True},
        "gamma": {"low": 0.8, "high": 0.9995, "logit": True},
        "lambda": {"low": 0.5, "high": 0.999, "logit": True},
        "entropy_coefficient": {"low": 1e-4, "high": 0.1, "log": True},
        "epochs": {"low": 1, "high": 8, "integer": True},
        "horizon": {"low": 16, "high": 128, "power_of_two": True},
    },
    "vec": {"num_envs": {"low": 16, "high": 64, "power_of_two": True}},
}
TARGET = 0.5


@dataclass(frozen=True)
class Sweeping(Options):
    """What this benchmark takes."""

    trials: int = 30
    """Of each sampler."""
    workers: int = 2
    """Trials at a time."""
    seed: int = 0
    """Of the samplers and of all trainings."""
    figure: Path | None = None
    """Keep the picture of the cost-aware sweep here."""


def steps_to_solve(run: Path) -> float:
    """Steps until a run had solved it; the longest training if it never had."""
    curve = TrialCurve("episode_return", read_metrics(run / "metrics.jsonl"))
    solved = (point.step for point in curve.points if point.score >= SOLVED)
    return float(next(solved, LONGEST))


def sweep(sampler: SamplerName, options: Sweeping, root: Path) -> list[float]:
    """Steps that each trial needed, fewest first."""
    search = SearchConfig(
        trials=options.trials, sampler=sampler, cost="steps", prune="none", first=False
    )
    plan = make_plan(
        "cartpole",
        name=sampler,
        given={"seed": options.seed, "train": {"threads": 1}, "vec": {"num_workers": 1}},
        ranges=RANGES,
        search=search,
    )
    result = start_sweep(plan, ExecutionConfig(root, workers=options.workers))
    if result.signals:
        raise SystemExit("stopped: nothing was measured")
    if sampler == "cost" and options.figure is not None:
        shutil.copy(root / sampler / "pareto.png", options.figure)
    runs = sorted((root / sampler / "runs").iterdir())
    steps = [steps_to_solve(run) for run in runs]
    return sorted(steps + [float(LONGEST)] * (options.trials - len(steps)))  # those that failed


def main(options: Sweeping) -> None:
    """Sweep with both, and compare."""
    name = "sweep: steps to CartPole 475, best of 30 cost-aware / median of 30 random"
    if options.quick:
        finish([Claim(name, None, TARGET, at_most=True)], options)
    with tempfile.TemporaryDirectory() as folder:
        cost, random = (sweep(each, options, Path(folder)) for each in ("cost", "random"))
    table = Table("sampler", "best", "median", "solved", title="steps to a mean return of 475")
    for title, steps in (("cost-aware", cost), ("random", random)):
        solved = sum(each < LONGEST for each in steps)
        table.add_row(
            title, f"{steps[0]:,.0f}", f"{median(steps):,.0f}", f"{solved} of {len(steps)}"
        )
    Console().print(table)
    ratio = cost[0] / median(random) if cost[0] < LONGEST else math.inf
    peers = {"random median": median(random), "random best": random[0]}
    claim = Claim(
        name, ratio, TARGET, at_most=True, fugu=cost[0], peers=dict(peers), unit="agent steps"
    )
    finish([claim], options)


if __name__ == "__main__":
    main(tyro.cli(Sweeping))
