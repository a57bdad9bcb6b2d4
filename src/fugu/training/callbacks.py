"""Callbacks: code of the user's that runs between the updates of a training run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from fugu.algos.settings import LearningConfig
from fugu.core.config import from_tree, to_tree
from fugu.core.errors import UsageError
from fugu.training.evaluate import Evaluator, Players, engine_of
from fugu.vector.recording import make_rendered, record

if TYPE_CHECKING:
    from fugu.training.trainer import Progress, Trainer


ENOUGH = 100  # episodes of a score that can stop a run


Status: TypeAlias = Literal["finished", "stopped", "failed"]


class Callback:
    """Code that runs in the course of a training run: derive from it what you need.

    With several processes that train together, each of them calls its callbacks.

    >>> class Halve(Callback):
    ...     def on_update(self, trainer, progress):
    ...         trainer.log({"halved": 0.5 * progress.steps})
    """

    def on_start(self, trainer: Trainer) -> None:
        """Run before the first update of a session, after a resumed run is restored."""

    def on_update(self, trainer: Trainer, progress: Progress) -> None:
        """Run after every update, before its metrics are written."""

    def on_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Run after every evaluation, whose metrics are written with those of the update."""

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        """Run after a checkpoint is written to the folder `path`."""

    def on_stop(self, trainer: Trainer, status: Status) -> None:
        """Run at the end of a session; "failed" is that of one that an error ends."""


UpdateFunction: TypeAlias = Callable[["Trainer", "Progress"], object]
AnyCallback: TypeAlias = Callback | UpdateFunction


class _Function(Callback):
    def __init__(self, function: UpdateFunction) -> None:
        self._function = function

    def on_update(self, trainer: Trainer, progress: Progress) -> None:
        self._function(trainer, progress)


def as_callbacks(given: Iterable[Any]) -> tuple[Callback, ...]:
    """Return callbacks as objects; plain functions are called after every update."""
    found: list[Callback] = []
    for each in given:
        if not isinstance(each, Callback) and (isinstance(each, type) or not callable(each)):
            raise UsageError(
                "callbacks: expected objects of fugu.Callback or functions of a trainer and its "
                f"progress; got {each!r}."
            )
        found.append(each if isinstance(each, Callback) else _Function(each))
    return tuple(found)


class StopAtScore(Callback):
    """Stop a run when the mean return of its last 100 episodes reaches a score."""

    def __init__(self, score: float) -> None:
        self._score = score

    def on_update(self, trainer: Trainer, progress: Progress) -> None:
        """Stop if it is reached."""
        score = trainer.score if trainer.recent.episodes >= ENOUGH else None
        if score is not None and score >= self._score:
            trainer.stop(f"the score {score:.6g} has reached {self._score:g}")


class EvaluateEvery(Callback):
    """Evaluate the policies every so many steps, and at the end of the run.

    The metrics are logged as `evaluation/mean_return` and so on. Checkpoints are not ranked by
    them: for that, use the setting `run.evaluate_every` instead.

    Args:
        steps: Agent steps between two evaluations.
        episodes: Number of episodes of each evaluation.
    """

    def __init__(self, steps: int, episodes: int = 20) -> None:
        _check_positive(steps=steps, episodes=episodes)
        self._evaluator = Evaluator(steps, episodes)

    def on_start(self, trainer: Trainer) -> None:
        """Count from the steps of the run so far."""
        if trainer.cfg.run.evaluate_every:
            raise UsageError(
                "EvaluateEvery: given with the setting run.evaluate_every, which writes the same "
                "metrics. Use one of them."
            )
        self._evaluator.steps = trainer.steps

    def on_update(self, trainer: Trainer, progress: Progress) -> None:
        """Evaluate if it is due."""
        found = self._evaluator.evaluate(trainer)
        if found:
            trainer.logged |= {f"evaluation/{name}": value for name, value in found.items()}
            for each in trainer.callbacks:
                each.on_evaluation(trainer, found)

    def on_stop(self, trainer: Trainer, status: Status) -> None:
        """Close the environments."""
        self._evaluator.close()


class RecordVideo(Callback):
    """Record how the policies play, at the start of a session and every so many steps.

    Videos are in the folder `videos` of the run, by the steps of the run at which they begin.

    Args:
        every_steps: Agent steps between two videos.
        length: Environment steps that a video shows.
        suffix: ".mp4" or ".gif".
    """

    def __init__(
        self, every_steps: int, length: int = 300, suffix: Literal[".mp4", ".gif"] = ".mp4"
    ) -> None:
        _check_positive(every_steps=every_steps, length=length)
        if suffix not in (".mp4", ".gif"):
            raise UsageError(f"suffix: expected one of '.mp4', '.gif'; got {suffix!r}.")
        self._every, self._length, self._suffix = every_steps, length, suffix
        self._steps = 0

    def on_start(self, trainer: Trainer) -> None:
        """Record the first video, so that what is missing for videos is known at once."""
        self._steps = trainer.steps
        if trainer.ranks.share(trainer.context.run is None):
            raise UsageError("RecordVideo: the run has no folder. Keep it: keep=True.")
        self._record(trainer)

    def on_update(self, trainer: Trainer, progress: Progress) -> None:
        """Record a video if it is due."""
        before, self._steps = self._steps, trainer.steps
        if before // self._every != self._steps // self._every:
            self._record(trainer)

    def _record(self, trainer: Trainer) -> None:
        run, cfg = trainer.context.run, trainer.cfg
        if run is None:
            return  # the first rank records
        folder = run.folder / "videos"
        folder.mkdir(exist_ok=True)
        with make_rendered(trainer.inputs.env_of(cfg.env), 1, **cfg.env_options) as vec:
            players = Players(trainer.policies, vec, cfg.seed, engine=engine_of(cfg))
            path = folder / f"{trainer.steps:012d}{self._suffix}"
            record(vec, path, policy=players, steps=self._length, seed=cfg.seed)


class Curriculum(Callback):
    """Set an attribute of the environments by how far training has come.

    Args:
        attribute: An attribute of the environments, or of what they wrap.
        schedule: Returns its value for the progress of the run from 0 to 1, or for the score.
        by: "progress", or "score": the mean return of the last 100 episodes, once some have ended.

    >>> curriculum = Curriculum("gravity", lambda progress: 5.0 + 4.8 * progress)
    """

    def __init__(
        self,
        attribute: str,
        schedule: Callable[[float], Any],
        by: Literal["progress", "score"] = "progress",
    ) -> None:
        if by not in ("progress", "score"):
            raise UsageError(f"by: expected one of 'progress', 'score'; got {by!r}.")
        self._attribute, self._schedule, self._by = attribute, schedule, by

    def on_start(self, trainer: Trainer) -> None:
        """Set the attribute before the first step."""
        reached = trainer.progress if self._by == "progress" else trainer.score
        if reached is not None:
            trainer.set_env(self._attribute, self._schedule(reached))

    def on_update(self, trainer: Trainer, progress: Progress) -> None:
        """Set the attribute for the steps that follow."""
        self.on_start(trainer)


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"{name}: expected a whole number from 1 on; got {number!r}.")


BUILT_IN = re.compile(
    r"(loss|seconds|evaluation|nodes|weights\w*)/.*"
    r"|step|seconds|updates|steps_per_second|episodes|episode_return|episode_length"
)


def check_metrics(metrics: Mapping[str, Any], taken: set[str]) -> dict[str, float]:
    """Return metrics as floats; raise `UsageError` for names that are taken and for other values.

    >>> check_metrics({"difficulty": 2}, {"success"})
    {'difficulty': 2.0}
    """
    found = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"log: expected names of metrics as text; got {name!r}.")
        if name in taken or BUILT_IN.fullmatch(name):
            raise UsageError(
                f"log: expected a name that no built-in metric has; got {name!r}. Choose another, "
                f"such as {'my/' + name.rpartition('/')[2]!r}."
            )
        single = hasattr(value, "item") and math.prod(value.shape) == 1  # of NumPy or torch
        number = value.item() if single else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UsageError(f"log: expected a number for {name!r}; got {value!r:.80}.")
        if math.isnan(number):
            raise UsageError(
                f"log: expected a number for {name!r}; got NaN. Leave the metric out instead."
            )
        found[name] = float(number)
    return found


def check_settings(
    train: LearningConfig, given: Mapping[str, Any], changeable: Sequence[str], algo: str
) -> dict[str, Any]:
    """Return settings as the fields of `train` have them; `UsageError` if they may not change."""
    for name in given:
        if name not in changeable:
            allowed = f"one of {', '.join(changeable)}" if changeable else "none"
            raise UsageError(
                f"change: expected a setting that may change while {algo!r} trains, {allowed}; "
                f"got {name!r}. Give others to fugu.train, or to fugu.resume."
            )
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
    typed = to_tree(from_tree(type(train), plain, "train."))
    return {name: typed[name] for name in plain}
