"""The scripts of examples/cleanrl, and Stable-Baselines3 on a structured environment: steps/s.

    python benchmarks/examples.py [--quick] [--only NAME ...] [--seconds 15]

Each script runs as a user runs it, in a process of its own, in `.venv-recipes` (`make recipes`),
where the packages are. Scripts take turns, round after round, and a figure is the median. A plain
script and its variants are timed by the lines that they print, from the end of the first update to
the last; the other tells it at its end. One that fails is shown with the last line of its error,
one whose package is absent with the package.

What comes of it is written to `benchmarks/results/examples.json`, from which
`docs/generate_examples_page.py` writes a page; what was not run keeps its last figure there. A
quick run writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import tyro
from claims import Options, finish
from proving import check_names, commit, keep
from racing import ROOT, show, text

sys.path.insert(0, str(ROOT / "examples/cleanrl"))
from variants import HERE, PLAIN, VARIANTS

RECIPES = ROOT / ".venv-recipes/bin/python"
PYTHON = RECIPES if RECIPES.exists() else Path(sys.executable)
ROUNDS = 3
STEPS = re.compile(r"^global_step=(\d+)")
TOLD = re.compile(r"([\d,]+) steps/s")


@dataclass(frozen=True)
class ExampleOptions(Options):
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these scripts, by the names of their files without `.py`."""
    seconds: float = 15.0
    """That each is watched for in a round."""


@dataclass(frozen=True)
class Script:
    """A file to run.

    Attributes:
        path: Of the file.
        package: What it needs, as it is imported.
        arguments: What it is given.
    """

    path: Path
    package: str
    arguments: tuple[str, ...] = ()

    @property
    def is_absent(self) -> bool:
        """Whether its package is."""
        look = f"import importlib.util as u, sys; sys.exit(u.find_spec({self.package!r}) is None)"
        return subprocess.run([PYTHON, "-c", look], check=False).returncode != 0

    def run(self, seconds: float) -> dict[str, Any]:
        """One round: its rate, or its error."""
        with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(
                [PYTHON, self.path, *self.arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                cwd=folder,
            )
            assert process.stdout is not None
            try:
                rate = watch(process.stdout, seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if rate is not None:
                return {"rate": rate}
            errors.seek(0)
            lines = errors.read().strip().splitlines() or ["ended without a figure"]
            return {"error": lines[-1]}


def watch(lines: IO[str], seconds: float) -> float | None:
    """Steps/s by what a script prints; None if it ends without it."""
    first: tuple[float, int] | None = None
    rate = None
    for line in lines:
        if told := TOLD.search(line):
            return float(told[1].replace(",", ""))
        if found := STEPS.match(line):
            now, steps = time.perf_counter(), int(found[1])
            if first is None:
                first = now, steps
                continue
            rate = (steps - first[1]) / (now - first[0])
            if now - first[0] >= seconds:
                return rate
    return rate


def scripts() -> Iterator[Script]:
    """All of them."""
    yield Script(HERE / f"{PLAIN}.py", "gymnasium", ("--total-timesteps", "10000000"))
    for variant in VARIANTS:
        yield Script(variant.path, variant.package, ("--total-timesteps", "10000000"))
    structured = ROOT / "examples/sb3_structured.py"
    yield Script(structured, "stable_baselines3", ("--total-steps", "20000"))


def study(chosen: dict[str, Script], seconds: float, rounds: int) -> dict[str, dict[str, Any]]:
    """What came of each."""
    found: dict[str, dict[str, Any]] = {}
    rates: dict[str, list[float]] = {}
    for name, script in chosen.items():
        if script.is_absent:
            found[name] = {"absent": script.package}
    for number in range(rounds):
        for name, script in chosen.items():
            if name in found:
                continue
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            told = script.run(seconds)
            if "rate" in told:
                rates.setdefault(name, []).append(told["rate"])
            else:
                found[name] = told
    return found | {name: {"rate": median(each)} for name, each in rates.items()}


def main(options: ExampleOptions) -> None:
    """Run, show and keep."""
    every = {script.path.stem: script for script in scripts()}
    check_names(options.only, every)
    chosen = {name: every[name] for name in options.only or every}
    seconds, rounds = (1.0, 1) if options.quick else (options.seconds, ROUNDS)
    found = study(chosen, seconds, rounds)
    rows = []
    for name in chosen:
        told = found[name]
        absent = f"{told['absent']} is absent" if "absent" in told else ""
        rows.append((name, text(told.get("rate")), told.get("error", absent)))
    show("Examples: steps/s of training", ("script", "steps/s", ""), rows)
    if not options.quick:
        keep("examples", {name: {**told, "commit": commit()} for name, told in found.items()})
    finish([], options)


if __name__ == "__main__":
    main(tyro.cli(ExampleOptions))
