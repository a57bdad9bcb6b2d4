"""An hour of training with faults: does memory grow, are descriptors lost, does learning go on?

    python benchmarks/trust/soak.py [--minutes 60]

`fugu train` on CartPole in processes, each step of which crashes with a probability of 0.1 % (one
crash in fifty takes the process with it) and now and then stalls for longer than a step may take;
besides, a worker is killed with -9 every five seconds. All the while this process looks at it from
outside: memory (of the learner, and of all processes, where what they share counts once),
descriptors, threads, processes, shared memory, steps and returns, every ten seconds. Then the
training is stopped as by a scheduler.

It holds if memory (for all processes: without pages of files) grows by less than 1 MB a minute
after a warm-up of ten minutes, descriptors stay as many as they are, returns stay high, the run can
go on, and nothing is left behind. What comes of it is written to `benchmarks/results/soak.json`, as
a table to `soak.md` beside it, and as a picture to `docs/images/soak.png`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import tyro
from faulty_cartpole import CRASH, FATAL, STALL
from processes import session
from rich.console import Console

from fugu.store.checkpoint import verify_checkpoint
from fugu.store.run import Run
from fugu.sweep.trials import MetricsTail

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "images" / "soak.png"
SAMPLE, KILL = 10.0, 5.0  # seconds
WARM_UP = 10.0  # minutes; of a shorter soak, a third
MOST_GROWTH = 1.0  # MB a minute
LEAST_RETURN = 200.0  # of the last third; chance has about 20
COMMAND = ["train", "faulty_cartpole:make", "--quiet", "--seed", "1", "--run.name", "soak"]
COMMAND += ["--train.total-steps", "1000000000", "--run.checkpoint-seconds", "20"]
COMMAND += ["--vec.backend", "process", "--vec.num-envs", "16", "--vec.num-workers", "4"]
COMMAND += ["--vec.step-timeout", "1", "--vec.max-restarts", "100000000"]
FAULT = re.compile(r"^worker \d+ (\w+) in ", re.MULTILINE)


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    minutes: float = 60.0
    """How long to train."""
    seed: int = 1
    """Of the choice of workers to kill."""


@dataclass(frozen=True)
class Sample:
    """How it stood at a moment.

    Attributes:
        minutes: Since the beginning.
        learner: Memory of the learner, in MB.
        tree: Memory of all processes, in MB; what they share counts once.
        own: The same without pages of files: whoever else uses the same libraries, of which each
            counts its part, has no say in that.
        descriptors: That the learner has open.
        threads: Of the learner.
        processes: Of the training.
        shared: Names in /dev/shm that its processes use.
        steps: So far.
        mean_return: Of the episodes since the sample before; None if none ended.
    """

    minutes: float
    learner: float
    tree: float
    own: float
    descriptors: int
    threads: int
    processes: int
    shared: int
    steps: int
    mean_return: float | None


class Watched:
    """A training, seen from outside."""

    def __init__(self, folder: Path) -> None:
        self._names: set[str] = set()
        self.log, self.run = folder / "log", Run(folder / "soak")
        command = [sys.executable, "-m", "fugu.cli.main", *COMMAND, "--run.folder", str(folder)]
        with self.log.open("wb") as log:
            place = Path(__file__).parent  # of the environment
            self.process = subprocess.Popen(
                command, cwd=place, stdout=log, stderr=log, start_new_session=True
            )
        self.began = time.monotonic()
        self._tail, self._steps = MetricsTail(self.run.metrics_path), 0

    def sample(self) -> Sample:
        """How it stands."""
        pid = self.process.pid
        shared = set().union(*map(_shared_memory, session(pid)))
        self._names |= shared
        rows = self._tail.read()
        ended = [(row["episodes"], row["episode_return"]) for row in rows if "episodes" in row]
        episodes = sum(count for count, _ in ended)
        self._steps = int(rows[-1]["step"]) if rows else self._steps
        status = Path(f"/proc/{pid}/status").read_text()
        return Sample(
            round((time.monotonic() - self.began) / 60, 3),
            memory(pid, "Rss"),
            sum(memory(each, "Pss") for each in session(pid)),
            sum(memory(each, "Pss_Anon", "Pss_Shmem") for each in session(pid)),
            len(os.listdir(f"/proc/{pid}/fd")),
            int(re.findall(r"Threads:\s+(\d+)", status)[0]),
            len(session(pid)),
            len(shared),
            self._steps,
            sum(count * each for count, each in ended) / episodes if episodes else None,
        )

    def workers(self) -> list[int]:
        """Its workers, which a server forks."""
        below = _children(self.process.pid)
        return [worker for child in below for worker in _children(child)]

    def left_in_memory(self) -> set[str]:
        """Names in /dev/shm that its processes used and that are still there."""
        return self._names & set(os.listdir("/dev/shm"))

    def faults(self) -> dict[str, int]:
        """How often workers failed, by kind."""
        return dict(Counter(FAULT.findall(self.log.read_text(errors="replace"))))

    def end(self) -> int:
        """Stop it as a scheduler does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()


def memory(pid: int, *kinds: str) -> float:
    """Megabytes of a process; none if it has just ended."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        found = re.findall(rf"^(?:{'|'.join(kinds)}):\s+(\d+) kB", text, re.MULTILINE)
        return sum(map(int, found)) / 1024
    return 0.0


def _shared_memory(pid: int) -> set[str]:
    """Names in /dev/shm that a process maps or has open."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        found |= set(re.findall(r" /dev/shm/(\S+)", Path(f"/proc/{pid}/maps").read_text()))
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found |= set(re.findall(r"^/dev/shm/(\S+)", os.readlink(entry.path)))
    return found


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def soak(options: Options, console: Console) -> dict[str, Any]:
    """Train, kill and look; what was found."""
    chance, samples, kills = random.Random(options.seed), list[Sample](), 0
    with tempfile.TemporaryDirectory(prefix="fugu-soak-") as folder:
        watched = Watched(Path(folder))
        end = watched.began + 60 * options.minutes
        next_kill, next_sample = watched.began + 20.0, watched.began + SAMPLE
        while (now := time.monotonic()) < end and watched.process.poll() is None:
            if now >= next_kill and (workers := watched.workers()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    kills += 1
                next_kill += KILL
            if now >= next_sample:
                samples.append(watched.sample())
                console.print(_line(samples[-1]))
                next_sample += SAMPLE
            time.sleep(max(0.0, min(next_kill, next_sample, end) - time.monotonic()))
        status = watched.end()
        time.sleep(3.0)
        newest = watched.run.latest()
        if newest is not None:
            verify_checkpoint(newest)
        return {
            "status": status,
            "said": watched.log.read_text(errors="replace")[-3000:] if status != 143 else "",
            "run": watched.run.status,
            "newest": None if newest is None else newest.name,
            "kills": kills,
            "faults": watched.faults(),
            "left_processes": len(session(watched.process.pid)),
            "left_in_memory": sorted(watched.left_in_memory()),
            "samples": [asdict(sample) for sample in samples],
        }


def _line(sample: Sample) -> str:
    played = "-" if sample.mean_return is None else f"{sample.mean_return:.0f}"
    return (
        f"{sample.minutes:5.1f} min: learner {sample.learner:.0f} MB, all {sample.tree:.0f} MB, "
        f"{sample.descriptors} descriptors, {sample.processes} processes, {sample.steps:,} steps, "
        f"return {played}"
    )


# ---------------------------------------------------------------------- verdicts


def judge(found: dict[str, Any], minutes: float) -> dict[str, tuple[str, bool]]:
    """What is asked, with what was found of it and whether that holds."""
    warm_up = min(WARM_UP, minutes / 3)
    warm = [Sample(**row) for row in found["samples"] if row["minutes"] > warm_up]
    third = max(1, len(warm) // 3)
    grows = {
        name: slope([(sample.minutes, getattr(sample, name)) for sample in warm])
        for name in ("learner", "tree", "own")
    }
    descriptors = [
        [sample.descriptors for sample in part] for part in (warm[:third], warm[-third:])
    ]
    before, after = (median(each) if each else 0 for each in descriptors)
    returns = [sample.mean_return for sample in warm[-third:] if sample.mean_return is not None]
    played = mean(returns) if returns else 0.0
    left = found["left_processes"], len(found["left_in_memory"])
    return {
        "growth of the learner's memory": (
            f"{grows['learner']:+.3f} MB a minute",
            grows["learner"] < MOST_GROWTH,
        ),
        "growth of all processes' memory": (
            f"{grows['own']:+.3f} MB a minute ({grows['tree']:+.3f} with pages of files)",
            grows["own"] < MOST_GROWTH,
        ),
        "open descriptors of the learner": (
            f"{before:g} in the first third, {after:g} in the last",
            after - before <= 2,
        ),
        "mean return in the last third": (f"{played:.0f}", played >= LEAST_RETURN),
        "ended by SIGTERM, with a whole checkpoint": (
            f"status {found['status']}, {found['run']}, {found['newest']}",
            found["status"] == 143 and found["run"] == "stopped" and found["newest"] is not None,
        ),
        "left behind": (f"{left[0]} processes, {left[1]} names in /dev/shm", left == (0, 0)),
    }


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line that is nearest to the points by least squares."""
    if len(points) < 2:
        return 0.0
    x_mean, y_mean = mean(x for x, _ in points), mean(y for _, y in points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread


# ---------------------------------------------------------------------- reports


def write_report(found: dict[str, Any], options: Options) -> bool:
    """Figures, a table and a picture; whether all holds."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    verdicts = judge(found, options.minutes)
    whole = {"commit": commit.stdout.strip(), "minutes": options.minutes, "verdicts": verdicts}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "soak.json").write_text(json.dumps(whole | found, indent=1) + "\n")
    faults = ", ".join(f"{count:,} {kind}" for kind, count in sorted(found["faults"].items()))
    steps = found["samples"][-1]["steps"] if found["samples"] else 0
    lines = [
        "# An hour of faults" if options.minutes >= 60 else "# A while of faults",
        "",
        "Written by `python benchmarks/trust/soak.py`, which says how to read it: "
        f"{options.minutes:g} minutes, {steps:,} steps of CartPole in 4 processes; each step "
        f"crashes with a probability of {CRASH:.1%} ({FATAL:.0%} of these take the process along) "
        f"and stalls with one of {STALL:.3%}; a worker is killed every {KILL:g} s "
        f"({found['kills']:,} times); workers failed {sum(found['faults'].values()):,} times "
        f"({faults}) and were begun anew; commit {whole['commit']}.",
        "",
        "| asked | found | holds |",
        "|---|---|---|",
        *(
            f"| {name} | {value} | {'yes' if ok else '**no**'} |"
            for name, (value, ok) in verdicts.items()
        ),
        "",
    ]
    (RESULTS / "soak.md").write_text("\n".join(lines))
    plot([Sample(**row) for row in found["samples"]])
    return all(ok for _, ok in verdicts.values())


def plot(samples: list[Sample]) -> None:
    """Memory, descriptors and returns over time."""
    figure = importlib.import_module("matplotlib.figure").Figure((6.4, 6.0), layout="tight")
    memory, descriptors, returns = figure.subplots(3, 1, sharex=True)
    minutes = [sample.minutes for sample in samples]
    for name, color, label in (
        ("learner", "#3d7ea6", "the learner"),
        ("own", "#e07a5f", "all processes, without pages of files"),
    ):
        heights = [getattr(sample, name) for sample in samples]
        memory.plot(minutes, heights, color=color, label=label, linewidth=1.0)
    counts = [sample.descriptors for sample in samples]
    descriptors.plot(minutes, counts, color="#3d7ea6", linewidth=1.0)
    played = [(s.minutes, s.mean_return) for s in samples if s.mean_return is not None]
    returns.plot([x for x, _ in played], [y for _, y in played], color="#3d7ea6", linewidth=1.0)
    memory.set(ylabel="memory, MB", ylim=(0, 1.2 * max(s.learner for s in samples)))
    memory.legend(frameon=False)
    descriptors.set(ylabel="open descriptors", ylim=(0, 1.2 * max(counts)))
    returns.set(ylabel="mean return", xlabel="minutes", ylim=(0, 550))
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)


def main(options: Options) -> int:
    """Soak, and write down what came of it; 0 if all holds."""
    console = Console(stderr=True)
    found = soak(options, console)
    holds = write_report(found, options)
    console.print((RESULTS / "soak.md").read_text(), markup=False)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
