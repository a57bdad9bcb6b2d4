"""Rows of chats for services that fine-tune models: the format of OpenPipe, and OpenAI's."""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fugu.core.errors import UsageError
from fugu.core.files import parse_json, read_lines
from fugu.store.schema import parse, plain

Split = Literal["TRAIN", "TEST"]


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class ChatRow:
    """A conversation that ends as it should; with `rejected_message`, how it should not end."""

    messages: tuple[Message, ...]
    split: Split
    metadata: Mapping[str, str]
    rejected_message: Message | None = None

    def check(self, place: str) -> None:
        """UsageError if a service would refuse it."""
        check_conversation(self.messages, f"{place}.messages")
        rejected = self.rejected_message
        if rejected is None:
            return
        if rejected.role != "assistant":
            raise UsageError(
                f"{place}.rejected_message.role: given {rejected.role!r}; allowed: 'assistant'."
            )
        if rejected == self.messages[-1]:
            raise UsageError(
                f"{place}.rejected_message: given the last message itself; allowed: another one."
            )

    def to_openai(self) -> dict[str, Any]:
        """The row without what OpenAI's own format has no place for."""
        if self.rejected_message is None:
            return {"messages": plain(self.messages)}
        return {
            "input": {"messages": plain(self.messages[:-1])},
            "preferred_output": [plain(self.messages[-1])],
            "non_preferred_output": [plain(self.rejected_message)],
        }


@dataclass(frozen=True)
class GroupMember:
    """One of several attempts."""

    messages: tuple[Message, ...]
    reward: float
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupRow:
    """Attempts at the same task, with their rewards."""

    task: str
    split: Split
    trajectories: tuple[GroupMember, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def check(self, place: str) -> None:
        """UsageError if it is no group."""
        if not self.trajectories:
            raise UsageError(f"{place}.trajectories: given none; allowed: one or more.")
        for index, member in enumerate(self.trajectories):
            check_conversation(member.messages, f"{place}.trajectories[{index}].messages")


Row = ChatRow | GroupRow


def check_conversation(messages: tuple[Message, ...], place: str) -> None:
    """UsageError unless it is asked something and ends with the assistant's answer."""
    roles = [message.role for message in messages]
    if len(roles) < 2 or roles[-1] != "assistant" or "user" not in roles:
        raise UsageError(
            f"{place}: given the roles {roles}; allowed: some user, and the assistant at the end."
        )
    if "system" in roles[1:]:
        raise UsageError(f"{place}: given the roles {roles}; allowed: system at the start only.")


def row_from_json(given: Any, place: str) -> Row:
    """A row of any kind, checked."""
    grouped = isinstance(given, Mapping) and "trajectories" in given
    row: Row = parse(GroupRow, given, place) if grouped else parse(ChatRow, given, place)
    row.check(place)
    return row


def read_rows(path: str | Path) -> Iterator[Row]:
    """The rows of a file; UsageError names the line that is none."""
    lines = read_lines(path)
    for number in itertools.count(1):
        place = f"{path} line {number}"
        try:
            line = next(lines, None)
            given = None if line is None else parse_json(line)
        except ValueError as error:
            raise UsageError(f"{place}: it is no JSON: {error}.") from None
        if line is None:
            return
        yield row_from_json(given, place)


def write_lines(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write one JSON object a line, all or nothing; an old file is replaced."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("w", encoding="utf-8", newline="\n") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return path
