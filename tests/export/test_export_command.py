"""`fugu export`: each form is written, and acts as the run does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fugu.cli.main import main
from fugu.export import load
from fugu.training.session import train


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    settings: dict[str, Any] = {
        "vec": {"num_envs": 4, "backend": "serial"},
        "train": {"total_steps": 300, "horizon": 8},
        "show": False,
    }
    for name, env, policy in (
        ("pole", "cartpole", {"core": "lstm", "hidden_size": 16}),
        ("talk", "speaker_listener", {"hidden_size": 16}),
    ):
        train(env, run={"folder": folder, "name": name}, policy=policy, **settings)
    return folder


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check_same(root: Path, path: str) -> None:
    ours, theirs = load("pole", root=root), load(path)
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    state = ours.initial_state(50)
    for _ in range(3):
        expected, found = ours.act_rows(rows, state), theirs.act_rows(rows, state)
        assert expected[0].tobytes() == found[0].tobytes()
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[2], expected[2], rtol=1e-5, atol=1e-5)
        state = expected[2]


@pytest.mark.parametrize(
    ("form", "out"), [("onnx", "pole.onnx"), ("wasm", "pole.wasm"), ("c", "pole-c")]
)
def test_a_form_acts_as_the_run(
    form: str, out: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "pole", "--to", form, "--runs", str(root)]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"wrote {out}")
    assert "next: " in told
    check_same(root, out)


def test_int8_says_what_it_changes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form, out in (("c", "small"), ("wasm", "small.wasm")):
        flags = ["--to", form, "--int8", "--out", out, "--runs", str(root)]
        assert main(["export", "pole", *flags]) == 0
        told = capsys.readouterr().out
        assert re.search(r"int8 weights: \S+ % equal greedy actions on [\d,]+ observations", told)
        assert load(out).facts == load("pole", root=root).facts


def test_a_page_has_the_environment_and_all_policies(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "talk", "--to", "web", "--runs", str(root), "--out", "page"]) == 0
    told = capsys.readouterr().out
    assert "of WebAssembly" in told
    page = Path("page/index.html").read_text()
    assert "talk" in page
    assert "listener" in page


def test_one_group_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--runs", str(root), "--to", "onnx"]
    assert main(["export", "talk", *flags]) == 1
    assert "allowed: one of speaker, listener" in capsys.readouterr().err
    assert main(["export", "talk", *flags, "--group", "listener"]) == 0
    assert Path("talk-listener.onnx").is_file()
    assert main(["export", "talk", "--runs", str(root), "--to", "web", "--group", "x"]) == 1
    assert "given 'x'; allowed: speaker, listener" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--to", "onnx", "--int8"], "int8: given with onnx; allowed: with c, wasm and web"),
        (["--to", "onnx", "--out", "policy.bin"], "given 'policy.bin'; allowed: FILE.onnx"),
        (["--to", "wasm", "--out", "policy"], "given 'policy'; allowed: FILE.wasm"),
        (["--to", "c", "--out", "taken"], "given 'taken', a file; allowed: a folder"),
        (["--best", "--runs", "nowhere"], "'nowhere' holds no runs"),
    ],
)
def test_what_cannot_be_is_refused(
    flags: list[str], message: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("")
    runs = [] if "--runs" in flags else ["--runs", str(root)]
    assert main(["export", "pole", *flags, *runs]) == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["taken"]
