"""Learning curves of trials: read while they run, scored, and compared in order to prune."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fugu.track.jsonl import parse_metrics

EPISODES = 100  # episodes that a score is the mean of
STORED_POINTS = 40  # points of a curve that are stored with its trial
MIN_PEERS = 5  # complete trials that must have reached a step before others are pruned there
WARMUP = 0.15  # share of the training before which no trial is pruned
StoredCurve = Sequence[Sequence[float]]  # steps and scores


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
