"""Results of `zoo.py`: curves, the check for collapse, the table, the pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from zoo_tasks import SOURCE, Task

from fugu.core.writing import write_whole

RECENT = 100  # episodes of a running mean
POINTS = 200  # of a curve
LEAST_KEPT = 0.5  # share of its best that a training must end with
NOTHING = 0.1  # improvement, as a share of the lowest return, below which nothing was learned
Returns = Sequence[tuple[int, float, float]]  # step, episodes that ended, their mean return


def running_mean(returns: Returns) -> list[tuple[int, float]]:
    """Return the mean return of about the last hundred episodes at every step with new ones.

    The first hundred episodes of a training are one point, unless there are no others.

    >>> running_mean([(10, 60.0, 1.0), (20, 60.0, 3.0), (30, 100.0, 5.0)])
    [(20, 2.0), (30, 5.0)]
    """
    found: list[tuple[int, float]] = []
    window: list[tuple[float, float]] = []  # episodes, and the sum of their returns
    everything = sum(count for _, count, _ in returns)
    for step, count, mean in returns:
        window.append((count, count * mean))
        while len(window) > 1 and sum(count for count, _ in window[1:]) >= RECENT:
            del window[0]
        episodes = sum(count for count, _ in window)
        if episodes >= min(RECENT, everything):
            found.append((step, sum(total for _, total in window) / episodes))
    return found


def share_kept(values: Sequence[float]) -> float:
    """Return the share of its best running mean that a training ended with; 1 is all of it.

    Returns that are never negative are compared as they are: last / best. Where some are negative
    a ratio says nothing, so all are counted from the lowest running mean, which is about what the
    untrained policy has: (last - lowest) / (best - lowest). If the best is hardly above the lowest
    (by less than a tenth of its size), nothing was learned and nothing can be lost: 1.

    >>> share_kept([0.0, 10.0, 8.0]), share_kept([-200.0, -100.0, -120.0]), share_kept([-9, -9.1])
    (0.8, 0.8, 1.0)
    """
    lowest, best, last = min(values), max(values), values[-1]
    if best - lowest <= NOTHING * abs(lowest) or best == lowest:
        return 1.0
    base = min(lowest, 0.0)
    return (last - base) / (best - base)


def summarize(returns: Returns) -> dict[str, Any]:
    """Return what a result file says of the returns during a training."""
    curve = running_mean(returns)
    if not curve:
        return {"curve": [], "best": None, "final": None, "kept": None}
    values = [value for _, value in curve]
    chosen = np.unique(np.linspace(0, len(curve) - 1, POINTS).round().astype(int))
    return {
        "curve": [[curve[i][0], float(f"{curve[i][1]:.6g}")] for i in chosen],
        "best": max(values),
        "final": values[-1],
        "kept": share_kept(values),
    }


# ---------------------------------------------------------------------- several seeds


@dataclass(frozen=True)
class Found:
    """All results of a task.

    Attributes:
        task: The task.
        seeds: A result for each seed.
        peer: A result of Stable-Baselines3; None if there is none.
        race: Seconds for all steps, by library, each a list with one number per seed.
    """

    task: Task
    seeds: list[dict[str, Any]]
    peer: dict[str, Any] | None
    race: dict[str, list[float]] = field(default_factory=dict)

    @property
    def scores(self) -> list[float]:
        """Mean returns of greedy episodes, of the seeds in which an episode ended."""
        return [one["evaluation"]["mean_return"] for one in self.seeds if one["evaluation"]]

    @property
    def collapsed(self) -> list[int]:
        """Seeds that ended below half of their own best."""
        return [
            one["seed"]
            for one in self.seeds
            if one["kept"] is not None and one["kept"] < LEAST_KEPT
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return what pages of the documentation are written from."""
        found = [one["evaluation"] for one in self.seeds]
        return {
            "name": self.task.name,
            "group": self.task.group,
            "steps": self.seeds[0]["total_steps"],
            "seeds": [one["seed"] for one in self.seeds],
            "scores": [one and one["mean_return"] for one in found],
            "kept": [one["kept"] for one in self.seeds],
            "seconds": [one["seconds"] for one in self.seeds],
            "jobs": sorted({one["jobs"] for one in self.seeds}),
            "published": self.task.published,
            "race": self.race,
            "commits": sorted({one["commit"] for one in self.seeds}),
            "curve": joint_curve([one["curve"] for one in self.seeds]),
        }


def read_results(folder: Path, tasks: Sequence[Task]) -> list[Found]:
    """Return the results of every task that has some."""
    found = []
    for task in tasks:
        paths = (folder / task.name).glob("seed_*.json")
        seeds = sorted(
            (json.loads(path.read_text()) for path in paths), key=lambda one: one["seed"]
        )
        peers = sorted((folder / task.name).glob("sb3_*.json"))
        peer = json.loads(peers[0].read_text()) if peers else None
        if seeds:
            found.append(Found(task, seeds, peer, read_race(folder / task.name)))
    return found


def read_race(folder: Path) -> dict[str, list[float]]:
    """Return the seconds that all steps of a task take, by library; empty without a race."""
    found: dict[str, list[float]] = {}
    for path in sorted(folder.glob("race_*.json")):
        one = json.loads(path.read_text())
        found.setdefault(one["library"], []).append(whole_seconds(one))
    return found if len(found) > 1 else {}


def whole_seconds(result: dict[str, Any]) -> float:
    """Return the seconds of all steps, extrapolated from a training of a fraction of them.

    What happens once (imports, starting workers, compiling) is counted once: the steps that are
    missing take the rate between the first update and the last.
    """
    steps = float(result["total_steps"]) / float(result["fraction"])
    seconds = float(result["seconds"])
    if not result.get("marks"):
        return seconds * steps / float(result["steps"])
    (first, began), (last, ended) = result["marks"]
    return seconds + (steps - float(result["steps"])) * (ended - began) / (last - first)


def joint_curve(curves: Sequence[Sequence[Sequence[float]]]) -> dict[str, list[float]]:
    """Return the median of curves, the lowest and the highest at the steps that all reached.

    >>> joint_curve([[[0, 0], [4, 4]], [[0, 2], [4, 6]], [[0, 9], [4, 9]]])["median"][::199]
    [2.0, 6.0]
    """
    there = [curve for curve in curves if curve]
    if not there:
        return {"steps": [], "median": [], "low": [], "high": []}
    first, last = max(curve[0][0] for curve in there), min(curve[-1][0] for curve in there)
    grid = np.linspace(first, max(first, last), POINTS)
    rows = np.stack([np.interp(grid, *np.array(curve, float).T) for curve in there])
    joint = {"median": np.median(rows, 0), "low": rows.min(0), "high": rows.max(0)}
    steps = [float(round(step)) for step in grid]
    return {"steps": steps, **{k: [float(f"{x:.6g}") for x in v] for k, v in joint.items()}}


# ---------------------------------------------------------------------- the report


HEAD = (
    "environment",
    "steps",
    "score: median (lowest to highest)",
    "seeds",
    "best training return",
    "least kept",
    "seconds",
    "published",
    "SB3: score",
    "race: fugu, seconds",
    "race: SB3, seconds",
    "times as fast",
    "commit",
)
INTRO = """
# Training without flags

Written by `python benchmarks/zoo.py --report`. Each line is `fugu train ENV --train.total-steps N`
with no other setting, for several seeds: native environments, and those whose steps are not given,
with the steps that their own settings say.

- score: mean return of the greedy policy over {episodes} episodes after the last step; bold where
  the median of the seeds is at least the published figure.
- best training return: the highest running mean over 100 episodes of training, median of seeds.
- least kept: the lowest share of its own best running mean that a seed ended with; below 0.5 is
  bold, a collapse. Returns that are never negative give last / best; where some are negative they
  count from the lowest running mean: (last - lowest) / (best - lowest); a training that improved by
  less than a tenth of its lowest return has nothing to lose and counts as 1.
- seconds: wall clock of training, median of seeds, with the number of trainings that ran at the
  same time on the machine (each then with one thread).
- published: {source}; steps in brackets where they differ.
- SB3: Stable-Baselines3's PPO with the same tuned settings, run here.
- race: seconds for all steps of both libraries, trained in turns with all cores and nothing beside
  them; medians. Where a part of the steps was trained, the rest is counted with the rate
  between the first update and the last, so that what happens once is counted once.
"""


def report(results: list[Found], page: Path, pictures: Path, machine: str) -> None:
    """Write the table as Markdown, the joint curves as JSON beside it, and a picture per task."""
    episodes = {one["evaluation"]["episodes"] for f in results for one in f.seeds if f.scores}
    told = " or ".join(str(count) for count in sorted(episodes)) or "no"
    lines = [*INTRO.format(source=SOURCE, episodes=told).strip().splitlines(), ""]
    lines += [f"Machine: {machine}.", ""]
    for group, title in (
        ("table", "With published scores"),
        ("heldout", "Held out: no default was tuned on these"),
        ("native", "Native environments, with their own settings"),
    ):
        rows = [row(found) for found in results if found.task.group == group]
        if rows:
            lines += [f"## {title}", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
            lines += [*rows, ""]
    write_whole(page, "\n".join(lines).encode())
    summary = {found.task.env: found.to_dict() for found in results}
    write_whole(page.with_suffix(".json"), (json.dumps(summary, indent=1) + "\n").encode())
    pictures.mkdir(parents=True, exist_ok=True)
    for found in results:
        draw(found, pictures / f"{found.task.name}.png")


def row(found: Found) -> str:
    """Return one line of the table."""
    task, peer, first = found.task, found.peer, found.seeds[0]
    score = "no episode ended"
    if found.scores:
        middle = median(found.scores)
        score = f"{middle:.4g} ({min(found.scores):.4g} to {max(found.scores):.4g})"
        if task.published is not None and middle >= task.published:
            score = f"**{score}**"
    kept = [one["kept"] for one in found.seeds if one["kept"] is not None]
    least = f"{min(kept):.2f}" if kept else "-"
    best = [one["best"] for one in found.seeds if one["best"] is not None]
    jobs = ", ".join(map(str, sorted({one["jobs"] for one in found.seeds})))
    published = "-" if task.published is None else f"{task.published:.4g}"
    if task.published_steps is not None:
        published += f" ({task.published_steps:,})"
    cells = (
        f"`{task.env}`",
        f"{first['total_steps']:,}",
        score,
        str(len(found.seeds)),
        f"{median(best):.4g}" if best else "-",
        f"**{least}**" if found.collapsed else least,
        f"{median(one['seconds'] for one in found.seeds):,.0f} (jobs: {jobs})",
        published,
        *peer_cells(peer, found.race),
        ", ".join(sorted({one["commit"] for one in found.seeds})),
    )
    return f"| {' | '.join(cells)} |"


def peer_cells(
    peer: dict[str, Any] | None, race: dict[str, list[float]]
) -> tuple[str, str, str, str]:
    """Return the score of Stable-Baselines3, and the race: seconds of both, and their ratio."""
    score = "-"
    if peer is not None and peer["fraction"] == 1.0:
        score = f"{peer['evaluation']['mean_return']:.4g}"
    if not race:
        return score, "-", "-", "-"
    own, other = median(race["fugu"]), median(race["sb3"])
    return score, f"{own:,.0f}", f"{other:,.0f}", f"{other / own:.1f}"


def draw(found: Found, path: Path) -> None:
    """Draw the median of the seeds and their range."""
    from matplotlib.figure import Figure

    from fugu.track.curves import step_label

    curve = joint_curve([one["curve"] for one in found.seeds])
    figure = Figure(figsize=(4.2, 2.6), layout="constrained")
    axes = figure.subplots()
    label = f"median and range of {len(found.seeds)} seeds"
    axes.fill_between(curve["steps"], curve["low"], curve["high"], color="#2a9d8f", alpha=0.2, lw=0)
    axes.plot(curve["steps"], curve["median"], color="#2a9d8f", lw=1.5, label=label)
    axes.xaxis.set_major_formatter(lambda steps, _: step_label(steps))
    if found.task.published is not None:
        text = f"published, tuned: {found.task.published:g}"
        axes.axhline(found.task.published, color="#6c757d", lw=1, ls="--", label=text)
    axes.set_title(found.task.env, fontsize=9)
    axes.set_xlabel("environment steps", fontsize=8)
    axes.set_ylabel("training return", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=110, metadata={"Software": None})
