"""Workers that are stopped, killed or hang at any moment: how soon that is noticed.

    python benchmarks/trust/stopped_workers.py [--cases 200] [--seed 1]

Each case makes a vector of worker processes and has one of them stop (SIGSTOP), be killed (SIGKILL)
or hang for an hour: while it is idle, inside one of its environment's calls (step, reset, render,
a method, state or set_state of a checkpoint, close), while it pickles an info, when it starts, or
at a random moment while batches of a part of the environments are stepped. The deed, the moment,
the numbers of workers and environments and the size of batches are drawn at random.

A case passes if the failure is noticed within `step_timeout` (at a start, `start_timeout`) + 1 s of
the moment when it happened and the learner had something for that worker to do, every environment
is stepped again afterwards, and closing leaves no process behind. A watchdog counts a case that
takes longer than it may as one that hangs. Results go to `benchmarks/results/stopped_workers.json`
and, as a table, to `stopped_workers.md`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT / "tests" / "vector"))

from stopping_toys import STEPS_TO_END, FailingFactory, arm  # noqa: E402

from fugu.vector import Vector, make  # noqa: E402
from fugu.vector.backends import RestartedError  # noqa: E402

STEP_TIMEOUT, START_TIMEOUT = 1.0, 6.0
SLACK = 1.0  # seconds beyond the timeout within which a failure must be noticed
ALLOWED = 60.0  # seconds for a whole case, processes and all
DEEDS = ("stop", "kill", "hang")
INSIDE = ("step", "reset", "infos", "render", "call", "state", "set_state", "close", "start")
SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    cases: int = 200
    """How many to try."""
    seed: int = 1
    """Of what is drawn."""


@dataclass
class Case:
    """One failure, and what became of it."""

    deed: str
    moment: str
    num_envs: int
    num_workers: int
    batch_size: int
    noticed_after: float = 0.0
    """Seconds."""
    seconds: float = 0.0
    problem: str = ""

    @property
    def limit(self) -> float:
        """Seconds within which the failure must be noticed."""
        return (START_TIMEOUT if self.moment == "start" else STEP_TIMEOUT) + SLACK


def draw(rng: random.Random) -> Case:
    """Draw a case."""
    moment = rng.choice(("idle", "any", *INSIDE))
    deed = rng.choice(DEEDS if moment in INSIDE else DEEDS[:2])
    num_envs = rng.randint(2, 6)
    whole = moment != "any"
    batch_size = num_envs if whole else rng.randint(1, num_envs - 1)
    return Case(deed, moment, num_envs, rng.randint(2, min(3, num_envs)), batch_size)


class Watch(logging.Handler):
    """Notes when the vector reports faults."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note the time of a report."""
        self.times.append(time.monotonic())


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """Listen to the vector's log for a while."""
    log, watch = logging.getLogger("fugu.vector"), Watch()
    log.addHandler(watch)
    log.propagate = False
    try:
        yield watch
    finally:
        log.removeHandler(watch)


def run_case(case: Case, rng: random.Random, folder: Path) -> None:
    """Have the failure happen, go on, and close; raise if anything is not as it should be."""
    file = folder / "armed"
    with watching() as watch:
        vec = make(
            FailingFactory(file),
            case.num_envs,
            backend="process",
            num_workers=case.num_workers,
            batch_size=case.batch_size,
            step_timeout=STEP_TIMEOUT,
            start_timeout=START_TIMEOUT,
            max_restarts=1000,
            resumable=True,
        )
        pids = processes(vec)
        try:
            began = happen(case, vec, rng, file)
            pids += processes(vec)
            go_on(vec)
            failed = folder / "armed.failed"
            if failed.exists():
                began = max(began, float(failed.read_text()))
            reports = [at for at in watch.times if at >= began]
            case.noticed_after = reports[0] - began if reports else 0.0
            if not reports:
                raise AssertionError("the failure was not reported")
        finally:
            vec.close()
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    if left:
        raise AssertionError(f"processes {left} were left behind")
    if case.noticed_after > case.limit:
        raise AssertionError(f"noticed after {case.noticed_after:.2f} s only")


def processes(vec: Vector) -> list[int]:
    """Return the process ids of a vector's workers."""
    return [process.pid for process in vec._backend._processes]  # type: ignore[attr-defined]


def happen(case: Case, vec: Vector, rng: random.Random, file: Path) -> float:
    """Have the failure happen and the learner do what needs the worker; when that began."""
    vec.async_reset(seed=rng.getrandbits(30))
    if case.moment == "any":
        return step_under_fire(case, vec, rng)
    vec.recv()
    actions = np.zeros(case.num_envs, np.int64)
    if case.moment == "idle":
        os.kill(rng.choice(processes(vec)), SIGNALS[case.deed])
        began = time.monotonic()
        need(rng.choice(INSIDE[:7]), vec)
        return began
    arm(file, case.deed, case.moment)
    began = time.monotonic()
    if case.moment == "start":
        os.kill(rng.choice(processes(vec)), signal.SIGKILL)  # its successor fails when it starts
        vec.step(actions)
    elif case.moment == "close":
        actions[rng.randrange(case.num_envs)] = 1  # it raises, and is closed
        vec.step(actions)
    else:
        need(case.moment, vec)
    return began


def need(moment: str, vec: Vector) -> None:
    """Do what brings every worker to a moment."""
    actions = np.zeros(vec.num_envs, np.int64)
    with contextlib.suppress(RestartedError):  # an answer as well: ask again
        if moment == "reset":
            vec.reset(options={"now": True})
        elif moment == "infos":
            for _ in range(STEPS_TO_END):
                vec.step(actions)
        elif moment == "render":
            vec.render()
        elif moment == "call":
            vec.call("ask")
        elif moment == "state":
            vec.snapshot()
        elif moment == "set_state":
            vec.restore(vec.snapshot(), np.arange(vec.num_envs))
        else:
            vec.step(actions)


def step_under_fire(case: Case, vec: Vector, rng: random.Random) -> float:
    """Step batches while a worker is stopped or killed at a random moment; when that was."""
    moments: list[float] = []
    received: set[int] = set()
    while len(received) < vec.num_envs:  # until every worker has begun
        batch = vec.recv()
        received.update(batch.env_ids.tolist())
        vec.send(np.zeros(case.batch_size, np.int64), batch.agent_ids)

    def fire() -> None:
        moments.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(pids), SIGNALS[case.deed])

    pids, timer = processes(vec), threading.Timer(rng.uniform(0.0, 0.3), fire)
    timer.start()
    end = time.monotonic() + 0.5 + STEP_TIMEOUT + SLACK
    while time.monotonic() < end or not moments:
        batch = vec.recv()
        vec.send(np.zeros(case.batch_size, np.int64), batch.agent_ids)
    timer.join()
    return moments[0]


def go_on(vec: Vector) -> None:
    """Step all environments until every step is valid; raise if that does not come."""
    vec.async_reset(seed=1)
    for _ in range(8 * vec.num_envs):
        batch = vec.recv()
        vec.send(np.zeros(vec.batch_size, np.int64), batch.agent_ids)
    while vec.under_way:
        valid = vec.recv(rest=True).valid
        if not valid.all():
            raise AssertionError("steps are invalid long after the failure")


def judge(case: Case, rng: random.Random) -> None:
    """Run a case in a thread under a watchdog and note what is wrong with it."""
    problems: list[str] = []

    def run() -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                run_case(case, rng, Path(folder))
            except Exception as error:
                traceback.print_exc()
                problems.append(f"{type(error).__name__}: {error}")

    began = time.monotonic()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(ALLOWED)
    case.seconds = round(time.monotonic() - began, 2)
    if thread.is_alive():
        frame = sys._current_frames()[thread.ident or -1]
        problems.append("hangs in\n" + "".join(traceback.format_stack(frame)))
    case.noticed_after = round(case.noticed_after, 3)
    case.problem = "\n".join(problems)


def main(options: Options) -> int:
    """Try all cases and write what came of them; the number that failed, for the shell."""
    rng, cases = random.Random(options.seed), []
    began = time.monotonic()
    for number in range(options.cases):
        case = draw(rng)
        judge(case, random.Random(rng.getrandbits(60)))
        cases.append(case)
        outcome = case.problem or f"noticed after {case.noticed_after:.2f} s"
        print(f"{number + 1}/{options.cases} {case.deed} {case.moment}: {outcome}", flush=True)
    write(options, cases, (time.monotonic() - began) / 60)
    return int(any(case.problem for case in cases))


def write(options: Options, cases: list[Case], minutes: float) -> None:
    """Write the results as JSON and as a table."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[str, Any] = {"commit": commit.stdout.strip(), **asdict(options)}
    found |= {"minutes": round(minutes, 1), "cases": [asdict(case) for case in cases]}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "stopped_workers.json").write_text(json.dumps(found, indent=1) + "\n")
    failed = [case for case in cases if case.problem]
    lines = [
        "# Workers that stop, die or hang",
        "",
        "Written by `python benchmarks/trust/stopped_workers.py`, which says how to read it: seed "
        f"{options.seed}, {len(cases)} cases in {minutes:.1f} minutes, step_timeout "
        f"{STEP_TIMEOUT:g} s, start_timeout {START_TIMEOUT:g} s, commit {found['commit']}.",
        "",
        f"{len(failed)} of {len(cases)} cases failed.",
        "",
        "| moment | failure | cases | noticed after, median | longest | allowed |",
        "|---|---|---|---|---|---|",
    ]
    for moment in ("idle", "any", *INSIDE):
        for deed in DEEDS:
            some = [case for case in cases if (case.deed, case.moment) == (deed, moment)]
            times = [case.noticed_after for case in some]
            if some:
                lines.append(
                    f"| {moment} | {deed} | {len(some)} | {statistics.median(times):.2f} s | "
                    f"{max(times):.2f} s | {some[0].limit:g} s |"
                )
    lines += ["", *(f"- {case.deed} {case.moment}: {case.problem}" for case in failed)]
    (RESULTS / "stopped_workers.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
