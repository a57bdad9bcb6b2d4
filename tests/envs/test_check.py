"""`fugu.check`: good environments pass, and every check catches an environment that breaks it."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from expedition import Expedition
from faulty_envs import (
    FAULTS,
    STEPS,
    Endless,
    Leaky,
    OutOfBounds,
    RaisesInReset,
    RaisesInStep,
    RaisesSecondTime,
    Walk,
    WrongShape,
    quietly,
    statuses,
)
from gymnasium import spaces
from rich.console import Console

from fugu.envs import slots
from fugu.envs.checking import check


@pytest.mark.parametrize("env_id", ["CartPole-v1", "FrozenLake-v1"])
def test_good_gymnasium_environment(env_id: str) -> None:
    for given in (lambda: gymnasium.make(env_id), gymnasium.make(env_id)):
        report = quietly(given, steps=300)
        assert set(statuses(report).values()) == {"ok"}, str(report)


def test_an_environment_whose_resets_with_a_seed_are_slow() -> None:
    class Reloading(Walk):
        """Emulation seeds only the first episode of it, unless it is told to seed all."""

        ale = "an emulator that loads its game for each seed"

    report = quietly(Reloading)
    assert set(statuses(report).values()) == {"ok"}, str(report)


def test_nested_environments() -> None:
    assert set(statuses(quietly(Walk)).values()) == {"ok"}
    report = quietly(Expedition, limits=8, steps=300)
    assert report.ok, str(report)
    assert report["step"].detail.startswith("300 steps of 300;")


def test_good_parallel_environment() -> None:
    pytest.importorskip("mpe2")
    from mpe2 import simple_speaker_listener_v4, simple_spread_v3

    report = quietly(simple_spread_v3.parallel_env)
    assert report.ok, str(report)
    assert report["agents"].detail == "3 possible; up to 3 act at once"
    report = quietly(simple_speaker_listener_v4.parallel_env())
    assert report.ok, str(report)
    assert "speaker_0: observations" in report["layout"].detail


def test_good_turn_by_turn_environment() -> None:
    pytest.importorskip("pettingzoo")
    from pettingzoo.classic import tictactoe_v3

    for given in (tictactoe_v3.env, tictactoe_v3.env()):
        report = quietly(given)  # one illegal move would end an episode with a warning
        assert report.ok, str(report)
        assert report["action masks"].status == "ok"
        assert report["other seed"].status == "warn"  # there is no chance in it


def test_nethack_ignores_its_seed() -> None:
    pytest.importorskip("nle")
    from fugu.envs.wrappers import SeededNetHack

    report = quietly(lambda: gymnasium.make("NetHackScore-v0"))
    assert report["same seed"].status == "fail"
    assert "SeededNetHack" in report["same seed"].advice
    assert report["kept observations"].status == "warn"
    report = quietly(lambda: SeededNetHack(gymnasium.make("NetHackScore-v0")))
    assert report.ok, str(report)


# ---------------------------------------------------------------------- one fault each


@pytest.mark.parametrize(
    ("kind", "name", "status", "text"), FAULTS, ids=[f"{f[0].__name__}-{f[1]}" for f in FAULTS]
)
def test_each_check_catches_its_fault(
    kind: type[Walk], name: str, status: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(kind, steps=STEPS)
    row = report[name]
    assert (row.status, text in row.detail) == (status, True), str(report)
    assert row.advice
    assert report.ok == (status != "fail")
    others = [r.name for r in report.rows if r.name != name and r.status in ("warn", "fail")]
    assert not others, str(report)
    path = text.split("'")[1] if text.startswith("'") else ""
    assert path in capsys.readouterr().out  # of the table


def test_the_layout_of_a_sequence_takes_a_limit() -> None:
    report = quietly(Endless)
    assert "limits=" in report["layout"].advice
    assert report["observations"].status == report["autoreset"].status == "skip"
    assert report["same seed"].status == "ok"  # which does not need a layout
    assert quietly(Endless, limits=4).ok
    assert quietly(Endless, limits={"road": 4}).ok
    row = quietly(Endless, limits={"road": 4, "rode": 4})["layout"]
    assert "given ['rode']; allowed: ['road']" in row.detail
    assert "by path is for observations" in row.advice


def test_every_fault_is_reported_at_once() -> None:
    class Hopeless(WrongShape):
        def step(self, action: Any) -> Any:
            return self.see(), None, None, self.steps, "fine"

    report = quietly(Hopeless)
    failed = {row.name for row in report.failures}
    assert failed == {"observations", "rewards", "flags", "infos"}
    assert report["autoreset"].status == "skip"
    assert report["same seed"].status == "ok"


def test_an_instance_that_remembers_is_caught() -> None:
    assert "'gear' at reset" in quietly(Leaky())["same seed"].detail
    report = quietly(RaisesSecondTime())
    assert "ValueError: tired" in report["same seed"].detail
    assert report["autoreset"].status == report["other seed"].status == "skip"


def test_after_a_fault_the_rest_is_skipped() -> None:
    report = quietly(RaisesInReset)
    assert {row.name for row in report.rows if row.status == "skip"} >= {"step", "same seed"}
    assert report["step"].detail == "not run: see 'reset'"
    assert quietly(RaisesInStep)["observations"].detail.startswith("6 transitions")


# ---------------------------------------------------------------------- autoreset


@pytest.mark.parametrize("fault", ["final", "observation", "reward"])
def test_autoreset_notices_what_emulation_changes(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"final": "end", "observation": "show", "reward": "reward"}[fault]
    real = getattr(slots.Slot, name)

    def wrong(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        match fault:
            case "final":
                self._final[:] = 0
            case "observation":
                self._observation[:] = 0
            case "reward":
                self._rewards[self._row] += 1

    monkeypatch.setattr(slots.Slot, name, wrong)
    report = quietly(Walk)
    words = {"final": "the final observation", "observation": "the observation", "reward": "reward"}
    assert words[fault] in report["autoreset"].detail
    assert [row.name for row in report.failures] == ["autoreset"]
    assert report["same seed"].status == "ok"


# ---------------------------------------------------------------------- masks


class Masked(Walk):
    """Every choice but those of its mask ends the test."""

    action_space = spaces.Dict(
        arm=spaces.MultiDiscrete([3, 2]),
        legs=spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary(2))),
        push=spaces.Box(-1, 1, (1,)),
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self._draw()
        return result

    def _draw(self) -> None:
        heads = [self.np_random.integers(0, 2, n) for n in (3, 2, 4, 2, 2)]
        for head in heads:
            head[self.np_random.integers(len(head))] = 1
        self.heads = heads

    def action_masks(self) -> Any:
        return np.concatenate(self.heads).astype(np.bool_)

    def step(self, action: Any) -> Any:
        choices = [*action["arm"], action["legs"][0] - 2, *action["legs"][1]]
        if not all(head[choice] for head, choice in zip(self.heads, choices, strict=True)):
            raise ValueError("illegal")
        self._draw()
        return super().step(action)


@pytest.mark.parametrize("given", [Masked, Masked()], ids=["factory", "instance"])
def test_actions_are_legal(given: Any) -> None:
    report = quietly(given, steps=200)
    assert report.ok, str(report)
    assert report["action masks"].detail == "200 of 200 forbid something"


# ---------------------------------------------------------------------- the report


def test_report_forms(capsys: pytest.CaptureFixture[str]) -> None:
    report = check(OutOfBounds, steps=STEPS)
    printed = capsys.readouterr().out
    assert "body/position" in printed
    assert printed.splitlines()[-1] == report.verdict
    assert report.verdict == "OutOfBounds fails: 1 failure (bounds), no warnings."
    assert report.verdict in str(report)
    assert "FAIL  bounds" in str(report)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["ok"] is False
    assert {"name", "status", "detail", "advice"} == set(data["rows"][0])
    with pytest.raises(KeyError, match="expected one of"):
        report["bonds"]
    narrow = Console(width=50, record=True)
    with narrow.capture() as captured:
        narrow.print(report)
    assert max(map(len, captured.get().splitlines())) <= 50
    check(Walk, steps=STEPS, show=False)
    assert capsys.readouterr().out == ""
