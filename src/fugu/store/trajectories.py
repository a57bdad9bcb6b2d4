"""Trajectories of programs: what was asked, what was written, what it earned, a group a line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.core.records import KEY, RecordWriter, read_records
from fugu.store.chat import Message, check_conversation
from fugu.store.schema import parse, plain

FILE = "trajectories.jsonl"  # in a run's folder


@dataclass(frozen=True)
class Trajectory:
    """One attempt at a task."""

    program: str
    """What was written in the end."""
    reward: float
    """What it earned."""
    verdict: str = ""
    """How it was judged, such as passed or timeout."""
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
    """Which task."""
    prompt: str
    """How it was put."""
    trajectories: tuple[Trajectory, ...]
    run: str = ""
    """Which run they are of."""

    def conversation(self, trajectory: Trajectory) -> tuple[Message, ...]:
        """The messages of one of them, made of prompt and program where none were kept."""
        if trajectory.messages:
            return trajectory.messages
        return Message("user", self.prompt), Message("assistant", trajectory.program)


class TrajectoryWriter(Closing):
    """Appends groups to a file; several processes may write to one, and be killed.

    Args:
        path: The file, or a run's folder.
    """

    def __init__(self, path: str | Path) -> None:
        self._writer = RecordWriter(_file(path))

    @property
    def path(self) -> Path:
        """The file."""
        return self._writer.path

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._writer.size

    def cut(self, size: int) -> None:
        """Forget the groups behind so many bytes; for a file that nobody else writes to."""
        self._writer.cut(size)

    def add(self, group: TrajectoryGroup) -> None:
        """Write a group; when it returns, a process that is killed does not lose it."""
        if not group.trajectories:
            raise UsageError("trajectories: given a group of none; allowed: one or more.")
        self._writer.append([plain(group)])

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def read_groups(path: str | Path) -> Iterator[TrajectoryGroup]:
    """The groups of a file, or of a run's folder; lines that were torn are logged and left out."""
    file = _file(path)
    if not file.is_file():
        raise UsageError(f"trajectories: given {str(file)!r}; allowed: a file that exists.")
    for number, record in enumerate(read_records(file), 1):
        record.pop(KEY, None)
        yield parse(TrajectoryGroup, record, f"{file} group {number}")


def _file(path: str | Path) -> Path:
    return Path(path) / FILE if Path(path).is_dir() else Path(path)
