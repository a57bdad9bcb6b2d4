"""Runs from elsewhere: whatever their settings say, reading them executes no code of strangers."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fugu
from fugu import native
from fugu.algos.registry import algorithm_names
from fugu.algos.settings import Config, read_config
from fugu.cli.main import main
from fugu.core.errors import FuguError, UsageError
from fugu.envs.untrusted import CALLED, ENVIRONMENTS, UntrustedError, check_env, find_family
from fugu.export import load
from fugu.hub.pull import pull
from fugu.hub.repositories import FolderRepository, RefusedError, dump_checksums
from fugu.store.checkpoint import is_own, load_checkpoint, save_checkpoint
from fugu.store.run import SIGNATURE, Run
from fugu.store.signing import key_path, sign
from fugu.training.inputs import RunInputs
from fugu.training.untrusted import SETTINGS, _is_closed, _leaves, check_settings, settings_of

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.skipif(not native.available, reason="needs the native extension"),
]
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs the modes of files")
SMALL = {"total_steps": 256, "horizon": 16}
CODING = {"prompt_length": 8, "program_length": 2}
FACTORY = """
open("imported", "w").close()
import gymnasium

def make(**_):
    return gymnasium.make("CartPole-v1")
"""
PROBLEM = {
    "name": "evil",
    "prompt": "x",
    "entry": "f",
    "check": "open('harmed', 'w').close()\ndef check(candidate): candidate(1)",
}


def train_small(env: str, name: str, **settings: Any) -> Run:
    where = {"folder": "runs", "name": name}
    result = fugu.train(env, train=SMALL, vec={"num_envs": 4, "backend": "serial"}, run=where,
                        show=False, **settings)  # fmt: skip
    assert result.run is not None
    return result.run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that this user trained: a native one and one that writes programs."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train_small("cartpole", "pole")
        train_small("coding:expressions", "programs", env_kwargs=CODING)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them in the working folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained / "runs", tmp_path / "runs"))


def change(folder: Path, **changes: Any) -> Run:
    """Change settings of a run, as somebody who means harm would."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(config.get(name), dict)
        config[name] = {**config[name], **value} if both else value
    path.write_text(json.dumps(config))
    return Run(folder)


# ------------------------------------------------------------------ what strangers tried


READERS: dict[str, Callable[[str], Any]] = {
    "eval": lambda run: main(["eval", run, "--episodes", "1"]),
    "resume": lambda run: main(["resume", run, "--quiet", "--train.total-steps", "512"]),
    "play": lambda run: main(["play", run, "--terminal", "--steps", "1"]),
    "record": lambda run: main(["record", run, "--data", "data", "--episodes", "1"]),
    "export": lambda run: main(["export", run, "--to", "c", "--out", "exported"]),
    "web": lambda run: main(["export", run, "--to", "web", "--out", "exported"]),
    "serve": lambda run: main(["serve", run, "--port", "0"]),
    "dream": lambda run: main(["dream", run, "--out", "dream.gif"]),
    "rank": lambda run: main(["rank", run, "random", "--games", "1"]),
    "target": lambda run: main(["eval", run, "--episodes", "1", "--target", "1"]),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_changed_run_is_refused_by_every_command(
    reader: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(runs / "programs", env_kwargs={"executor": "unsafe"})
    assert READERS[reader]("programs") == 1
    said = capsys.readouterr().err
    assert "env_kwargs: expected arguments out of: split" in said
    assert "got {'executor': 'unsafe'}" in said
    assert "--trust" in said
    assert not Path("exported").exists()


def load_on_init(run: Path) -> Any:
    """Begin with the policy of a run whose settings name code."""
    return fugu.train("cartpole", train=SMALL, vec={"num_envs": 4, "backend": "serial"},
                      init_from=run, keep=False, show=False)  # fmt: skip


@pytest.mark.parametrize(
    "read",
    [
        lambda run: fugu.evaluate(run, episodes=1),
        lambda run: fugu.resume(run, show=False),
        lambda run: load(run),
        lambda run: load(Run(run).checkpoints()[-1]),
    ],
)
def test_a_changed_run_is_refused_by_every_function(
    read: Callable[[Path], Any], runs: Path
) -> None:
    run = change(runs / "programs", env_kwargs={"problems": "runs/evil/metrics.jsonl"})
    with pytest.raises(UntrustedError, match=r"got {'problems': 'runs/evil/metrics\.jsonl'}"):
        read(run.folder)


def test_arguments_reach_no_environment_of_the_caller_without_trust(runs: Path) -> None:
    run = change(runs / "programs", env_kwargs={"turns": 2})
    with pytest.raises(UntrustedError, match="arguments out of: no arguments"):
        fugu.evaluate(run, episodes=1, env=lambda **_: None)


def test_a_file_of_a_pulled_run_is_not_executed_as_problems(runs: Path) -> None:
    fugu.push_to_hub("programs", "./evil", episodes=0, video=False)
    shared = Path("evil")
    (shared / "metrics.jsonl").write_text(json.dumps(PROBLEM) + "\n")
    change(shared, env_kwargs={"problems": "runs/evil/metrics.jsonl", "split": "all"})
    files = {
        name: shared / name for name in FolderRepository(shared).sizes() if name != "checksums.json"
    }
    (shared / "checksums.json").write_bytes(dump_checksums(files))
    for call in (lambda: pull("./evil"), lambda: fugu.from_hub("./evil")):
        with pytest.raises(RefusedError, match="'problems'"):
            call()
    pulled = Path(shutil.copytree(shared, "runs/evil"))  # as if an older fugu had pulled it
    for command in (["eval", "evil", "--episodes", "1"], ["resume", "evil", "--quiet"]):
        assert main(command) == 1
    assert not Path("harmed").exists()
    assert main(["eval", str(pulled), "--episodes", "1", "--trust"]) == 0
    assert Path("harmed").exists()


@pytest.mark.parametrize("field", ["run.json", "config.json"])
def test_no_reader_imports_a_module_that_a_run_names(
    field: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("strange_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    path = runs / "pole" / field
    path.write_text(json.dumps({**json.loads(path.read_text()), "env": "strange_factory:make"}))
    for name, reader in READERS.items():
        if field == "config.json" or name == "rank":  # others read config.json alone
            reader("pole") if name != "rank" else main(["rank", "pole", "random", "--games", "1"])
        assert not Path("imported").exists(), name


def test_a_policy_to_begin_with_is_data_whatever_its_run_says(runs: Path) -> None:
    run = change(runs / "pole", env="os:system", run={"record_data": "elsewhere"})
    assert load_on_init(run.folder).status == "finished"
    assert not Path("elsewhere").exists()


def test_an_opponent_of_a_league_is_checked_as_any_run(runs: Path) -> None:
    change(runs / "pole", env="os:system")
    with pytest.raises(UntrustedError, match="env: expected"):
        fugu.train("connect4", train=SMALL, vec={"num_envs": 4, "backend": "serial"}, show=False,
                   league={"enabled": True, "opponents": ("pole",)},
                   run={"folder": "runs", "name": "league"})  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kept"),
    [("../../mine", ()), ("/tmp", ()), ("defaults", ("../../mine",)), ("defaults", ("other",))],
)
def test_a_search_deletes_no_folder_that_its_record_names(
    name: str, kept: tuple[str, ...], runs: Path
) -> None:
    mine = Path("mine/checkpoints")
    mine.mkdir(parents=True)
    config = json.loads((runs / "pole" / "config.json").read_text())
    rungs = [{"steps": 1, "trained": {}, "returns": {}, "kept": kept}] if kept else []
    record = {"config": config, "members": [{"name": name, "changes": {}, "reason": ""}],
              "rungs": rungs}  # fmt: skip
    folder = runs / "search"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "auto.json").write_text(json.dumps(record))
    for trust in (False, True):
        with pytest.raises(FuguError):
            fugu.resume(folder, show=False, trust=trust)
    assert mine.exists()


def test_a_search_of_a_stranger_is_refused(runs: Path) -> None:
    config = json.loads((runs / "pole" / "config.json").read_text())
    record = {"config": config, "members": [{"name": "defaults", "changes": {}, "reason": ""}],
              "rungs": []}  # fmt: skip
    folder = runs / "search"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "auto.json").write_text(json.dumps(record))
    with pytest.raises(UntrustedError, match="a search that was started here"):
        fugu.resume(folder, show=False)


def test_a_checkpoint_does_not_say_how_many_processes_start(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Run(runs / "pole").checkpoints()[-1]
    found = load_checkpoint(path)
    tensors: Any = found.tensors
    save_checkpoint(
        path, tensors=tensors, state={**found.state, "ranks": [{}] * 9999}, signed=False
    )
    assert main(["resume", "pole", "--quiet"]) == 1
    assert "its checkpoint says 10,000" in capsys.readouterr().err


# ------------------------------------------------------------------ whose run it is


def test_a_run_that_was_trained_here_may_name_any_code(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own_factory.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    run = train_small("own_factory:make", "own")
    assert fugu.evaluate(run, episodes=1).returns
    moved = Path(shutil.move(run.folder, "moved"))
    assert fugu.evaluate(moved, episodes=1).returns


def test_no_file_of_a_run_makes_it_the_users_own(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = change(runs / "pole", env="os:system")
    with monkeypatch.context() as patch:
        for name in ("XDG_STATE_HOME", "LOCALAPPDATA"):
            patch.setenv(name, str(tmp_path / "stranger"))
        strange.trust()  # with the stranger's key
        assert strange.is_own()
    for name in ("origin.json", "run.json", "status.json"):
        facts = {"place": "here", "trusted": True, "own": True, "signature": "0" * 64}
        (strange.folder / name).write_text(json.dumps({**facts, "env": "cartpole"}))
    assert not strange.is_own()
    for signature in (None, 3, "", "0" * 64, ["x"]):
        (strange.folder / SIGNATURE).write_text(json.dumps({"settings": [signature]}))
        assert not strange.is_own()
    with pytest.raises(UntrustedError, match="was not trained here"):
        settings_of(strange)


def test_a_signature_is_of_one_kind_of_content_and_of_one_content(runs: Path) -> None:
    run = Run(runs / "pole")
    assert run.is_own()
    sums = (run.checkpoints()[-1] / "checksums.json").read_bytes()
    (run.folder / SIGNATURE).write_text(json.dumps({"settings": [sign("checkpoint", sums)]}))
    assert not run.is_own()


@POSIX
def test_the_key_is_for_the_user_alone(runs: Path) -> None:
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600


@POSIX
def test_without_a_folder_for_the_key_runs_need_trust_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    run = change(runs / "pole", env_kwargs={"strange": "x"})
    assert sign("settings", b"") is None
    with pytest.raises(UntrustedError):
        settings_of(run)
    assert settings_of(run, RunInputs(trust=True)).env_kwargs == {"strange": "x"}
    assert not run.is_own()


def test_trust_is_said_once(runs: Path) -> None:
    run = change(runs / "pole", run={"record_data": "elsewhere"})
    with pytest.raises(UntrustedError, match=r"run\.record_data: expected None; got"):
        fugu.evaluate(run, episodes=1)
    assert main(["eval", "pole", "--episodes", "1", "--trust"]) == 0
    assert main(["eval", "pole", "--episodes", "1"]) == 0
    assert main(["eval", "programs", "--episodes", "1"]) == 0


def test_a_run_from_elsewhere_is_where_it_is_found(runs: Path) -> None:
    run = change(runs / "pole", run={"folder": "/tmp/elsewhere", "name": "other"})
    cfg = settings_of(run)
    assert (cfg.run.folder, cfg.run.name) == (run.folder.parent, "pole")
    both = change(runs / "pole", run_={"folder": "/tmp/elsewhere"})
    assert settings_of(both).run.folder == run.folder.parent


# ------------------------------------------------------------------ states of environments


def forge_states(run: Run) -> Path:
    """Change the bytes of environments in a checkpoint, with checksums that fit."""
    path = run.checkpoints()[-1]
    found = load_checkpoint(path)
    states = {name: np.full_like(np.asarray(each), 127) for name, each in
              found.tensors["environments"].items()}  # fmt: skip
    tensors: Any = {**found.tensors, "environments": states}
    signature = (path / "signature").read_bytes()
    state = {**found.state, "environment_attributes": {"gravity": "0.0"}}
    save_checkpoint(path, tensors=tensors, state=state, signed=False)
    (path / "signature").write_bytes(signature)  # of what it was before
    return path


def test_states_of_a_changed_checkpoint_do_not_reach_environments(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(runs / "pole")
    assert is_own(run.checkpoints()[-1])
    path = forge_states(run)
    assert run.is_own()
    assert not is_own(path)
    overrides = {"train": {"total_steps": 512}}
    assert fugu.resume(run, show=False, overrides=overrides).steps >= 512
    assert "new episodes begin: the states of environments" in caplog.text
    forge_states(run)
    with pytest.raises(UsageError, match="set_env: .* native"):  # they are set if it is trusted
        fugu.resume(run, show=False, trust=True, overrides={"train": {"total_steps": 1024}})


def test_states_of_the_users_own_checkpoint_are_taken(
    runs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fugu.resume(Run(runs / "pole"), show=False, overrides={"train": {"total_steps": 512}})
    assert "new episodes begin" not in caplog.text


# ------------------------------------------------------------------ the tables


def test_every_setting_that_is_free_text_is_refused_unless_a_rule_allows_it() -> None:
    for algo in algorithm_names():
        plain = read_config({"algo": algo, "env": "cartpole"})
        check_settings(plain, "")
        for name, hint, _, _ in _leaves(Config(algo=algo)):
            if name == "algo" or (name not in SETTINGS and _is_closed(hint)):
                continue
            tree: dict[str, Any] = {"algo": algo, "env": "cartpole"}
            section, _, leaf = name.rpartition(".")
            for strange in ("../x", ["../x"], {"x": 1.0}, 10**9):
                (tree.setdefault(section, {}) if section else tree)[leaf] = strange
                try:
                    cfg = read_config(tree)
                except UsageError:  # of another type
                    continue
                with pytest.raises(UntrustedError, match=f"^{name}: expected .*; got "):
                    check_settings(cfg, "")


@pytest.mark.parametrize(
    "env",
    ["os:system", "evil:Env-v0", "./evil.so", "evil.so", "evil.dylib", "/abs/evil.dll", "../evil",
     "coding:evil.jsonl", "coding:runs/x/metrics.jsonl", "coding:", "gameboy:game.gb", "gameboy:",
     "pettingzoo:classic/../x", "ALE/../x", "dm_control:../x", "retro:../rom", "minihack:/x.des",
     "vizdoom:x.cfg:y", "envpool:a b", "CartPole-v1:x", "", " ", "x\n", "stranger:name", 3, None,
     ["cartpole"], "coding:humaneval.so"],
)  # fmt: skip
def test_names_that_could_name_code_are_refused(env: Any) -> None:
    with pytest.raises(UntrustedError, match=r"^env: expected .*; got .*say --trust$"):
        check_env(env, {}, "say --trust")


@pytest.mark.parametrize(
    ("env", "family"),
    [("breakout", "native"), ("coding:brainf", "native"), ("coding:humaneval", "coding:"),
     ("CartPole-v1", "classic_control:"), ("FrozenLake", "toy_text:"), ("ALE/Pong-v5", "ALE/"),
     ("nethack", "nethack:"), ("procgen:coinrun", "procgen:"), ("mujoco:Ant-v5", "mujoco:"),
     ("box2d:CarRacing-v3", "box2d:CarRacing"), ("minigrid:Empty-5x5-v0", "minigrid:"),
     ("pettingzoo:mpe/simple", "pettingzoo:mpe/"), ("velocity:Hopper-v5", "velocity:"),
     ("SomePackage/Game-v1", ""), (CALLED, CALLED)],
)  # fmt: skip
def test_names_of_what_is_installed_are_taken(env: str, family: str) -> None:
    assert find_family(env, "") == family


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [("coding:expressions", {"problems": "x.jsonl"}), ("coding:expressions", {"memory": "x"}),
     ("coding:expressions", {"executor": "zygote"}), ("coding:expressions", {"executors": 99}),
     ("coding:expressions", {"tokenizer": "runs/x/evaluation.json"}),
     ("coding:expressions", {"tokenizer": "letters:../x"}),
     ("coding:expressions", {"tokenizer": "bpe:999999999"}),
     ("coding:expressions", {"memory_bytes": 1 << 50}),
     ("coding:expressions", {"turns": True}), ("coding:expressions", {"turns": 1.5}),
     ("mujoco:Ant-v5", {"xml_file": "/x.xml"}), ("mujoco:Ant-v5", {"frame_skip": 10**9}),
     ("mujoco:Ant-v5", {"reset_noise_scale": float("nan")}),
     ("CartPole-v1", {"render_mode": "human"}), ("CartPole-v1", {"render_mode": ["ansi"]}),
     ("CartPole-v1", {"vector_entry_point": "os:system"}),
     ("SomePackage/Game-v1", {"size": 3}), ("GymV26Environment-v0", {"env_id": "evil:Env-v0"}),
     ("envpool:Pong-v5", {"base_path": "/x"}), ("vizdoom:Basic-v0", {"config_file": "/x"}),
     ("minihack:Room-5x5-v0", {"des_file": "/x"}), ("nethack", {"savedir": "/x"}),
     ("retro:Airstriker-Genesis", {"state": "/x"}), ("breakout", {"frames": "/x"}),
     ("breakout", {"frames": 10**400}), (CALLED, {"size": 3}),
     ("toy_text:FrozenLake-v1", {"desc": ["S" * 10**6]})],
    ids=str,
)  # fmt: skip
def test_arguments_that_are_more_than_data_are_refused(env: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(UntrustedError, match=r"^env_kwargs(\.\w+)?: expected .*; got .*--trust"):
        check_env(env, kwargs, "Use --trust.")


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [("coding:expressions", {"turns": 2, "tokenizer": "letters:abc", "cpu_seconds": None}),
     ("toy_text:FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}),
     ("LunarLander-v3", {"continuous": True, "gravity": -9.8}), ("breakout", {"anything": 3}),
     ("ALE/Pong-v5", {"frameskip": 4, "render_mode": None}), ("nethack", {"crop": 9})],
    ids=str,
)  # fmt: skip
def test_arguments_that_are_data_are_taken(env: str, kwargs: dict[str, Any]) -> None:
    check_env(env, kwargs, "")


def test_the_table_has_only_recipes_that_are_there() -> None:
    from fugu.envs.recipes import all_recipes

    known = {recipe.prefix for recipe in all_recipes()}
    assert set(ENVIRONMENTS) - {"", "coding:"} <= known
    assert known - set(ENVIRONMENTS) <= {"gameboy:"}
