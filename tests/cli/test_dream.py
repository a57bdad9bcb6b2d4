"""`fugu dream`: a file of predictions beside the truth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fugu.cli.main import main
from fugu.training.session import train

TOYS = Path(__file__).parents[1] / "algos"
TINY: dict[str, Any] = {
    "policy": {
        "deter": 16, "hidden": 8, "stoch": 4, "classes": 4, "blocks": 4, "units": 8, "layers": 1,
        "depth": 2,
    },
    "train": {
        "batch_size": 3, "batch_length": 6, "imagination_starts": 3, "imagination_length": 3,
        "prefill": 64, "update_every": 16, "train_ratio": 4.0, "replay_size": 2000,
        "total_steps": 100,
    },
    "vec": {"num_envs": 4, "backend": "serial"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOYS))
    sys.modules.pop("dreamer_toys", None)


def dream(tmp_path: Path, env: str, out: str, *flags: str, **env_kwargs: Any) -> int:
    run = {"folder": tmp_path, "name": "run"}
    train(env, algo="dreamer", show=False, run=run, env_kwargs=env_kwargs, **TINY)
    arguments = ["--runs", str(tmp_path), "--out", str(tmp_path / out), *flags]
    return main(["dream", "run", "--sample", *arguments])


@pytest.mark.parametrize("picture_only", [True, False])
def test_images_stand_side_by_side(
    tmp_path: Path, picture_only: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--context", "5", "--steps", "7")
    status = dream(tmp_path, "dreamer_toys:Ball", "dream.gif", *flags, picture_only=picture_only)
    assert status == 0
    assert "Mean squared error over 7 steps" in capsys.readouterr().out
    with Image.open(tmp_path / "dream.gif") as film:
        assert film.n_frames == 12
        height = 16 * 10 + 8
        assert film.size == (2 * (20 * 10 + 8), height) or not picture_only
        film.seek(0)
        shown = np.asarray(film.convert("RGB"))[:height, : 20 * 10 + 8]
        ball = (shown.astype(int) - [250, 120, 40]).__abs__().sum(-1) < 40
        assert ball.sum() == 4 * 3 * 100  # the truth stands on the left


def test_numbers_are_lines(tmp_path: Path) -> None:
    assert dream(tmp_path, "cartpole", "dream.png", "--context", "3", "--steps", "5") == 0
    with Image.open(tmp_path / "dream.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    for colour in ((141, 153, 166), (42, 157, 143), (231, 111, 81)):
        assert (np.abs(pixels.astype(int) - colour).sum(-1) < 30).sum() > 50


def test_what_cannot_be_dreamed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("bandit", show=False, run={"folder": tmp_path, "name": "ppo"}, train={"total_steps": 100})
    flags = ["--runs", str(tmp_path), "--out", str(tmp_path / "dream.gif")]
    assert main(["dream", "ppo", *flags]) == 1
    assert "--algo dreamer" in capsys.readouterr().err
    assert dream(tmp_path, "dreamer_toys:Diary", "dream.gif", "--steps", "100") == 1
    assert "longest episode" in capsys.readouterr().err
    assert not (tmp_path / "dream.gif").exists()
