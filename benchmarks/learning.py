"""Proofs that learning works: scores reached, and what they cost without the part in question.

    python benchmarks/learning.py [--only NAME ...]

A proof trains with several seeds and then does the same again with one part switched off: its
control. It holds if the interquartile mean of its scores reaches the threshold, and that of the
control stays below a bound, or the median of the steps to the threshold is at most a share of the
control's. What comes of it is written to `benchmarks/results/learning.json`, and as a table to
`learning.md` beside it; proofs that were not run keep their last figures there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import tyro
from proving import RESULTS, check_names, commit, keep
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "learning"))

from lessons import (  # noqa: E402
    Lesson,
    Outcome,
    Settings,
    ends_unseen,
    imagination_off,
    nothing_left,
    stale_actor,
    study,
)

Tell = Callable[..., None]  # of a label, the steps so far and all of them
FIVE, THREE = (11, 12, 13, 14, 15), (11, 12, 13)


@dataclass(frozen=True)
class Proof:
    """One proof and its control.

    Attributes:
        name: On the command line and in the report.
        shows: What it shows.
        lesson: What is learned.
        control: The same with one part switched off; None if there is none.
        threshold: The score to reach.
        bound: What the control's score must stay below; None: any score will do.
        share: How many of the control's steps to the threshold are allowed; None: any number.
        seeds: Of the trainings.
    """

    name: str
    shows: str
    lesson: Lesson
    control: Lesson | None
    threshold: float
    bound: float | None = None
    share: float | None = None
    seeds: tuple[int, ...] = THREE


def without(lesson: Lesson, circumstance: Any = None, **changes: Settings) -> Lesson:
    """A lesson with settings or circumstances changed."""
    settings = dict(lesson.settings)
    for section, values in changes.items():
        settings[section] = {**settings.get(section, {}), **values}
    return replace(lesson, settings=settings, circumstance=circumstance or lesson.circumstance)


SERIAL = {"vec": {"num_envs": 64, "backend": "serial"}}
MUJOCO: Settings = {"preset": "mujoco", "vec": {"backend": "serial"}}
CARTPOLE = Lesson("CartPole-v1", 200_000, SERIAL, judged_on="CartPole-v1")
ACROBOT = Lesson("Acrobot-v1", 500_000, SERIAL, judged_on="Acrobot-v1")
HOPPER = Lesson("Hopper-v5", 500_000, MUJOCO, judged_on="Hopper-v5")
PENDULUM = Lesson("InvertedPendulum-v5", 300_000, MUJOCO, judged_on="InvertedPendulum-v5")
MASKED = Lesson("learning_envs:MaskedCartPole", 500_000, {**SERIAL, "policy": {"core": "lstm"}})
STALE = Lesson(
    "cartpole",
    1_000_000,
    {"train": {"learning_rate": 0.006, "first_ratios": "measured"}},
    stale_actor,
)
PASSWORD = Lesson(
    "password",
    300_000,
    {"env_kwargs": {"length": 8}, "train": {"alpha": 0.8}, "vec": {"num_envs": 32}},
)
MUON = Lesson("breakout", 4_000_000, {"train": {"optimiser": "muon", "learning_rate": 0.01}})
FAULTS = Lesson(
    "learning_envs:CrashingCartPole",
    200_000,
    {
        "vec": {
            "num_envs": 64,
            "backend": "process",
            "num_workers": 2,
            "max_restarts": 1_000_000,
            "step_timeout": 1.0,
        },
        "env_kwargs": {"crash": 0.005, "exit": 2e-5, "stall": 2e-5},
    },
    nothing_left,
    judged_on="CartPole-v1",
)
MEMORY = Lesson("memory", 100_000, {"env_kwargs": {"delay": 8}})
PASSWORD_7 = Lesson("password", 100_000, {"env_kwargs": {"length": 7}})
BREAKOUT = Lesson("breakout")
SPREAD = Lesson(
    "simple_spread",
    3 * 2_000_000,  # of three agents
    {
        "algo": "mappo",
        "vec": {"num_envs": 128},
        "train": {
            "horizon": 25,
            "epochs": 5,
            "minibatches": 4,
            "gamma": 0.95,
            "learning_rate": 0.002,
            "schedule": "linear",
        },
        "policy": {"hidden_size": 128, "layers": 2},
    },
)
SUMMED = replace(without(SPREAD, env_kwargs={"convention": 1}), steps=3 * 5_000_000)
DREAMER = Lesson(
    "CartPole-v1",
    8_000,
    {"algo": "dreamer", "vec": {"num_envs": 8, "backend": "serial"}},
    judged_on="CartPole-v1",
)
UNTRAINED = {"learning_rate": 0.0}
ADAMW = {"optimiser": "adamw", "learning_rate": 0.006}
INFINITE = {"rho_clip": math.inf, "c_clip": math.inf}

CUT = "PPO, its traces cut where episodes end"
PROOFS = (
    Proof("cartpole", CUT, CARTPOLE, without(CARTPOLE, ends_unseen), 475, bound=200, seeds=FIVE),
    Proof("acrobot", CUT, ACROBOT, without(ACROBOT, ends_unseen), -95, share=0.5, seeds=FIVE),
    Proof("hopper", CUT, HOPPER, without(HOPPER, ends_unseen), 1800, bound=1000),
    Proof("inverted-pendulum", CUT, PENDULUM, without(PENDULUM, ends_unseen), 900, share=0.5),
    Proof("masked-cartpole", "memory of an LSTM",
          MASKED, without(MASKED, policy={"core": "none"}), 400, bound=100),
    Proof("stale-actor", "ratios clipped as in V-trace",
          STALE, without(STALE, train=INFINITE), 450, share=0.8, seeds=FIVE),
    Proof("priorities", "rows drawn by how much is to be learned",
          PASSWORD, without(PASSWORD, train={"alpha": 0.0}), 0.9, share=0.7, seeds=FIVE),
    Proof("muon", "Muon beside AdamW, each at its own learning rate",
          MUON, without(MUON, train=ADAMW), 400, share=1.0),
    Proof("faults", "workers that crash and stall; nothing is left behind", FAULTS, None, 450),
    Proof("memory-8", "memory over eight steps",
          MEMORY, without(MEMORY, policy={"core": "none"}), 0.9, bound=0.6),
    Proof("password-7", "exploration",
          PASSWORD_7, without(PASSWORD_7, train=UNTRAINED), 0.9, bound=0.1),
    Proof("breakout", "the main job in its default settings: 90 % of the best score",
          BREAKOUT, without(BREAKOUT, train=UNTRAINED), 0.9 * 864, bound=100),
    Proof("spread", "MAPPO; its control is IPPO, with a local critic",
          SPREAD, without(SPREAD, train={"critic": "local"}), -12),
    Proof("spread-summed", "MAPPO in the rewards of its own code",
          SUMMED, without(SUMMED, train={"normalise_values": False}), -140),
    Proof("dreamer", "Dreamer in its default settings; its control imagines nothing",
          DREAMER, without(DREAMER, imagination_off), 250, bound=125),
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What came of a proof.

    Attributes:
        proof: Which.
        outcomes: A seed each.
        controls: The same of the control.
    """

    proof: Proof
    outcomes: tuple[Outcome, ...]
    controls: tuple[Outcome, ...]

    @property
    def holds(self) -> bool:
        """Whether the proof is one."""
        proof = self.proof
        kept = middle(self.outcomes) >= proof.threshold
        if proof.bound is not None:
            kept &= middle(self.controls) <= proof.bound
        if proof.share is not None:
            ours = median_steps(self.outcomes)
            kept &= math.isfinite(ours) and ours <= proof.share * median_steps(self.controls)
        return kept

    def __str__(self) -> str:
        scores = ", ".join(f"{outcome.score:.4g}" for outcome in self.outcomes)
        controls = ", ".join(f"{outcome.score:.4g}" for outcome in self.controls) or "none"
        steps = ""
        if self.proof.share is not None:
            ours, theirs = median_steps(self.outcomes), median_steps(self.controls)
            steps = f"; steps {ours:,.0f}, control {theirs:,.0f}"
        verdict = "holds" if self.holds else "missed"
        return f"{self.proof.name}: {scores}; control {controls}{steps}: {verdict}"

    def to_dict(self, commit: str) -> dict[str, Any]:
        """Its figures, as JSON has them."""
        proof = self.proof
        return {
            "shows": proof.shows,
            "env": proof.lesson.env,
            "steps": proof.lesson.steps or None,
            "threshold": proof.threshold,
            "bound": proof.bound,
            "share": proof.share,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "controls": [asdict(outcome) for outcome in self.controls],
            "commit": commit,
            "holds": self.holds,
        }


def prove(proof: Proof, tell: Tell = lambda label, steps, total: None) -> Finding:
    """Run a proof and its control with all seeds."""

    def outcomes(lesson: Lesson | None, label: str) -> tuple[Outcome, ...]:
        if lesson is None:
            return ()
        found, total = [], lesson.steps or None
        for seed in proof.seeds:
            told = partial(tell, f"{label}, seed {seed}", total=total)
            found.append(study(lesson, seed, proof.threshold, told))
        return tuple(found)

    return Finding(
        proof,
        outcomes(proof.lesson, proof.name),
        outcomes(proof.control, f"{proof.name}, control"),
    )


def middle(outcomes: tuple[Outcome, ...]) -> float:
    """The mean of the scores without the lowest and the highest quarter."""
    scores = sorted(outcome.score for outcome in outcomes)
    spare = len(scores) // 4
    return float(np.mean(scores[spare : len(scores) - spare]))


def median_steps(outcomes: tuple[Outcome, ...]) -> float:
    """Steps to the threshold; infinite if most seeds never reached it."""
    return median(math.inf if o.reached is None else o.reached for o in outcomes)


# ------------------------------------------------------------------ the report


def write_report(findings: list[Finding]) -> None:
    """Put findings into the results; what was not run stays as it was."""
    this = commit()
    found = {finding.proof.name: finding.to_dict(this) for finding in findings}
    known = keep("learning", found)
    lines = [
        "# Learning proofs",
        "",
        "Written by `python benchmarks/learning.py`, which says how to read it. Scores and steps",
        "to the threshold are listed seed by seed.",
        "",
        "| proof | environment | asked | scores | steps to it | control: scores | control: steps |"
        " minutes | commit | holds |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_row(proof.name, known[proof.name]) for proof in PROOFS if proof.name in known),
        "",
    ]
    (RESULTS / "learning.md").write_text("\n".join(lines))


def _row(name: str, found: dict[str, Any]) -> str:
    both = found["outcomes"] + found["controls"]
    asked = f">= {found['threshold']:g}"
    if found["bound"] is not None:
        asked += f", control <= {found['bound']:g}"
    if found["share"] is not None:
        asked += f", in <= {found['share']:g} x the control's steps"
    cells = [
        f"{name}: {found['shows']}",
        f"`{found['env']}`",
        asked,
        *(
            cell
            for side in (found["outcomes"], found["controls"])
            for cell in (
                ", ".join(f"{o['score']:.4g}" for o in side) or "-",
                ", ".join("never" if o["reached"] is None else f"{o['reached']:,}" for o in side)
                or "-",
            )
        ),
        f"{sum(o['minutes'] for o in both):.1f}",
        found["commit"],
        "yes" if found["holds"] else "**no**",
    ]
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class LearningOptions:
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these proofs."""


def main(options: LearningOptions) -> None:
    """Run proofs, show how they stand, and write down what came of each."""
    check_names(options.only, {proof.name: proof for proof in PROOFS})
    torch.set_num_threads(1)
    console, missed = Console(), []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=None)

        def tell(label: str, steps: int, total: int | None) -> None:
            progress.update(task, description=label, completed=steps, total=total)

        for proof in PROOFS:
            if options.only and proof.name not in options.only:
                continue
            finding = prove(proof, tell)
            write_report([finding])
            missed += [] if finding.holds else [proof.name]
            console.print(str(finding))
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main(tyro.cli(LearningOptions))
