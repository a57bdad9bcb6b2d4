"""Trajectories as rows of chats: winners to imitate, pairs to prefer, groups to compare.

The rows have the format of OpenPipe, or OpenAI's, for services that fine-tune models.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fugu.core.errors import UsageError
from fugu.core.files import parse_json, read_lines
from fugu.core.writing import write_whole
from fugu.store.trajectories import Message, Trajectory, TrajectoryGroup, check_conversation
from fugu.store.values import parse, plain

Split = Literal["TRAIN", "TEST"]
Kind = Literal["sft", "dpo", "groups"]
Dialect = Literal["openpipe", "openai"]
Attempt = tuple[TrajectoryGroup, Trajectory]


@dataclass(frozen=True)
class ChatRow:
    """A conversation that ends as it should; with `rejected_message`, how it should not end."""

    messages: tuple[Message, ...]
    split: Split
    metadata: Mapping[str, str]
    rejected_message: Message | None = None

    def check(self, place: str) -> None:
        """Raise UsageError if a service would refuse it."""
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
        """Return the row in OpenAI's own format, which has no split and no metadata."""
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
        """Raise UsageError if it has no attempts, or a conversation that is none."""
        if not self.trajectories:
            raise UsageError(f"{place}.trajectories: given none; allowed: one or more.")
        for index, member in enumerate(self.trajectories):
            check_conversation(member.messages, f"{place}.trajectories[{index}].messages")


Row = ChatRow | GroupRow


def row_from_json(given: Any, place: str) -> Row:
    """Return a row of any kind, checked."""
    grouped = isinstance(given, Mapping) and "trajectories" in given
    row: Row = parse(GroupRow, given, place) if grouped else parse(ChatRow, given, place)
    row.check(place)
    return row


def read_rows(path: str | Path) -> Iterator[Row]:
    """Yield the rows of a file; UsageError names the line that is none."""
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
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
    write_whole(path, "".join(lines))
    return path


# ------------------------------------------------------------------ exports


@dataclass(frozen=True)
class ExportOptions:
    """Which trajectories become rows."""

    kind: Kind = "sft"
    """sft: winners; dpo: the best and the worst of each group; groups: whole groups."""
    min_reward: float = 1.0
    """The least reward of a winner, and of the better one of a pair."""
    per_task: int = 0
    """Keep only so many winners of a task, the best ones; 0: all."""
    test_share: float = 0.1
    """The share of tasks whose rows are TEST."""
    merge_groups: bool = False
    """Take all attempts at a task for one group, not only those that began together."""
    keep_duplicates: bool = False
    """Keep the same program for the same task more than once."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.test_share <= 1.0:
            raise UsageError(f"test_share: given {self.test_share}; allowed: 0 to 1.")
        if self.per_task < 0:
            raise UsageError(f"per_task: given {self.per_task}; allowed: 0 or more.")


@dataclass
class ExportReport:
    """Counts of an export."""

    groups: int = 0
    trajectories: int = 0
    duplicates: int = 0
    """Left out: the same program for the same task."""
    below: int = 0
    """Left out: the reward was too low, or others of the task were better."""
    without_pair: int = 0
    """Groups without a winner and something worse than it."""
    train: int = 0
    test: int = 0


def export_rows(
    groups: Iterable[TrajectoryGroup], options: ExportOptions
) -> tuple[list[Row], ExportReport]:
    """Return the rows of groups, checked, in the order of the groups, and a report."""
    report = ExportReport()
    kept = _merged(groups) if options.merge_groups else list(groups)
    report.groups = len(kept)
    report.trajectories = sum(len(group.trajectories) for group in kept)
    make_rows = {"sft": _winners, "dpo": _pairs, "groups": _groups}[options.kind]
    rows = make_rows(kept, options, report)
    for number, row in enumerate(rows, 1):
        row.check(f"row {number}")
    report.test = sum(row.split == "TEST" for row in rows)
    report.train = len(rows) - report.test
    return rows, report


def write_rows(path: str | Path, rows: Iterable[Row], dialect: Dialect = "openpipe") -> list[Path]:
    """Write rows as JSON lines; return the files.

    OpenAI's format knows no split: its TEST rows go to a second file, `<name>.test.jsonl`.
    """
    path = Path(path)
    if dialect == "openpipe":
        return [write_lines(path, map(plain, rows))]
    given = list(rows)
    chats = [row for row in given if isinstance(row, ChatRow)]
    if len(chats) < len(given):
        raise UsageError("dialect: given openai for groups; allowed: openpipe, or another kind.")
    parts: dict[Split, Path] = {"TRAIN": path, "TEST": path.with_suffix(f".test{path.suffix}")}
    return [
        write_lines(part, [row.to_openai() for row in chats if row.split == split])
        for split, part in parts.items()
    ]


def split_of(task: str, test_share: float) -> Split:
    """Return the split of a task, which is the same in every export."""
    number = int.from_bytes(hashlib.sha256(task.encode()).digest()[:8], "big")
    return "TEST" if number < test_share * 2.0**64 else "TRAIN"


def program_hash(program: str) -> str:
    """Return a hash of a program without white space at its ends."""
    return hashlib.sha256(program.strip().encode()).hexdigest()


def _winners(
    groups: list[TrajectoryGroup], options: ExportOptions, report: ExportReport
) -> list[Row]:
    winners = _distinct(groups, options, report)
    good = [attempt for attempt in winners if attempt[1].reward >= options.min_reward]
    if options.per_task:
        taken: Counter[str] = Counter()
        chosen = set()
        for place in sorted(range(len(good)), key=lambda place: -good[place][1].reward):
            taken[good[place][0].task] += 1
            if taken[good[place][0].task] <= options.per_task:
                chosen.add(place)
        good = [attempt for place, attempt in enumerate(good) if place in chosen]
    report.below = len(winners) - len(good)
    return [
        ChatRow(
            group.conversation(winner),
            split_of(group.task, options.test_share),
            _facts(group, winner),
        )
        for group, winner in good
    ]


def _pairs(
    groups: list[TrajectoryGroup], options: ExportOptions, report: ExportReport
) -> list[Row]:
    rows: list[Row] = []
    seen: set[tuple[str, str, str]] = set()
    for group in groups:
        pair = _pair(group, options.min_reward)
        if pair is None:
            report.without_pair += 1
            continue
        best, worst = pair
        key = (group.task, program_hash(best.program), program_hash(worst.program))
        if key in seen and not options.keep_duplicates:
            report.duplicates += 1
            continue
        seen.add(key)
        facts = _facts(group, best)
        facts["rejected_reward"] = repr(worst.reward)
        if worst.verdict:
            facts["rejected_verdict"] = worst.verdict
        split = split_of(group.task, options.test_share)
        rejected = group.conversation(worst)[-1]
        rows.append(ChatRow(group.conversation(best), split, facts, rejected))
    return rows


def _pair(group: TrajectoryGroup, min_reward: float) -> tuple[Trajectory, Trajectory] | None:
    """Return the pair of widest gap in reward that differs in its last message only."""
    alike: dict[tuple[Message, ...], list[Trajectory]] = {}
    for trajectory in group.trajectories:
        alike.setdefault(group.conversation(trajectory)[:-1], []).append(trajectory)
    found: tuple[Trajectory, Trajectory] | None = None
    for members in alike.values():
        best = max(members, key=lambda member: member.reward)
        end = group.conversation(best)[-1]  # which may be judged differently another time
        others = [member for member in members if group.conversation(member)[-1] != end]
        if best.reward < min_reward or not others:
            continue
        worst = min(others, key=lambda member: member.reward)
        gap = best.reward - worst.reward
        if gap > (0.0 if found is None else found[0].reward - found[1].reward):
            found = best, worst
    return found


def _groups(
    groups: list[TrajectoryGroup], options: ExportOptions, report: ExportReport
) -> list[Row]:
    rows: list[Row] = []
    for group in groups:
        seen: set[tuple[str, float]] = set()
        members = []
        for trajectory in group.trajectories:
            key = (program_hash(trajectory.program), trajectory.reward)
            if key in seen and not options.keep_duplicates:
                report.duplicates += 1
                continue
            seen.add(key)
            facts = {"verdict": trajectory.verdict} if trajectory.verdict else {}
            members.append(GroupMember(group.conversation(trajectory), trajectory.reward, facts))
        if max(member.reward for member in members) < options.min_reward:
            report.below += len(members)
            continue
        about = {"run": group.run} if group.run else {}
        split = split_of(group.task, options.test_share)
        rows.append(GroupRow(group.task, split, tuple(members), about))
    return rows


def _distinct(
    groups: list[TrajectoryGroup], options: ExportOptions, report: ExportReport
) -> list[Attempt]:
    """Return all attempts; of those with the same program for the same task the best."""
    attempts = [(group, one) for group in groups for one in group.trajectories]
    if options.keep_duplicates:
        return attempts
    best: dict[tuple[str, str], int] = {}
    for place, (group, one) in enumerate(attempts):
        key = (group.task, program_hash(one.program))
        if key not in best or one.reward > attempts[best[key]][1].reward:
            best[key] = place
    report.duplicates = len(attempts) - len(best)
    return [attempts[place] for place in sorted(best.values())]


def _merged(groups: Iterable[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Return one group for each task, prompt and run."""
    found: dict[tuple[str, str, str], list[Trajectory]] = {}
    for group in groups:
        found.setdefault((group.task, group.prompt, group.run), []).extend(group.trajectories)
    return [
        TrajectoryGroup(task, prompt, tuple(members), run)
        for (task, prompt, run), members in found.items()
    ]


def _facts(group: TrajectoryGroup, trajectory: Trajectory) -> dict[str, str]:
    facts = {"task": group.task, "reward": repr(trajectory.reward)}
    if group.run:
        facts["run"] = group.run
    if trajectory.verdict:
        facts["verdict"] = trajectory.verdict
    return facts
