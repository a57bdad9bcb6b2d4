"""Callbacks: their hooks, metrics of their own, what they change, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from rich.console import Console

import fugu
from fugu.core.errors import UsageError
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.track.dashboard import Dashboard, Snapshot, picture
from fugu.track.sinks import read_metrics
from fugu.training.trainer import Progress, Trainer

pytestmark = pytest.mark.timeout(300)
TIMES = ("steps_per_second", "seconds")


class Levels(gymnasium.Env[Any, Any]):
    """Pays its level, which agents see, in episodes of seven steps.

    Args:
        crash: A file; while it is missing, the thirtieth step of a copy writes it and fails.
        ends: Whether the process ends then, or an exception is raised.
    """

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, crash: str = "", ends: bool = True) -> None:
        self._ends = ends
        self.level, self._steps, self._crash, self._all = 1.0, 0, crash, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._steps = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._all += 1
        if self._crash and self._all == 30 and not Path(self._crash).exists():
            Path(self._crash).touch()
            if not self._ends:
                raise RuntimeError("it is broken")
            os._exit(1)
        return self._see(), self.level, self._steps == 7, False, {}

    def _see(self) -> Any:
        return np.array([self._steps, self.level], np.float32)


def wrapped(**options: Any) -> Any:
    return gymnasium.wrappers.TimeLimit(Levels(**options), 100)


class Notes(fugu.Callback):
    """Writes down what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.given: dict[str, Any] = {}

    def _note(self, name: str, given: Any = None) -> None:
        self.calls.append(name)
        self.given[name] = given

    def on_start(self, trainer: Trainer) -> None:
        self._note("start", trainer.steps)

    def on_update(self, trainer: Trainer, progress: Progress) -> None:
        assert progress.steps == trainer.steps
        self._note("update", progress)

    def on_evaluation(self, trainer: Trainer, metrics: Any) -> None:
        self._note("evaluation", metrics)

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        self._note("checkpoint", load_checkpoint(path).state["steps"])

    def on_stop(self, trainer: Trainer, status: str) -> None:
        self._note("stop", status)


def learn(env: Any, folder: Path, *callbacks: Any, **sections: Any) -> fugu.training.inputs.Result:
    """Train on 4 copies, 64 steps an update and 4 more in the first."""
    train = {"total_steps": 512, "horizon": 16, **sections.pop("train", {})}
    run = {"folder": folder, **sections.pop("run", {})}
    vec = {"num_envs": 4, **sections.pop("vec", {})}
    return fugu.train(
        env, seed=3, show=False, callbacks=callbacks, train=train, run=run, vec=vec, **sections
    )


def fingerprint(run: Run | None) -> tuple[Any, ...]:
    """All weights of the last checkpoint, and all metrics but times."""
    assert run is not None
    path = run.latest()
    assert path is not None
    weights = load_checkpoint(path).tensors["policy_0"]
    lines = [
        {k: v for k, v in line.items() if not k.startswith(TIMES)}
        for line in read_metrics(run.metrics_path)
    ]
    return {k: np.asarray(v).tobytes() for k, v in weights.items()}, lines


def stop_at(updates: int) -> Any:
    def stop(trainer: Trainer, progress: Progress) -> None:
        if progress.updates == updates:
            trainer.stop("enough")

    return stop


# ---------------------------------------------------------------------- hooks


def test_hooks_are_called_in_order(tmp_path: Path) -> None:
    notes = Notes()
    run = {"checkpoint_seconds": 0, "evaluate_every": 512, "evaluation_episodes": 4}
    result = learn("cartpole", tmp_path, notes, run=run, train={"total_steps": 256})
    once = ["update", "checkpoint"]
    assert notes.calls == [
        "start", *once * 3, "evaluation", *once, "stop",
    ]  # fmt: skip
    assert notes.given["start"] == 0
    assert notes.given["evaluation"]["episodes"] == 4
    assert notes.given["checkpoint"] == result.steps == notes.given["update"].steps
    assert notes.given["stop"] == result.status == "finished"


def test_functions_and_stopping(tmp_path: Path) -> None:
    def stop(trainer: Trainer, progress: Progress) -> None:
        trainer.stopping = progress.updates == 2

    assert learn("cartpole", tmp_path, stop).steps == 132
    notes = Notes()
    result = learn("cartpole", tmp_path, stop_at(3), notes)
    assert (result.status, result.stop_reason, result.steps) == ("stopped", "enough", 196)
    assert notes.given["stop"] == "stopped"
    assert notes.given["checkpoint"] == 196


def test_a_callback_that_raises_ends_the_run_and_leaves_its_checkpoint(tmp_path: Path) -> None:
    def fail(trainer: Trainer, progress: Progress) -> None:
        trainer.log({"count": progress.updates})
        if progress.updates == 3:
            raise ZeroDivisionError("mine")

    notes, run = Notes(), {"name": "broken", "checkpoint_seconds": 0}
    with pytest.raises(ZeroDivisionError, match="mine"):
        learn("cartpole", tmp_path, fail, notes, run=run)
    assert notes.given["stop"] == "failed"
    found = Run.open("broken", tmp_path)
    assert [line["count"] for line in read_metrics(found.metrics_path)] == [1, 2, 3]
    assert found.checkpoints()[-1].name.endswith("132")
    assert fugu.resume(found, show=False).status == "finished"


# ---------------------------------------------------------------------- metrics


def test_logged_metrics_reach_every_sink_and_the_dashboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    class Log(fugu.Callback):
        def on_update(self, trainer: Trainer, progress: Progress) -> None:
            trainer.log({"mine/count": progress.updates, "tensor": torch.tensor(0.5)})
            if progress.updates == 2:
                trainer.log({"mine/rare": np.float32(2)})

        def on_stop(self, trainer: Trainer, status: str) -> None:
            trainer.log({"last": 1})

    result = fugu.train(
        "cartpole",
        callbacks=[Log()],
        vec={"num_envs": 4},
        train={"total_steps": 192, "horizon": 16},
        run={"folder": tmp_path, "tensorboard": True},
    )
    assert result.run is not None
    *lines, last = read_metrics(result.run.metrics_path)
    assert [line["mine/count"] for line in lines] == [1, 2, 3]
    assert [line.get("mine/rare") for line in lines] == [None, 2, None]
    assert all("loss/entropy" in line and line["tensor"] == 0.5 for line in lines)
    assert last["last"] == 1
    events = EventAccumulator(str(result.run.folder / "tensorboard")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("mine/count")]
    assert found == [(68, 1), (132, 2), (196, 3)]
    assert "mine/count" in capsys.readouterr().err
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    board = Dashboard(100, "x", console)
    console.print(picture(board.view(Snapshot(1, 1.0, logged={"mine/count": 3.0}))))
    assert "mine/count" in console.export_text()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"loss/entropy": 1.0}, "no built-in metric has; got 'loss/entropy'.*my/entropy"),
        ({"episode_return": 1.0}, "no built-in metric has"),
        ({"step": 1}, "no built-in metric has"),
        ({"mine": "high"}, "a number for 'mine'; got 'high'"),
        ({"mine": [1.0, 2.0]}, "a number for 'mine'"),
        ({"mine": True}, "a number for 'mine'; got True"),
        ({"mine": float("nan")}, "got NaN"),
        ({3: 1.0}, "as text; got 3"),
    ],
)
def test_metrics_that_are_refused(metrics: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        learn("cartpole", tmp_path, lambda trainer, _: trainer.log(metrics))


# ---------------------------------------------------------------------- changes


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_change_reaches_the_update_and_survives_resuming(engine: str, tmp_path: Path) -> None:
    def change(trainer: Trainer, progress: Progress) -> None:
        if progress.updates == 2:
            trainer.change(clip=0.01, learning_rate=0.0005, entropy_coefficient=0.3)

    train = {"engine": engine, "schedule": "constant"}
    plain = fingerprint(learn("cartpole", tmp_path, train=train).run)
    whole = fingerprint(learn("cartpole", tmp_path, change, train=train).run)
    half = learn("cartpole", tmp_path, change, stop_at(4), train=train)
    assert half.run is not None
    assert half.status == "stopped"
    resumed = fingerprint(fugu.resume(half.run, show=False).run)
    assert resumed == whole
    assert whole[0] != plain[0]
    assert whole[1][:2] == plain[1][:2]
    rates = [line["loss/learning_rate"] for line in whole[1]]
    assert rates == [0.003] * 2 + [0.0005] * 6


@pytest.mark.parametrize("name", ["clip", "entropy_coefficient", "value_coefficient", "epochs"])
def test_each_change_gives_another_result(name: str, tmp_path: Path) -> None:
    value = {"epochs": 1}.get(name, 0.001)
    plain = learn("cartpole", tmp_path, train={"total_steps": 256})
    other = learn(
        "cartpole",
        tmp_path,
        lambda trainer, _: trainer.change(**{name: value}),
        train={"total_steps": 256},
    )
    assert fingerprint(plain.run)[0] != fingerprint(other.run)[0]


def test_a_setting_that_resuming_overrides_wins_over_a_change(tmp_path: Path) -> None:
    half = learn("cartpole", tmp_path, stop_at(2), lambda trainer, _: trainer.change(clip=0.1))
    assert half.run is not None
    seen = []
    fugu.resume(
        half.run,
        show=False,
        overrides={"train": {"clip": 0.4}},
        callbacks=[lambda trainer, _: seen.append(trainer.cfg.train.clip)],
    )
    assert set(seen) == {0.4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.9}, "may change while 'ppo' trains, one of learning_rate.*; got 'gamma'"),
        ({"no_such": 1}, "got 'no_such'"),
        ({"clip": -1.0}, "train.clip"),
        ({"clip": "wide"}, "train.clip"),
    ],
)
def test_changes_that_are_refused(settings: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        learn("cartpole", tmp_path, lambda trainer, _: trainer.change(**settings))


# ---------------------------------------------------------------------- environments


@pytest.mark.parametrize("backend", ["serial", "threads", "process"])
def test_a_curriculum_reaches_environments_and_survives_resuming(
    backend: str, tmp_path: Path
) -> None:
    def level(progress: float) -> float:
        return 1.0 + round(4 * progress)

    sections: dict[str, Any] = {
        "vec": {"backend": backend, "num_workers": None if backend == "serial" else 2},
        "policy": {"engine": "torch"},
    }
    curriculum = fugu.Curriculum("level", level)
    whole = learn(wrapped, tmp_path, curriculum, **sections)
    half = learn(wrapped, tmp_path, curriculum, stop_at(4), **sections)
    assert half.run is not None
    resumed = fugu.resume(half.run, show=False, env=wrapped, callbacks=[curriculum])
    assert fingerprint(resumed.run) == fingerprint(whole.run)
    without = fugu.resume(
        learn(wrapped, tmp_path, curriculum, stop_at(5), **sections).run or "",
        show=False,
        env=wrapped,
    )
    returns = [line["episode_return"] for line in fingerprint(whole.run)[1]]
    assert returns[0] == 7.0
    assert returns[-1] == pytest.approx(7 * 4.5, abs=4)
    assert fingerprint(without.run)[1][-1]["episode_return"] == 7 * level(324 / 512)


@pytest.mark.parametrize("ends", [True, False])
def test_an_attribute_survives_the_restart_of_a_worker(ends: bool, tmp_path: Path) -> None:
    class Raise(fugu.Callback):
        def on_start(self, trainer: Trainer) -> None:
            trainer.set_env("level", 3.0)

    result = learn(
        partial(wrapped, crash=str(tmp_path / "crashed"), ends=ends),
        tmp_path,
        Raise(),
        vec={"backend": "process", "num_workers": 2},
    )
    assert (tmp_path / "crashed").exists()
    assert result.status == "finished"
    last = fingerprint(result.run)[1][-1]
    assert last["episode_return"] == 21.0


def test_a_curriculum_by_score_waits_for_episodes(tmp_path: Path) -> None:
    seen: list[float] = []

    def level(score: float) -> float:
        seen.append(score)
        return 2.0

    curriculum = fugu.Curriculum("level", level, by="score")
    result = learn(wrapped, tmp_path, curriculum, vec={"backend": "serial"})
    assert seen[0] == 7.0
    assert fingerprint(result.run)[1][-1]["episode_return"] == 14.0


def test_attributes_that_are_refused(tmp_path: Path) -> None:
    def set_env(name: str, value: Any) -> Any:
        return lambda trainer, _: trainer.set_env(name, value)

    with pytest.raises(UsageError, match="native ones.*env_kwargs"):
        learn("cartpole", tmp_path, set_env("level", 1))
    for backend in ("serial", "process"):
        with pytest.raises(UsageError, match=r"Levels.*got 'levle'. Did you mean 'level'\?"):
            learn(wrapped, tmp_path, set_env("levle", 1), vec={"backend": backend})
    with pytest.raises(UsageError, match="numbers, text, arrays"):
        learn(wrapped, tmp_path, set_env("level", object()))


# ---------------------------------------------------------------------- ready ones


def test_stop_at_score_stops_early_with_a_checkpoint(tmp_path: Path) -> None:
    result = learn(
        "cartpole", tmp_path, fugu.StopAtScore(30), train={"total_steps": 500_000, "horizon": 32}
    )
    assert result.status == "stopped"
    assert result.score is not None
    assert result.score >= 30
    assert result.steps < 500_000
    assert "has reached 30" in result.stop_reason
    assert result.run is not None
    assert result.run.latest() is not None


def test_evaluate_every_logs_and_tells_callbacks(tmp_path: Path) -> None:
    notes = Notes()
    result = learn("CartPole-v1", tmp_path, fugu.EvaluateEvery(256, episodes=4), notes)
    assert notes.calls.count("evaluation") == 2
    assert result.run is not None
    lines = list(read_metrics(result.run.metrics_path))
    found = [line["step"] for line in lines if "evaluation/mean_return" in line]
    assert found == [260, 516]
    assert lines[-1]["evaluation/mean_return"] == notes.given["evaluation"]["mean_return"]
    with pytest.raises(UsageError, match=r"run\.evaluate_every.*Use one"):
        learn("cartpole", tmp_path, fugu.EvaluateEvery(256), run={"evaluate_every": 256})


@pytest.mark.parametrize("env", ["cartpole", "CartPole-v1"])
def test_videos_are_in_the_folder_of_the_run(env: str, tmp_path: Path) -> None:
    from PIL import Image

    result = learn(env, tmp_path, fugu.RecordVideo(256, length=5, suffix=".gif"))
    assert result.run is not None
    videos = sorted((result.run.folder / "videos").iterdir())
    assert [path.name for path in videos] == [f"{n:012d}.gif" for n in (0, 260, 516)]
    with Image.open(videos[-1]) as film:
        assert 1 <= getattr(film, "n_frames", 1) <= 6
    with pytest.raises(UsageError, match="render_mode"):
        learn(lambda: gymnasium.make("CartPole-v1"), tmp_path, fugu.RecordVideo(256))
    with pytest.raises(UsageError, match="keep=True"):
        learn(env, tmp_path, fugu.RecordVideo(256), keep=False)


def test_callbacks_and_arguments_that_are_refused(tmp_path: Path) -> None:
    for given in (fugu.Callback, 3):
        with pytest.raises(UsageError, match=r"objects of fugu\.Callback or functions"):
            learn("cartpole", tmp_path, given)
    with pytest.raises(UsageError, match="steps: expected a whole number"):
        fugu.EvaluateEvery(0)
    with pytest.raises(UsageError, match=r"'\.mp4', '\.gif'"):
        fugu.RecordVideo(10, suffix=".avi")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'progress', 'score'"):
        fugu.Curriculum("level", float, by="steps")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- several ranks

RANKS = """
import sys
import fugu

class Note(fugu.Callback):
    def on_start(self, trainer):
        self.file = open(f"{sys.argv[1]}/rank{trainer.ranks.rank}", "w")

    def on_update(self, trainer, progress):
        trainer.log({"mine": 1 + trainer.ranks.rank})
        trainer.change(clip=0.1)
        trainer.set_env("gravity", 5.0)

    def on_checkpoint(self, trainer, path):
        print(path.name, file=self.file)

    def on_stop(self, trainer, status):
        trainer.algorithm.collector.wait()
        print(status, trainer.vec.get_attr("gravity"), file=self.file, flush=True)

if __name__ == "__main__":
    fugu.train(
        "CartPole-v1", callbacks=[Note(), fugu.EvaluateEvery(128, 4)], show=False,
        vec={"num_envs": 4, "backend": "serial"}, train={"total_steps": 256, "horizon": 16},
        run={"folder": sys.argv[1], "name": "both"},
    )
"""


def test_every_rank_calls_and_the_first_logs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(program), str(tmp_path)]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=200, check=True)
    said = [(tmp_path / f"rank{rank}").read_text() for rank in range(2)]
    assert said[0] == said[1] == "step_000000260\nfinished (5.0, 5.0)\n"
    lines = list(read_metrics(Run.open("both", tmp_path).metrics_path))
    assert [line["mine"] for line in lines] == [1.0] * len(lines)
    assert lines[-1]["evaluation/episodes"] == 4
