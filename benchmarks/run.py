"""Every benchmark, one after another: what they print, their claims as rows, and the pages.

    python benchmarks/run.py [--only NAME ...] [--again] [--quick]

What a benchmark prints goes into `benchmarks/results/NAME.md`, in place of what it printed last;
what somebody wrote below that stays. Its claims are appended to `results/DATE-COMMIT.jsonl`: ours,
the peers', the physical limit where there is one, the ratio and its target. Then the pages of docs
are written anew. Let nothing else run meanwhile: all of them take two and a half hours.

A run that was cut off goes on where it was: what this very code has been measured by already is
left alone, unless --again is given. --quick tries all of them within minutes and keeps nothing.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from fugu.core.machine import usable_cores

HERE = Path(__file__).parent
RESULTS = HERE / "results"
# What figures are of; the runner measures nothing itself.
CODE = (
    "src",
    "native",
    "benchmarks",
    "tests/sandbox/attacks",
    ":!benchmarks/results",
    ":!benchmarks/run.py",
)
PAGES = (
    "benchmarks/scale.py --docs",
    "docs/generate_performance.py",
    "docs/generate_examples_page.py",
)
PATIENCE = 3 * 3600.0  # seconds that one may take
BLOCK = re.compile(r"^```\n.*?^```\n", re.M | re.S)
console = Console()


@dataclass(frozen=True)
class Benchmark:
    """A page of results.

    Attributes:
        title: Of the page.
        commands: Scripts of this folder, each with its arguments.
        quick: Whether they know `--quick`.
    """

    title: str
    commands: tuple[str, ...]
    quick: bool = True


BENCHMARKS = {
    "engines": Benchmark("The engines, and PufferLib", ("train.py --only flagship engines",)),
    "train": Benchmark(
        "Training beside its peers",
        ("train.py --only defaults same solve parts products straggler",),
    ),
    "time": Benchmark("Where the time of training goes", ("where_time_goes.py",)),
    "levers": Benchmark("What each lever brings", ("levers.py",)),
    "pixels": Benchmark("Pong from pixels", ("pixels.py",)),
    "examples": Benchmark("Examples", ("examples.py",)),
    "emulation": Benchmark("Structured data as flat rows", ("emulation.py",)),
    "vector": Benchmark("Many copies at once", ("vector.py",)),
    "native": Benchmark("Native environments", ("native.py",)),
    "advantage": Benchmark("Advantages", ("advantage.py",)),
    "import_time": Benchmark("Import", ("import_time.py",)),
    "nets": Benchmark("Networks in the native core", ("nets.py",)),
    "algos": Benchmark("Other algorithms beside their peers", ("algos.py",)),
    "coding": Benchmark("Programs in the sandbox", ("coding.py",)),
    "red_team": Benchmark("Attacks on the sandbox", ("red_team.py",)),
    "export": Benchmark("Engines of a policy", ("export.py",)),
    "web": Benchmark("Pages in a browser", ("web.py",)),
    "serve": Benchmark(
        "A policy over HTTP",
        tuple(f"serve.py --engine {engine}" for engine in ("torch", "native", "onnx")),
        quick=False,
    ),
    "scale": Benchmark("Environments on a cluster", ("scale.py",)),
    "sweep": Benchmark("A sweep of CartPole", ("sweep.py",)),
}


@dataclass(frozen=True)
class RunOptions:
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these."""
    again: bool = False
    """Those too that were measured with this code already."""
    quick: bool = False
    """Try them: subsets, and nothing is kept."""


@dataclass(frozen=True)
class Outcome:
    """How a benchmark ended.

    Attributes:
        output: What it printed.
        claims: Verdicts of its claims.
        seconds: That it took.
        failure: Why it has no figures; empty if it has.
    """

    output: str
    claims: tuple[bool | None, ...]
    seconds: float
    failure: str = ""


def run(benchmark: Benchmark, rows: Path, quick: bool) -> Outcome:
    """All of its commands, shown while they run."""
    printed, began, failure = "", time.perf_counter(), ""
    before = len(read_rows(rows))
    for command in benchmark.commands:
        extra = ["--quick"] if quick and benchmark.quick else []
        words = [sys.executable, *command.split(), *extra, "--json", str(rows)]
        environment = os.environ | {"COLUMNS": "200"}
        process = subprocess.Popen(
            words, cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        claims = len(read_rows(rows))
        for line in process.stdout:
            print(line, end="", flush=True)
            printed += line.rstrip() + "\n"
        code = process.wait(PATIENCE)
        if code and len(read_rows(rows)) == claims:  # a missed claim gives 1 too
            failure = f"{command} ended with status {code}"
    told = tuple(row["met"] for row in read_rows(rows)[before:])
    return Outcome(printed.strip(), told, time.perf_counter() - began, failure)


def read_rows(path: Path) -> list[dict[str, bool | None]]:
    """The claims of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_page(name: str, benchmark: Benchmark, outcome: Outcome) -> None:
    """What was printed, in place of what was printed last."""
    path = RESULTS / f"{name}.md"
    old = path.read_text() if path.exists() else ""
    notes = BLOCK.split(old)[-1].strip() if BLOCK.search(old) else ""
    scripts = " and ".join(f"`python benchmarks/{command}`" for command in benchmark.commands)
    lines = [
        f"# {benchmark.title}",
        "",
        f"{scripts} on {machine()}; commit {commit()}, {outcome.seconds / 60:.0f} minutes.",
        "",
        "```",
        outcome.output,
        "```",
    ]
    path.write_text("\n".join([*lines, *(["", notes] if notes else []), ""]))


def machine() -> str:
    """What the figures are of."""
    found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    model = found[1] if found else platform.processor()
    flags = Path("/proc/cpuinfo").read_text()
    told = [word for word in ("avx2", "avx512f", "avx512_bf16") if f" {word} " in flags]
    return f"{usable_cores()} cores of {model} ({', '.join(told)}), torch {version('torch')}"


def commit() -> str:
    """The last one that changed what is measured."""
    return git("log", "-1", "--format=%h", "--", *CODE).stdout.strip()


def measured_at(name: str) -> str:
    """The commit of its page, if the code is still the same; else nothing."""
    path = RESULTS / f"{name}.md"
    told = re.search(r"; commit ([0-9a-f]{7,}), ", path.read_text()) if path.exists() else None
    same = told and git("diff", "--quiet", told[1], "--", *CODE).returncode == 0
    return told[1] if told and same else ""


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Ask git about this project."""
    command = ["git", *words]
    return subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)


def main(options: RunOptions) -> int:
    """Run, keep, and write the pages."""
    unknown = set(options.only) - set(BENCHMARKS)
    if unknown:
        console.print(f"--only: given {', '.join(unknown)}; allowed: {', '.join(BENCHMARKS)}")
        return 2
    chosen = {name: b for name, b in BENCHMARKS.items() if not options.only or name in options.only}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with tempfile.TemporaryDirectory() as folder:
        kept = RESULTS / f"{today}-{commit()}.jsonl"
        rows = Path(folder) / "rows.jsonl" if options.quick else kept
        summary = Table("benchmark", "met", "missed", "not measured", "minutes", "")
        failed = False
        for number, (name, benchmark) in enumerate(chosen.items(), 1):
            console.rule(f"{number} of {len(chosen)}: {name}")
            if not (options.quick or options.again) and (before := measured_at(name)):
                summary.add_row(name, "", "", "", "", f"measured at {before}, with this code")
                continue
            outcome = run(benchmark, rows, options.quick)
            if not options.quick and not outcome.failure:
                write_page(name, benchmark, outcome)
            failed |= bool(outcome.failure)
            counts = [str(outcome.claims.count(verdict)) for verdict in (True, False, None)]
            summary.add_row(name, *counts, f"{outcome.seconds / 60:.1f}", outcome.failure)
    console.print(summary)
    if not options.quick:
        for page in PAGES:
            subprocess.run([sys.executable, *page.split()], cwd=HERE.parent, check=True)
        console.print(f"claims: {kept}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(RunOptions)))
