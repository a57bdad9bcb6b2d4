"""A small zoo with one policy, which was trained for a moment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fugu import native
from fugu.store.run import Run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A short run of cartpole."""
    if not native.available:
        pytest.skip("needs the native extension")
    from fugu.training.session import train

    folder: Path = tmp_path_factory.mktemp("trained") / "runs"
    result = train(
        "cartpole",
        train={"total_steps": 1024, "horizon": 16},
        vec={"num_envs": 16},
        run={"folder": folder, "name": "pole"},
        show=False,
        seed=3,
    )
    assert result.run is not None
    return result.run


@pytest.fixture(scope="session")
def packed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its policy alone."""
    from fugu.zoo.publish import save_policy

    return save_policy(run, tmp_path_factory.mktemp("packed") / "pole")


@pytest.fixture(scope="session")
def original(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo that holds it."""
    from fugu.zoo.publish import publish

    folder: Path = tmp_path_factory.mktemp("original") / "zoo"
    evaluation = {"mean_return": 42.5, "deviation": 3.0, "episodes": 100}
    publish(packed, folder, "cartpole", evaluation, note="best of 1 seed")
    return folder


@pytest.fixture
def zoo(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the zoo to modify, beside an empty working folder."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return Path(shutil.copytree(original, tmp_path / "zoo"))
