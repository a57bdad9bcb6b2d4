"""Runs that are killed with -9 at random moments, and disks that fill up: nothing may be lost.

    python benchmarks/trust/chaos.py [--kills 200] [--seed 1] [--no-full-disk]

Small `fugu train` runs save after every update and are killed again and again; every other kill
waits until a checkpoint is being written. After each kill all checkpoints that the run says it has
must be whole and equal to those of a run that nobody disturbed, byte for byte, and so must the
metrics; `fugu train --resume auto` must go on from the newest. In the end so must the whole run.
A kill counts as one during a write if it left half of something behind.

A run starts as a fork of this process, which has imported everything and computed nothing: what is
then done is the command's own, without the seconds of a start. Some start as programs of their own.

Then a small disk is filled under all that writes (`full_disk.py`; needs root, for a tmpfs): it must
say that the disk is full, and leave what was there as it was. What comes of it is written to
`benchmarks/results/chaos.json`, and as a table to `chaos.md`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro
from commands import BrokenError, Started
from full_disk import Outcome, fill_disks
from rich.console import Console
from rich.progress import Progress
from undisturbed import Undisturbed, describe, halves, saved_lines

from fugu.store.checkpoint import CheckpointError
from fugu.store.run import Run

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
UPDATES = 24
SMALL = ["--quiet", "--seed", "3", "--run.checkpoint-seconds", "0", "--policy.hidden-size", "16"]
SMALL += ["--vec.num-envs", "8", "--train.horizon", "16"]
SMALL += ["--train.total-steps", str(UPDATES * 128)]
PROCESSES = ["--vec.backend", "process", "--vec.num-workers", "2"]
KINDS = {
    "cartpole, native": ["cartpole"],
    "cartpole, native, LSTM": ["cartpole", "--policy.core", "lstm"],
    "CartPole-v1 in processes": ["CartPole-v1", *PROCESSES],
}
FRESH = 25  # one start in so many is a program of its own
WRITE_SECONDS = 0.05  # a kill that waits for a write comes within that time of its beginning


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    kills: int = 200
    """How often to kill."""
    seed: int = 1
    """Of the moments."""
    full_disk: bool = True
    """Whether to fill disks too."""


@dataclass
class Tally:
    """What was done so far."""

    kills: int = 0
    in_writes: int = 0
    """Kills that left half of something."""
    during: dict[str, int] = field(default_factory=dict)
    """Of what; a kill may leave several halves."""
    by_kind: dict[str, int] = field(default_factory=dict)
    starts: int = 0
    programs: int = 0
    """Starts that were no forks."""
    resumed: int = 0
    """Starts that had a checkpoint to go on from."""
    checkpoints: int = 0
    """That were verified and compared."""
    equal: int = 0
    """Finished runs that equal an undisturbed one."""
    fault: str = ""
    """What was lost or not equal; it ends the kills."""


class Chaos:
    """Kills runs of one kind until it has killed often enough."""

    def __init__(self, kind: str, root: Path, chance: random.Random, tally: Tally) -> None:
        self._kind, self._root, self._chance, self._tally = kind, root, chance, tally
        root.mkdir()
        self._args = ["train", *KINDS[kind], *SMALL, "--run.folder", str(root)]
        self._whole = Undisturbed(self._args, root)
        self._runs = 0

    def kill(self, kills: int, tell: Callable[[], None]) -> None:
        """Runs, one after the other, each killed and resumed until it ends."""
        while kills:
            self._runs += 1
            run = Run(self._root / f"part-{self._runs}")
            while kills and self._disturb(run):
                kills -= 1
                tell()
            if run.status != "finished":
                self._end(self._start(run).finish())
            self._tally.checkpoints += self._whole.check_finished(run)
            self._tally.equal += 1

    def _start(self, run: Run) -> Started:
        fresh = self._tally.starts % FRESH == FRESH - 1
        self._tally.starts += 1
        self._tally.programs += fresh
        self._tally.resumed += bool(run.checkpoints())
        own = ["--run.name", run.folder.name, "--resume", "auto"]
        return Started([*self._args, *own], self._root / "log", fresh=fresh)

    def _end(self, status: int) -> None:
        if status:
            text = (self._root / "log").read_text(errors="replace")
            raise BrokenError(f"it ended with status {status}: {text[-3000:]}")

    def _disturb(self, run: Run) -> bool:
        """Start or resume a run and kill it; False if it ended before."""
        before, saved = halves(run), saved_lines(run)
        started = self._start(run)
        started.wait(self._chance.random() * self._whole.seconds * 0.75)
        if self._chance.random() < 0.5:
            self._await_write(run, started)
        status = started.kill()
        if left := started.left_behind():
            raise BrokenError(f"workers live on without their learner: {left}")
        if status != -9:
            self._end(status)
            return False
        during = describe(run, halves(run) - before)
        self._tally.kills += 1
        self._tally.in_writes += bool(during)
        for counts, names in ((self._tally.during, during), (self._tally.by_kind, {self._kind})):
            counts.update({name: counts.get(name, 0) + 1 for name in names})
        self._tally.checkpoints += self._whole.check(run)
        if saved and not run.metrics_path.read_bytes().startswith(saved):
            raise BrokenError(f"{run} did not go on from its newest checkpoint")
        return True

    def _await_write(self, run: Run, started: Started) -> None:
        """Return within the next write that begins, or when the run has ended."""
        known = halves(run)
        while not started.wait(0.0003):
            if halves(run) - known:
                started.wait(self._chance.random() * WRITE_SECONDS)
                return


def kill_all(options: Options, folder: Path, console: Console, tally: Tally) -> None:
    """All kinds, each its share of the kills."""
    chance = random.Random(options.seed)
    with Progress(console=console, auto_refresh=False) as progress:  # no thread: we fork
        bar = progress.add_task("kills", total=options.kills)

        def tell() -> None:
            text = f"kills: {tally.kills}, {tally.in_writes} in writes, {tally.equal} runs equal"
            progress.update(bar, advance=1, description=text, refresh=True)
            if not console.is_terminal and tally.kills % 10 == 0:
                console.print(text)

        for number, kind in enumerate(KINDS):
            share = len(range(number, options.kills, len(KINDS)))
            if share:
                Chaos(kind, folder / str(number), chance, tally).kill(share, tell)


def main(options: Options) -> int:
    """Kill, fill, and write down what came of it; 0 if nothing was lost."""
    console, began, tally = Console(stderr=True), time.monotonic(), Tally()
    with tempfile.TemporaryDirectory(prefix="fugu-chaos-") as folder:
        try:
            kill_all(options, Path(folder), console, tally)
        except (BrokenError, CheckpointError) as error:
            console.print_exception()
            tally.fault = str(error)
        outcomes: list[Outcome] | None = None
        if options.full_disk:
            outcomes = fill_disks(["train", "cartpole", *SMALL], Path(folder) / "disk", console)
    minutes = (time.monotonic() - began) / 60
    write_report(options, tally, outcomes, minutes)
    console.print((RESULTS / "chaos.md").read_text(), markup=False)
    return int(bool(tally.fault) or any(outcome.fault for outcome in outcomes or []))


def write_report(
    options: Options, tally: Tally, outcomes: list[Outcome] | None, minutes: float
) -> None:
    """Figures and tables."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[str, Any] = {"commit": commit.stdout.strip(), "seed": options.seed}
    found |= {"minutes": round(minutes, 1), **asdict(tally)}
    found["full_disk"] = None if outcomes is None else [asdict(outcome) for outcome in outcomes]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "chaos.json").write_text(json.dumps(found, indent=1) + "\n")
    during = ", ".join(f"{what} {count}" for what, count in sorted(tally.during.items()))
    kinds = ", ".join(f"{kind}: {count}" for kind, count in tally.by_kind.items())
    equal = f"yes, all {tally.equal} that were killed and went to their end"
    if tally.fault:
        equal = f"**no**: {tally.fault.splitlines()[0]}"
    lines = [
        "# Killed runs and full disks",
        "",
        "Written by `python benchmarks/trust/chaos.py`, which says how to read it: "
        f"seed {options.seed}, {minutes:.1f} minutes, commit {found['commit']}.",
        "",
        "| | |",
        "|---|---|",
        f"| kills with -9 | {tally.kills} ({kinds}) |",
        f"| of them during a write | {tally.in_writes} ({during}) |",
        f"| starts | {tally.starts}, {tally.resumed} from a checkpoint, "
        f"{tally.programs} as programs of their own |",
        f"| checkpoints verified and compared | {tally.checkpoints} |",
        f"| equal to undisturbed runs: weights, optimiser, counters, metrics | {equal} |",
        "",
    ]
    if outcomes is None:
        lines += ["Full disks were left out; only root may mount a tmpfs.", ""]
    else:
        lines += [
            "| full disk while | tries | all said so | what was there is whole | went on after |",
            "|---|---|---|---|---|",
            *(outcome.row for outcome in outcomes),
            "",
        ]
    (RESULTS / "chaos.md").write_text("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
