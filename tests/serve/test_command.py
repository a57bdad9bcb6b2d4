"""`fugu serve` as a process: where it listens, how it ends, and what it refuses."""

from __future__ import annotations

import gc
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from serving import PATIENCE, ask, serving

from fugu import native
from fugu.core.errors import MissingExtraError
from fugu.export import load
from fugu.serve.config import TOKEN_VARIABLE

START = 240.0  # seconds, on a machine with much else to do
WITHOUT_TORCH = """
import sys

class Refusing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refusing())
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of cartpole, hardly trained."""
    if not native.available:
        pytest.skip("needs the native extension")
    from fugu.training.session import train

    folder: Path = tmp_path_factory.mktemp("served")
    settings = {"total_steps": 512, "horizon": 16}
    where = {"folder": folder, "name": "pole"}
    train("cartpole", train=settings, vec={"num_envs": 16}, run=where, show=False, seed=3)
    return folder / "pole"


@dataclass(frozen=True)
class Process:
    port: int
    process: subprocess.Popen[str]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)


@contextmanager
def served(*flags: str, first: str = "") -> Iterator[Process]:
    program = f"{first}\nimport sys; from fugu.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", "--port", "0", *flags]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    timer = threading.Timer(START, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        found = re.search(r"http://[\d.]+:(\d+)", process.stdout.readline())
        assert found is not None, process.communicate()
        yield Process(int(found[1]), process)
    finally:
        process.kill()
        process.communicate()
        timer.cancel()


def test_a_signal_under_load_loses_no_request(run: Path) -> None:
    body, answers, others = json.dumps({"observation": [0.1, 0.2, 0.3, 0.4]}), [], []

    def client(place: Process, begun: threading.Semaphore) -> None:
        connection = place.connect()
        try:
            while True:
                told = ask(connection, "POST", "/act", body)
                (answers if told.status == 200 else others).append(told)
                begun.release()
                if told.headers.get("connection") == "close":
                    return
        except (ConnectionError, http.client.RemoteDisconnected):
            return  # it was idle when the server ended, or is refused now
        finally:
            connection.close()

    with served(str(run), "--max-wait-ms", "1") as place:
        begun = threading.Semaphore(0)
        threads = [threading.Thread(target=client, args=(place, begun)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            assert begun.acquire(timeout=PATIENCE)
        place.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(PATIENCE)
        out, err = place.process.communicate(timeout=PATIENCE)
        assert place.process.returncode == 0, err
    assert not others
    assert f"Stopped: {len(answers)} requests answered." in out
    assert err == ""
    assert len({told.json["action"] for told in answers}) == 1


def test_interrupted_while_idle_and_open_to_all(run: Path) -> None:
    with served("pole", "--runs", str(run.parent), "--host", "0.0.0.0", "--best") as place:
        connection = place.connect()
        assert ask(connection, "GET", "/health").json["engine"] == "torch"
        place.process.send_signal(signal.SIGINT)
        out, err = place.process.communicate(timeout=PATIENCE)
        connection.close()
        assert (place.process.returncode, out) == (0, "Stopped: 1 requests answered.\n")
    assert "warning: 0.0.0.0 is not loopback" in err


COUNT_FROZEN = """
import atexit, gc, sys
atexit.register(lambda: print("frozen", gc.get_freeze_count(), file=sys.stderr))
atexit.register(lambda: print("enabled", gc.isenabled(), file=sys.stderr))
"""


def test_what_is_there_before_the_first_request_is_not_collected_again(run: Path) -> None:
    """A collection that looks at all of torch stops the server for a tenth of a second."""
    with served(str(run), first=COUNT_FROZEN) as place:
        connection = place.connect()
        assert ask(connection, "GET", "/health").status == 200
        connection.close()
        place.process.terminate()
        err = place.process.communicate(timeout=PATIENCE)[1]
    found = re.search(r"frozen (\d+)", err)
    assert found is not None, err
    assert int(found[1]) > 50_000
    assert "enabled True" in err


def test_a_server_in_a_thread_leaves_the_collector_alone(run: Path) -> None:
    before = gc.get_freeze_count()
    with serving(load(run)) as place:
        assert place.ask("GET", "/health").status == 200
        assert gc.get_freeze_count() == before


def test_a_token_is_taken_from_the_environment(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "of-the-environment-0123"
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with served(str(run), "--allow-host", "robot.example", "other.example") as place:
        for headers, status in [
            ({}, 401),
            ({"Authorization": f"Bearer {token}"}, 200),
            ({"Authorization": f"Bearer {token}", "Host": "other.example"}, 200),
            ({"Authorization": f"Bearer {token}", "Host": "attacker.example"}, 421),
        ]:
            connection = place.connect()
            assert ask(connection, "GET", "/schema", **headers).status == status
            connection.close()
        arguments = Path(f"/proc/{place.process.pid}/cmdline")
        assert not arguments.exists() or token not in arguments.read_text()
    monkeypatch.setenv(TOKEN_VARIABLE, "")  # a mistake must not open the server
    from fugu.cli.main import main

    assert main(["serve", str(run), "--port", "0"]) == 1
    assert capsys.readouterr().err.startswith("fugu: token: expected at least 16")


@pytest.mark.parametrize("engine", ["torch", "native", "onnx"])
def test_engines_give_the_same_answers(run: Path, engine: str) -> None:
    try:
        policy = load(run, engine)
    except MissingExtraError as error:
        pytest.skip(str(error))
    local, random = load(run), np.random.default_rng(0)
    with serving(policy) as place:
        assert place.ask("GET", "/health").json["engine"] == engine
        for seed in range(20):
            seen = random.normal(size=4).astype(np.float32)
            told = place.act({"observation": seen.tolist(), "seed": seed, "greedy": False}).json
            chance = np.random.default_rng(seed)
            action, value, _ = local.act(seen, greedy=False, random=chance)
            assert told["action"] == action
            assert told["value"] == pytest.approx(value, abs=1e-5)


def test_an_exported_file_is_served_without_torch(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from fugu.cli.main import main

    file = tmp_path / "pole.onnx"
    assert main(["export", str(run), "--to", "onnx", "--out", str(file)]) == 0
    with served(str(file), first=WITHOUT_TORCH) as place:
        connection = place.connect()
        assert ask(connection, "GET", "/health").json["engine"] == "onnx"
        told = ask(connection, "POST", "/act", {"observation": [0.1, 0.2, 0.3, 0.4]}).json
        connection.close()
    action, value, _ = load(run).act(np.float32([0.1, 0.2, 0.3, 0.4]))
    assert told["action"] == action
    assert told["value"] == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["--engine", "torsh"], 1, "engine: given 'torsh'; nearest: 'torch'; allowed:"),
        (["--max-queue", "1"], 2, "max_queue: expected 64 or more, so that a request of max_batch"),
        (["--port", "99999"], 1, "port: expected 0 to 65535, where 0 chooses one; got 99999"),
        (
            ["--host", "192.0.2.1", "--port", "0"],
            1,
            "host, port: expected an address of this machine and a free port; got 192.0.2.1, 0",
        ),
        (["--group", "wheel"], 1, "group: given 'wheel'; allowed: agent"),
    ],
)
def test_what_it_refuses(
    run: Path, flags: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from fugu.cli.main import main

    assert main(["serve", str(run), "--port", "0", *flags]) == status
    assert capsys.readouterr().err.startswith(f"fugu: {message}")


def test_a_run_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fugu.cli.main import main

    assert main(["serve", "nothing", "--port", "0", "--runs", str(tmp_path)]) == 1
    assert "nothing" in capsys.readouterr().err


def test_without_its_packages_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from fugu.cli.main import main\n"
        "sys.exit(main(['serve', 'pole', '--port', '0']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=START
    )
    assert done.returncode == 1
    assert 'pip install "fugu-rl[serve]"' in done.stderr, done.stderr
