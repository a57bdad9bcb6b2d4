"""Hostile programs by the ten thousand: does the memory of whoever trains on them grow?

    python benchmarks/trust/hostile_programs.py [--programs 100000] [--minutes 10]

A process with a pool hands in programs that are all different and all hostile, until it has had so
many or the time is over: they answer megabytes, integers of thousands of digits and values nested
as deep as they may be, print without end, raise texts of a megabyte, forge messages, never end, ask
for all memory, and keep checks busy that call them; most are of those kinds that take little time,
so that there are many. Every tenth is honest, and must pass. Memory is
that of the process that hands them in, which is what a trainer is, and that of all processes below
it, where what they share counts once; both are looked at once every few seconds.

It holds if after a warm-up of a third of the time the trainer grows by less than 0.1 MB a minute,
every program has a verdict, every honest one passes and nothing else does. What comes of it is
written to `benchmarks/results/hostile_programs.json`, and as a table to `hostile_programs.md`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from soak import RESULTS, ROOT, memory, slope

from fugu.core.machine import usable_cores
from fugu.sandbox import Case, ExecutorPool, Grade, Limits, Task

SAMPLE = 2.0  # seconds
IN_FLIGHT = 64
CACHE = 1 << 20  # bytes of grades, so that it is full before the warm-up is over
MOST_GROWTH = 0.1  # MB a minute
LIMITS = Limits(cpu_seconds=0.05, wall_seconds=5.0, memory=64 << 20)
CASES = Task("cases", "f", (Case((1,), 1), Case((2,), 2)), limits=LIMITS)
CHECKED = Task("check", "f", check="def check(c): assert sum(range(c(1))) == 0", limits=LIMITS)
CHAINED = Task("chain", "f", check="def check(c): assert c(c(c(1))) == 1", limits=LIMITS)
HONEST = "def f(x): return x"
HOSTILE: dict[str, tuple[str, Task]] = {
    "megabytes": ("def f(x): return [str(N) + 'x' * 2_000_000]", CASES),
    "many objects": ("def f(x): return [[N], (1,), {2}] * 10_000", CASES),
    "a long integer": ("def f(x): return 10**5000 + N", CASES),
    "a deep value": (
        "def f(x):\n    v = N\n    for _ in range(63): v = [v]\n    return v",
        CHAINED,
    ),
    "a long error": ("def f(x): raise ValueError(str(N) + '\\ud800' * 1_000_000)", CASES),
    "output without end": ("def f(x):\n    while True: print('x' * 10_000, N)", CASES),
    "a forged message": (
        "import os\ndef f(x):\n    os.write(3, b'\\xff' * 100_000 + bytes(N % 99))",
        CASES,
    ),
    "no end": ("def f(x):\n    while True: N", CASES),
    "all memory": ("def f(x): return bytes((1 << 40) + N)", CASES),
    "a busy check": ("def f(x): return 10**12 + N", CHECKED),
    "nothing": ("def f(x): return None if N else 0", CHAINED),
    "no syntax": ("def f(x: return N", CASES),
}
QUICK = ["a long integer", "a deep value", "a long error", "nothing", "no syntax"]


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    programs: int = 100_000
    """How many programs to grade at most."""
    minutes: float = 10.0
    """How long to grade them at most."""


@dataclass(frozen=True)
class Sample:
    """How it stood at a moment.

    Attributes:
        minutes: Since the beginning.
        trainer: Memory of the process that hands programs in, in MB.
        tree: Memory of all processes, in MB; what they share counts once.
        programs: Graded so far.
    """

    minutes: float
    trainer: float
    tree: float
    programs: int


def job(number: int) -> tuple[str, str, Task]:
    """The program of that number, what it does, and its task."""
    if number % 10 == 0:
        return "honest", f"{HONEST}  # {number}", CASES
    kinds = list(HOSTILE) if number % 7 == 0 else QUICK
    kind = kinds[number // 7 % len(kinds)]
    source, task = HOSTILE[kind]
    return kind, f"N = {number}\n{source}", task


class Load:
    """Hands programs in and takes their grades."""

    def __init__(self, pool: ExecutorPool, most: int) -> None:
        self._pool, self._most, self._next = pool, most, 0
        self._kinds: dict[int, str] = {}
        self.done = 0
        self.verdicts: Counter[tuple[str, str]] = Counter()

    @property
    def over(self) -> bool:
        """Whether all have their grade."""
        return self.done >= self._most

    def go_on(self) -> None:
        """Take what is done, and hand in more."""
        for finished in self._pool.wait(0.5):
            found: Grade = finished.result
            self.verdicts[self._kinds.pop(finished.ticket), found.verdict] += 1
            self.done += 1
        while self._next < self._most and len(self._kinds) < IN_FLIGHT:
            kind, source, task = job(self._next)
            self._kinds[self._pool.submit(source, task)] = kind
            self._next += 1


def grade_all(options: Options, console: Console) -> dict[str, Any]:
    """Grade, and look; what was found."""
    samples: list[Sample] = []
    with ExecutorPool(cache=CACHE) as pool:
        load = Load(pool, options.programs)
        began = next_sample = time.monotonic()
        while not load.over and time.monotonic() < began + 60 * options.minutes:
            load.go_on()
            if (now := time.monotonic()) >= next_sample:
                below = [os.getpid(), *processes_below(os.getpid())]
                tree = sum(memory(pid, "Pss") for pid in below)
                own = memory(os.getpid(), "Rss")
                samples.append(Sample((now - began) / 60, own, tree, load.done))
                next_sample = now + SAMPLE
                if len(samples) % 15 == 1:
                    console.print(
                        f"{(now - began) / 60:5.1f} min: {load.done:,} programs, trainer "
                        f"{own:.1f} MB, all {tree:.0f} MB"
                    )
        return {
            "programs": load.done,
            "minutes": (time.monotonic() - began) / 60,
            "respawns": pool.respawns,
            "verdicts": [[*key, count] for key, count in sorted(load.verdicts.items())],
            "samples": [asdict(sample) for sample in samples],
        }


def processes_below(pid: int) -> list[int]:
    """Return all descendants of a process; those that end meanwhile are left out."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *processes_below(child)]
    return found


def judge(found: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """What is asked, with what was found of it and whether that holds."""
    samples = [Sample(**row) for row in found["samples"]]
    warm = [sample for sample in samples if sample.minutes > found["minutes"] / 3]
    grows = slope([(sample.minutes, sample.trainer) for sample in warm])
    tree = slope([(sample.minutes, sample.tree) for sample in warm])
    first, last = (samples[0].trainer, samples[-1].trainer) if samples else (0.0, 0.0)
    failed = sum(n for kind, word, n in found["verdicts"] if kind == "honest" and word != "passed")
    through = sum(n for kind, word, n in found["verdicts"] if kind != "honest" and word == "passed")
    refused = sum(n for _, word, n in found["verdicts"] if word == "refused")
    return {
        "growth of the trainer's memory after the warm-up": (
            f"{grows:+.3f} MB a minute ({first:.0f} MB at first, {last:.0f} MB at last)",
            grows < MOST_GROWTH,
        ),
        "growth of all processes' memory after the warm-up": (f"{tree:+.3f} MB a minute", True),
        "honest programs that did not pass": (f"{failed}", failed == 0),
        "hostile programs that passed": (f"{through}", through == 0),
        "programs without a verdict of their own": (f"{refused}", refused == 0),
        "brokers that died": (f"{found['respawns']}", found["respawns"] == 0),
    }


def write_report(found: dict[str, Any]) -> bool:
    """Figures and a table; whether all holds."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    verdicts = judge(found)
    whole = {"commit": commit.stdout.strip(), "verdicts_asked": verdicts}
    (RESULTS / "hostile_programs.json").write_text(json.dumps(whole | found, indent=1) + "\n")
    kinds: dict[str, dict[str, int]] = {}
    for kind, word, count in found["verdicts"]:
        kinds.setdefault(kind, {})[word] = count
    lines = [
        "# Hostile programs",
        "",
        "Written by `python benchmarks/trust/hostile_programs.py`, which says how to read it: "
        f"{found['programs']:,} programs in {found['minutes']:.1f} minutes on {usable_cores()} "
        f"shared cores; commit {whole['commit']}.",
        "",
        "| asked | found | holds |",
        "|---|---|---|",
        *(
            f"| {name} | {value} | {'yes' if ok else '**no**'} |"
            for name, (value, ok) in verdicts.items()
        ),
        "",
        "| programs | verdicts |",
        "|---|---|",
        *(
            f"| {kind} | {', '.join(f'{count:,} {word}' for word, count in words.items())} |"
            for kind, words in kinds.items()
        ),
        "",
    ]
    (RESULTS / "hostile_programs.md").write_text("\n".join(lines))
    return all(ok for _, ok in verdicts.values())


def main(options: Options) -> int:
    """Grade, and write down what came of it; 0 if all holds."""
    console = Console(stderr=True)
    holds = write_report(grade_all(options, console))
    console.print((RESULTS / "hostile_programs.md").read_text(), markup=False)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
