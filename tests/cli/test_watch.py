"""fugu play RUN and fugu record RUN: the policy of a run acts, in its own environment."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fugu
from fugu import native
from fugu.cli.main import main

if not native.available:
    pytest.skip("needs the native extension", allow_module_level=True)

from fugu.cli.games import WatchedGame, watched_vector
from fugu.cli.play import Play
from fugu.cli.screens import KeyEvent, run
from fugu.cli.subjects import find_run, load_agent
from fugu.core.errors import UsageError
from fugu.store import Run
from fugu.training.session import train
from fugu.vector.random_actions import random_policy

iio = pytest.importorskip("imageio.v3")
pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a native environment that learned something, and of Gymnasium's."""
    folder: Path = tmp_path_factory.mktemp("home") / "runs"
    where = {"folder": folder}
    train("cartpole", train={"total_steps": 60_000}, run=where | {"name": "good"}, show=False)
    small = {"num_envs": 4, "backend": "serial"}
    steps = {"total_steps": 500}
    train("CartPole-v1", train=steps, vec=small, run=where | {"name": "gym-a"}, show=False)
    return folder


@pytest.fixture(autouse=True)
def at_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    pytest.importorskip("pygame")


@pytest.fixture
def game() -> Iterator[WatchedGame]:
    agent = load_agent(Run.open("good"), Play("good"))
    with watched_vector(agent.config.env, agent.config.env_kwargs) as vec:
        yield WatchedGame("good", vec, partial(agent.players, seed=1), seed=1)


class Keys:
    """A screen that presses keys by a script."""

    def __init__(self, script: dict[int, str]) -> None:
        self.script, self.turn = script, -1
        self.shown: list[tuple[str, str]] = []

    def events(self) -> list[KeyEvent]:
        self.turn += 1
        return [KeyEvent(self.script[self.turn], True)] if self.turn in self.script else []

    def show(self, game: object, lines: tuple[str, str]) -> None:
        self.shown.append(lines)


def test_what_was_learned_is_played(game: WatchedGame) -> None:
    """By chance a pole falls after about twenty steps."""
    for _ in range(60):
        game.step([])
    assert game.status() == "good   step 60   return 60"


def test_the_return_shown_is_that_of_the_first_agent() -> None:
    """Other snakes die at other times, which does not end its episode."""
    total, length, others = 0.0, 0, 0
    with watched_vector("snake", {}) as vec:
        game = WatchedGame("snakes", vec, random_policy, seed=1)
        for _ in range(200):
            game.step([])
            rows = game._batch.groups[0].rows
            ended = rows.terminations | rows.truncations
            others += int(ended[1:].any() and not ended[0])
            total, length = (
                (0.0, 0) if ended[0] else (total + round(float(rows.rewards[0]), 6), length + 1)
            )
            assert f"step {length}   return {total:g}" in game.status()
    assert others


def test_keys_pause_begin_anew_and_quit(game: WatchedGame) -> None:
    screen = Keys({2: "space", 5: "space", 7: "r", 9: "q"})
    run(game, screen, fps=1000)
    assert game.steps == 6
    assert "paused" in screen.shown[3][0]
    assert screen.shown[-1][0] == "good   step 2   return 2"
    assert screen.shown[0][1] == "space pause, r reset, escape quit"


def test_pictures_have_the_size_that_is_asked_for(game: WatchedGame) -> None:
    before = game.picture((90, 60))
    assert before.shape == (60, 90, 3)
    for _ in range(30):
        game.step([])
    assert not np.array_equal(before, game.picture((90, 60)))


@pytest.mark.usefixtures("window")
@pytest.mark.parametrize("name", ["good", "goo", "gym-a", "latest", "runs/good"])
def test_play_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", name, "--best", "--steps", "5", "--fps", "500", "--seed", "1"]) == 0
    shown = {"goo": "good", "runs/good": "good", "latest": "gym-a"}.get(name, name)
    assert capsys.readouterr().out == f"{shown}   step 5   return 5\n"


@pytest.mark.parametrize("name", ["good", "gym-a"])
def test_record_command(name: str, tmp_path: Path) -> None:
    out = tmp_path / "film.mp4"
    options = ["--steps", "6", "--copies", "2", "--height", "60", "--best"]
    assert main(["record", name, "--video", str(out), *options]) == 0
    assert len(iio.imread(out, plugin="FFMPEG")) == 7


def test_what_is_recorded_is_what_the_policy_does(tmp_path: Path) -> None:
    out = tmp_path / "still.png"
    options = ["--steps", "40", "--seed", "3", "--height", "100"]
    assert main(["record", "good", "--video", str(out), *options]) == 0
    agent = load_agent(Run.open("good"), Play("good"))
    with fugu.make("cartpole") as vec:
        players = agent.players(vec, seed=3)
        vec.async_reset(3)
        for _ in range(40):
            vec.send(players(vec.recv()))
        vec.recv()
        assert np.array_equal(iio.imread(out), vec.call("render", 100)[0])
    played = iio.imread(out)
    assert main(["record", "cartpole", "--video", str(out), *options]) == 0
    assert not np.array_equal(iio.imread(out), played), "the control: chance does something else"


def test_evaluation_films_gymnasium_too(tmp_path: Path) -> None:
    out = tmp_path / "a.gif"
    assert main(["eval", "gym-a", "--episodes", "2", "--video", str(out)]) == 0
    assert out.is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["play", "god"], "neither an environment nor a run in 'runs'. Nearest: good"),
        (["play", "cartpol"], "Nearest: cartpole"),
        (["record", "lates"], "Nearest: latest"),
        (["play", "good", "--players", "1"], "players: given with 'good'"),
        (["play", "cartpole", "--best"], "best: given with 'cartpole'; allowed: with a run"),
        (["record", "cartpole", "--sample"], "sample: given with 'cartpole'"),
        (["play", "good", "--set", "grav=1"], "Did you mean 'gravity'?"),
        (["play", "g"], "begins 2 names"),
        (["play", "good", "--runs", "elsewhere"], "nor a run in 'elsewhere'"),
    ],
)
def test_what_is_wrong(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    assert said in capsys.readouterr().err


def test_names_of_environments_come_before_beginnings_of_runs(tmp_path: Path) -> None:
    Run.create(tmp_path, "CartPole-v1-20260101", env="CartPole-v1")
    Run.create(tmp_path, "cartpole-20260101", env="cartpole")
    assert find_run("CartPole-v1", tmp_path) is None
    assert find_run("cartpole", tmp_path) is None
    assert find_run("collections:OrderedDict", tmp_path) is None
    found = find_run("cartpole-2", tmp_path)
    assert found is not None
    assert found.name == "cartpole-20260101"


def test_a_best_checkpoint_needs_a_score(tmp_path: Path) -> None:
    unscored = Run.create(tmp_path, "none", env="cartpole")
    with pytest.raises(UsageError, match="have no score"):
        load_agent(unscored, Play("none", best=True))
