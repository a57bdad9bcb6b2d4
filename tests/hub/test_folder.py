"""Share runs through a folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import fugu
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.export import load as load_policy
from fugu.hub.pull import pull
from fugu.hub.push import push_to_hub
from fugu.hub.repositories import RefusedError
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.training.evaluate import evaluate
from fugu.training.session import resume, train

pytestmark = pytest.mark.timeout(200)


def weights(run: Run) -> dict[str, Any]:
    latest = run.latest()
    assert latest is not None
    return load_checkpoint(latest).tensors["policy_0"]


# ------------------------------------------------------------------ push and pull


def test_a_push_writes_card_curve_evaluation_and_video(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    done = push_to_hub(run, tmp_path / "shared", episodes=20)
    assert done.notes == ()
    names = {path.name for path in (tmp_path / "shared").iterdir()}
    assert names == {
        "README.md",
        "checkpoints",
        "checksums.json",
        "config.json",
        "curve.png",
        "evaluation.json",
        "metrics.jsonl",
        "replay.mp4",
        "run.json",
    }
    found = json.loads((tmp_path / "shared/evaluation.json").read_text())
    direct = evaluate(run, episodes=20).to_dict()
    assert {name: found[name] for name in direct} == direct
    assert done.score is not None
    assert (done.score.mean, done.score.deviation) == (direct["mean_return"], direct["deviation"])
    picture = (tmp_path / "shared/curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    imageio = pytest.importorskip("imageio.v3")
    frames = imageio.improps(tmp_path / "shared/replay.mp4", plugin="FFMPEG").shape
    assert frames[1] == 360


def test_nothing_of_this_machine_is_shared(run: Run, shared: Path) -> None:
    text = b"".join(path.read_bytes() for path in shared.rglob("*.json*"))
    assert str(run.folder.parent).encode() not in text
    assert os.uname().nodename.encode() not in text
    config = json.loads((shared / "config.json").read_text())
    assert {"folder", "name", "wandb"} & run.config["run"].keys()
    assert not {"folder", "name", "wandb"} & config["run"].keys()


def test_every_command_takes_a_pulled_run(
    run: Run, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert main(["hub", "pull", "./shared"]) == 0
    told = capsys.readouterr().out
    assert "Pulled: ./shared to runs/shared" in told
    assert "a resume begins new episodes" in told
    assert main(["eval", "shared", "--episodes", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == evaluate(run, episodes=4).to_dict()
    assert main(["play", "shared", "--steps", "3", "--fps", "1000"]) == 0
    capsys.readouterr()
    flags = ["--train.total-steps", "600", "--vec.num-envs", "16", "--quiet"]
    assert main(["train", "cartpole", "--init-from", "shared", *flags]) == 0
    assert main(["resume", "shared", "--train.total-steps", "3000", "--quiet"]) == 0
    assert "finished after 3,0" in capsys.readouterr().out
    assert main(["runs"]) == 0
    assert main(["hub", "push", "shared", "./again", "--episodes", "0", "--no-video"]) == 0
    assert "Pushed: ./again" in capsys.readouterr().out


def test_a_trusted_run_continues_bit_for_bit(run: Run, shared: Path, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "copy")
    pull("./shared", "pulled", trust=True)
    more: dict[str, Any] = {"show": False, "train": {"total_steps": 3000}}
    ended = [resume(folder, **more).run for folder in ("copy", "pulled")]
    one, other = (weights(each) for each in ended if each is not None)
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)


def test_a_pull_without_trust_leaves_out_states_of_environments(run: Run, shared: Path) -> None:
    done = pull("./shared")
    latest = done.run.latest()
    assert latest is not None
    assert [Path(name).name for name in done.skipped] == ["environments.safetensors"]
    assert "environments" not in load_checkpoint(latest).tensors
    trusted = pull("./shared", "trusted", trust=True).run.latest()
    assert trusted is not None
    assert "environments" in load_checkpoint(trusted).tensors


def test_an_agent_from_a_folder(run: Run, shared: Path) -> None:
    agent = fugu.from_hub("./shared")
    assert agent.evaluate(4, seed=1) == evaluate(run, episodes=4, seed=1)
    assert agent.config.env == "cartpole"
    with agent.make(3) as vec:
        act = agent.players(vec)
        vec.async_reset(0)
        batch = vec.recv()
        vec.send(act(batch))
        assert len(vec.recv().rewards) == 3
    policy = agent.load()
    observation = [0.01, 0.2, -0.03, 0.4]
    action, value, _ = policy.act(observation)
    same = load_policy(run).act(observation)
    assert (action, value) == same[:2]
    with pytest.raises(UsageError, match="group: expected one of .*; got 'others'"):
        agent.load(group="others")
    assert [path.name for path in Path().iterdir()] == ["shared"]


def test_the_best_checkpoint(run: Run, tmp_path: Path) -> None:
    mine = Run(shutil.copytree(run.folder, tmp_path / "mine"))
    first, last = mine.checkpoints()
    state = load_checkpoint(first)
    kept = {"tensors": state.tensors, "state": state.state, "score": 1e6}
    mine.save(int(state.state["step"]), **kept)  # type: ignore[arg-type]
    options: dict[str, Any] = {"episodes": 0, "video": False}
    push_to_hub(mine, tmp_path / "shared", **options)
    assert [path.name for path in (tmp_path / "shared/checkpoints").iterdir()] == [last.name]
    push_to_hub(mine, tmp_path / "shared", best=True, **options)
    assert [path.name for path in (tmp_path / "shared/checkpoints").iterdir()] == [first.name]
    assert pull(tmp_path / "shared", tmp_path / "pulled").run.latest() is not None


def test_a_push_reports_what_cannot_be_shown(tmp_path: Path) -> None:
    """The environment is a callable and cannot be rendered."""
    folder = {"folder": tmp_path / "runs", "name": "own"}
    small: dict[str, Any] = {"train": {"total_steps": 200}, "vec": {"num_envs": 4}}

    def make_env(**_: Any) -> Any:
        import gymnasium

        return gymnasium.make("CartPole-v1")

    made = train(make_env, run=folder, show=False, **small).run
    assert made is not None
    done = push_to_hub(made, tmp_path / "shared")
    assert [note.partition(":")[0] for note in done.notes] == ["not played"]
    assert done.score is not None
    assert "training" in done.score.source
    done = push_to_hub(made, tmp_path / "shared", env=make_env, episodes=1)
    assert [note.partition(":")[0] for note in done.notes] == ["no video"]
    assert done.score is not None
    assert "played for this card" in done.score.source
    with pytest.raises(UsageError, match="trained on something to call"):
        fugu.from_hub(tmp_path / "shared")
    assert fugu.from_hub(tmp_path / "shared", env=make_env).evaluate(1).returns


def test_a_league_is_shared_with_its_opponents(tmp_path: Path) -> None:
    result = train(
        "connect4",
        league={"enabled": True, "snapshot_every": 300},
        train={"total_steps": 600},
        vec={"num_envs": 8},
        run={"folder": tmp_path / "runs", "name": "club"},
        show=False,
    )
    assert result.run is not None
    push_to_hub(result.run, tmp_path / "shared", episodes=0, video=False)
    pulled = pull(tmp_path / "shared", tmp_path / "there/club").run
    members = {path.name for path in (result.run.folder / "league").iterdir()}
    assert {path.name for path in (pulled.folder / "league").iterdir()} == members
    assert len(members) > 1
    more = {"train": {"total_steps": 900}, "run": {"folder": str(tmp_path / "there")}}
    assert resume(pulled, show=False, **more).status == "finished"


# ------------------------------------------------------------------ folders


def test_a_push_replaces_a_run_and_nothing_else(
    run: Run, older: Run, shared: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"episodes": 0, "video": False}
    (shared / "LICENSE").write_text("MIT")
    push_to_hub(older, "./shared", **options)
    assert [path.name for path in (shared / "checkpoints").iterdir()] == [
        path.name for path in older.checkpoints()
    ]
    assert not (shared / "evaluation.json").exists()
    assert (shared / "LICENSE").exists()
    pull("./shared")
    Path("home").mkdir()
    Path("home/thesis.tex").write_text("")
    with pytest.raises(RefusedError, match=r"thesis\.tex: no run of fugu has"):
        push_to_hub(run, "./home", **options)
    assert [path.name for path in Path("home").iterdir()] == ["thesis.tex"]


def test_an_interrupted_push_leaves_nothing_to_pull(
    run: Run, older: Run, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[Path] = []
    replace = Path.replace

    def put_some(source: Path, target: Path) -> Path:
        if len(put) == 3:
            raise KeyboardInterrupt
        put.append(target)
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", put_some)
        with pytest.raises(KeyboardInterrupt):
            push_to_hub(older, "./shared", episodes=0, video=False)
    assert not list(shared.glob(".*"))
    with pytest.raises(RefusedError, match=r"checksums\.json: it is missing"):
        pull("./shared")


def test_invalid_folders_and_runs(run: Run, shared: Path) -> None:
    with pytest.raises(UsageError, match="into: expected a new folder; got 'shared'"):
        pull("./shared", "shared")
    with pytest.raises(UsageError, match="folder: './none' does not exist"):
        pull("./none")
    with pytest.raises(UsageError, match="revision: ./shared is a folder"):
        pull("./shared", revision="main")
    with pytest.raises(UsageError, match="private: ./shared is a folder"):
        push_to_hub(run, "./shared", private=True)
    with pytest.raises(UsageError, match="episodes: expected .*; got -1"):
        push_to_hub(run, "./new", episodes=-1)
    Path("file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        push_to_hub(run, "./file/below", episodes=0, video=False)
    with pytest.raises(UsageError, match="cannot be created"):
        pull("./shared", "file/below")
    empty = Run.create("runs", name="empty", env="cartpole")
    with pytest.raises(UsageError, match="no complete checkpoint"):
        push_to_hub(empty, "./new")
