"""Vectors beside their peers, all in one run.

    python benchmarks/vector.py [--quick] [--json FILE] [--rows cartpole-1024 ...]

Simulation only, environment steps a second, random actions, no policy. Every library runs in a
process of its own, from its own virtual environment (`make peers`), with the same environment code;
one that is not installed is named as absent. All libraries of a row stand ready at once and take
turns, one short window each, round after round, the others stopped meanwhile: a busy moment of the
machine hits them alike. A figure is the median of a library's windows.

The limit is a raw loop on every core at once. Peers step all copies at once, as they must; ours
also hands over batches of a half or a quarter, the first that are ready. A row's ratio is our best
setting against the best library that steps the same Python code. EnvPool steps its own C++
environments instead: it is shown, and compared with our native ones elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
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
    "bare": Path(sys.executable),
    "gymnasium": ROOT / ".venv-peers/bin/python",
    "sb3": ROOT / ".venv-peers/bin/python",
    "envpool": ROOT / ".venv-peers/bin/python",
    "pufferlib": ROOT / ".venv-pufferlib/bin/python",
}
OURS = ("fugu-auto", "fugu-serial", "fugu-process", "fugu-half", "fugu-quarter")
SINGLE = ("gymnasium-sync", "sb3-dummy", "pufferlib-serial")  # libraries that step in one process
PROCESS_EACH = ("gymnasium-async", "sb3-subproc")  # that take a process a copy
PARALLEL = (*PROCESS_EACH, "pufferlib-sync", "pufferlib-async")
NATIVE = ("envpool-sync", "envpool-async")
ENVPOOL_HAS = ("cartpole", "breakout")
SLOW = ("straggler", "breakout")  # 200 us a step and more; NetHack takes about 140
MOST_PROCESSES = 128
START_LIMIT = 90.0  # seconds until a library must stand ready
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
GROWTH = (64, 512, 2048, 8192)


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


class Contender:
    """One library with its copies, in a process group that runs only during its own windows."""

    def __init__(self, library: str, workload: str, copies: int) -> None:
        self.windows: list[float] = []
        self._folder = tempfile.mkdtemp()  # a peer writes into the working folder at import
        self._process = subprocess.Popen(
            [PYTHONS[library.partition("-")[0]], RUNNER, library, workload, str(copies)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            cwd=self._folder,
        )
        self.ready = self._answer("READY", START_LIMIT) is not None
        self._signal(signal.SIGSTOP)

    def run(self, seconds: float) -> None:
        """One more window."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{seconds}\n")
            self._process.stdin.flush()
        rate = self._answer("RATE", 30 + 3 * seconds)
        self._signal(signal.SIGSTOP)
        if rate is None:
            self.ready = False
        else:
            self.windows.append(float(rate))

    def memory(self) -> int:
        """Bytes of all its processes; pages that some share are counted once."""
        total = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(folder.name)) == self._process.pid:
                    text = (folder / "smaps_rollup").read_text()
                    total += 1024 * int(text.partition("\nPss:")[2].split()[0])
        return total

    def close(self) -> None:
        """End the whole group: some peers leave workers behind that spin for ever."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _answer(self, word: str, limit: float) -> str | None:
        """What follows the word on the next line that begins with it; None if none comes."""
        assert self._process.stdout is not None
        timer = threading.Timer(limit, self._signal, [signal.SIGKILL])
        timer.start()
        lines = (line for line in self._process.stdout if line.startswith(word))
        found = next(lines, None)
        timer.cancel()
        return None if found is None else found.removeprefix(word).strip()


def race(
    libraries: Iterable[str], workload: str, copies: int, seconds: float, rounds: int
) -> Figures:
    """Let libraries take turns on one workload."""
    figures, contenders = Figures(), dict[str, Contender]()
    try:
        for library in libraries:
            figures.rates[library] = None
            if PYTHONS[library.partition("-")[0]].exists():
                contenders[library] = Contender(library, workload, copies)
        for _ in range(rounds):
            for contender in contenders.values():
                if contender.ready:
                    contender.run(seconds)
        for library, contender in contenders.items():
            if contender.ready and contender.windows:
                figures.rates[library] = median(contender.windows)
    finally:
        for contender in contenders.values():
            contender.close()
    return figures


def measure(row: Row, quick: bool) -> Figures:
    """Every library on one row."""
    seconds, rounds = (0.3, 3) if quick else (0.6, 5)
    libraries = ["limit", "raw", *OURS, *SINGLE]
    if not quick:
        libraries += ["pufferlib-sync", "pufferlib-async"]
    if not quick and row.copies <= MOST_PROCESSES:
        libraries += PROCESS_EACH
    if row.workload in ENVPOOL_HAS:
        libraries += NATIVE
    return race(libraries, row.workload, row.copies, seconds, rounds)


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
        if row.workload in SLOW and row.copies >= 64:
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
        for library in ("limit", "raw", *OURS, *SINGLE, *PARALLEL, *NATIVE):
            cells = [f.rates.get(library) for f in measured.values()]
            style = "bold green" if library in OURS else "" if "-" in library else "dim"
            table.add_row(
                library, *(f"{rate:,.0f}" if rate else "-" for rate in cells), style=style
            )
        console.print(table)


def growth(quick: bool) -> list[Claim]:
    """Steps/s of a cheap environment as the copies grow, beside the raw loop's own, in turns."""
    if quick:
        return [Claim("growth-64-to-8192", None, 0.85)]
    table = Table(title="cartpole: steps/s as copies grow", title_justify="left")
    for column in ("library", *(f"{n:,}" for n in GROWTH), "last/first", "bytes a copy"):
        table.add_column(column, justify="left" if column == "library" else "right")
    libraries = ("raw", "fugu-serial", "fugu-process")
    entries = {(lib, n): Contender(lib, "cartpole", n) for lib in libraries for n in GROWTH}
    try:
        for _ in range(7):
            for contender in entries.values():
                contender.run(0.4)
        flat = {}
        for lib in libraries:
            rates = [median(entries[lib, n].windows) for n in GROWTH]
            flat[lib] = rates[-1] / rates[0]
            first, last = entries[lib, GROWTH[0]], entries[lib, GROWTH[-1]]
            each = (last.memory() - first.memory()) / (GROWTH[-1] - GROWTH[0])
            figures = [f"{rate:,.0f}" for rate in rates]
            table.add_row(lib, *figures, f"{flat[lib]:.2f}", f"{each:,.0f}")
    finally:
        for contender in entries.values():
            contender.close()
    console.print(table)
    # Serial: with processes, more copies share the fixed cost of a hand-over, and rates grow.
    return [
        Claim("growth-64-to-8192", flat["fugu-serial"], 0.85, limit=flat["raw"], unit="last/first")
    ]


def hand_over() -> None:
    """The bare cost of one send + recv of 128 copies that do nothing."""
    figures = race(("fugu-serial", "fugu-process"), "noop", 128, 0.5, 5)
    for library, rate in figures.rates.items():
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
        task = progress.add_task("", total=len(names))
        for row in ROWS:
            progress.update(task, description=row.name)
            rows[row] = measure(row, options.quick) if row.name in names else None
            progress.advance(task, row.name in names)
    show(rows)
    absent = sorted({name for name, python in PYTHONS.items() if not python.exists()})
    if absent:
        console.print(f"absent: {', '.join(absent)} (make peers)")
    hand_over()
    whole = not options.rows
    finish(claims_of(rows) + (growth(options.quick) if whole else []), options)


if __name__ == "__main__":
    main(tyro.cli(VectorOptions))
