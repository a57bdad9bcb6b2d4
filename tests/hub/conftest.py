"""Runs to share, and a local Hub."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fugu import native
from fugu.store.run import Run

if TYPE_CHECKING:
    from hub_server import Hub

sys.path.insert(0, str(Path(__file__).parent))  # for hub_server.py


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A small run of cartpole, with two checkpoints."""
    if not native.available:
        pytest.skip("needs the native extension")
    from fugu.training.session import resume, train

    folder: Path = tmp_path_factory.mktemp("shared") / "runs"
    settings = {"total_steps": 1024, "horizon": 16}
    where = {"folder": folder, "name": "pole", "keep": 5}
    train("cartpole", train=settings, vec={"num_envs": 16}, run=where, show=False, seed=3)
    resume("pole", root=folder, show=False, train={"total_steps": 2048})
    return Run(folder / "pole")


@pytest.fixture(scope="session")
def older(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run at its first checkpoint."""
    folder: Path = tmp_path_factory.mktemp("older") / "pole"
    shutil.copytree(run.folder, folder)
    shutil.rmtree(Run(folder).checkpoints()[-1])
    return Run(folder)


@pytest.fixture(scope="session")
def original(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the run was pushed to."""
    from fugu.hub.push import push_to_hub

    folder: Path = tmp_path_factory.mktemp("original") / "pole"
    push_to_hub(run, folder, episodes=2, video=False)
    return folder


@pytest.fixture
def shared(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of this folder to modify, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(original, tmp_path / "shared"))


@pytest.fixture(scope="session")
def drawn(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's learning curve."""
    from fugu.hub.push import draw_curve

    folder: Path = tmp_path_factory.mktemp("drawn")
    return draw_curve(run, folder / "curve.png")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: Path) -> Iterator[Hub]:
    """A local Hub that this process takes for the real one, with an empty cache and a token.

    The curve is drawn only once, because that takes longer than the rest of a test.
    """
    from hub_server import TOKEN, running_hub, set_endpoint

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("fugu.hub.push.draw_curve", lambda *_: drawn)
    with running_hub() as running:
        set_endpoint(monkeypatch, running.endpoint, tmp_path / "cache")
        yield running
