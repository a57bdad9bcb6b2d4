"""Returns asked for and achieved: how well policies that are told what to earn do so."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.policies.decision_transformer import DecisionTransformer
from fugu.policies.policy import Policy
from fugu.store.run import Run
from fugu.track.curves import COLOURS, check_picture
from fugu.training.evaluate import COPIES, MAX_EPISODE_STEPS, Evaluation, load_policies, play
from fugu.training.inputs import RunInputs
from fugu.vector import make


@dataclass(frozen=True)
class Achievement:
    """What came of one target.

    Attributes:
        target: The return that was asked for.
        evaluation: The episodes that were played.
    """

    target: float
    evaluation: Evaluation

    def to_dict(self) -> dict[str, Any]:
        """Its figures, as JSON has them."""
        return {"target": self.target, **self.evaluation.to_dict()}


def evaluate_targets(
    run: str | Path | Run,
    targets: Sequence[float],
    *,
    episodes: int = 100,
    root: str | Path = "runs",
    best: bool = False,
    greedy: bool = True,
    seed: int = 0,
    env: Callable[..., Any] | None = None,
    max_episode_steps: int = MAX_EPISODE_STEPS,
    trust: bool = False,
) -> list[Achievement]:
    """Play episodes with each target in turn, the same episodes for all; see `evaluate`."""
    if episodes < 1:
        raise UsageError(f"episodes: given {episodes}; allowed: 1 or more.")
    found = run if isinstance(run, Run) else Run.open(run, root)
    inputs = RunInputs(env, trust=trust)
    cfg, policies = load_policies(found, found.best() if best else None, inputs)
    achieved = []
    with make(inputs.env_of(cfg.env), min(COPIES, episodes), **cfg.env_options) as vec:
        for target in targets:
            ask(policies, target)
            played = play(
                policies,
                vec,
                episodes,
                greedy=greedy,
                seed=seed,
                max_episode_steps=max_episode_steps,
            )
            achieved.append(Achievement(float(target), played))
    return achieved


def ask(policies: Sequence[Policy], target: float) -> None:
    """Ask policies for a return."""
    for policy in policies:
        if not isinstance(policy, DecisionTransformer):
            raise UsageError(
                "target: given for a policy that is not told what to earn; allowed: with a run of "
                "--algo decision_transformer."
            )
        policy.ask(target)


def rank_correlation(given: Sequence[float], found: Sequence[float]) -> float:
    """Spearman's: how far one rises with the other, from -1 to 1; 0 if one does not vary.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    first, second = _ranks(given), _ranks(found)
    if len(first) < 2 or not first.std() or not second.std():
        return 0.0
    return round(float(np.corrcoef(first, second)[0, 1]), 12)


def _ranks(numbers: Sequence[float]) -> NDArray[np.float64]:
    """Equal numbers share the mean of their ranks."""
    values = np.asarray(numbers, np.float64)
    below = (values < values[:, None]).sum(1)
    equal = (values == values[:, None]).sum(1)
    ranks: NDArray[np.float64] = below + (equal - 1) / 2
    return ranks


def draw_targets(achieved: Sequence[Achievement], path: Path, label: str = "") -> None:
    """Write a picture of returns asked for against those achieved."""
    check_picture(path)
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(6, 5), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(achieved, key=lambda each: each.target)
    targets = np.array([each.target for each in ordered])
    told = [each.evaluation.to_dict() for each in ordered]
    means = np.array([each["mean_return"] for each in told])
    spread = np.array([each["deviation"] for each in told])
    ends = [targets.min(), targets.max()]
    axes.plot(ends, ends, color="#adb5bd", lw=1.2, ls="--", label="achieved = asked")
    axes.plot(targets, means, "o-", color=COLOURS[0], lw=1.8, label=label or "mean of episodes")
    axes.fill_between(targets, means - spread, means + spread, color=COLOURS[0], alpha=0.18, lw=0)
    axes.set_xlabel("return asked for")
    axes.set_ylabel("return achieved (± 1 std)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e5e8eb", lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=140)
