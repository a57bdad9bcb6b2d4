"""The view of a sweep while it runs, and its Pareto front."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState, create_trial
from rich.console import Console

from fugu.sweep.plan import SearchConfig, SweepPlan
from fugu.sweep.report import SweepView, front_trials, trial_line
from fugu.sweep.trials import RunningTrial, TrialCurve, TrialProgress, TrialTask

Plans = Callable[..., SweepPlan]


class Quiet:
    """A trial that runs and says nothing."""

    def __init__(self, task: TrialTask | None = None) -> None: ...

    def poll(self) -> TrialProgress:
        return TrialProgress([])

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def study_of(plan: SweepPlan) -> optuna.Study:
    """Two on the front, one that is beaten, one pruned, one failed."""
    study = optuna.create_study(directions=["maximize", "minimize"])
    for rate, values in ((0.01, (5.0, 100.0)), (0.02, (9.0, 300.0)), (0.03, (4.0, 200.0))):
        study.enqueue_trial({"train.learning_rate": rate})
        trial = study.ask(plan.distributions)
        note(trial, rate, score=values[0], cost=values[1])
        study.tell(trial, values)
    pruned = study.ask(plan.distributions)
    note(pruned, 0.04, score=1.0, cost=50.0)
    study.tell(pruned, state=TrialState.PRUNED)
    failed = study.ask(plan.distributions)
    note(failed, 0.05, failure="ended by SIGKILL")
    study.tell(failed, state=TrialState.FAIL)
    return study


def note(trial: optuna.Trial, rate: float, **told: Any) -> None:
    trial.set_user_attr("settings", json.dumps({"train.learning_rate": rate}))
    for name, value in told.items():
        trial.set_user_attr(name, value)


def test_the_picture_shows_what_runs_and_what_leads(plan_of: Plans) -> None:
    plan = plan_of("seen", trials=10)
    study = study_of(plan)
    assert [trial.number for trial in front_trials(plan.search, study.trials)] == [0, 1]
    running = study.ask(plan.distributions)
    note(running, 0.06)
    curve = TrialCurve("episode_return")
    curve.add({"step": 160, "seconds": 2.0, "episode_return": 7.5, "episodes": 100.0})
    live = RunningTrial(running, Quiet(), curve, 320, time.monotonic())
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with SweepView(plan, console=console) as view:
        view.update(study.trials, [live])
        text_of = Console(file=io.StringIO(), width=100, record=True)
        text_of.print(view.render(study.trials, [live]))
    text = text_of.export_text()
    for piece in ("5 of 10 trials", "3 complete", "1 pruned", "1 failed", "50%", "7.5"):
        assert piece in text, (piece, text)
    assert "learning_rate 0.02" in text
    assert "learning_rate 0.03" not in text, "one that is beaten does not lead"


def test_lines_for_files_and_pipes(plan_of: Plans) -> None:
    plan = plan_of("seen", trials=10)
    trials = study_of(plan).trials
    assert trial_line(plan, trials[1]) == (
        "seen: trial 1 complete: episode_return 9 for 300 steps (learning_rate 0.02)"
    )
    assert "trial 3 pruned: episode_return 1 for 50 steps" in trial_line(plan, trials[3])
    assert "trial 4 failed: ended by SIGKILL" in trial_line(plan, trials[4])


@pytest.mark.parametrize(("goal", "sign"), [("maximize", 1.0), ("minimize", -1.0)])
def test_the_front_against_a_slow_reference(goal: Any, sign: float) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        values = [tuple(map(float, pair)) for pair in random.integers(0, 6, (12, 2))]
        front = front_trials(SearchConfig(goal=goal), [create_trial(values=v) for v in values])
        slow = {
            (s, c)
            for s, c in values
            if not any((sign * t >= sign * s and d <= c) and (t != s or d < c) for t, d in values)
        }
        assert [tuple(t.values) for t in front] == sorted(slow, key=lambda value: value[1])
