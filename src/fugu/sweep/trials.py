"""Trials: their learning curves, and the processes that train them, on this machine or with Ray."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

from fugu.core.config import Tree
from fugu.core.errors import MissingExtraError, UsageError
from fugu.track.sinks import parse_metrics, read_metrics

DISK_FULL = 74  # exit code of a trial whose disk is full
EPISODES = 100  # episodes that a score is the mean of
STORED_POINTS = 40  # points of a curve that are stored with its trial
MIN_PEERS = 5  # complete trials that must have reached a step before others are pruned there
WARMUP = 0.15  # share of the training before which no trial is pruned
StoredCurve = Sequence[Sequence[float]]  # steps and scores


# ------------------------------------------------------------------ learning curves


class CurvePoint(NamedTuple):
    """The score of a trial at a step."""

    step: int
    score: float


class TrialCurve:
    """The scores of a trial: a metric averaged over about the last hundred episodes.

    Metrics of evaluations (`evaluation/...`) are not averaged. A metric that is NaN makes the
    score NaN.

    Attributes:
        metric: Name of the metric in `metrics.jsonl`.
        points: The scores so far, by ascending step.
        step: The last step.
        seconds: Seconds of training until then.
    """

    def __init__(self, metric: str, rows: Iterable[Mapping[str, float | None]] = ()) -> None:
        self.metric, self.step, self.seconds = metric, 0, 0.0
        self.points: list[CurvePoint] = []
        self._recent: list[tuple[float, float]] = []  # number of episodes, sum of their values
        for row in rows:
            self.add(row)

    def add(self, row: Mapping[str, float | None]) -> None:
        """Add a row of metrics; one of an earlier step, as after a resume, drops what follows."""
        self.step = int(row["step"] or 0)
        self.seconds = float(row.get("seconds") or self.seconds)
        while self.points and self.points[-1].step >= self.step:
            self.points.pop()
        if self.metric in row:
            value = row[self.metric]
            score = self._average(math.nan if value is None else value, row.get("episodes") or 1.0)
            self.points.append(CurvePoint(self.step, score))

    @property
    def score(self) -> float:
        """The last score; NaN if there is none."""
        return self.points[-1].score if self.points else math.nan

    def sample(self) -> list[list[float]]:
        """Return at most 40 finite points, evenly spaced, to store with the trial."""
        last = len(self.points) - 1
        chosen = {round(i * last / (STORED_POINTS - 1)) for i in range(STORED_POINTS)}
        points = [self.points[i] for i in sorted(chosen)] if self.points else []
        return [[step, score] for step, score in points if math.isfinite(score)]

    def is_behind(self, total_steps: int, peers: Iterable[StoredCurve], maximize: bool) -> bool:
        """Return whether the best score so far is worse than the median of peers at this step.

        Optuna's pruners support a single objective only; a sweep has two.

        Args:
            total_steps: Number of steps of the whole training.
            peers: Stored curves of complete trials.
            maximize: Whether a higher score is better.
        """
        if not self.points or self.step < WARMUP * total_steps:
            return False
        others = [score for peer in peers if (score := score_at(peer, self.step)) is not None]
        if len(others) < MIN_PEERS:
            return False
        scores = [point.score for point in self.points]
        return max(scores) < median(others) if maximize else min(scores) > median(others)

    def _average(self, value: float, episodes: float) -> float:
        if self.metric.startswith("evaluation/"):
            return value
        self._recent.append((episodes, episodes * value))
        while len(self._recent) > 1 and sum(count for count, _ in self._recent[1:]) >= EPISODES:
            del self._recent[0]
        return sum(total for _, total in self._recent) / sum(count for count, _ in self._recent)


def score_at(curve: StoredCurve, step: float) -> float | None:
    """Return the last score until a step; None before the curve's first point or after its last.

    >>> score_at([[10, 1.0], [20, 2.0]], 15), score_at([[10, 1.0]], 11)
    (1.0, None)
    """
    if not curve or step > curve[-1][0]:
        return None
    before = [score for at, score in curve if at <= step]
    return before[-1] if before else None


class MetricsTail:
    """Reads the new lines of a metrics file while it is written."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        """Return the complete lines that were not read before."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # truncated by a resume
                    self._offset = 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        rows = (parse_metrics(line) for line in complete.splitlines())
        return [row for row in rows if row is not None]


# ------------------------------------------------------------------ processes


@dataclass(frozen=True)
class TrialTask:
    """What a trial's process is to do.

    Attributes:
        settings: All settings of the training.
        run: Run folder.
        log: File for the output of the process.
        resume: Whether to resume the run instead of starting it.
        environment: Additional environment variables.
    """

    settings: Tree
    run: str
    log: str
    resume: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialProgress:
    """What a poll of a trial returns.

    Attributes:
        rows: New rows of metrics; all of them once the trial has ended.
        exit_code: None while it runs; 0 if it completed, -N if signal N ended it.
        reason: Why it failed, in one line.
        node_lost: Whether its node was lost, which says nothing about its settings.
    """

    rows: list[dict[str, Any]]
    exit_code: int | None = None
    reason: str = ""
    node_lost: bool = False


class TrialProcess(Protocol):
    """A trial that runs somewhere."""

    def poll(self) -> TrialProgress:
        """Return its progress without waiting."""
        raise NotImplementedError("poll() -> TrialProgress")

    def stop(self) -> None:
        """Ask it to save a checkpoint and end after the current update."""
        raise NotImplementedError("stop() -> None")

    def kill(self) -> None:
        """Kill it and all of its workers."""
        raise NotImplementedError("kill() -> None")


Launcher = Callable[[TrialTask], TrialProcess]


class LocalTrial:
    """A trial in a process of this machine."""

    def __init__(self, task: TrialTask) -> None:
        self._log, self._is_reaped = Path(task.log), False
        self._metrics = Path(task.run) / "metrics.jsonl"
        self._tail = MetricsTail(self._metrics)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fugu.sweep.trial_process"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C spares it, and `kill` gets its workers
                env={**os.environ, **task.environment},
            )
        message = {"settings": task.settings, "resume": task.run if task.resume else ""}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once, as `poll` will report
            self._process.stdin.write(json.dumps(message, default=str).encode() + b"\n")
            self._process.stdin.flush()

    def poll(self) -> TrialProgress:
        """Return its progress without waiting."""
        code = self._process.poll()
        if code is None:
            return TrialProgress(self._tail.read())
        self.kill()  # workers that it may have left behind
        if 128 < code < 160:  # it handled the signal
            code = 128 - code
        return TrialProgress(list(read_metrics(self._metrics)), code, self._reason(code))

    def stop(self) -> None:
        """Ask it to save a checkpoint and end after the current update."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill its process group."""
        if self._is_reaped:
            return
        self._is_reaped = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=60)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _reason(self, code: int) -> str:
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        line = error_line(self._log.read_text(errors="replace")) if code else ""
        return line or (f"exit code {code}" if code else "")


def error_line(text: str) -> str:
    r"""Return the line of a log that says why the process failed: the last error, or the last line.

    >>> error_line("starting\nfugu: a fault:\nValueError: too deep\nin step 3\n")
    'ValueError: too deep'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(fugu:|[\w.]+(Error|Exception)\b)", line)]
    return (errors or lines or [""])[-1]


class RayTrial:
    """A trial in a process of some node, which a Ray actor holds."""

    def __init__(self, ray: Any, actor: Any, task: TrialTask) -> None:
        self._ray, self._actor = ray, actor.remote(task)
        self._answer: Any = self._actor.poll.remote()
        self._last: TrialProgress | None = None

    def poll(self) -> TrialProgress:
        """Return its progress without waiting; empty while it waits for a node."""
        if self._last is not None:
            return self._last
        ready, _ = self._ray.wait([self._answer], timeout=0)
        if not ready:
            return TrialProgress([])
        try:
            progress: TrialProgress = self._ray.get(self._answer)
        except self._ray.exceptions.RayError as error:
            reason = f"its node was lost: {str(error).strip().splitlines()[0]}"
            progress = TrialProgress([], -signal.SIGKILL, reason, node_lost=True)
        if progress.exit_code is None:
            self._answer = self._actor.poll.remote()
        else:
            self._last = progress
            self.kill()
        return progress

    def stop(self) -> None:
        """Ask it to save a checkpoint and end after the current update."""
        self._actor.stop.remote()

    def kill(self) -> None:
        """Kill the actor, and its process with it."""
        with contextlib.suppress(Exception):  # the node may be gone already
            self._ray.kill(self._actor)


def ray_launcher(address: str | None = None, cpus: float = 1.0) -> Launcher:
    """Connect to a Ray cluster and return what starts trials there.

    Args:
        address: Address of the cluster; "auto": the one that this machine belongs to; "local": a
            new one on this machine. None: RAY_ADDRESS, else "auto", else "local".
        cpus: Number of CPUs that each trial requests.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray")
    ray: Any = importlib.import_module("ray")
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    except ConnectionError as error:
        raise UsageError(
            f"ray-address: expected the address of a running Ray cluster; got {address!r} "
            f"({error}). Start one with: ray start --head."
        ) from None
    actor = ray.remote(num_cpus=cpus, max_restarts=0)(LocalTrial)
    return lambda task: RayTrial(ray, actor, task)
