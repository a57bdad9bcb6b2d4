"""The curve of a trial: its score and cost as its metrics tell them, while it runs and after."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fugu.track.jsonl import parse_metrics

RECENT = 100  # episodes that a score is the mean of
KEPT = 40  # points of a curve that are kept with its trial
Row = Mapping[str, float | None]


@dataclass(frozen=True)
class Point:
    """How a trial stood."""

    step: int
    seconds: float
    score: float


@dataclass
class TrialCurve:
    """A metric of one trial: the mean of about its last hundred episodes.

    A metric of evaluations (`evaluation/...`) counts as it is. What is no number ends in a score
    that is none.

    Attributes:
        metric: Its name in `metrics.jsonl`.
        points: In the order of steps.
    """

    metric: str
    points: list[Point] = field(default_factory=list)
    step: int = 0
    seconds: float = 0.0
    _recent: list[tuple[float, float]] = field(default_factory=list)  # episodes, sum of values

    def add(self, row: Row) -> None:
        """Take a line of metrics; one of an earlier step, as after a resume, cuts what follows."""
        step = int(row["step"] or 0)
        while self.points and self.points[-1].step >= step:
            self.points.pop()
        self.step, self.seconds = step, float(row.get("seconds") or self.seconds)
        if self.metric not in row:
            return
        given = row[self.metric]
        value = math.nan if given is None else float(given)
        self.points.append(Point(self.step, self.seconds, self._smooth(value, row)))

    def add_all(self, rows: Iterable[Row]) -> None:
        """Take lines of metrics."""
        for row in rows:
            self.add(row)

    @property
    def score(self) -> float:
        """At the end; NaN if there is none."""
        return self.points[-1].score if self.points else math.nan

    def kept(self) -> list[list[float]]:
        """Some of its points, evenly spaced, for those to come: steps and scores."""
        count = len(self.points)
        chosen = sorted({round(i * (count - 1) / (KEPT - 1)) for i in range(KEPT)}) if count else []
        points = [self.points[i] for i in chosen]
        return [[p.step, p.score] for p in points if math.isfinite(p.score)]

    def _smooth(self, value: float, row: Row) -> float:
        if self.metric.startswith("evaluation/"):
            return value
        count = float(row.get("episodes") or 1.0)
        self._recent.append((count, count * value))
        while len(self._recent) > 1 and sum(n for n, _ in self._recent[1:]) >= RECENT:
            del self._recent[0]
        return sum(total for _, total in self._recent) / sum(n for n, _ in self._recent)


class Tail:
    """New lines of a file of metrics, each once, as they are written."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        """The lines that are whole by now and were not read before."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # cut off by a resume
                    self._offset = 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        rows = (parse_metrics(line) for line in whole.splitlines())
        return [row for row in rows if row is not None]


def score_at(curve: Sequence[Sequence[float]], step: float) -> float | None:
    """The last score of a kept curve at a step; None before its first, or behind its end.

    >>> score_at([[10, 1.0], [20, 2.0]], 15), score_at([[10, 1.0]], 11)
    (1.0, None)
    """
    if not curve or step > curve[-1][0]:
        return None
    before = [score for at, score in curve if at <= step]
    return before[-1] if before else None
