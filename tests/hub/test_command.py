"""`fugu hub` as a command: environment variables point its processes to a local Hub."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import TOKEN, Fault, running_hub

from fugu.cli.main import main
from fugu.store.run import Run

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.timeout(280)


def fugu(*args: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "HF_HOME": str(folder / "home"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "*",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", "fugu.cli.main", "hub", *args],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_push_and_pull(run: Run, tmp_path: Path) -> None:
    push = ("push", str(run.folder), "ann/pole", "--private", "--no-video", "--episodes", "2")
    with running_hub() as hub:
        hub.faults = [Fault("repos/create"), Fault("PUT /storage", kind="cut"), Fault("commit/")]
        done = fugu(*push, folder=tmp_path, HF_ENDPOINT=hub.endpoint)
        assert done.returncode == 0, done.stderr
        assert f"Pushed: {hub.endpoint}/ann/pole/commit/" in done.stdout
        assert "evaluation.json" in hub.files("ann/pole")
        assert hub.repos["ann/pole"].private
        done = fugu("pull", "ann/pole", "--into", "mine", folder=tmp_path, HF_ENDPOINT=hub.endpoint)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "next: fugu eval mine"
        assert Run(tmp_path / "mine").latest() is not None
        wrong = fugu(*push, folder=tmp_path, HF_ENDPOINT=hub.endpoint, HF_TOKEN="hf_wrong")
        assert wrong.returncode == 1
        assert "401" in wrong.stderr
        assert "HF_TOKEN" in wrong.stderr
        assert "Traceback" not in wrong.stderr
        endpoint = hub.endpoint
    gone = fugu("pull", "ann/pole", folder=tmp_path, HF_ENDPOINT=endpoint)
    assert gone.returncode == 1
    assert f"{endpoint} cannot be reached" in gone.stderr
    assert "Traceback" not in gone.stderr


def test_help_and_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hub"]) == 2
    assert main(["hub", "--help"]) == 0
    assert "Share a run" in capsys.readouterr().out
    assert main(["hub", "psh"]) == 2
    assert "allowed: push, pull" in capsys.readouterr().err
    assert main(["hub", "pull", "./x", "--max-gb", "0"]) == 1
    assert "max-gb: expected a number above 0; got 0" in capsys.readouterr().err


def test_without_the_extra_folders_work(run: Run, tmp_path: Path) -> None:
    program = """
import sys
sys.modules["huggingface_hub"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "huggingface_hub" else found(name)
from fugu.cli.main import main
folder = sys.argv[1]
assert main(["hub", "push", folder, "./shared", "--episodes", "0", "--no-video"]) == 0
assert main(["hub", "pull", "./shared"]) == 0
assert "torch" not in sys.modules
assert main(["hub", "pull", "ann/pole"]) == 1
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.folder)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert 'pip install "fugu-rl[hub]"' in done.stderr
