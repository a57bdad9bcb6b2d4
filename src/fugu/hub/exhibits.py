"""What shows how well a run plays: a score, its learning curve, and a film of its policies."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fugu.hub.contents import CURVE, GIF, VIDEO
from fugu.store.run import Run
from fugu.track.curves import read_curve
from fugu.track.jsonl import read_metrics
from fugu.track.picture import draw_curves

if TYPE_CHECKING:
    from fugu.hub.agent import Agent

METRIC = "episode_return"
RECENT = 100  # episodes of a score that training itself tells
FILM_STEPS, FILM_HEIGHT = 400, 360


@dataclass(frozen=True)
class Score:
    """Returns of episodes.

    Attributes:
        mean: Of all.
        deviation: Of episodes, or of the means of them that training told.
        episodes: How many.
        source: Where they are from, in words.
    """

    mean: float
    deviation: float
    episodes: int
    source: str

    def __str__(self) -> str:
        return f"{self.mean:.2f} +/- {self.deviation:.2f}"


def score_of_training(run: Run, steps: int) -> Score | None:
    """What the metrics up to a step tell: the last evaluation, else the last episodes."""
    told: list[tuple[float, float]] = []  # episodes, and their mean return
    examined: Score | None = None
    for entry in read_metrics(run.metrics_path):
        if (entry["step"] or 0) > steps:
            break
        mean, deviation = entry.get("evaluation/mean_return"), entry.get("evaluation/deviation")
        if mean is not None and deviation is not None:
            episodes = int(entry.get("evaluation/episodes") or 0)
            examined = Score(mean, deviation, episodes, "the last evaluation during training")
        count, value = entry.get("episodes"), entry.get(METRIC)
        if count and value is not None and math.isfinite(value):
            told.append((count, value))
    return examined or _score_of_episodes(told)


def _score_of_episodes(told: list[tuple[float, float]]) -> Score | None:
    recent: list[tuple[float, float]] = []
    for pair in reversed(told):
        if sum(count for count, _ in recent) >= RECENT:
            break
        recent.append(pair)
    total = sum(count for count, _ in recent)
    if not total:
        return None
    mean = sum(count * value for count, value in recent) / total
    spread = sum(count * (value - mean) ** 2 for count, value in recent) / total
    source = "the last episodes of training; the deviation is that of the means of updates"
    return Score(mean, math.sqrt(spread), int(total), source)


def draw_curve(run: Run, folder: Path) -> Path:
    """The learning curve as a picture."""
    curve = read_curve(run.metrics_path, METRIC, run.name)
    path = folder / CURVE
    draw_curves([curve], METRIC, path)
    return path


def film(agent: Agent, folder: Path, seed: int) -> Path:
    """A video, or a GIF where there is no encoder."""
    encoder = all(importlib.util.find_spec(name) for name in ("imageio", "imageio_ffmpeg"))
    path = folder / (VIDEO if encoder else GIF)
    return agent.film(path, steps=FILM_STEPS, height=FILM_HEIGHT, seed=seed)
