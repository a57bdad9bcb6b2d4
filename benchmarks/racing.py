"""Libraries that take turns: each measurement is a process of its own, with a time limit.

A script is given its settings as JSON and answers with one line, `RESULT` and JSON. Libraries take
turns, round after round, so that a busy moment of the machine hits them alike, and a figure is the
median of its rounds. A library that is absent or fails is named with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from claims import Claim, Options, finish
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).parents[1]
PYTHONS = {
    "fugu": Path(sys.executable),
    "sb3": ROOT / ".venv-peers/bin/python",
    "pufferlib": ROOT / ".venv-pufferlib/bin/python",
    "sample_factory": ROOT / ".venv-sample-factory/bin/python",
    "d3rlpy": ROOT / ".venv-d3rlpy/bin/python",
    "sheeprl": ROOT / ".venv-learners/bin/python",
    "trl": ROOT / ".venv-learners/bin/python",
}
START_LIMIT = 180.0  # seconds that a process may take beside what it measures
console = Console()


@dataclass
class Entry:
    """One library with its settings, and what its rounds told.

    Attributes:
        library: In whose virtual environment the script runs.
        settings: Of the script.
        script: What to run, below this folder; empty: `training/run_<library>`.
        answers: What it said, round after round.
        fault: Why there is no figure.
    """

    library: str
    settings: dict[str, Any]
    script: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)
    fault: str = ""

    def run(self, seconds: float, **more: Any) -> None:
        """One more round, in a process group that is ended whatever happens."""
        name = self.script or f"training/run_{self.library}"
        script = Path(__file__).parent / f"{name}.py"
        if not PYTHONS[self.library].exists():
            self.fault = "absent (make peers)"
            return
        settings = json.dumps({**self.settings, "seconds": seconds, **more})
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [PYTHONS[self.library], script, settings],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                cwd=folder,  # a peer writes into the working folder at import
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            )
            try:
                out, _ = process.communicate(timeout=START_LIMIT + 6 * seconds)
            except subprocess.TimeoutExpired:
                out = ""
                self.fault = f"no answer within {START_LIMIT + 6 * seconds:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            if lines:
                self.answers.append(json.loads(lines[-1].removeprefix("RESULT ")))
            elif not self.fault:
                errors.seek(0)
                self.fault = (errors.read().strip().splitlines() or ["ended without an answer"])[-1]

    def figure(self, name: str) -> float | None:
        """The median of a figure; None if it is not known."""
        found = [one[name] for one in self.answers if one.get(name) is not None]
        return median(found) if found else None

    @property
    def solved(self) -> float | None:
        """Median seconds, a seed that did not solve it counting as the slowest."""
        times = sorted(one.get("solved") or float("inf") for one in self.answers)
        middle = times[len(times) // 2] if times else float("inf")
        return None if middle == float("inf") else middle


class Bench:
    """Runs entries in turns and shows how far it is."""

    def __init__(self, options: Options, progress: Progress) -> None:
        self.quick, self._progress = options.quick, progress
        self._task = progress.add_task("", total=None)

    def race(self, name: str, entries: dict[str, Entry], seconds: float, rounds: int = 5) -> None:
        """Let entries take turns; a quick run makes one short round."""
        seconds, rounds = (min(seconds, 2.0), 1) if self.quick else (seconds, rounds)
        self._turns(name, entries, [{}] * rounds, seconds)

    def seeds(self, name: str, entries: dict[str, Entry], limit: float) -> None:
        """The same with a seed for each round."""
        given = [{"seed": seed} for seed in range(1 if self.quick else 3)]
        self._turns(name, entries, given, limit)

    def _turns(
        self, row: str, entries: dict[str, Entry], rounds: list[dict[str, Any]], seconds: float
    ) -> None:
        self._progress.update(self._task, total=len(rounds) * len(entries), completed=0)
        for number, more in enumerate(rounds):
            for name, entry in entries.items():
                told = f"{row}: {name}, round {number + 1} of {len(rounds)}"
                self._progress.update(self._task, description=told)
                if not entry.fault:
                    entry.run(seconds, **more)
                self._progress.advance(self._task)


def show(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table whose first column is names."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row, style="bold green" if row[0].startswith("fugu") else "")
    console.print(table)


def show_faults(entries: dict[str, Entry]) -> None:
    """Why there is no figure of some."""
    for name, entry in entries.items():
        if entry.fault:
            console.print(f"{name}: {entry.fault}", markup=False)


def text(figure: float | None, form: str = ",.0f") -> str:
    """A cell of a table."""
    return "-" if figure is None else f"{figure:{form}}"


def over(ours: float | None, theirs: float | None) -> float | None:
    """A ratio, if both are known."""
    return ours / theirs if ours and theirs else None


def measure(
    rows: Mapping[str, Callable[[Bench], list[Claim]]],
    options: Options,
    only: Sequence[str],
    quick: Sequence[str],
) -> None:
    """Measure rows, those of `only` or all (of a quick run, those of `quick`), and report."""
    names = only or (quick if options.quick else tuple(rows))
    unknown = set(names) - set(rows)
    if unknown:
        raise SystemExit(f"only: given {sorted(unknown)}; allowed: {', '.join(rows)}")
    claims: list[Claim] = []
    with Progress(console=console, transient=True) as progress:
        bench = Bench(options, progress)
        for name in names:
            claims += rows[name](bench)
    left = [name for name in rows if name not in names]
    if left:
        console.print(f"not measured: {', '.join(left)}")
    finish(claims, options)
