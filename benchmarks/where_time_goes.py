"""Where the time of `fugu train` goes: products, environments, the rest of networks, all else.

    python benchmarks/where_time_goes.py [--quick] [--json FILE] [--only NAME ...]

Each training runs as `fugu train ENV` does, with its own settings. When it is warm, perf looks at
all its processes and threads for some seconds, 199 times a second each core. A sample counts for

    products      matrix products: of the native engine, or of oneDNN and MKL under torch
    environment   a native environment's own library, or the processes that step Python's
    network       whatever else the native core does: functions, norms, losses, optimisers
    torch         whatever else torch and NumPy do
    python        the interpreter, and copies by the C library, whoever asked for them
    kernel        the operating system
    idle          nothing of it ran, though the core was there, or a thread looked out for work

so that all of them together are the wall clock of all cores. It needs `perf` (Debian: linux-perf)
and a native core with symbols, as `make setup` builds it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import tyro
from claims import Claim, Options, finish
from rich.console import Console
from rich.table import Table

from fugu.core.machine import usable_cores

RATE, PATIENCE = 199, 300.0  # samples a second; seconds that a training may take to be warm
KINDS = ("products", "environment", "network", "torch", "python", "kernel", "idle")
PRODUCTS = re.compile(
    r"product|wide_rows|narrow_rows|outer|convolve|pair_rows|pair_columns|gemm|dnnl|mkl|jit", re.I
)
WAITING = re.compile(r"Team::help|clock_gettime|steady_clock")
JOBS = {
    "cartpole": ("cartpole",),
    "breakout": ("breakout",),
    "snake": ("snake",),
    "breakout, lstm": ("breakout", "--policy.core", "lstm"),
    "breakout, torch": ("breakout", "--train.engine", "torch"),
    "CartPole-v1": ("CartPole-v1", "--vec.backend", "process"),
}
GOAL = ("cartpole", "breakout", "snake", "CartPole-v1")  # of which most should be useful
console = Console()


@dataclass(frozen=True)
class ProfileOptions(Options):
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these."""


@contextmanager
def training(words: tuple[str, ...]) -> Iterator[psutil.Process]:
    """A training that is warm: its metrics have been written for some seconds."""
    with tempfile.TemporaryDirectory() as folder:
        endless = ("--train.total-steps", "4000000000", "--run.folder", folder, "--quiet")
        command = [sys.executable, "-m", "fugu.cli.main", "train", *words, *endless]
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            until = time.monotonic() + PATIENCE
            while not any(path.stat().st_size for path in Path(folder).rglob("metrics.jsonl")):
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{' '.join(command)}: it does not train")
                time.sleep(0.2)
            time.sleep(3.0)
            yield process
        finally:
            for one in [*process.children(recursive=True), process]:
                one.kill()
            process.wait()


def samples(process: psutil.Process, seconds: float) -> Iterator[tuple[int, int, str, str]]:
    """Count, thread, library and symbol of what perf saw."""
    pids = [process.pid, *(child.pid for child in process.children(recursive=True))]
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "perf.data")
        asked = ["-F", str(RATE), "-o", data, "-p", ",".join(map(str, pids))]
        record = ["perf", "record", *asked, "--", "sleep", str(seconds)]
        subprocess.run(record, check=True, capture_output=True)
        # What perf calls a pid is a thread's.
        fields = ["--sort", "pid,dso,symbol", "-F", "sample,pid,dso,symbol", "-t", "\t"]
        report = ["perf", "report", "-i", data, "--stdio", "--no-children", *fields]
        printed = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) >= 4 and cells[0].isdigit():
            yield int(cells[0]), int(cells[1].split(":")[0]), cells[2], cells[3]


def kind_of(env: str, own: bool, library: str, symbol: str) -> str:
    """What a sample counts for; `own`: its thread is of the process that learns."""
    if not own or library == f"{env}.so":
        return "environment"
    if WAITING.search(symbol):
        return "idle"
    if "kernel" in library or symbol.startswith("[k]"):
        return "kernel"
    if library.startswith("_native"):
        return "products" if PRODUCTS.search(symbol) else "network"
    if "JIT" in library or "mkl" in library:
        return "products"
    if "torch" in library or "multiarray" in library or "gomp" in library or "iomp" in library:
        return "products" if PRODUCTS.search(symbol) else "torch"
    return "python"


def measure(words: tuple[str, ...], seconds: float) -> dict[str, float]:
    """Shares of the wall clock of all cores."""
    found: Counter[str] = Counter()
    with training(words) as process:
        own = {thread.id for thread in process.threads()}
        for count, thread, library, symbol in samples(process, seconds):
            found[kind_of(words[0], thread in own, library, symbol)] += count
    all_of_it = max(RATE * seconds * usable_cores(), found.total())
    found["idle"] += round(all_of_it - found.total())
    return {kind: found[kind] / all_of_it for kind in KINDS}


def main(options: ProfileOptions) -> None:
    """Measure, show, and judge."""
    if unknown := set(options.only) - set(JOBS):
        raise SystemExit(f"only: given {sorted(unknown)}; allowed: {list(JOBS)}")
    if shutil.which("perf") is None:
        raise SystemExit("perf is not installed; Debian has it in linux-perf")
    names = options.only or (("cartpole",) if options.quick else tuple(JOBS))
    found = {name: measure(JOBS[name], 3.0 if options.quick else 20.0) for name in names}
    table = Table(title=f"shares of the wall clock of {usable_cores()} cores")
    for head in ("fugu train", *KINDS):
        table.add_column(head, justify="left" if head == "fugu train" else "right")
    for name, shares in found.items():
        table.add_row(name, *(f"{shares[kind]:.0%}" for kind in KINDS))
    console.print(table)
    finish([_claim(name, found.get(name)) for name in GOAL], options)


def _claim(name: str, shares: dict[str, float] | None) -> Claim:
    useful = None if shares is None else shares["products"] + shares["environment"]
    return Claim(f"{name}-useful-share", useful, target=0.6, fugu=useful, limit=1.0)


if __name__ == "__main__":
    main(tyro.cli(ProfileOptions))
