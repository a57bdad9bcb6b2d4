"""List, play, evaluate and pull policies of a zoo, and refuse changed files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.zoo.index import FOLDER, INDEX, ZooError, check_files, find_policy, pull, read_index
from fugu.zoo.publish import publish

EVALUATION = {"mean_return": 1.0, "deviation": 0.5, "episodes": 10}


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def edit(zoo: Path, **changes: Any) -> None:
    """Change fields of the first policy in the index."""
    document = json.loads((zoo / INDEX).read_text())
    document["policies"][0] |= changes
    (zoo / INDEX).write_text(json.dumps(document))


# ---------------------------------------------------------------------- packing


def test_a_packed_policy_holds_weights_and_settings_only(run: Run, packed: Path) -> None:
    (checkpoint,) = Run(packed).checkpoints()
    inside = f"checkpoints/{checkpoint.name}"
    expected = {"config.json", "run.json", "checksums.json"}
    expected |= {f"{inside}/{name}" for name in ("policy_0.safetensors", "state.json")}
    assert files_of(packed) == expected | {f"{inside}/checksums.json"}
    latest = run.latest()
    assert latest is not None
    theirs = load_checkpoint(latest).tensors["policy_0"]
    ours = load_checkpoint(checkpoint).tensors
    assert [*ours] == ["policy_0"]
    for name, weights in theirs.items():
        np.testing.assert_array_equal(ours["policy_0"][name], weights)
    assert "folder" not in Run(packed).config["run"]


def test_publishing_again_replaces_the_policy_of_that_name(packed: Path, zoo: Path) -> None:
    publish(packed, zoo, "other", EVALUATION)
    publish(packed, zoo, "cartpole", EVALUATION, note="median of 5 seeds")
    found = read_index(zoo)
    assert [policy.name for policy in found] == ["cartpole", "other"]
    assert found[0].score == 1.0
    assert found[0].note == "median of 5 seeds"
    for policy in found:
        check_files(policy, zoo)
    assert {path.name for path in zoo.iterdir()} == {INDEX, "cartpole", "other"}


def test_a_large_policy_is_refused(
    packed: Path, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fugu.zoo.publish.MAX_BYTES", 1000)
    with pytest.raises(UsageError, match="at most 1,000 bytes"):
        publish(packed, zoo, "large", EVALUATION)
    assert [policy.name for policy in read_index(zoo)] == ["cartpole"]


# ---------------------------------------------------------------------- commands


def test_list_shows_environment_score_steps_and_size(
    zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["zoo", "list", "--folder", str(zoo)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "42.5 ± 3" in line]
    assert line.split()[:2] == ["cartpole", "cartpole"]
    assert "1,040" in line
    assert "kB" in line
    assert main(["zoo", "list", "--folder", str(zoo), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["bytes"] == sum(p.stat().st_size for p in (zoo / "cartpole").rglob("*.*"))


def test_eval_plays_the_policy_as_the_run_does(
    run: Run, zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run.folder), "--episodes", "20", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    command = ["zoo", "eval", "cartpole", "--folder", str(zoo), "--episodes", "20"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert main(command) == 0
    assert "in the index: 42.5 ± 3 over 100 episodes" in capsys.readouterr().out
    assert os.listdir() == []


def test_play_writes_a_gif(zoo: Path) -> None:
    pytest.importorskip("imageio")
    out = Path("pole.gif")
    command = ["zoo", "play", "cartpole", "--folder", str(zoo), "--steps", "5"]
    assert main([*command, "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"GIF8")
    assert os.listdir() == ["pole.gif"]


def test_play_in_the_terminal(zoo: Path) -> None:
    command = [sys.executable, "-m", "fugu.cli.main", "zoo", "play", "cartpole", "--terminal"]
    command += ["--folder", str(zoo), "--steps", "3", "--fps", "1000", "--seed", "1"]
    master, slave = pty.openpty()
    child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a pseudo-terminal
        while chunk := os.read(master, 65536):
            shown += chunk
    os.close(master)
    assert child.wait(60) == 0, shown
    assert b"cartpole" in shown


def test_a_pulled_policy_can_be_evaluated_and_trained_further(
    zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["zoo", "pull", "cartpole", "--folder", str(zoo)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: fugu eval cartpole"
    assert main(["eval", "cartpole", "--episodes", "4"]) == 0
    more = ["--train.total-steps", "256", "--train.horizon", "16", "--vec.num-envs", "16"]
    assert main(["train", "cartpole", "--init-from", "cartpole", *more, "--quiet"]) == 0
    assert main(["zoo", "pull", "cartpole", "--folder", str(zoo)]) == 1
    assert "which exists" in capsys.readouterr().err


def test_resuming_a_pulled_policy_names_the_remedy(
    zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pull("cartpole", folder=zoo)
    assert main(["resume", "cartpole", "--quiet"]) == 1
    told = capsys.readouterr().err
    assert "holds a policy only" in told
    assert f"fugu train cartpole --init-from {run.folder}" in told


def test_resume_auto_starts_a_new_run_beside_a_pulled_policy(zoo: Path) -> None:
    run = pull("cartpole", folder=zoo)
    settings = ["--seed", "3", "--train.total-steps", "1024", "--train.horizon", "16"]
    settings += ["--vec.num-envs", "16", "--resume", "auto", "--quiet"]
    assert main(["train", "cartpole", *settings]) == 0
    (other,) = [found for found in Run.list() if found.name != run.name]
    assert other.status == "finished"
    assert run.status == "pulled"


def test_help_and_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 2
    assert main(["zoo", "--help"]) == 0
    assert "Copy a trained policy" in capsys.readouterr().out
    assert main(["zoo", "lst"]) == 2
    assert "allowed: list, play, eval, pull" in capsys.readouterr().err


# ---------------------------------------------------------------------- refusals


def test_an_unknown_name_is_answered_with_the_nearest(
    zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["zoo", "eval", "CartPol", "--folder", str(zoo)]) == 1
    assert "Nearest names: 'cartpole'" in capsys.readouterr().err


def test_a_policy_is_found_by_its_environment(packed: Path, zoo: Path) -> None:
    edit(zoo, name="pole")
    assert find_policy("cartpole", zoo).name == "pole"


@pytest.mark.parametrize("file", ["config.json", "policy_0.safetensors", "checksums.json"])
def test_a_changed_file_is_refused(
    zoo: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next((zoo / "cartpole").rglob(file))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert main(["zoo", "pull", "cartpole", "--folder", str(zoo)]) == 1
    told = capsys.readouterr().err
    assert "checksum mismatch" in told
    assert file in told
    assert os.listdir() == []


def test_a_missing_file_and_an_added_one_are_refused(zoo: Path) -> None:
    added = zoo / "cartpole" / "more.py"
    added.write_text("raise SystemExit")
    with pytest.raises(ZooError, match=r"more\.py is not in the index"):
        pull("cartpole", folder=zoo)
    added.unlink()
    (zoo / "cartpole" / "run.json").unlink()
    with pytest.raises(ZooError, match=r"run\.json is missing"):
        pull("cartpole", folder=zoo)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "../cartpole"}, "not a valid name"),
        ({"score": "high"}, r"score: .*'high'"),
        ({"steps": None}, "steps: .*None"),
        ({"files": {"config.json": 0}}, r"files\.config\.json: .*0"),
    ],
)
def test_a_broken_index_is_refused(zoo: Path, changes: dict[str, Any], reason: str) -> None:
    edit(zoo, **changes)
    with pytest.raises(ZooError, match=reason):
        read_index(zoo)


@pytest.mark.parametrize("file", ["../../secret", "policy.pkl"])
def test_an_index_names_no_file_elsewhere(zoo: Path, file: str) -> None:
    (zoo.parent / "secret").write_text("secret")
    checksum = hashlib.sha256(b"secret").hexdigest()
    (policy,) = read_index(zoo)
    edit(zoo, files={**policy.files, file: checksum})
    with pytest.raises(ZooError, match="is missing"):
        pull("cartpole", folder=zoo)
    assert os.listdir() == []


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1}', "{" * 10_000])
def test_an_index_that_is_none_is_refused(zoo: Path, text: str) -> None:
    (zoo / INDEX).write_text(text)
    with pytest.raises(ZooError, match=r"index\.json"):
        read_index(zoo)


def test_an_environment_that_is_a_program_is_refused(packed: Path, zoo: Path) -> None:
    """Even if an attacker made all checksums fit."""
    from fugu.hub.repositories import CHECKSUMS, dump_checksums

    folder = zoo / "evil"
    folder.mkdir()
    for file in files_of(packed):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes((packed / file).read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"env": "os:system"}))
    names = files_of(folder) - {CHECKSUMS}
    (folder / CHECKSUMS).write_bytes(dump_checksums({name: folder / name for name in names}))
    source = folder.rename(zoo.parent / "evil")
    publish(source, zoo, "evil", EVALUATION)
    with pytest.raises(RuntimeError, match="env: expected .*; got 'os:system'"):
        pull("evil", folder=zoo)


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no index\.json"):
        read_index(tmp_path)


# ---------------------------------------------------------------------- what comes with fugu


def test_the_installed_zoo_is_whole_and_small() -> None:
    policies = read_index()
    for policy in policies:
        check_files(policy, FOLDER)
    assert {path.name for path in FOLDER.iterdir()} == {INDEX, *(p.name for p in policies)}
    assert sum(policy.bytes for policy in policies) < 10e6
