"""Programs learned from rewards: operations on lists, and Brainf***.

    python benchmarks/learning_coding.py [--only NAME ...] [--seeds 1 2 3] [--minutes 10]

Programs of two list operations are learned by PPO and by GRPO, and judged all along on programs
that were held out, at the most probable actions. It holds if fewer than 2 % of those are solved at
first and at least half of them within the minutes. Those are minutes of two cores: what the process
computes, shared by two, so that others on the machine do not count; nor does looking.

Brainf*** programs are written by PPO until one is right in all cases of its task, hidden ones
included, or 20 million were written, or the minutes (of computing) are over. It holds if one was
found; beside it stands chance, which may write as many as the learner needed, and 10,000 at least.

What comes of it is written to `benchmarks/results/learning_coding.json`, as a table to
`learning_coding.md` beside it, and as curves to `docs/images/program_synthesis.png`; what was
not run keeps its last figures there.
"""

from __future__ import annotations

import importlib
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro
from proving import RESULTS, check_names, commit, keep
from rich.console import Console

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "learning"))

from coding_lessons import GRPO, Search, solved_share  # noqa: E402
from lessons import learn  # noqa: E402

from fugu.training.trainer import Progress, Trainer  # noqa: E402

PICTURE = ROOT / "docs" / "images" / "program_synthesis.png"
LOW, HIGH, MOST = 0.02, 0.5, 20_000_000
CORES, EVERY = 2, 6.0  # seconds of so many cores between looks
LISTS: dict[str, dict[str, Any]] = {"lists-ppo": {}, "lists-grpo": GRPO}
TASKS = {  # of brainf: the task's number
    "echo": 0,
    "reverse": 1,
    "remove-char": 2,
    "count-char": 3,
    "add": 4,
    "shift-left": 12,
    "length": 21,
    "echo-second-seq": 22,
}


# ------------------------------------------------------------------ lists


@dataclass
class Curve:
    """The share of held-out programs that was solved, beside when."""

    seed: int
    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    solved: list[float] = field(default_factory=list)

    @property
    def minutes_to_half(self) -> float | None:
        """Until half of them were."""
        reached = [s for s, share in zip(self.seconds, self.solved, strict=True) if share >= HIGH]
        return reached[0] / 60 if reached else None

    @property
    def holds(self) -> bool:
        """Whether it began low and ended high."""
        return self.solved[0] < LOW and self.solved[-1] >= HIGH


def study_lists(settings: dict[str, Any], seed: int, minutes: float) -> Curve:
    """Train, and look at what was held out before and on the way."""
    untrained = learn("list_dsl", 1, {**settings, "train": {"learning_rate": 0.0}}, seed)
    curve = Curve(seed, [0.0], [0], [solved_share(untrained.policies, seed)])
    looking, began = 0.0, time.process_time()

    def watch(trainer: Trainer, progress: Progress) -> None:
        nonlocal looking
        now = time.process_time()
        spent = (now - began - looking) / CORES
        over = spent >= 60 * minutes or progress.steps >= trainer.cfg.train.total_steps
        if over or spent - curve.seconds[-1] >= EVERY:
            curve.seconds.append(spent)
            curve.steps.append(progress.steps)
            curve.solved.append(solved_share(trainer.policies, seed))
            looking += time.process_time() - now
            print(f"{spent:.0f} s, {progress.steps:,} steps: {curve.solved[-1]:.1%}", flush=True)
        trainer.stopping |= over

    learn("list_dsl", 0, settings, seed, (watch,))
    return curve


def plot(known: dict[str, Any]) -> None:
    """The first curve of each algorithm."""
    figure = importlib.import_module("matplotlib.figure").Figure((6.4, 3.6), layout="tight")
    axes = figure.subplots()
    for name, color in (("lists-ppo", "#e07a5f"), ("lists-grpo", "#3d7ea6")):
        if name in known:
            curve = known[name]["curves"][0]
            minutes = [seconds / 60 for seconds in curve["seconds"]]
            label = name.removeprefix("lists-").upper()
            axes.plot(minutes, [100 * share for share in curve["solved"]], color=color, label=label)
    axes.axhline(100 * HIGH, color="#999999", linewidth=0.8, linestyle="--")
    axes.set(xlabel="minutes of two cores", ylabel="held-out programs solved, %", ylim=(0, 100))
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150)


# ------------------------------------------------------------------ Brainf***


def search(task: int, seed: int, minutes: float, most: int, **train: Any) -> dict[str, Any]:
    """Write programs until one is right."""
    found, began = Search(most), time.process_time()

    def late(trainer: Trainer, progress: Progress) -> None:
        trainer.stopping |= time.process_time() - began >= 60 * minutes

    settings: dict[str, Any] = {"env_kwargs": {"task": task}, "train": train}
    learn("brainf", 1_000_000_000, settings, seed, (found, late))
    told = {"seed": seed, "found": found.found, "programs": found.programs}
    return told | {"minutes": (time.process_time() - began) / 60}


def study_task(task: int, seeds: tuple[int, ...], minutes: float) -> dict[str, Any]:
    """The learner with every seed, and chance with the first one, if that found any."""
    runs = [search(task, seed, minutes, MOST) for seed in seeds]
    chance = None
    if runs[0]["found"]:
        most = max(10_000, runs[0]["programs"])
        chance = search(task, seeds[0], minutes, most, learning_rate=0.0)
    holds = all(run["found"] and run["programs"] < MOST for run in runs)
    return {"task": task, "runs": runs, "chance": chance, "holds": holds}


# ------------------------------------------------------------------ the report


def write_report(name: str, found: dict[str, Any]) -> None:
    """Put a finding into the results; the others stay as they were."""
    known = keep("learning_coding", {name: {**found, "commit": commit()}})
    lines = [
        "# Programs learned from rewards",
        "",
        "Written by `python benchmarks/learning_coding.py`, which says how to read it.",
        "",
        "| list programs of two operations | held out, solved first and last (a seed each) |"
        " minutes of two cores to half | steps | minutes of two cores | commit | holds |",
        "|---|---|---|---|---|---|---|",
        *(_list_row(other, known[other]) for other in LISTS if other in known),
        "",
        "| Brainf*** task | programs until one was right (a seed each) | minutes | chance |"
        " commit | holds |",
        "|---|---|---|---|---|---|",
        *(_task_row(other, known[other]) for other in TASKS if other in known),
        "",
    ]
    (RESULTS / "learning_coding.md").write_text("\n".join(lines))
    if set(LISTS) & set(known):
        plot(known)


def _list_row(name: str, found: dict[str, Any]) -> str:
    curves = found["curves"]
    halves = [f"{c['minutes_to_half']:.1f}" if c["minutes_to_half"] else "-" for c in curves]
    cells = [
        name.removeprefix("lists-").upper(),
        "; ".join(f"{c['solved'][0]:.1%}, {c['solved'][-1]:.1%}" for c in curves),
        "; ".join(halves),
        "; ".join(f"{c['steps'][-1]:,}" for c in curves),
        "; ".join(f"{c['seconds'][-1] / 60:.1f}" for c in curves),
        found["commit"],
        "yes" if found["holds"] else "**no**",
    ]
    return f"| {' | '.join(cells)} |"


def _task_row(name: str, found: dict[str, Any]) -> str:
    def told(run: dict[str, Any]) -> str:
        return f"{run['programs']:,}" if run["found"] else f"none of {run['programs']:,}"

    cells = [
        name,
        "; ".join(map(told, found["runs"])),
        "; ".join(f"{run['minutes']:.1f}" for run in found["runs"]),
        told(found["chance"]) if found["chance"] else "-",
        found["commit"],
        "yes" if found["holds"] else "**no**",
    ]
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these: lists-ppo, lists-grpo, or names of Brainf*** tasks."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Of the trainings."""
    minutes: float = 10.0
    """Of one training, at most."""


def main(options: Options) -> None:
    """Learn, and write down what came of each."""
    check_names(options.only, LISTS | TASKS)
    console, missed = Console(), []
    for name in options.only or (*LISTS, *TASKS):
        if name in LISTS:
            curves = [study_lists(LISTS[name], seed, options.minutes) for seed in options.seeds]
            told = [asdict(c) | {"minutes_to_half": c.minutes_to_half} for c in curves]
            found = {"curves": told, "holds": all(curve.holds for curve in curves)}
        else:
            found = study_task(TASKS[name], options.seeds, options.minutes)
        write_report(name, found)
        missed += [] if found["holds"] else [name]
        console.print(f"{name}: holds {found['holds']}")
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main(tyro.cli(Options))
