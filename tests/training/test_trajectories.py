"""Programs of a training: kept in any order, by whoever steps, and exported as chats."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import fugu
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.store.chat import ChatRow, read_rows
from fugu.store.run import Run
from fugu.store.trajectories import TrajectoryGroup, read_groups
from fugu.track.dashboard import Dashboard, picture
from fugu.training import session as session_module
from fugu.training.session import resume
from fugu.training.trainer import Progress, Trainer
from fugu.training.trajectories import MOST_OPEN, TrajectoryRecorder

DIGITS: dict[str, Any] = {
    "env_kwargs": {"split": "all", "tokenizer": "letters:01", "program_length": 1,
                   "prompt_length": 4, "executors": 1},
    "policy": {"core": "tokens", "hidden_size": 16},
}  # fmt: skip
PROCESSES = {"num_envs": 16, "backend": "process", "num_workers": 2}
GRPO: dict[str, Any] = {"algo": "grpo", "vec": {**PROCESSES, "group_size": 4}}
PPO: dict[str, Any] = {
    "vec": {**PROCESSES, "batch_size": 4},
    "train": {"horizon": 4, "rows": 16},
}


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Three problems of one letter, in a file; runs are kept beside it."""
    monkeypatch.chdir(tmp_path)
    lines = [
        {"name": f"p{i}", "prompt": prompt, "header": "def f():\n    return ", "entry": "f",
         "tests": [{"args": [], "expected": expected}]}
        for i, (prompt, expected) in enumerate([("00", 0), ("01", 1), ("10", 1)])
    ]  # fmt: skip
    Path("problems.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return "coding:problems.jsonl"


def learn(env: str, steps: int, settings: dict[str, Any], name: str = "one", **rest: Any) -> Run:
    train = {"total_steps": steps, **settings.get("train", {})}
    run = {"name": name, "trajectories": True}
    sections = {**DIGITS, **settings, "train": train, "run": run}
    found = fugu.train(env, show=False, **sections, **rest).run
    assert found is not None
    return found


def attempts(groups: list[TrajectoryGroup]) -> int:
    return sum(len(group.trajectories) for group in groups)


def check(group: TrajectoryGroup) -> None:
    """Each program earned what it is worth."""
    wanted = {"p0": "0", "p1": "1", "p2": "1"}[group.task]
    for one in group.trajectories:
        right = one.program == f"def f():\n    return {wanted}"
        assert (one.reward, one.verdict == "passed") == (float(right), right)


def test_a_training_is_exported(problems: str) -> None:
    episodes = 0.0

    def count(trainer: Trainer, progress: Progress) -> None:
        nonlocal episodes
        episodes += progress.episodes.get("episodes", 0.0)

    run = learn(problems, 300, GRPO, callbacks=(count,))
    groups = list(read_groups(run.folder))
    for group in groups:
        check(group)
        assert (group.run, len(group.trajectories) <= 4) == ("one", True)
    assert attempts(groups) == episodes
    assert sum(len(group.trajectories) == 4 for group in groups) >= len(groups) - 4
    assert main(["coding", "export", "latest", "--out", "sft.jsonl"]) == 0
    assert main(["coding", "export", "one", "--kind", "dpo", "--out", "dpo.jsonl"]) == 0
    winners, pairs = list(read_rows("sft.jsonl")), list(read_rows("dpo.jsonl"))
    assert len(winners) == 3  # of each problem the one right program, once
    assert pairs
    for row in pairs:
        assert isinstance(row, ChatRow)
        assert (row.metadata["reward"], row.metadata["rejected_reward"]) == ("1.0", "0.0")
        assert row.rejected_message is not None
        assert row.rejected_message != row.messages[-1]


def test_copies_that_come_in_any_order(problems: str) -> None:
    run = learn(problems, 300, PPO)
    groups = list(read_groups(run.folder))
    assert {len(group.trajectories) for group in groups} == {1}
    for group in groups:
        check(group)
    flags = ["--kind", "dpo", "--merge-groups", "--out", "dpo.jsonl"]
    assert main(["coding", "export", "one", *flags]) == 0
    assert 1 <= len(list(read_rows("dpo.jsonl"))) <= 3


def test_a_resumed_run_has_what_one_in_a_go_has(problems: str) -> None:
    def stop(trainer: Trainer, progress: Progress) -> None:
        trainer.stopping = progress.updates == 3

    whole = learn(problems, 400, GRPO)
    halves = learn(problems, 400, GRPO, "two", callbacks=(stop,))
    resume(halves, show=False)
    first, second = ([(g.task, g.trajectories) for g in read_groups(run.folder)]
                     for run in (whole, halves))  # fmt: skip
    assert first == second


def test_turns_are_a_conversation(problems: str) -> None:
    lines = [json.loads(line) for line in Path("problems.jsonl").read_text().splitlines()]
    for line in lines:
        line["tests"][0]["public"] = True
    Path("problems.jsonl").write_text("\n".join(map(json.dumps, lines)))
    kwargs = {**DIGITS["env_kwargs"], "turns": 2, "feedback_length": 8}
    run = learn(problems, 200, {**GRPO, "env_kwargs": kwargs})
    spoken = [
        one for group in read_groups(run.folder) for one in group.trajectories if one.messages
    ]
    assert spoken
    for one in spoken:
        roles = [message.role for message in one.messages]
        assert roles == ["user", "assistant", "user", "assistant"]
        assert one.messages[-1].content == one.program


def test_what_cannot_be_kept_is_said(problems: str) -> None:
    with pytest.raises(UsageError, match="do not tell"):
        learn("bandit", 1000, {"env_kwargs": {}, "policy": {}})
    with pytest.raises(UsageError, match="not kept"):
        learn(problems, 100, PPO, keep=False)


def test_groups_wait_for_their_members_and_not_for_ever(tmp_path: Path) -> None:
    def info(task: str, program: str) -> dict[str, Any]:
        return {"task": task, "prompt": "p", "program": program, "episode_return": 0.5}

    recorder = TrajectoryRecorder(tmp_path, "run", 2)
    recorder(0, info("a", "1"))
    recorder(0, info("a", "2"))  # before its mate's first
    recorder(1, info("b", "3"))  # a copy that a fault has set on other problems
    recorder(1, info("a", "4"))
    (group,) = read_groups(tmp_path)
    assert [one.program for one in group.trajectories] == ["1", "4"]
    state = json.loads(json.dumps(recorder.state()))
    for i in range(MOST_OPEN):
        recorder(0, info(f"c{i}", "5"))
    assert [[t.program for t in g.trajectories] for g in read_groups(tmp_path)][1:] == [
        ["2"],
        ["3"],
    ]
    recorder.restore(state)
    recorder(1, info("a", "6"))
    recorder.close()
    found = [[t.program for t in g.trajectories] for g in read_groups(tmp_path)]
    assert found == [["1", "4"], ["2", "6"], ["3"]]


def test_verdict_shares_are_in_the_metrics_and_on_the_dashboard(
    problems: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=io.StringIO(), record=True, force_terminal=True, width=110)
    views = []

    class Watched(Dashboard):
        def __init__(self, total: int, name: str) -> None:
            super().__init__(total, name, console)

        def update(self, snapshot: Any) -> None:
            views.append(self.view(snapshot))

    monkeypatch.setattr(session_module, "Dashboard", Watched)
    train = {"total_steps": 200, **PPO["train"]}
    found = fugu.train(problems, **{**DIGITS, **PPO, "train": train}).run
    assert found is not None
    rows = [json.loads(line) for line in found.metrics_path.read_text().splitlines()]
    told = [row for row in rows if "verdict/passed" in row]
    assert told
    for row in told:
        shares = [value for name, value in row.items() if name.startswith("verdict/")]
        assert len(shares) == 8
        assert np.isclose(sum(shares), 1.0)
        assert row["solved"] == row["verdict/passed"]
    console.print(picture(views[-1], 100))
    line = next(part for part in console.export_text().splitlines() if "verdict" in part)
    assert "passed" in line
    assert "%" in line
