"""Tournaments and `fugu rank`: everybody meets everybody, and the table says how it went."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_games import RockPaperScissors
from league_toys import Caller, Marks

from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.league.ledger import Rating
from fugu.league.players import RandomPlayer, find_source
from fugu.league.ratings import whiskers
from fugu.league.tournament import play_tournament, round_robin
from fugu.store.run import Run
from fugu.training.session import train
from fugu.vector import make

GAME = "exact_games:RockPaperScissors"


def test_everybody_meets_everybody_as_often_as_asked() -> None:
    with make(RockPaperScissors, 7, backend="serial") as vec:
        rock, paper, scissors = Caller(0), Caller(1), Caller(2)
        found = round_robin(vec, [rock, paper, scissors, Caller(0)], 11)
    assert found == {
        (0, 1): [0, 0, 12],
        (0, 2): [12, 0, 0],
        (0, 3): [0, 12, 0],
        (1, 2): [0, 0, 12],
        (1, 3): [12, 0, 0],
        (2, 3): [0, 0, 12],
    }


class First:
    """Notes the seats that it was given; it wins from the first one only."""

    def __init__(self) -> None:
        self.seats: list[int] = []

    def begin(self, group: int, agents: Any) -> None:
        self.seats += (agents % 2).tolist()

    def act(self, group: int, agents: Any, rows: Any) -> Any:
        return np.where(agents % 2 == 0, 1, 2)[:, None]


def test_sides_are_changed() -> None:
    """Paper on the first seat, scissors on the second: the second seat wins, whoever has it."""
    with make(RockPaperScissors, 5, backend="serial") as vec:
        assert round_robin(vec, [First(), First()], 40) == {(0, 1): [20, 0, 20]}


def test_three_sides() -> None:
    with make(partial(Marks, 3), 5, backend="serial") as vec:
        random = np.random.default_rng(0)
        players = [RandomPlayer(vec.groups, random) for _ in range(2)]
        found = round_robin(vec, players, 30)
    assert sum(found[0, 1]) == 60  # the one meets each of the two others


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A league of rock-paper-scissors, trained from the command line."""
    folder = tmp_path_factory.mktemp("runs")
    flags = ["--quiet", "--run.folder", str(folder), "--run.name", "hands", "--vec.num-envs", "16"]
    flags += ["--train.total-steps", "3000", "--train.horizon", "8", "--vec.backend", "serial"]
    flags += ["--league.snapshot-every", "1000", "--policy.hidden-size", "16"]
    assert main(["league", GAME, *flags]) == 0
    return folder


def test_the_table_is_there_after_training(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = Run(runs / "hands")
    assert run.status == "finished"
    assert run.config["league"]["enabled"] is True
    assert main(["rank", "--runs", str(runs), "--plot", str(tmp_path / "ratings.png")]) == 0
    table = capsys.readouterr().out
    assert GAME in table
    assert "●" in table
    assert (tmp_path / "ratings.png").stat().st_size > 5000
    assert main(["rank", "--runs", str(runs), "--json"]) == 0
    (standings,) = json.loads(capsys.readouterr().out).values()
    assert len(standings) >= 3
    for one in standings:
        assert one["games"] == one["wins"] + one["draws"] + one["losses"] > 0
        assert one["elo"]["deviation"] > 0
        assert one["skill"]["deviation"] > 0
    assert sum(one["wins"] for one in standings) == sum(one["losses"] for one in standings)


def test_runs_snapshots_and_chance_can_meet(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rank", "hands", "hands:0", "random", "--games", "20", "--runs", str(runs)]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert told.count(" against ") == 3
    before = play_tournament(["hands", "random"], root=runs, games=20, seed=5)
    again = play_tournament(["hands", "random"], root=runs, games=20, seed=5)
    assert before == again
    assert sum(next(iter(before[1].values()))) == 20


def test_who_is_meant(runs: Path) -> None:
    run = Run(runs / "hands")
    last = run.latest()
    assert last is not None
    assert find_source("hands", runs).checkpoint == last
    assert find_source("hands:best", runs).run is not None
    assert find_source("hands:0", runs).checkpoint == run.folder / "league" / "step_000000000"
    assert find_source("random", runs).run is None
    with pytest.raises(UsageError, match="one of the steps of 'hands': 0, "):
        find_source("hands:7", runs)
    with pytest.raises(UsageError, match="nearest: hands"):
        find_source("handz", runs)


def test_what_cannot_meet_is_refused(
    runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train(
        "bandit",
        show=False,
        train={"total_steps": 500},
        vec={"num_envs": 16},
        run={"folder": runs, "name": "other"},
    )
    for players, message in [
        (["hands", "other"], "runs of one environment"),
        (["hands"], "two or more"),
        (["random", "random"], "two or more"),
        (["hands", "random", "--games", "0"], "1 or more"),
        (["hands", "random", "--plot", str(tmp_path / "picture.txt")], "allowed"),
        (["--env", "chess"], "holds no results"),
    ]:
        assert main(["rank", *players, "--runs", str(runs)]) == 1
        assert message in capsys.readouterr().err
    assert main(["rank", "--runs", str(tmp_path)]) == 1
    assert "fugu league" in capsys.readouterr().err


def test_help_lists_the_settings_of_a_league(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--league.snapshot-every" in told
    assert "--train.learning-rate" in told
    assert main(["league", GAME, "--dry-run"]) == 0
    assert "enabled = True" in capsys.readouterr().out
    assert main(["league", GAME, "--league.snapshots", "3"]) == 1
    assert "nearest: league.snapshot" in capsys.readouterr().err


def test_whiskers_stay_within_their_line() -> None:
    assert whiskers(Rating(1000, 0), 1000, 1000, 5) == "●    "
    assert len(whiskers(Rating(1000, 500), 900, 1100, 20)) == 20
