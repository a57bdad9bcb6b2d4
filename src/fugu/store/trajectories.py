"""Trajectories of programs: prompt, program and reward of each attempt, a group a line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fugu.core.errors import UsageError
from fugu.core.records import KEY, RecordWriter, read_records
from fugu.store.values import parse, plain

FILE = "trajectories.jsonl"  # in a run's folder


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


def check_conversation(messages: tuple[Message, ...], place: str) -> None:
    """Raise UsageError unless a user asks something and the assistant answers at the end."""
    roles = [message.role for message in messages]
    if len(roles) < 2 or roles[-1] != "assistant" or "user" not in roles:
        raise UsageError(
            f"{place}: given the roles {roles}; allowed: some user, and the assistant at the end."
        )
    if "system" in roles[1:]:
        raise UsageError(f"{place}: given the roles {roles}; allowed: system at the start only.")


@dataclass(frozen=True)
class Trajectory:
    """One attempt at a task."""

    program: str
    """The program that was written in the end."""
    reward: float
    """Its reward."""
    verdict: str = ""
    """The verdict on it, such as passed or timeout."""
    messages: tuple[Message, ...] = ()
    """The whole conversation; empty: the prompt, and the program for an answer."""
    tokens: tuple[int, ...] | None = None
    """The tokens that the policy chose."""
    log_probabilities: tuple[float, ...] | None = None
    """The logarithm of each token's probability."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise UsageError(f"reward: given {self.reward}; allowed: a finite number.")
        if self.messages:
            check_conversation(self.messages, "messages")
        logs = self.log_probabilities
        if logs is not None and (self.tokens is None or len(logs) != len(self.tokens)):
            tokens = 0 if self.tokens is None else len(self.tokens)
            raise UsageError(
                f"log_probabilities: given {len(logs)} for {tokens} tokens; allowed: one each."
            )


@dataclass(frozen=True)
class TrajectoryGroup:
    """Attempts at the same task that began alike."""

    task: str
    """Name of the task."""
    prompt: str
    """Its wording."""
    trajectories: tuple[Trajectory, ...]
    run: str = ""
    """Name of the run."""

    def conversation(self, trajectory: Trajectory) -> tuple[Message, ...]:
        """Return the messages of one of them, made of prompt and program where none were kept."""
        if trajectory.messages:
            return trajectory.messages
        return Message("user", self.prompt), Message("assistant", trajectory.program)


class TrajectoryWriter(RecordWriter):
    """Appends groups to a file; several processes may write to one, and be killed.

    Args:
        path: The file, or a run's folder.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(_file(path))

    def add(self, group: TrajectoryGroup) -> None:
        """Write a group; when it returns, a process that is killed does not lose it."""
        if not group.trajectories:
            raise UsageError("trajectories: given a group of none; allowed: one or more.")
        self.append([plain(group)])


def read_groups(path: str | Path) -> Iterator[TrajectoryGroup]:
    """Yield the groups of a file or a run's folder; torn lines are logged and left out."""
    file = _file(path)
    if not file.is_file():
        raise UsageError(f"trajectories: given {str(file)!r}; allowed: a file that exists.")
    for number, record in enumerate(read_records(file), 1):
        record.pop(KEY, None)
        yield parse(TrajectoryGroup, record, f"{file} group {number}")


def _file(path: str | Path) -> Path:
    return Path(path) / FILE if Path(path).is_dir() else Path(path)
