"""The dashboard: what it shows, how often, and what it does off a terminal."""

from __future__ import annotations

import io
import math
import sys

import pytest
from rich.console import Console

from fugu.track import Dashboard, Snapshot
from fugu.track import dashboard as module
from fugu.track.dashboard import History, Meter, picture, time_left
from fugu.track.text import BLOCKS, number, sparkline

FULL = Snapshot(
    steps=4_000,
    steps_per_second=1_500.0,
    phases={"environment": 6.0, "learn": 3.0, "gather": 1.0},
    losses={"policy_loss": -0.0123, "value_loss": math.nan},
    episodes={"episode_return": 21.5, "episode_length": 180.0},
    notes=("worker 3 was restarted",),
)


class Clock:
    """Time that moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


def terminal(width: int = 100) -> Console:
    return Console(
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        width=width,
        height=50,
        legacy_windows=False,
    )


def written(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_it_shows_everything() -> None:
    console = terminal()
    dashboard = Dashboard(10_000, "breakout", console)
    for value in range(8):
        view = dashboard.view(
            Snapshot(1, 1.0, episodes={"episode_return": float(value), "episode_length": 1.0})
        )
    view = dashboard.view(FULL)
    console.print(picture(view))
    text = console.export_text()
    for words in (
        *("fugu", "breakout", "4,000 of 10,000 steps", "40%", "1500", "steps/s", "00:04", "left"),
        *("of ", "cores", "environment", "60%", "learn", "30%", "gather", "10%"),
        *("policy_loss", "-0.0123", "value_loss", "nan"),
        *("episode_return", "21.5", "episode_length", "180", "worker 3 was restarted"),
    ):
        assert words in text, words
    (line,) = [line for line in text.splitlines() if "episode_return" in line]
    assert BLOCKS[0] in line
    assert BLOCKS[-1] in line
    rows = {
        name: next(line.count("█") for line in text.splitlines() if name in line)
        for name in ("environment", "learn", "gather")
    }
    assert rows["environment"] > rows["learn"] > rows["gather"] > 0
    assert len({len(line) for line in text.splitlines() if line}) == 1, "the frame is straight"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
@pytest.mark.parametrize(
    "snapshot",
    [
        FULL,
        Snapshot(0, 0.0),
        Snapshot(20_000, math.inf, {"idle": 0.0}, {"x": math.inf}, {"[bold]": math.nan}, ("[/]",)),
    ],
    ids=["full", "empty", "odd"],
)
def test_any_width_and_any_numbers(width: int, snapshot: Snapshot) -> None:
    console = terminal(width)
    view = Dashboard(10_000, "[red]name[/]", console).view(snapshot)
    console.print(picture(view, min(width, 96)))
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines())
    if width >= 40:
        assert "[red]name[/]" in text


def test_at_most_one_drawing_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, console = Clock(monkeypatch), terminal()
    drawn: list[int] = []
    view = Dashboard.view

    def noted(self: Dashboard, snapshot: Snapshot) -> object:
        drawn.append(snapshot.steps)
        return view(self, snapshot)

    monkeypatch.setattr(Dashboard, "view", noted)
    with Dashboard(10_000, "a", console) as dashboard:
        for step in range(1001):
            dashboard.update(Snapshot(step, 1.0))
            clock.now += 0.004
        assert 4 <= len(drawn) <= 5
        assert drawn[0] == 0
    assert drawn[-1] == 1000, "the last one is shown at the end"
    assert len(drawn) <= 6
    assert "1,000 of 10,000" in console.export_text()


def test_plain_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with Dashboard(10_000, "breakout", Console(file=sys.stdout)) as dashboard:
        for step in range(26):
            dashboard.update(Snapshot(step, 10.0, episodes={"episode_return": 2.0}))
            clock.now += 1.0
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert [int(line.split()[1]) for line in lines] == [0, 10, 20, 25]
    assert lines[1].startswith("breakout: 10 of 10,000 steps (0%), 10 steps/s, 16:39 left")
    assert "\x1b" not in captured.err


def test_nothing_to_show_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Dashboard(10, "a", Console(file=sys.stdout)):
        pass
    assert capsys.readouterr() == ("", "")


def test_an_error_passes_through_and_the_cursor_comes_back() -> None:
    console = terminal()

    def fail() -> None:
        with Dashboard(10, "a", console) as dashboard:
            dashboard.update(FULL)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert written(console).rstrip().endswith("\x1b[?25h")


def test_time_left() -> None:
    assert time_left(100, Snapshot(50, 10.0)) == 5
    assert time_left(100, Snapshot(50, 0.0)) == math.inf
    assert time_left(100, Snapshot(150, 10.0)) == 0


def test_history_keeps_the_whole_curve() -> None:
    history = History(64)
    for value in range(10_000):
        history.add(value)
    assert 32 <= len(history.values) <= 64
    assert history.values == sorted(history.values)
    assert history.values[0] < 200
    assert history.values[-1] > 9_500


def test_sparkline() -> None:
    assert sparkline([]) == ""
    assert sparkline([math.nan, math.inf]) == "  "
    assert len(sparkline(range(1000), 30)) == 30
    assert sparkline(range(1000), 8) == BLOCKS
    assert sparkline([-1.7e308, 1.7e308]) == "▁█"
    assert number(math.nan) == "nan"


def test_the_meter_measures() -> None:
    meter = Meter()
    sum(range(3_000_000))
    usage = meter.read()
    assert 0 <= usage.busy <= 1
    assert 2**20 < usage.own_memory < usage.total_memory
    assert 0 < usage.used_memory <= usage.total_memory
    assert usage.cores >= 1


def test_a_family_of_entries_shares_a_line() -> None:
    verdicts = {"verdict/passed": 0.25, "verdict/wrong": 0.75, "verdict/timeout": 0.0}
    episodes = {f"entry_{i}": 1.0 for i in range(9)} | verdicts | {"speed/x": 3.0, "speed/y": -1.0}
    console = terminal()
    dashboard = Dashboard(10, "coding", console)
    console.print(picture(dashboard.view(Snapshot(1, 1.0, episodes=episodes))))
    text = console.export_text()
    assert "verdict  wrong 75.0% passed 25.0%" in text
    assert "timeout" not in text
    assert "speed  x 3 y -1" in text
