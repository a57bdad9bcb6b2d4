"""How many lines of src the test suite runs, folder by folder.

    python benchmarks/trust/suite_coverage.py [--data FILE]

Runs the suite as `make test` does, with coverage, in all processes that it starts, and writes what
comes of it to `benchmarks/results/coverage.md`; `--data` reads what such a run has left instead.
Programs in the sandbox are not looked into: nothing can be written from there. Proofs that take
minutes (Ray's among them) and recipes of packages that are not installed are not run.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import coverage
import tyro
from rich.console import Console
from tree import git

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "results" / "coverage.md"
LOW = 0.8  # files with less are named
HEAD = """# Lines that the tests run

Written by `python benchmarks/trust/suite_coverage.py`, which says how to read it; coverage
{version}, commit {commit}.

| folder of `src/fugu` | lines | run | share |
|---|---|---|---|
"""
console = Console()


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    data: Path | None = None
    """What a run has left."""


def run_suite(data: Path) -> None:
    """With coverage; tests that fail are shown, and what they ran counts."""
    words = ["-n", "2", "--dist", "worksteal", "-q", "-m", "not slow", "--cov", "--cov-report="]
    command = [sys.executable, "-m", "pytest", *words, f"--cov-config={ROOT / 'pyproject.toml'}"]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "data"
        variables = os.environ | {"COVERAGE_FILE": str(found)}
        subprocess.run(command, cwd=ROOT, env=variables, check=False)
        shutil.copy(found, data)


def shares(data: Path) -> dict[str, tuple[int, int]]:
    """Lines of each file, and how many of them were run."""
    record = coverage.Coverage(str(data), config_file=str(ROOT / "pyproject.toml"))
    record.load()
    with tempfile.NamedTemporaryFile() as report:
        record.json_report(outfile=report.name)
        files = json.loads(Path(report.name).read_text())["files"]
    found = {}
    for name, told in files.items():
        inside = name.rpartition("src/fugu/")[2]
        found[inside] = told["summary"]["num_statements"], told["summary"]["covered_lines"]
    return found


def write_page(files: dict[str, tuple[int, int]]) -> None:
    """A row a folder, and the files that have little."""
    folders = defaultdict[str, list[tuple[int, int]]](list)
    for name, counts in files.items():
        folders[name.split("/")[0] if "/" in name else "(itself)"].append(counts)
    rows = [_row(f"`{name}`", counts) for name, counts in sorted(folders.items())]
    rows.append(_row("**all**", list(files.values())))
    low = {name: run / lines for name, (lines, run) in files.items() if run < LOW * lines}
    named = ", ".join(f"`{name}` {share:.0%}" for name, share in sorted(low.items()))
    out = io.StringIO()
    out.write(HEAD.format(version=version("coverage"), commit=git("describe", "--always").strip()))
    out.write("\n".join(rows) + "\n")
    if named:
        out.write(f"\nFiles below {LOW:.0%}: {named}.\n")
    PAGE.write_text(out.getvalue())


def _row(name: str, counts: list[tuple[int, int]]) -> str:
    lines, run = (sum(column) for column in zip(*counts, strict=True))
    return f"| {name} | {lines:,} | {run:,} | {run / max(1, lines):.1%} |"


def main(options: Options) -> None:
    """Run, write, and say the share."""
    with tempfile.TemporaryDirectory() as folder:
        data = options.data or Path(folder) / "data"
        if options.data is None:
            run_suite(data)
        elif not data.is_file():
            raise SystemExit(f"data: given {data}; allowed: a file of coverage's")
        files = shares(data)
    write_page(files)
    lines, run = (sum(column) for column in zip(*files.values(), strict=True))
    console.print(f"{run:,} of {lines:,} lines: {run / lines:.1%}; written to {PAGE}")


if __name__ == "__main__":
    main(tyro.cli(Options))
