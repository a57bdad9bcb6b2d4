"""`fugu.check` closes what it made, restores what it changed, and interrupts calls that hang."""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from faulty_envs import STEPS, RaisesInReset, RaisesInStep, Unseeded, Walk, quietly, statuses
from gymnasium import spaces

from fugu.core.errors import UsageError
from fugu.envs.checking import Report, check, checker, recording


def test_other_objects_are_refused() -> None:
    for given in (None, 3, "CartPole-v1", lambda: 3, gymnasium.make_vec("CartPole-v1")):
        with pytest.raises(UsageError, match="allowed: a gymnasium.Env"):
            check(given)
    for arguments in ({"steps": 0}, {"steps": 1.5}, {"steps": True}, {"seed": "x"}):
        with pytest.raises(UsageError, match="expected an int"):
            check(Walk, **arguments)


def test_only_environments_of_the_factory_are_closed() -> None:
    made: list[Walk] = []
    for kind in (Walk, RaisesInStep, RaisesInReset):
        check(lambda kind=kind: made.append(kind()) or made[-1], steps=STEPS, show=False)
    assert [env.closed for env in made] == [1] * len(made)
    env = Walk()
    assert "close" not in statuses(quietly(env))
    assert env.closed == 0
    quietly(lambda: env)
    assert env.closed == 1


def test_global_generators_are_left_alone() -> None:
    class Greedy(Unseeded):
        def see(self) -> Any:
            random.seed(3)
            np.random.seed(3)  # noqa: NPY002
            return super().see()

    def states() -> Any:
        return random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002

    for kind in (Greedy, Unseeded, RaisesInStep):
        before = states()
        quietly(kind)
        assert states() == before


def test_the_spaces_of_an_instance_keep_their_generators() -> None:
    env, twin = Walk(), Walk()
    env.action_space, twin.action_space = (spaces.Box(-1, 1, (2,), seed=5) for _ in range(2))
    quietly(env)
    assert (env.action_space.sample() == twin.action_space.sample()).all()


def test_a_slow_environment_gets_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Walk):
        def step(self, action: Any) -> Any:
            time.sleep(0.01)
            return super().step(action)

    monkeypatch.setattr(recording, "RUN_SECONDS", 0.25)
    report = quietly(Slow, steps=100_000)
    assert report.ok, str(report)
    assert "steps of 100,000;" in report["step"].detail


needs_alarm = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs SIGALRM")


@needs_alarm
@pytest.mark.parametrize("where", ["make", "reset", "step", "close"])
def test_a_call_that_hangs_is_interrupted(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> None:
        while True:
            try:
                time.sleep(60)
            except Exception:  # an environment that catches everything
                continue

    class Hanging(Walk):
        def __init__(self) -> None:
            super().__init__()
            if where == "make":
                hang()

        def reset(self, **arguments: Any) -> Any:
            if where == "reset":
                hang()
            return super().reset(**arguments)

        def step(self, action: Any) -> Any:
            if where == "step" and self.steps == 3:
                hang()
            return super().step(action)

        def close(self) -> None:
            if where == "close":
                hang()

    monkeypatch.setattr(checker, "CALL_SECONDS", 0.2)
    report = quietly(Hanging)
    assert report[where].status == "fail"
    assert "did not return within 0.2 seconds" in report[where].detail


@needs_alarm
def test_a_timer_of_the_caller_continues() -> None:
    rang: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        quietly(Walk)
        deadline = time.monotonic() + 5
        while not rang and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rang == [1]
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_it_works_in_a_thread() -> None:
    reports: list[Report] = []
    thread = threading.Thread(target=lambda: reports.append(quietly(Walk)))
    thread.start()
    thread.join()
    assert reports[0].ok
