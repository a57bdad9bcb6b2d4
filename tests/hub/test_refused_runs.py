"""Runs that a pull refuses: changed, unknown or broken files, and code of strangers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fugu
from fugu.cli.main import main
from fugu.hub.pull import pull
from fugu.hub.repositories import CHECKSUMS, FolderRepository, RefusedError, dump_checksums

pytestmark = pytest.mark.timeout(200)


def sign(folder: Path) -> None:
    """Write checksums that fit, as an attacker would."""
    files = {name: folder / name for name in FolderRepository(folder).sizes() if name != CHECKSUMS}
    (folder / CHECKSUMS).write_bytes(dump_checksums(files))


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    sign(folder)


# ------------------------------------------------------------------ files


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("change", [cut, grow, flip, Path.unlink])
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "policy_0.safetensors"])
def test_a_changed_file_is_refused_by_name(
    name: str, change: Callable[[Path], None], shared: Path
) -> None:
    (path,) = shared.rglob(name)
    change(path)
    with pytest.raises(RefusedError) as caught:
        pull("./shared")
    assert caught.value.file == path.relative_to(shared).as_posix()
    assert not any(Path("runs").iterdir())


def test_a_card_may_be_edited(shared: Path) -> None:
    (shared / "README.md").write_text("# Mine")
    (shared / "LICENSE").write_text("MIT")
    (shared / ".git").mkdir()
    (shared / ".git/config").write_text("")
    taken = pull("./shared").run.folder
    assert not (taken / "README.md").exists()
    assert not (taken / ".git").exists()


@pytest.mark.parametrize(
    "name",
    [
        "policy.pkl",
        "model.pt",
        "setup.py",
        "config.toml",
        "checkpoints/step_1/evil.py",
        "checkpoints/step_000000001/../../x.safetensors",
        "checkpoints/other/policy_0.safetensors",
        "notes.txt",
        "status.json",
        "origin.json",
        "Config.json",
        "config.json ",
    ],
)
def test_a_file_that_no_run_has_is_refused(name: str, shared: Path) -> None:
    (shared / name).parent.mkdir(parents=True, exist_ok=True)
    (shared / name).write_bytes(b"x")
    sign(shared)
    with pytest.raises(RefusedError, match="no run of fugu has") as caught:
        pull("./shared")
    assert caught.value.file == Path(os.path.normpath(name)).as_posix()


@pytest.mark.parametrize(
    "name", ["../../evil", "/etc/passwd", "checkpoints/../../evil.safetensors", "a\\..\\b", ""]
)
def test_checksums_that_name_something_else_lead_nowhere(name: str, shared: Path) -> None:
    sums = json.loads((shared / CHECKSUMS).read_text())
    (shared / CHECKSUMS).write_text(json.dumps({**sums, name: "0" * 64}))
    with pytest.raises(RefusedError, match="lists it, but it is missing") as caught:
        pull("./shared")
    assert caught.value.file == name


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "null"])
@pytest.mark.parametrize("name", [CHECKSUMS, "config.json", "run.json"])
def test_broken_json_is_refused(name: str, text: str, shared: Path) -> None:
    (shared / name).write_text(text)
    if name != CHECKSUMS:
        sign(shared)
    with pytest.raises(
        RefusedError, match="it is not valid JSON|it is not a JSON object"
    ) as caught:
        pull("./shared")
    assert caught.value.file == name


@pytest.mark.parametrize("value", [1, "00", "z" * 64, None])
def test_an_invalid_checksum_is_refused(value: Any, shared: Path) -> None:
    sums = json.loads((shared / CHECKSUMS).read_text())
    (shared / CHECKSUMS).write_text(json.dumps({**sums, "run.json": value}))
    with pytest.raises(RefusedError, match="SHA-256"):
        pull("./shared")


@pytest.mark.parametrize("kind", ["link", "folder link", "pipe"])
def test_links_and_devices_are_refused(kind: str, shared: Path, tmp_path: Path) -> None:
    path = shared / ("league" if kind == "folder link" else "metrics.jsonl")
    if path.exists():
        path.rename(tmp_path / "real")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "real" if kind == "link" else tmp_path)
    with pytest.raises(RefusedError, match="neither a file nor a folder") as caught:
        pull("./shared")
    assert caught.value.file == path.name


def test_a_pickle_under_another_name_is_refused(shared: Path) -> None:
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("touch harmed",)

    (path,) = shared.rglob("policy_0.safetensors")
    path.write_bytes(pickle.dumps(Evil()))
    sign(path.parent)
    own = json.loads((path.parent / CHECKSUMS).read_text())
    assert path.name in own
    sign(shared)
    with pytest.raises(RefusedError, match="it is not a safetensors file") as caught:
        pull("./shared")
    assert caught.value.file.endswith("policy_0.safetensors")
    assert not Path("harmed").exists()


def test_an_incomplete_checkpoint_is_refused(shared: Path) -> None:
    (path,) = shared.rglob("state.json")
    path.write_text(path.read_text() + "\n")
    sign(shared)  # and not the checkpoint's own
    with pytest.raises(RefusedError, match=r"step_.*/state\.json: its bytes are not those"):
        pull("./shared")


def test_a_file_larger_than_its_kind_is_refused(shared: Path) -> None:
    with (shared / "config.json").open("ab") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(RefusedError, match=r"config\.json: expected .*; got 1,048,577"):
        pull("./shared")


def test_an_agent_is_not_refused_for_what_it_does_not_need(shared: Path) -> None:
    with pytest.raises(RefusedError, match="expected at most 30,000 bytes"):
        pull("./shared", max_bytes=30_000)
    assert fugu.from_hub("./shared", max_bytes=30_000).policies


def test_too_many_files_are_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fugu.hub.repositories.MAX_FILES", 5)
    with pytest.raises(RefusedError, match="at most 5 files"):
        pull("./shared")


@pytest.mark.parametrize("missing", ["run.json", "config.json", "checkpoints", CHECKSUMS])
def test_an_incomplete_run_is_refused(missing: str, shared: Path) -> None:
    path = shared / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if missing != CHECKSUMS:
        sign(shared)
    with pytest.raises(RefusedError, match=missing):
        pull("./shared")


# ------------------------------------------------------------------ code of others


@pytest.fixture
def factory(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that creates a file when it is imported, and a run that names it."""
    code = "open('imported', 'w').close()\nimport gymnasium\n\n"
    code += "def make(): return gymnasium.make('CartPole-v1')\n"
    Path("strange_module.py").write_text(code)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    change_config(shared, env="strange_module:make")
    return Path("imported")


def test_a_factory_is_refused_unless_it_is_trusted_and_imported_when_it_is_played(
    factory: Path, shared: Path
) -> None:
    for call in (lambda: pull("./shared"), lambda: fugu.from_hub("./shared")):
        with pytest.raises(
            RefusedError, match="env: expected .*; got 'strange_module:make'.*--trust"
        ):
            call()
    pull("./shared", trust=True)
    assert not factory.exists()
    assert "strange_module" not in sys.modules
    main(["eval", "runs/shared", "--episodes", "1"])
    assert factory.exists()
    sys.modules.pop("strange_module")


@pytest.mark.parametrize("env", ["os:system", "./evil.so", "coding:evil.jsonl", "evil:Env-v0", 3])
def test_environments_that_are_programs_are_refused(env: Any, shared: Path) -> None:
    change_config(shared, env=env, env_kwargs={"command": "touch harmed"})
    with pytest.raises(RefusedError, match="config.json: env: expected"):
        pull("./shared")
    with pytest.raises(RefusedError, match="config.json: env: expected"):
        fugu.from_hub("./shared")
    assert not Path("harmed").exists()


@pytest.mark.parametrize("env", ["classic_control:CartPole-v1", "minigrid:Empty-5x5-v0"])
def test_a_recipe_of_a_gymnasium_id_is_accepted(env: str, shared: Path) -> None:
    change_config(shared, env=env)
    assert pull("./shared").run.config["env"] == env


@pytest.mark.parametrize("env", ["gameboy:game.gb", "classic_controls:CartPole-v1"])
def test_a_recipe_that_takes_functions_or_is_unknown_is_refused(env: str, shared: Path) -> None:
    change_config(shared, env=env, env_kwargs={"reward": "os:system"})
    with pytest.raises(RefusedError, match="config.json: env: expected"):
        pull("./shared")


@pytest.mark.parametrize(
    "changes",
    [
        {"run": {"folder": "/tmp"}},
        {"run": {"record_data": "/tmp"}},
        {"run": {"record-data": "/tmp"}},
        {"vec": {"backend": "ray", "ray_address": "evil:6379"}},
        {"league": {"database": "/tmp/x"}},
        {"env_": "os:system"},
        {"run_": {"folder": "/tmp"}},
    ],
    ids=str,
)
def test_settings_of_one_machine_are_refused(changes: Any, shared: Path) -> None:
    change_config(shared, **changes)
    for trust in (False, True):
        with pytest.raises(RefusedError, match=r"config\.json: expected|cannot be shared"):
            pull("./shared", trust=trust)
