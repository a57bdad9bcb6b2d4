"""What people try first, trained without flags: scores, seconds, curves, and whether runs collapse.

    python benchmarks/zoo.py [--group table heldout native] [--only ENV ...] [--seeds 1 2 3 4 5]
    python benchmarks/zoo.py --jobs 2            # two trainings at a time, each with one thread
    python benchmarks/zoo.py --peer sb3 --seeds 1 --steps 0.1
    python benchmarks/zoo.py --race --steps 0.05 --seeds 1   # seconds of fugu and SB3, in turns
    python benchmarks/zoo.py --report            # the table, the curves as JSON and as pictures
    python benchmarks/zoo.py --publish best      # the best seed of each task into fugu's own zoo

A training is `fugu.train(ENV, train={"total_steps": N}, seed=S)`, as `fugu train` calls it, in a
process of its own; N is not given either where the environment's own settings say it. Each writes
one file below `benchmarks/results/zoo`; those that are there are skipped (--again: trained again),
and one that was cut off goes on from its last checkpoint. All of them take hours.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import tyro
from proving import RESULTS, check_names, commit
from racing import PYTHONS
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from run import machine
from zoo_results import Found, read_results, report, summarize
from zoo_tasks import SB3, Group, Task, all_tasks

from fugu.core.errors import UsageError
from fugu.core.writing import write_whole
from fugu.zoo.index import FOLDER
from fugu.zoo.publish import publish

HERE = Path(__file__).parent
OUT = RESULTS / "zoo"
PICTURES = HERE.parent / "docs" / "images" / "zoo"
EPISODES = 100
ENDING = 60.0  # seconds that a training may take to save itself when it is stopped
console = Console()


@dataclass(frozen=True)
class ZooOptions:
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Train on these environments only."""
    group: tuple[Group, ...] = ()
    """Train on these groups only."""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Seeds of the trainings."""
    jobs: int = 1
    """Trainings at the same time; with more than one, each has one thread."""
    steps: float = 1.0
    """Fraction of each task's steps. Below 1 nothing of fugu is kept in the project's own results:
    give another folder by --out. Seconds of a peer are extrapolated."""
    peer: Literal["sb3"] | None = None
    """Train with this library, with its own tuned settings, and not with fugu."""
    race: bool = False
    """Time fugu and Stable-Baselines3 in turns, one training at a time with all cores; scores are
    not measured. With a fraction of the steps, seconds are extrapolated. Run nothing else then."""
    again: bool = False
    """Train also what has a result."""
    report: bool = False
    """Write the report of the results that are there, and train nothing."""
    publish: Literal["best", "median"] | None = None
    """Copy the policy of the best or the median seed of each task into the zoo; train nothing."""
    out: Path = OUT
    """Folder of the results; with another one, reports and policies stay in it too."""


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes:
        task: What to train on.
        seed: Seed of the training.
        options: Those of the command line.
    """

    task: Task
    seed: int
    options: ZooOptions

    @property
    def library(self) -> str:
        """Name of the library that trains."""
        return self.options.peer or "fugu"

    @property
    def label(self) -> str:
        """What the progress bar says."""
        return f"{self.task.env}, {self.library}, seed {self.seed}"

    @property
    def prefix(self) -> str:
        """Start of the names of its files."""
        if self.options.race:
            return f"race_{self.library}_"
        return f"{self.options.peer}_" if self.options.peer else ""

    @property
    def result(self) -> Path:
        """The file that says that it is done."""
        return self.options.out / self.task.name / f"{self.prefix}seed_{self.seed}.json"

    @property
    def done(self) -> bool:
        """Whether there is a result of a training of as many steps."""
        if not self.result.exists():
            return False
        return bool(json.loads(self.result.read_text())["fraction"] == self.options.steps)

    @property
    def policy(self) -> Path:
        """Folder of the trained policy."""
        if self.options.race:
            return self.work / "policy"
        return self.options.out / self.task.name / f"policy_{self.seed}"

    @property
    def work(self) -> Path:
        """Folder of the run while it is trained."""
        steps = "" if self.options.steps == 1.0 else f"_{self.options.steps:g}"
        return self.options.out / "work" / f"{self.prefix}{self.task.name}_{self.seed}{steps}"

    def command(self) -> list[str]:
        """Return the command line of the process."""
        options = self.options
        settings: dict[str, Any] = {
            "env": self.task.env,
            "steps": steps_of(self.task, options.steps),
            "seed": self.seed,
            "threads": 1 if options.jobs > 1 else 0,
            "episodes": 1 if options.race else EPISODES,
        }
        if options.peer:
            settings["settings"] = SB3[self.task.env]
            script = HERE / "training" / "run_zoo_sb3.py"
        else:
            settings["evaluation"] = dict(self.task.evaluation)
            settings["policy"] = str(self.policy.absolute())
            script = HERE / "training" / "run_zoo.py"
        return [str(PYTHONS[self.library]), str(script), json.dumps(settings)]


def steps_of(task: Task, fraction: float) -> int | None:
    """Return the steps to train for; None: what the environment's own settings say."""
    if fraction == 1.0:
        return task.steps
    if task.steps is None:
        from fugu.training.config import resolve_config

        return max(1, round(resolve_config(task.env).train.total_steps * fraction))
    return max(1, round(task.steps * fraction))


class Runner:
    """Runs jobs in processes, several at a time, and writes their results."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._processes: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self.stopping = False

    def run(self, jobs: Sequence[Job], at_once: int) -> list[str]:
        """Run all jobs; the labels of those that failed."""
        total = self._progress.add_task("all trainings", total=len(jobs))
        failed = []

        def one(job: Job) -> None:
            if self.stopping:
                return
            fault = self._train(job)
            self._progress.advance(total)
            if fault and not self.stopping:
                failed.append(job.label)
                console.print(f"{job.label}: failed: {fault}", markup=False)

        with ThreadPoolExecutor(at_once) as pool:
            try:
                for done in [pool.submit(one, job) for job in jobs]:
                    done.result()
            except BaseException:
                self._stop()
                raise
        return failed

    def _stop(self) -> None:
        """Let trainings save a checkpoint and end."""
        self.stopping = True
        with self._lock:
            running = list(self._processes)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                end_group(process)

    def _train(self, job: Job) -> str:
        """Train and write the result; why there is none, or nothing."""
        if not job.options.peer:
            shutil.rmtree(job.policy, ignore_errors=True)
        if job.options.again:
            shutil.rmtree(job.work, ignore_errors=True)
        job.work.mkdir(parents=True, exist_ok=True)
        bar = self._progress.add_task(job.label, total=None)
        answer = None
        errors = job.work / "stderr.txt"
        with errors.open("w") as log:
            process = subprocess.Popen(
                job.command(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=job.work,
                env={**os.environ, "PYTHONPATH": str(HERE)},
            )
            with self._lock:
                self._processes.add(process)
            assert process.stdout is not None
            for line in process.stdout:
                word, _, text = line.partition(" ")
                if word == "PROGRESS":
                    facts = json.loads(text)
                    self._progress.update(bar, completed=facts["steps"], total=facts["total"])
                elif word == "RESULT":
                    answer = json.loads(text)
            process.wait()
            end_group(process)
        with self._lock:
            self._processes.discard(process)
        self._progress.remove_task(bar)
        if answer is None:
            return (errors.read_text().strip().splitlines() or ["it ended without a word"])[-1]
        write_result(job, answer)
        shutil.rmtree(job.work)
        return ""


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill a process and those that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def write_result(job: Job, answer: dict[str, Any]) -> None:
    """Write a result file, whole or not at all, and print a line about it."""
    facts = {
        "env": job.task.env,
        "library": job.library,
        "seed": job.seed,
        "fraction": job.options.steps,
        "jobs": job.options.jobs,
        "commit": commit(),
        "machine": machine(),
    }
    returns = answer.pop("returns")
    result = {**facts, **answer, **summarize(returns)}
    write_whole(job.result, (json.dumps(result, indent=1) + "\n").encode())
    found = result["evaluation"]
    score = f"score {found['mean_return']:.4g}" if found else "no episode ended"
    kept = "-" if result["kept"] is None else f"{result['kept']:.2f}"
    console.print(
        f"{job.label}: {score}, kept {kept}, {result['steps']:,} steps in "
        f"{result['seconds']:,.0f} s",
        markup=False,
    )


# ---------------------------------------------------------------------- policies


def publish_all(
    results: list[Found], choice: Literal["best", "median"], options: ZooOptions
) -> None:
    """Copy one policy of each task into the zoo."""
    folder = FOLDER if options.out == OUT else options.out / "published"
    for found in results:
        judged = [one for one in found.seeds if one["evaluation"]]
        if not judged:
            console.print(f"{found.task.env}: left out: no score")
            continue
        chosen = choose(judged, choice)
        source = Job(found.task, chosen["seed"], options).policy
        if not source.is_dir():
            console.print(f"{found.task.env}: left out: {source} is missing", markup=False)
            continue
        note = f"{choice} of {len(judged)} seed{'s' if len(judged) > 1 else ''}"
        try:
            policy = publish(source, folder, found.task.name, chosen["evaluation"], note=note)
        except UsageError as error:
            console.print(f"{found.task.env}: left out: {error}", markup=False)
            continue
        console.print(f"{policy.name}: score {policy.score:.4g}, {policy.bytes:,} bytes, {note}")


def choose(seeds: list[dict[str, Any]], choice: Literal["best", "median"]) -> dict[str, Any]:
    """Return the seed with the best score, or the one nearest to the median score."""
    scores = [one["evaluation"]["mean_return"] for one in seeds]
    if choice == "best":
        return seeds[scores.index(max(scores))]
    middle = median(scores)
    return min(seeds, key=lambda one: abs(one["evaluation"]["mean_return"] - middle))


# ---------------------------------------------------------------------- the command


def check_options(options: ZooOptions) -> None:
    """End with a sentence about options that do not fit."""
    check_names(options.only, all_tasks())
    if not 0 < options.steps <= 1:
        raise SystemExit(f"steps: expected a fraction above 0 and at most 1; got {options.steps}")
    if options.jobs < 1:
        raise SystemExit(f"jobs: expected 1 or more; got {options.jobs}")
    if options.steps < 1 and options.out == OUT and not (options.peer or options.race):
        raise SystemExit("steps: a fraction is not a result of the project. Give --out FOLDER.")
    if options.race and (options.peer or options.jobs > 1):
        raise SystemExit("race: it takes neither --peer nor --jobs; one training runs at a time.")
    peer = "sb3" if options.race else options.peer
    if peer and not PYTHONS[peer].exists():
        raise SystemExit(f"peer: {PYTHONS[peer]} does not exist. Run: make peers")


def main(options: ZooOptions) -> int:
    """Train, report or publish; 1 if a training failed."""
    check_options(options)
    tasks = [
        task
        for task in all_tasks().values()
        if (not options.only or task.env in options.only)
        and (not options.group or task.group in options.group)
        and (not (options.peer or options.race) or task.env in SB3)
    ]
    if options.report or options.publish:
        results = read_results(options.out, tasks)
        if options.publish:
            publish_all(results, options.publish, options)
        if options.report:
            own = options.out == OUT
            page = OUT.with_suffix(".md") if own else options.out / "zoo.md"
            whose = ", ".join(sorted({one["machine"] for f in results for one in f.seeds}))
            report(results, page, PICTURES if own else options.out / "pictures", whose)
            console.print(f"Written: {page}", markup=False)
        return 0
    sides = [options]
    if options.race:
        sides.append(replace(options, peer="sb3"))
    jobs = [Job(task, seed, side) for seed in options.seeds for task in tasks for side in sides]
    return train_all(jobs, options)


def train_all(jobs: Sequence[Job], options: ZooOptions) -> int:
    """Run the jobs that have no result yet; the exit status."""
    due = [job for job in jobs if options.again or not job.done]
    if len(due) < len(jobs):
        console.print(f"{len(jobs) - len(due)} of {len(jobs)} trainings are done already")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # trainings are stopped then, too
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            failed = Runner(progress).run(due, options.jobs)
    except KeyboardInterrupt:
        console.print("Stopped. The same command continues where this one was cut off.")
        return 130
    if failed:
        console.print(f"failed: {'; '.join(failed)}", markup=False)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(ZooOptions)))
