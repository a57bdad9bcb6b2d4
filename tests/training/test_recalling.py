"""Policies that recall: what is remembered, kept with the weights, and shown again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import fugu
from fugu.core.errors import UsageError
from fugu.memory import Match, Memory, TokenRuns
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import make_policy
from fugu.policies.recalling import RecallingPolicy, recalling
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.training.evaluate import load_policies
from fugu.training.session import resume
from fugu.training.trainer import Progress, Trainer

COPIES = 8
BASE: dict[str, Any] = {
    "env_kwargs": {
        "split": "all",
        "tokenizer": "letters:0123",
        "program_length": 1,
        "prompt_length": 4,
        "executors": 1,
    },
    "policy": {"core": "tokens", "hidden_size": 16, "recall": 2, "recall_length": 3},
}
PPO: dict[str, Any] = {
    "vec": {"num_envs": COPIES, "backend": "serial"},
    "train": {"horizon": 4, "total_steps": 6 * 4 * COPIES},
}
GRPO: dict[str, Any] = {
    "algo": "grpo",
    "vec": {"num_envs": COPIES, "group_size": 4, "backend": "serial"},
    "train": {"total_steps": 200},
}


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Families of problems whose answer is the second letter of the prompt."""
    monkeypatch.chdir(tmp_path)
    lines = [
        {"name": f"{a}{b}{c}", "prompt": f"{a}{b}{c}", "entry": "f",
         "header": "def f():\n    return ", "tests": [{"args": [], "expected": b}]}
        for a in range(4) for b in range(4) for c in range(2)
    ]  # fmt: skip
    Path("problems.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return "coding:problems.jsonl"


def learn(env: str, settings: dict[str, Any], name: str, **rest: Any) -> Run:
    found = fugu.train(env, show=False, run={"name": name}, **{**BASE, **settings}, **rest).run
    assert found is not None
    return found


def remembered(policy: Any) -> list[tuple[str, str]]:
    assert isinstance(policy, RecallingPolicy)
    memory = policy.recall.memory
    assert isinstance(memory, Memory)
    return [(item.text, item.metadata["answer"]) for item in memory]


@pytest.mark.parametrize("settings", [PPO, GRPO], ids=["ppo", "grpo"])
def test_solved_problems_are_remembered_and_kept(problems: str, settings: dict[str, Any]) -> None:
    asked: list[int] = []
    query = Memory.query

    def counted(self: Memory, texts: Sequence[str] = (), *a: Any, **k: Any) -> list[list[Match]]:
        asked.append(len(texts))
        return query(self, texts, *a, **k)

    steps = 0

    def count(trainer: Trainer, progress: Progress) -> None:
        nonlocal steps
        steps = progress.steps

    with mock.patch.object(Memory, "query", counted):
        run = learn(problems, settings, "one", callbacks=(count,))
    assert 0 < len(asked) <= steps / COPIES + 2  # at most once a batch
    assert max(asked) <= COPIES
    _, (policy,) = load_policies(run)
    known = remembered(policy)
    assert known
    for prompt, answer in known:  # letters are 4 and up, 2 marks the program, 1 its end
        assert answer.split()[0] == prompt.split()[1]
    assert 0.0 <= max(fugu.evaluate(run, episodes=16).returns) <= 1.0
    assert remembered(policy) == known  # evaluation adds nothing


@pytest.mark.parametrize("settings", [PPO, GRPO], ids=["ppo", "grpo"])
def test_a_resumed_run_goes_on_exactly(problems: str, settings: dict[str, Any]) -> None:
    def stop(trainer: Trainer, progress: Progress) -> None:
        trainer.stopping = progress.updates == 2

    exact = {**settings, "train": {**settings["train"], "deterministic": True}}
    whole = learn(problems, exact, "whole")
    halves = learn(problems, exact, "halves", callbacks=(stop,))
    resume(halves, show=False)
    found = [load_checkpoint(path).tensors["policy_0"]
             for run in (whole, halves) if (path := run.latest()) is not None]  # fmt: skip
    assert found[0].keys() == found[1].keys()
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


@pytest.mark.parametrize(
    ("name", "values"),
    [("recall", (0, 2)), ("recall_length", (1, 3)), ("recall_worth", (1.0, 2.0))],
)
@pytest.mark.parametrize("settings", [PPO, GRPO], ids=["ppo", "grpo"])
def test_what_is_recalled_changes_what_is_learned(
    problems: str, settings: dict[str, Any], name: str, values: tuple[float, float]
) -> None:
    first, second = (
        learn(problems, {**settings, "policy": {**BASE["policy"], name: value}}, f"run{i}")
        for i, value in enumerate(values)
    )
    found = [load_policies(run)[1][0].state_dict() for run in (first, second)]
    assert found[0].keys() != found[1].keys() or any(
        not torch.equal(weight, found[1][key]) for key, weight in found[0].items()
    )


def test_another_run_begins_with_what_was_remembered(problems: str) -> None:
    run = learn(problems, PPO, "one")
    _, (policy,) = load_policies(run)
    first: list[Any] = []

    def look(trainer: Trainer, progress: Progress) -> None:
        first.append(remembered(trainer.policies[0]))

    learn(problems, PPO, "two", init_from="one", callbacks=(look,))
    assert first[0][: len(remembered(policy))] == remembered(policy)


def test_a_memory_of_ones_own(problems: str) -> None:
    memory = Memory(TokenRuns())

    def factory(group: Any, cfg: PolicyConfig, *rest: Any) -> RecallingPolicy:
        return recalling(make_policy, group, replace(cfg, recall=1), *rest, memory=memory)

    policy = {"core": "tokens", "hidden_size": 16}
    learn(problems, {**PPO, "policy": policy}, "own", policy_factory=factory)
    assert len(memory) > 0


def test_what_cannot_recall_is_refused(problems: str) -> None:
    with pytest.raises(UsageError, match="MultiDiscrete"):
        fugu.train("CartPole-v1", keep=False, show=False, policy={"recall": 1})
    with pytest.raises(UsageError, match="mappo"):
        learn(problems, {**PPO, "algo": "mappo"}, "mappo")
    for wrong in ({"recall": -1}, {"recall_length": 0}):
        with pytest.raises(UsageError, match="or more"):
            learn(problems, {**PPO, "policy": wrong}, "wrong")
