"""fugu play and fugu record: what people do, and the files they get."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fugu
from fugu import native
from fugu.cli.main import main
from fugu.cli.play import Play

if not native.available:
    pytest.skip("needs the native extension", allow_module_level=True)

from fugu.cli.games import Game
from fugu.cli.screens import KeyEvent, commands_of, run
from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.resolve import resolve
from fugu.vector.batch import Batch
from fugu.vector.recording import record

iio = pytest.importorskip("imageio.v3")
pytest.importorskip("imageio_ffmpeg")


def game_of(env: str, **options: Any) -> Game:
    return Game(resolve(env)(), seed=1, **options)


class Hands:
    """A screen that presses keys by a script and notes what it is shown."""

    def __init__(self, script: dict[int, list[tuple[str, bool]]]) -> None:
        self.script, self.turn = script, -1
        self.shown: list[tuple[str, str]] = []

    def events(self) -> list[KeyEvent]:
        self.turn += 1
        return [KeyEvent(*event) for event in self.script.get(self.turn, [])]

    def show(self, game: Game, lines: tuple[str, str]) -> None:
        self.shown.append(lines)


def cart(game: Game) -> np.ndarray:
    return game.env.buffers[0].observations[0]


# ------------------------------------------------------------------ games


@pytest.mark.parametrize(("key", "direction"), [("left", -1), ("right", 1)])
def test_keys_move_the_cart(key: str, direction: int) -> None:
    game = game_of("cartpole")
    before = float(cart(game)[1])
    run(game, Hands({0: [(key, True)]}), steps=5, fps=1000)
    assert (cart(game)[1] - before) * direction > 0.5


def test_without_an_idle_choice_the_last_one_goes_on() -> None:
    game = game_of("cartpole")
    before = float(cart(game)[1])
    run(game, Hands({0: [("right", True)], 1: [("right", False)]}), steps=5, fps=1000)
    assert cart(game)[1] - before > 0.5


def test_a_tap_between_two_steps_counts() -> None:
    game = game_of("cartpole")
    before = float(cart(game)[1])
    run(game, Hands({0: [("right", True), ("right", False)]}), steps=1, fps=1000)
    assert cart(game)[1] > before


def test_pause_reset_and_quit() -> None:
    game = game_of("cartpole")
    screen = Hands({2: [("space", True)], 5: [("space", True)], 7: [("r", True)], 9: [("q", True)]})
    run(game, screen, fps=1000)
    assert game.steps == 6  # of nine turns, three were a pause
    assert game.score == 2.0
    assert "paused" in screen.shown[3][0]
    assert screen.shown[0][1].startswith("keys: left, right   space pause")


def test_score_of_episodes() -> None:
    game = game_of("cartpole")
    run(game, Hands({0: [("right", True)]}), steps=30, fps=10000)
    assert game.last_score is not None
    assert game.best_score is not None
    assert game.best_score >= game.last_score >= 8
    assert "best" in game.status()


def test_games_that_wait() -> None:
    game = game_of("game2048")
    script = {2: [("left", True)], 4: [("up", True)], 6: [("right", True)], 8: [("escape", True)]}
    run(game, Hands(script), fps=1000)
    assert 2 <= game.steps <= 3  # a move that the mask forbids is none


def test_keys_that_a_game_uses_are_no_commands() -> None:
    assert "space" not in commands_of(game_of("tetris"))
    assert commands_of(game_of("cartpole"))["space"] == "pause"


def test_idle_is_the_choice_without_a_key_and_zero_for_numbers() -> None:
    breakout = game_of("breakout")
    breakout.step([])
    assert breakout.env.buffers[0].actions[0, 0] == 0
    breakout.step(["left", "right"])  # the one pressed last
    assert breakout.env.buffers[0].actions[0, 0] == 2
    pendulum = game_of("pendulum")
    pendulum.step(["left"])
    assert pendulum.env.buffers[0].actions[0, 0] == 2.0
    pendulum.step([])
    assert pendulum.env.buffers[0].actions[0, 0] == 0.0


def test_players() -> None:
    alone = game_of("connect4", players=1)
    assert alone.waits
    assert game_of("connect4").names == alone.names
    with pytest.raises(UsageError, match="players: given 3"):
        game_of("connect4", players=3)
    silent = resolve("cartpole")()
    silent.spec.keys = ()
    with pytest.raises(UsageError, match="no keys"):
        Game(silent)


@pytest.mark.parametrize("name", ["snake", "spaces", "predator_prey", "point_goal", "masked"])
def test_every_kind_of_action(name: str) -> None:
    game = game_of(name)
    generator = np.random.default_rng(0)
    stepped = 0
    for _ in range(60):
        stepped += game.step(generator.permutation(game.names)[: generator.integers(0, 3)].tolist())
    assert game.steps == stepped > 0


# ------------------------------------------------------------------ windows


@pytest.fixture
def pygame(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    return pytest.importorskip("pygame")


@pytest.mark.parametrize(("key", "direction"), [("K_LEFT", -1), ("K_RIGHT", 1)])
def test_window(pygame: Any, key: str, direction: int) -> None:
    from fugu.cli.screens import window

    game = game_of("cartpole")
    before = float(cart(game)[1])
    with window(game) as screen:
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=getattr(pygame, key)))
        run(game, screen, steps=5, fps=1000)
        shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
        assert np.array_equal(shown, game.env.render(600))
        assert "return 5" in pygame.display.get_caption()[0]
        pygame.event.post(pygame.event.Event(pygame.QUIT))
        run(game, screen, fps=1000)
    assert (cart(game)[1] - before) * direction > 0.5
    assert not pygame.display.get_init()


def test_pointing_opens_a_cell(pygame: Any) -> None:
    from fugu.cli.screens import window

    game = game_of("minesweeper")
    (cells,) = game.env.spec.cells
    with window(game) as screen:
        shown, size = pygame.display.get_surface().get_size(), game.size
        across, down = shown[0] / size[0], shown[1] / size[1]
        x = (cells.x + 2.5 * cells.width / cells.columns) * across
        y = (cells.y + 1.5 * cells.height / cells.rows) * down
        for at in ((1, 1), (round(x), round(y))):  # outside of the board, and in its second row
            pygame.event.post(pygame.event.Event(pygame.MOUSEBUTTONDOWN, button=1, pos=at))
        run(game, screen, steps=1, fps=1000)
    assert game.env.buffers[0].actions[0, 0] == cells.columns + 2


def test_a_board_needs_a_window() -> None:
    with pytest.raises(UsageError, match="in a terminal; allowed: a window"):
        Play("minesweeper", terminal=True).run()


def test_play_command(pygame: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "cartpole", "--steps", "4", "--set", "gravity=5", "--fps", "500"]) == 0
    assert "cartpole   return 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["CartPole-v1"], "allowed: a native environment"),
        (["cartpole", "--set", "gravity"], "allowed: name=value"),
        (["cartpole", "--set", "grav=1"], "Did you mean 'gravity'?"),
        (["cartpole", "--terminal"], "no terminal"),
        (["cartpole", "--fps", "0"], "fps: given 0"),
    ],
)
def test_play_says_what_is_wrong(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["play", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_without_pygame(pygame: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fugu.cli.screens import window

    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(MissingExtraError, match=r"fugu-rl\[play\]"), window(game_of("cartpole")):
        pass


# ------------------------------------------------------------------ terminals


class Child:
    """A command under a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        environ = {k: v for k, v in os.environ.items() if not k.endswith(("DISPLAY", "DRIVER"))}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=subprocess.PIPE,
            env={**environ, "COLUMNS": "60", "LINES": "20"},
        )
        self.output = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while more := os.read(self.master, 65536):
                self.output += more
        except OSError:
            pass

    def wait_for(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not what():
            assert time.monotonic() < end, self.output[-2000:]
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        """The exit status and what was said on stderr; the terminal must be as it was."""
        error = self.process.communicate(timeout=60)[1].decode()
        deadline = time.monotonic() + 5
        while b"\x1b[?1049l" not in self.output and time.monotonic() < deadline:
            time.sleep(0.01)
        assert termios.tcgetattr(self.slave) == self.before
        assert b"\x1b[?25h\x1b[?1049l" in self.output
        return self.process.returncode, error


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    made: list[Child] = []

    def make(*arguments: str) -> Child:
        made.append(Child(*arguments))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()
        os.close(one.master)
        os.close(one.slave)


PLAY = ("-m", "fugu.cli.main", "play", "cartpole", "--seed", "1")


def test_terminal_plays_and_is_restored(child: Callable[..., Child]) -> None:
    game = child(*PLAY, "--terminal", "--steps", "40")
    status, error = game.end()
    assert (status, error) == (0, "")
    assert "▀".encode() in game.output
    assert b"keys: left, right" in game.output


def test_terminal_reads_keys_and_is_chosen_without_a_display(child: Callable[..., Child]) -> None:
    game = child(*PLAY)
    game.wait_for(lambda: b"keys:" in game.output)
    assert termios.tcgetattr(game.slave) != game.before
    os.write(game.master, b" ")
    game.wait_for(lambda: b"paused" in game.output)
    os.write(game.master, b"\x1b[C \x1b")
    status, error = game.end()
    assert status == 0
    assert "No display here" in error


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_terminal_is_restored_after_signals(
    child: Callable[..., Child], number: signal.Signals, expected: int
) -> None:
    game = child(*PLAY, "--terminal")
    game.wait_for(lambda: b"keys:" in game.output)
    game.process.send_signal(number)
    assert game.end()[0] == expected


def test_terminal_is_restored_after_an_exception(child: Callable[..., Child]) -> None:
    code = (
        "from fugu.cli.games import Game; from fugu.cli.main import main\n"
        "def step(self, held): raise ZeroDivisionError('a broken game')\n"
        "Game.step = step\n"
        "main(['play', 'cartpole', '--terminal'])"
    )
    status, error = child("-c", code).end()
    assert status == 1
    assert "a broken game" in error


# ------------------------------------------------------------------ record


@pytest.mark.parametrize("height", [90, 91])
def test_mp4(height: int, tmp_path: Path) -> None:
    out = tmp_path / "film.mp4"
    options = ["--steps", "12", "--height", str(height), "--fps", "20"]
    assert main(["record", "cartpole", "--video", str(out), *options]) == 0
    frames = iio.imread(out, plugin="FFMPEG")
    even = height + height % 2
    assert frames.shape == (13, even, round(height * 1.5) + round(height * 1.5) % 2, 3)
    about = iio.immeta(out, plugin="FFMPEG")
    assert about["fps"] == 20
    assert about["codec"] == "h264"
    assert about["pix_fmt"].startswith("yuv420p")
    assert np.abs(frames[0, 2, 2].astype(int) - (0xF7, 0xF3, 0xE9)).max() < 12
    assert os.listdir(tmp_path) == ["film.mp4"]


def test_gif(tmp_path: Path) -> None:
    out = tmp_path / "film.GIF"
    record("cartpole", out, steps=10, copies=4, height=60)
    frames = iio.imread(out, extension=".gif")
    assert frames.shape == (11, 124, 184, 3)
    about = iio.immeta(out, extension=".gif")
    assert about["loop"] == 0
    assert about["duration"] == 20  # fifty a second, as cartpole says


def test_png_is_the_last_picture(tmp_path: Path) -> None:
    out = tmp_path / "still.png"
    record("cartpole", out, steps=7, height=100, policy=lambda batch: np.ones((1, 1), np.int64))
    with fugu.make("cartpole") as vec:
        vec.reset(seed=0)
        for _ in range(7):
            vec.step(np.ones((1, 1), np.int64))
        assert np.array_equal(iio.imread(out), vec.call("render", 100)[0])


def test_policy_and_vector(tmp_path: Path) -> None:
    seen: list[Batch] = []

    def policy(batch: Batch) -> np.ndarray:
        seen.append(batch)
        return np.zeros((3, 1), np.int64)

    with fugu.make("cartpole", 3, backend="process") as vec:
        assert record(vec, tmp_path / "a.gif", policy=policy, steps=5, height=40).is_file()
        vec.step(np.zeros((3, 1), np.int64))  # it stays open
    assert len(seen) == 5


@pytest.mark.parametrize("name", ["connect4", "predator_prey", "spaces"])
def test_random_actions_are_legal(name: str, tmp_path: Path) -> None:
    record(name, tmp_path / "a.png", steps=50, copies=2, height=50)


def test_gymnasium(tmp_path: Path) -> None:
    out = tmp_path / "a.mp4"
    options = ["--steps", "3", "--height", "100", "--set", "is_slippery=False"]
    assert main(["record", "FrozenLake-v1", "--video", str(out), *options]) == 0
    assert iio.imread(out, plugin="FFMPEG").shape == (4, 100, 100, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cartpole", "--video", "a.avi"], "ends with .mp4, .gif, .png"),
        (["cartpole", "--video", "nowhere/a.mp4"], "folder that exists"),
        (["cartpole", "--video", "a.gif", "--steps", "-1"], "steps: given -1"),
        (["cartpole", "--video", "a.gif", "--copies", "0"], "copies: given 0"),
        (["cartpole", "--video", "taken.gif"], "cannot be written"),
        (["CartPole-v1", "--video", "a.gif", "--set", "render_mode=None"], "render_mode"),
        (["cartpole", "--video", "a.gif", "--set", "speed=3"], "a setting 'speed'"),
    ],
)
def test_record_says_what_is_wrong(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.gif").mkdir()
    assert main(["record", *arguments]) == 1
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["taken.gif"]


def test_what_was_there_stays_if_recording_fails(tmp_path: Path) -> None:
    out = tmp_path / "a.gif"
    out.write_text("dear to me")

    def fails(batch: Batch) -> Any:
        raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        record("cartpole", out, policy=fails, height=40)
    assert out.read_text() == "dear to me"
    assert os.listdir(tmp_path) == ["a.gif"]
