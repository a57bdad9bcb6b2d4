"""Sweeps from elsewhere: their trials would run what their settings name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("optuna")

from fugu import native
from fugu.envs.untrusted import UntrustedError
from fugu.sweep.plan import Range, SearchConfig, SweepPlan
from fugu.sweep.running import ExecutionConfig, resume_sweep
from fugu.sweep.storage import (
    PLAN,
    SIGNATURES,
    SWEEP_FILE,
    create_study,
    load_study,
    open_storage,
)

pytestmark = pytest.mark.skipif(not native.available, reason="needs the native extension")


def plan_of(env: str = "bandit") -> SweepPlan:
    ranges = (Range("train.gamma", 0.9, 0.99),)
    return SweepPlan("cut", env, {"train": {"total_steps": 320}}, ranges=ranges,
                search=SearchConfig(trials=1, sampler="random"))  # fmt: skip


def begin(folder: Path) -> None:
    """A sweep that this user began."""
    folder.mkdir(parents=True)
    (folder / SWEEP_FILE).write_text(json.dumps({"name": "cut", "storage": None}))
    create_study(open_storage(folder), plan_of())


def test_a_sweep_that_was_begun_here_goes_on(tmp_path: Path) -> None:
    begin(tmp_path / "cut")
    assert load_study(open_storage(tmp_path / "cut"), "cut")[1] == plan_of()


@pytest.mark.parametrize("signatures", [None, [], "x", [3], ["0" * 64]])
def test_a_sweep_of_a_stranger_is_refused(
    signatures: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path / "cut")
    study, _ = load_study(open_storage(tmp_path / "cut"), "cut")
    (tmp_path / "strange_env.py").write_text("open('imported', 'w').close()\ndef make(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    study.set_user_attr(PLAN, plan_of("strange_env:make").to_json())
    for name in {SIGNATURES} if signatures is not None else ():
        study.set_user_attr(name, signatures)
    with pytest.raises(
        UntrustedError, match=r"expected a sweep that you started on this machine.*--trust"
    ):
        resume_sweep("cut", ExecutionConfig(tmp_path, show=False))
    assert not Path("imported").exists()


def test_a_trusted_sweep_is_trusted_from_then_on(tmp_path: Path) -> None:
    begin(tmp_path / "cut")
    storage = open_storage(tmp_path / "cut")
    study, _ = load_study(storage, "cut")
    study.set_user_attr(SIGNATURES, ["0" * 64])
    with pytest.raises(UntrustedError):
        load_study(storage, "cut")
    load_study(storage, "cut", trust=True)
    study, _ = load_study(storage, "cut")
    assert study.user_attrs[SIGNATURES][0] == "0" * 64, "whoever began it may still join"


def test_a_database_that_a_folder_names_is_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    told = {"name": "cut", "storage": f"sqlite:///{tmp_path}/made.db", "signature": "0" * 64}
    (folder / SWEEP_FILE).write_text(json.dumps(told))
    with pytest.raises(UntrustedError, match="expected a sweep that you started on this machine"):
        resume_sweep("cut", ExecutionConfig(tmp_path, show=False))
    assert not (tmp_path / "made.db").exists()
