"""Vectors beside their peers, all in one run.

    python benchmarks/vector.py [--quick] [--json FILE] [--rows cartpole-1024 ...]

Simulation only, environment steps a second, random actions, no policy. Every library runs in a
process of its own, from its own virtual environment (`make peers`), with the same environment code;
one that is not installed is named as absent. The limit is a raw loop on every core at once. Each
figure is the median of several windows. Peers step all copies at once, as they must; ours also
hands over batches of a half or a quarter, the first that are ready. A row's ratio is our best
setting against the best library; they are measured one after the other, so that a busy moment can
tilt it: read differences below a half with care, and run a row more than once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import tyro
from claims import Claim, Options, finish
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).parents[1]
RUNNER = Path(__file__).with_name("vector_runner.py")
PYTHONS = {
    "fugu": Path(sys.executable),
    "limit": Path(sys.executable),
    "raw": Path(sys.executable),
    "gymnasium": ROOT / ".venv-peers/bin/python",
    "sb3": ROOT / ".venv-peers/bin/python",
    "envpool": ROOT / ".venv-peers/bin/python",
    "pufferlib": ROOT / ".venv-pufferlib/bin/python",
}
OURS = ("fugu-serial", "fugu-process", "fugu-half", "fugu-quarter")
SINGLE = ("gymnasium-sync", "sb3-dummy", "pufferlib-serial")  # libraries that step in one process
PARALLEL = ("gymnasium-async", "sb3-subproc", "pufferlib-sync", "pufferlib-async")
MOST_PROCESSES = 128  # peers that take a process a copy are not asked for more
console = Console()


@dataclass(frozen=True)
class Row:
    """One workload at one number of copies."""

    workload: str
    copies: int
    target: float  # ours against the best peer

    @property
    def name(self) -> str:
        """Its name on the command line and in claims."""
        return f"{self.workload}-{self.copies}"


ROWS = (
    Row("cartpole", 16, 0.9),
    Row("cartpole", 128, 1.0),
    Row("cartpole", 1024, 1.0),
    Row("noop", 16, 0.9),
    Row("noop", 128, 1.0),
    Row("noop", 1024, 1.0),
    Row("straggler", 64, 0.9),
    Row("straggler", 128, 1.0),
    Row("breakout", 16, 0.9),
    Row("breakout", 128, 1.0),
    Row("nethack", 16, 0.9),
    Row("nethack", 128, 1.0),
)
QUICK = ("cartpole-128", "noop-128")
GROWTH = (64, 256, 1024, 4096, 8192)


@dataclass(frozen=True)
class VectorOptions(Options):
    """See the top of the file."""

    rows: tuple[str, ...] = ()
    """Only these rows."""


@dataclass
class Figures:
    """What was measured of one row, steps a second by library."""

    rates: dict[str, float | None] = field(default_factory=dict)

    def best(self, names: tuple[str, ...]) -> float | None:
        """The best of these."""
        found = [rate for name in names if (rate := self.rates.get(name)) is not None]
        return max(found, default=None)


def run(library: str, workload: str, copies: int, seconds: float, windows: int) -> float | None:
    """Median steps a second, or None if the library is absent or fails."""
    python = PYTHONS[library.partition("-")[0]]
    if not python.exists():
        return None
    folder = tempfile.mkdtemp()  # a peer writes into the working folder when it is imported
    process = subprocess.Popen(
        [python, RUNNER, library, workload, str(copies), str(seconds), str(windows)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        cwd=folder,
    )
    # The whole group ends, since some peers leave workers behind that spin for ever.
    timer = threading.Timer(60 + 3 * seconds * windows, _kill_group, [process.pid])
    timer.start()
    assert process.stdout is not None
    lines = (line for line in process.stdout if line.startswith("RATES "))
    found = next(lines, None)
    timer.cancel()
    _kill_group(process.pid)
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return median(json.loads(found[6:])) if found else None


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def measure(row: Row, quick: bool, progress: Progress) -> Figures:
    """Every library on one row."""
    seconds, windows = (0.4, 3) if quick else (0.6, 5)
    libraries = ["limit", "raw", *OURS, *SINGLE]
    if row.copies <= MOST_PROCESSES and not quick:
        libraries += PARALLEL
    elif row.copies > MOST_PROCESSES:
        libraries += ["pufferlib-sync", "pufferlib-async"]
    task = progress.add_task(row.name, total=len(libraries))
    figures = Figures()
    for library in libraries:
        progress.update(task, description=f"{row.name}: {library}")
        figures.rates[library] = run(library, row.workload, row.copies, seconds, windows)
        progress.advance(task)
    return figures


def claims_of(rows: dict[Row, Figures | None]) -> list[Claim]:
    """What the figures say."""
    claims = []
    for row, figures in rows.items():
        ours = figures.best(OURS) if figures else None
        theirs = figures.best((*SINGLE, *PARALLEL)) if figures else None
        ratio = ours / theirs if ours and theirs else None
        peers = {k: v for k, v in figures.rates.items() if "fugu" not in k} if figures else {}
        limit = figures.rates["limit"] if figures else None
        figure = {"fugu": ours, "peers": peers, "limit": limit, "unit": "steps/s"}
        claims.append(Claim(f"{row.name}-against-peers", ratio, row.target, **figure))
        if row.name == "cartpole-1024":
            ratio = None
            if figures:
                processes = figures.best(("fugu-process", "fugu-half", "fugu-quarter"))
                single = figures.best((*SINGLE, "fugu-serial"))
                ratio = processes / single if processes and single else None
            claims.append(Claim("processes-against-one", ratio, 1.3, **figure))
        if row.workload in ("straggler", "breakout", "nethack") and row.copies >= 64:
            ratio = ours / limit if ours and limit else None
            claims.append(Claim(f"{row.name}-against-limit", ratio, 0.85, **figure))
        if row.name == "straggler-64":
            ratio = None
            if figures and figures.rates["fugu-serial"]:
                asynchronous = figures.best(("fugu-half", "fugu-quarter"))
                ratio = (asynchronous or 0) / figures.rates["fugu-serial"]
            claims.append(Claim("straggler-async-against-serial", ratio, 1.6, **figure))
    return claims


def show(rows: dict[Row, Figures | None]) -> None:
    """One table a workload."""
    for workload in dict.fromkeys(row.workload for row in rows):
        table = Table(title=f"{workload}: environment steps/s", title_justify="left")
        table.add_column("library")
        measured = {row: f for row, f in rows.items() if row.workload == workload and f}
        if not measured:
            continue
        for row in measured:
            table.add_column(f"{row.copies} copies", justify="right")
        for library in ("limit", "raw", *OURS, *SINGLE, *PARALLEL):
            cells = [f.rates.get(library) for f in measured.values()]
            style = "bold green" if library in OURS else "" if "-" in library else "dim"
            table.add_row(
                library, *(f"{rate:,.0f}" if rate else "-" for rate in cells), style=style
            )
        console.print(table)


def growth(quick: bool) -> list[Claim]:
    """Steps/s of a cheap environment as the copies grow, and the cost of one hand-over."""
    if quick:
        return [Claim("growth-64-to-8192", None, 0.85)]
    rates = {n: run("fugu-process", "noop", n, 1.0, 5) or 0.0 for n in GROWTH}
    serial = {n: run("fugu-serial", "noop", n, 1.0, 5) or 0.0 for n in GROWTH}
    table = Table(title="noop: steps/s as copies grow", title_justify="left")
    table.add_column("copies")
    for n in GROWTH:
        table.add_column(f"{n:,}", justify="right")
    table.add_row("fugu-serial", *(f"{rate:,.0f}" for rate in serial.values()))
    table.add_row("fugu-process", *(f"{rate:,.0f}" for rate in rates.values()))
    console.print(table)
    # Serial, since a hand-over between processes costs a fixed time that few copies share.
    flat = min(serial.values()) / max(serial.values())
    return [Claim("growth-64-to-8192", flat, 0.85, fugu=serial[8192], unit="steps/s")]


def hand_over() -> None:
    """The bare cost of one send + recv of 128 copies that do nothing."""
    for library in ("fugu-serial", "fugu-process"):
        rate = run(library, "noop", 128, 0.5, 5)
        if rate:
            micros = 128 / rate * 1e6
            console.print(f"one send + recv of 128 no-op copies, {library}: {micros:.0f} us")


def main(options: VectorOptions) -> None:
    """Measure and report."""
    names = options.rows or (QUICK if options.quick else tuple(row.name for row in ROWS))
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        raise SystemExit(f"rows: given {sorted(unknown)}; allowed: {[row.name for row in ROWS]}")
    rows: dict[Row, Figures | None] = {}
    with Progress(console=console, transient=True) as progress:
        for row in ROWS:
            rows[row] = measure(row, options.quick, progress) if row.name in names else None
    show(rows)
    absent = sorted({name for name, python in PYTHONS.items() if not python.exists()})
    if absent:
        console.print(f"absent: {', '.join(absent)} (make peers)")
    hand_over()
    whole = not options.rows
    finish(claims_of(rows) + (growth(options.quick) if whole else []), options)


if __name__ == "__main__":
    main(tyro.cli(VectorOptions))
