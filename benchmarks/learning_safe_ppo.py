"""Safe PPO within its limits, beside the same without multipliers.

    python benchmarks/learning_safe_ppo.py [--only NAME ...] [--seeds 1 2 3]

Each task is learned with several seeds and judged by episodes played as in training. It holds if
the means over the seeds reach the return and stay below the cost, and if without multipliers the
cost is more than three times the limit. What comes of it is written to
`benchmarks/results/learning_safe_ppo.json`, and as a table to `learning_safe_ppo.md` beside it;
tasks that were not run keep their last figures there.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from proving import RESULTS, check_names, commit, keep
from rich.console import Console

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "learning"))

from hazard_lp import HazardGrid, best  # noqa: E402
from lessons import learn  # noqa: E402

from fugu.training.evaluate import play  # noqa: E402
from fugu.vector import make  # noqa: E402

UNBOUND = {"initial_multiplier": 0.0, "multiplier_rate": 0.0, "multiplier": "lagrange"}
EXCESS = 3.0  # by which the control must break the limit
Settings = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What is learned, and what is asked of it.

    Attributes:
        env: Its name.
        steps: Of the training.
        limit: Of the mean cost.
        lowest_return: To reach.
        highest_cost: To stay below.
        settings: Of the training, by section.
        episodes: Of a judgement.
    """

    env: str
    steps: int
    limit: float
    lowest_return: float
    highest_cost: float
    settings: dict[str, Settings] = field(default_factory=dict)
    episodes: int = 128


@dataclass(frozen=True)
class Outcome:
    """What came of one training."""

    seed: int
    mean_return: float
    mean_cost: float
    minutes: float


MUJOCO: dict[str, Any] = {
    "preset": "mujoco",
    "vec": {"backend": "serial"},
    "train": {"initial_multiplier": 0.05},
}
# Episodes cost hundreds at first: multipliers that rise fast teach to end them early.
SLOW: Settings = {
    "horizon": 128,
    "epochs": 10,
    "minibatches": 8,
    "learning_rate": 0.001,
    "initial_multiplier": 0.0,
    "multiplier_rate": 0.01,
}
GRID, LIMIT = HazardGrid(step_penalty=0.1), 0.3
OPTIMUM = best(GRID, LIMIT).mean_return
TASKS = {
    "hazard-grid": Task(
        "hazard_grid",
        300_000,
        LIMIT,
        0.9 * OPTIMUM,
        1.1 * LIMIT,
        {"env_kwargs": {"step_penalty": GRID.step_penalty}},
        6400,
    ),
    "constrained-cartpole": Task(
        "constrained_cartpole", 2_000_000, 10.0, 450.0, 12.0, {"train": SLOW}
    ),
    "swimmer-velocity": Task("velocity:Swimmer-v5", 1_000_000, 25.0, 0.0, 30.0, MUJOCO, 32),
    "hopper-velocity": Task("velocity:Hopper-v5", 1_000_000, 25.0, 900.0, 30.0, MUJOCO, 32),
}


def study(task: Task, seed: int, train: Settings) -> Outcome:
    """Train, then play as in training."""
    began = time.perf_counter()
    settings: dict[str, Any] = {**task.settings, "algo": "safe_ppo"}
    settings["train"] = {"cost_limit": task.limit, **settings.get("train", {}), **train}
    result = learn(task.env, task.steps, settings, seed)
    options = {"env_kwargs": settings.get("env_kwargs", {}), "costs": ("cost",)}
    with make(task.env, min(64, task.episodes), **options) as vec:
        found = play(result.policies, vec, task.episodes, greedy=False, seed=seed).to_dict()
    minutes = (time.perf_counter() - began) / 60
    return Outcome(seed, found["mean_return"], found["mean_cost"], minutes)


@dataclass(frozen=True)
class Finding:
    """What came of a task; the control has one seed."""

    task: Task
    outcomes: tuple[Outcome, ...]
    control: Outcome

    @property
    def holds(self) -> bool:
        """Whether everything that is asked is there."""
        returns = np.mean([outcome.mean_return for outcome in self.outcomes])
        costs = np.mean([outcome.mean_cost for outcome in self.outcomes])
        kept = returns >= self.task.lowest_return and costs <= self.task.highest_cost
        return bool(kept and self.control.mean_cost > EXCESS * self.task.limit)

    def to_dict(self) -> dict[str, Any]:
        """Its figures, as JSON has them."""
        return {**asdict(self), "holds": self.holds, "commit": commit()}


def write_report(name: str, finding: Finding) -> None:
    """Put a finding into the results; the others stay as they were."""
    known = keep("learning_safe_ppo", {name: finding.to_dict()})
    lines = [
        "# Safe PPO within its limits",
        "",
        "Written by `python benchmarks/learning_safe_ppo.py`, which says how to read it.",
        "",
        "| task | steps | asked | return, cost (a seed each) | without multipliers | minutes |"
        " commit | holds |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(other, found) for other, found in known.items()),
        "",
    ]
    (RESULTS / "learning_safe_ppo.md").write_text("\n".join(lines))


def _row(name: str, found: dict[str, Any]) -> str:
    task, control = found["task"], found["control"]

    def figures(outcome: dict[str, Any]) -> str:
        return f"{outcome['mean_return']:.4g}, {outcome['mean_cost']:.3g}"

    cells = [
        f"{name}: `{task['env']}`",
        f"{task['steps']:,}",
        f">= {task['lowest_return']:.3g}, <= {task['highest_cost']:.3g}",
        "; ".join(map(figures, found["outcomes"])),
        figures(control),
        f"{sum(outcome['minutes'] for outcome in [*found['outcomes'], control]):.1f}",
        found["commit"],
        "yes" if found["holds"] else "**no**",
    ]
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these tasks."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Of the trainings."""


def main(options: Options) -> None:
    """Run tasks and write down what came of each."""
    check_names(options.only, TASKS)
    torch.set_num_threads(1)
    console, missed = Console(), []
    for name, task in TASKS.items():
        if options.only and name not in options.only:
            continue
        outcomes = []
        for seed in options.seeds:
            outcomes.append(study(task, seed, {}))
            console.print(f"{name}: {outcomes[-1]}")
        finding = Finding(task, tuple(outcomes), study(task, options.seeds[0], UNBOUND))
        write_report(name, finding)
        missed += [] if finding.holds else [name]
        console.print(f"{name}, control: {finding.control}: holds {finding.holds}")
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main(tyro.cli(Options))
