"""Trajectories are kept whole, and become rows that services take."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.core.errors import UsageError
from fugu.store.chat_export import (
    ChatRow,
    ExportOptions,
    GroupRow,
    export_rows,
    program_hash,
    read_rows,
    row_from_json,
    split_of,
    write_rows,
)
from fugu.store.trajectories import (
    FILE,
    Message,
    Trajectory,
    TrajectoryGroup,
    TrajectoryWriter,
    read_groups,
)
from fugu.store.values import plain

REWARDS = st.sampled_from([0.0, 0.25, 0.5, 1.0])
TURNS = st.lists(st.sampled_from(["try again", "nearly"]), max_size=2).map(
    lambda said: [m for word in said for m in (Message("assistant", "?"), Message("user", word))]
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    program = draw(st.sampled_from(["a = 1", "a = 1\n", "b = 2", "c", ""]))
    messages: tuple[Message, ...] = ()
    if draw(st.booleans()):
        turns = draw(TURNS)
        messages = (Message("user", "do it"), *turns, Message("assistant", program))
    tokens = draw(st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple))
    logs = tuple(-0.5 for _ in tokens) if tokens and draw(st.booleans()) else None
    return Trajectory(
        program, draw(REWARDS), draw(st.sampled_from(["", "wrong"])), messages, tokens, logs
    )


GROUPS = st.lists(
    st.builds(
        TrajectoryGroup,
        st.sampled_from([f"task{number}" for number in range(6)]),
        st.just("do it"),
        st.lists(trajectories(), min_size=1, max_size=5).map(tuple),
        st.sampled_from(["", "run-1"]),
    ),
    max_size=6,
)


def group(*rewards: float, task: str = "t", run: str = "r", **more: Any) -> TrajectoryGroup:
    """A group of programs p0, p1, ... of these rewards."""
    members = [
        Trajectory(f"p{place}", reward, "passed" if reward >= 1 else "wrong", **more)
        for place, reward in enumerate(rewards)
    ]
    return TrajectoryGroup(task, "write p", tuple(members), run)


# ------------------------------------------------------------------ keeping them


@given(GROUPS)
def test_groups_come_back(groups: list[TrajectoryGroup]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        with TrajectoryWriter(folder) as writer:
            for one in groups:
                writer.add(one)
        assert writer.path == Path(folder) / FILE
        assert list(read_groups(folder)) == groups
        assert list(read_groups(writer.path)) == groups


def test_a_torn_end_costs_one_group(tmp_path: Path) -> None:
    with TrajectoryWriter(tmp_path) as writer:
        writer.add(group(1.0))
        writer.add(group(0.5))
    whole = writer.path.read_bytes()
    for size in range(len(whole) - 60, len(whole) - 1):
        writer.path.write_bytes(whole[:size])
        assert list(read_groups(tmp_path)) == [group(1.0)]
    with TrajectoryWriter(tmp_path) as writer:
        writer.add(group(0.25))
    assert list(read_groups(tmp_path)) == [group(1.0), group(0.25)]


def test_what_cannot_be_kept(tmp_path: Path) -> None:
    writer = TrajectoryWriter(tmp_path)
    with pytest.raises(UsageError, match="a group of none"):
        writer.add(TrajectoryGroup("t", "p", ()))
    writer.close()
    with pytest.raises(UsageError, match="reward: given nan"):
        Trajectory("p", math.nan)
    with pytest.raises(UsageError, match="given 1 for 2 tokens"):
        Trajectory("p", 1.0, tokens=(1, 2), log_probabilities=(0.0,))
    with pytest.raises(UsageError, match="given 1 for 0 tokens"):
        Trajectory("p", 1.0, log_probabilities=(0.0,))
    with pytest.raises(UsageError, match="the assistant at the end"):
        Trajectory("p", 1.0, messages=(Message("user", "x"),))
    with pytest.raises(UsageError, match="a file that exists"):
        list(read_groups(tmp_path / "nothing"))
    writer.path.write_text('{"task": "t", "prompt": "p", "trajectories": [{"program": "x"}]}\n')
    with pytest.raises(
        UsageError, match=r"group 1\.trajectories\[0\]: the key 'reward' is missing"
    ):
        list(read_groups(tmp_path))


# ------------------------------------------------------------------ exporting them


@given(
    GROUPS,
    st.sampled_from(["sft", "dpo", "groups"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
    REWARDS,
)
def test_every_row_is_a_row(
    groups: list[TrajectoryGroup],
    kind: Any,
    merge: bool,
    keep: bool,
    per_task: int,
    least: float,
) -> None:
    import tempfile

    options = ExportOptions(kind, least, per_task, 0.5, merge, keep)
    rows, report = export_rows(groups, options)
    with tempfile.TemporaryDirectory() as folder:
        (path,) = write_rows(Path(folder) / "rows.jsonl", rows)
        assert list(read_rows(path)) == rows
    assert report.train + report.test == len(rows)
    assert report.trajectories == sum(len(one.trajectories) for one in groups)
    for row in rows:
        if isinstance(row, GroupRow):
            assert max(member.reward for member in row.trajectories) >= least
            task = row.task
        else:
            task = row.metadata["task"]
            assert float(row.metadata["reward"]) >= least
            if kind == "dpo":
                assert float(row.metadata["rejected_reward"]) < float(row.metadata["reward"])
        assert row.split == split_of(task, 0.5)
    if kind == "sft" and not keep:
        chats = [(row.metadata["task"], program_hash(row.messages[-1].content)) for row in rows]  # type: ignore[union-attr]
        assert len(set(chats)) == len(chats)
        if not per_task:
            wanted = {
                (one.task, program_hash(member.program))
                for one in groups
                for member in one.trajectories
                if member.reward >= least
            }
            assert set(chats) == wanted


def test_winners() -> None:
    rows, report = export_rows(
        [group(0.0, 1.0), group(1.0, 2.0, task="u", run="")], ExportOptions()
    )
    assert [plain(row) for row in rows] == [
        {
            "messages": [
                {"role": "user", "content": "write p"},
                {"role": "assistant", "content": program},
            ],
            "split": split_of(task, 0.1),
            "metadata": {"task": task, "reward": reward, **run, "verdict": "passed"},
        }
        for task, program, reward, run in [
            ("t", "p1", "1.0", {"run": "r"}),
            ("u", "p0", "1.0", {}),
            ("u", "p1", "2.0", {}),
        ]
    ]
    assert (report.groups, report.trajectories, report.below) == (2, 4, 1)


def test_the_best_of_a_task() -> None:
    groups = [group(1.0, 3.0, 2.0), group(0.5, 2.0, task="u"), group(4.0)]
    rows, report = export_rows(groups, ExportOptions(per_task=2, keep_duplicates=True))
    rewards = [(row.metadata["task"], row.metadata["reward"]) for row in rows]  # type: ignore[union-attr]
    assert rewards == [("t", "3.0"), ("u", "2.0"), ("t", "4.0")]
    assert report.below == 3


def test_of_equal_programs_the_best_is_kept() -> None:
    one, other = Trajectory("p ", 1.0), Trajectory("p", 2.0)
    groups = [TrajectoryGroup(task, "x", (one, other, one)) for task in "tu"]
    rows, report = export_rows(groups, ExportOptions())
    assert [row.metadata["reward"] for row in rows] == ["2.0", "2.0"]  # type: ignore[union-attr]
    assert report.duplicates == 4


def test_pairs() -> None:
    groups = [
        group(0.5, 1.0, 0.0, 1.0),
        group(0.5, 1.0, 0.0),  # the same pair
        group(1.0, 1.0),  # nothing to prefer
        group(0.5, 0.0),  # no winner
    ]
    rows, report = export_rows(groups, ExportOptions("dpo"))
    (row,) = rows
    assert isinstance(row, ChatRow)
    assert row.messages[-1] == Message("assistant", "p1")
    assert row.rejected_message == Message("assistant", "p2")
    assert row.metadata == {
        "task": "t",
        "reward": "1.0",
        "run": "r",
        "verdict": "passed",
        "rejected_reward": "0.0",
        "rejected_verdict": "wrong",
    }
    assert (report.duplicates, report.without_pair) == (1, 2)


def test_only_ends_of_the_same_conversation_are_a_pair() -> None:
    def said(*contents: str) -> tuple[Message, ...]:
        roles = ("user", "assistant", "user", "assistant")
        return tuple(Message(role, text) for role, text in zip(roles, contents, strict=False))  # type: ignore[arg-type]

    members = (
        Trajectory("good", 1.0, messages=said("x", "good")),
        Trajectory("late", 0.9, messages=said("x", "bad", "no", "late")),
        Trajectory("never", 0.0, messages=said("x", "bad", "no", "never")),
        Trajectory("so-so", 0.5, messages=said("x", "so-so")),
    )
    whole = TrajectoryGroup("t", "x", members)
    (row,), _ = export_rows([whole], ExportOptions("dpo", min_reward=0.8))
    assert isinstance(row, ChatRow)
    assert [message.content for message in row.messages] == ["x", "bad", "no", "late"]
    assert row.rejected_message == Message("assistant", "never")
    (row,), _ = export_rows([whole], ExportOptions("dpo"))
    assert isinstance(row, ChatRow)
    assert [message.content for message in row.messages] == ["x", "good"]


def test_a_program_is_not_preferred_to_itself() -> None:
    luck = Trajectory("p", 1.0), Trajectory("p", 0.0)
    rows, report = export_rows([TrajectoryGroup("t", "x", luck)], ExportOptions("dpo"))
    assert (rows, report.without_pair) == ([], 1)
    members = (*luck, Trajectory("q", 0.5))
    (row,), _ = export_rows([TrajectoryGroup("t", "x", members)], ExportOptions("dpo"))
    assert isinstance(row, ChatRow)
    assert row.rejected_message == Message("assistant", "q")


def test_groups_are_merged() -> None:
    groups = [group(1.0), group(0.0), group(1.0, run="other")]
    assert export_rows(groups, ExportOptions("dpo"))[0] == []
    changed = [
        TrajectoryGroup("t", "write p", (Trajectory("q", 0.0),), "r"),
        *groups,
    ]
    rows, report = export_rows(changed, ExportOptions("dpo", merge_groups=True))
    assert (len(rows), report.groups) == (1, 2)


def test_whole_groups() -> None:
    rows, _ = export_rows([group(1.0, 0.0), group(0.0)], ExportOptions("groups"))
    (row,) = rows
    assert isinstance(row, GroupRow)
    assert [member.reward for member in row.trajectories] == [1.0, 0.0]
    assert row.metadata == {"run": "r"}


def test_a_task_is_on_one_side_always() -> None:
    tasks = [f"task{number}" for number in range(2000)]
    share = sum(split_of(task, 0.1) == "TEST" for task in tasks) / len(tasks)
    assert 0.07 < share < 0.13
    smaller = {task for task in tasks if split_of(task, 0.05) == "TEST"}
    assert smaller <= {task for task in tasks if split_of(task, 0.1) == "TEST"}
    assert {split_of(task, 0.0) for task in tasks} == {"TRAIN"}
    assert {split_of(task, 1.0) for task in tasks} == {"TEST"}


def test_the_bare_format_of_openai(tmp_path: Path) -> None:
    groups = [group(1.0, 0.0, task=f"task{number}") for number in range(40)]
    for kind, keys in [
        ("sft", {"messages"}),
        ("dpo", {"input", "preferred_output", "non_preferred_output"}),
    ]:
        rows, report = export_rows(groups, ExportOptions(kind, test_share=0.3))  # type: ignore[arg-type]
        train, test = write_rows(tmp_path / f"{kind}.jsonl", rows, "openai")
        assert test.name == f"{kind}.test.jsonl"
        lines = [[json.loads(line) for line in part.open()] for part in (train, test)]
        assert [len(part) for part in lines] == [report.train, report.test]
        assert min(report.train, report.test) > 0
        assert all(line.keys() == keys for part in lines for line in part)
    assert lines[0][0]["input"]["messages"] == [{"role": "user", "content": "write p"}]
    assert lines[0][0]["preferred_output"] == [{"role": "assistant", "content": "p0"}]
    with pytest.raises(UsageError, match="given openai for groups"):
        write_rows(tmp_path / "x", export_rows(groups, ExportOptions("groups"))[0], "openai")


USER, ANSWER = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, r"row\.messages: given the roles \[\]"),
        ({"messages": [USER]}, "the assistant at the end"),
        ({"messages": [ANSWER, ANSWER]}, "some user"),
        ({"messages": [USER, {"role": "system", "content": ""}, ANSWER]}, "at the start only"),
        ({"messages": [{"role": "robot", "content": "x"}]}, r"messages\[0\]\.role: given 'robot'"),
        ({"messages": [{"role": "user"}, ANSWER]}, r"messages\[0\]: the key 'content' is missing"),
        ({"messages": [{**USER, "content": None}, ANSWER]}, "content: given None; allowed: text"),
        ({"split": "VALIDATE"}, "row.split: given 'VALIDATE'; allowed: 'TRAIN', 'TEST'"),
        ({"metadata": {"reward": 1.0}}, r"metadata\.reward: given 1\.0; allowed: text"),
        ({"rejected_message": ANSWER}, "given the last message itself"),
        ({"rejected_message": USER}, "role: given 'user'; allowed: 'assistant'"),
        ({"reward": 1}, "given the key 'reward'"),
        ({"trajectories": []}, "given the key 'messages'"),
    ],
)
def test_rows_that_are_refused(change: dict[str, Any], message: str) -> None:
    row = {"messages": [USER, ANSWER], "split": "TRAIN", "metadata": {}}
    row_from_json(row, "row")
    with pytest.raises(UsageError, match=message):
        row_from_json({**row, **change}, "row")


def test_a_file_of_rows_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"task": "t", "split": "TRAIN", "trajectories": []}\n')
    with pytest.raises(UsageError, match=r"line 1\.trajectories: given none"):
        list(read_rows(path))
    path.write_text("{\n")
    with pytest.raises(UsageError, match="line 1: it is no JSON"):
        list(read_rows(path))


def test_options_that_are_refused() -> None:
    with pytest.raises(UsageError, match="test_share: given 2"):
        ExportOptions(test_share=2)
    with pytest.raises(UsageError, match="per_task: given -1"):
        ExportOptions(per_task=-1)
