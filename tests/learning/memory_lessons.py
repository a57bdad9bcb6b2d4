"""What a memory is good for: problems whose answer nobody can know but from one like them.

A family has a name of five letters and a secret digit; a problem is the name and a digit that means
nothing, and its program must return the secret. Whoever has no memory must learn every family by
heart; whoever has one may copy the program that solved another problem of the family.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lessons import learn

from fugu.envs.coding.env import OWN, WRITE
from fugu.envs.coding.tokenizers import LetterTokenizer
from fugu.policies.policy import Policy
from fugu.policies.recalling import RecallingPolicy
from fugu.sandbox import installed
from fugu.training.evaluate import play
from fugu.training.trainer import Progress, Trainer
from fugu.vector import make

NAMES, DIGITS, NAME_LENGTH = "abcdefghijkl", "0123456789", 5
EACH = 3  # problems of a family
FAMILIES, NEW_FAMILIES = 300, 100
SEED = 7  # of the problems
EPISODES = 512  # of a judgement
SETTINGS: dict[str, Any] = {
    "vec": {"num_envs": 256, "backend": "serial"},
    "train": {"horizon": 4, "epochs": 3, "minibatches": 2, "learning_rate": 0.003,
              "entropy_coefficient": 0.02},
    "policy": {"core": "tokens", "hidden_size": 64, "recall_length": 2},
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Problems with one answer."""

    name: str
    secret: int
    digits: tuple[int, ...]

    def problems(self) -> list[dict[str, Any]]:
        """As lines of a file."""
        return [
            {
                "name": f"{self.name}/{digit}",
                "prompt": f"{self.name}{digit}",
                "entry": "f",
                "header": "def f():\n    return ",
                "solution": str(self.secret),
                "tests": [{"args": [], "expected": self.secret}],
            }
            for digit in self.digits
        ]


def make_families() -> tuple[list[Family], list[Family]]:
    """Those to learn on, and others."""
    chance = random.Random(SEED)
    names: dict[str, None] = {}
    while len(names) < FAMILIES + NEW_FAMILIES:
        names["".join(chance.choices(NAMES, k=NAME_LENGTH))] = None
    found = [
        Family(name, chance.randrange(10), tuple(chance.sample(range(10), EACH))) for name in names
    ]
    return found[:FAMILIES], found[FAMILIES:]


def write(path: Path, families: list[Family]) -> str:
    """Write problems to a file; the environment's name."""
    lines = [json.dumps(problem) for family in families for problem in family.problems()]
    path.write_text("\n".join(lines))
    return f"coding:{path}"


def env_kwargs(split: str) -> dict[str, Any]:
    """Of the environment; Monty is the quickest here, and the verdicts are the same."""
    return {
        "split": split,
        "tokenizer": f"letters:{DIGITS}{NAMES}",
        "prompt_length": NAME_LENGTH + 1,
        "program_length": 1,
        "executor": "monty" if "monty" in installed() else "zygote",
    }


@dataclass(frozen=True)
class Outcome:
    """What came of a training.

    Attributes:
        recall: Answers that were shown; 0: without a memory.
        seed: Of the training.
        steps: Along the curve.
        solved: Of the problems that were trained on, along the curve.
        held_out: Share of solved problems that were held out, of families that were not.
        new_families: Share of solved problems of families that nobody has trained on; a memory is
            given one solved problem of each.
    """

    recall: int
    seed: int
    steps: list[int]
    solved: list[float]
    held_out: float
    new_families: float


def study(
    folder: Path,
    recall: int,
    seed: int,
    steps: int,
    tell: Callable[[int, float], None] = lambda steps, solved: None,
) -> Outcome:
    """Train with or without a memory, and judge."""
    families, others = make_families()
    env, new = write(folder / "known.jsonl", families), write(folder / "new.jsonl", others)
    curve: list[tuple[int, float]] = []

    def watch(trainer: Trainer, progress: Progress) -> None:
        if progress.episodes:
            curve.append((progress.steps, progress.episodes["solved"]))
            tell(*curve[-1])

    policy = {**SETTINGS["policy"], "recall": recall}
    settings = {**SETTINGS, "policy": policy, "env_kwargs": env_kwargs("train")}
    policies = learn(env, steps, settings, seed, (watch,)).policies
    held_out = solved_share(policies, env, "held_out", seed)
    for family in others:
        teach(policies, family)
    unseen = solved_share(policies, new, "all", seed)
    solved = [share for _, share in curve]
    return Outcome(recall, seed, [steps for steps, _ in curve], solved, held_out, unseen)


def solved_share(policies: list[Policy], env: str, split: str, seed: int) -> float:
    """Of a greedy policy."""
    with make(env, 64, backend="serial", env_kwargs=env_kwargs(split)) as vec:
        return float(np.mean(play(policies, vec, EPISODES, seed=seed).returns))


def teach(policies: list[Policy], family: Family) -> None:
    """Let a policy that recalls know the answer to a problem that is not among the family's."""
    (policy,) = policies
    if isinstance(policy, RecallingPolicy):
        letters = LetterTokenizer(DIGITS + NAMES)
        other = next(digit for digit in range(10) if digit not in family.digits)
        prompt = [OWN + token for token in letters.encode(f"{family.name}{other}")]
        answer = [OWN + token for token in letters.encode(str(family.secret))]
        policy.recall.add([[*prompt, WRITE]], [answer])
