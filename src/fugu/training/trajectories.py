"""Programs that are written in training, kept as trajectories beside the run's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fugu.core.errors import UsageError
from fugu.store.trajectories import Message, Trajectory, TrajectoryGroup, TrajectoryWriter
from fugu.store.values import parse, plain

TOLD = ("task", "prompt", "program")  # by the info of an episode that wrote one
VERDICT = "verdict/"
MOST_OPEN = 8  # groups of a team that wait for members; beyond, the oldest is written as it is


@dataclass
class _Open:
    """A group that some copies of its team have not come to the end of."""

    task: str
    prompt: str
    members: dict[int, Trajectory] = field(default_factory=dict)  # by copy


class TrajectoryRecorder:
    """Writes the programs of ended episodes; attempts of a team at the same prompt are one group.

    Copies may come in any order, each with its own episodes in theirs. It is told what the learner
    receives, so that one process writes whatever steps the environments.

    Args:
        folder: The run's.
        run: Its name.
        team_size: Copies that begin each episode alike.
    """

    def __init__(self, folder: Path, run: str, team_size: int) -> None:
        self._writer = TrajectoryWriter(folder)
        self._run, self._team_size = run, team_size
        self._open: dict[int, list[_Open]] = {}  # by team, oldest first

    def __call__(self, copy: int, info: Mapping[str, Any]) -> None:
        """An episode of a copy has ended."""
        missing = [name for name in TOLD if name not in info]
        if missing:
            raise UsageError(
                f"run.trajectories: given an environment whose episodes do not tell {missing}; "
                "allowed: coding:humaneval and the like, or one whose last info has "
                f"{', '.join(TOLD)}."
            )
        team = copy // self._team_size
        group = self._group(team, copy, str(info["task"]), str(info["prompt"]))
        group.members[copy] = _trajectory(info)
        opened = self._open[team]
        if len(group.members) == self._team_size:
            opened.remove(group)
            self._write(group)
        elif len(opened) > MOST_OPEN:
            self._write(opened.pop(0))

    def _group(self, team: int, copy: int, task: str, prompt: str) -> _Open:
        """The oldest that lacks this copy's attempt, or a new one."""
        opened = self._open.setdefault(team, [])
        for group in opened:
            if (group.task, group.prompt) == (task, prompt) and copy not in group.members:
                return group
        opened.append(_Open(task, prompt))
        return opened[-1]

    def _write(self, group: _Open) -> None:
        members = tuple(group.members[copy] for copy in sorted(group.members))
        self._writer.add(TrajectoryGroup(group.task, group.prompt, members, self._run))

    # ------------------------------------------------------------------ checkpoints

    def state(self) -> dict[str, Any]:
        """How far the file is, and the groups that wait, as JSON has them."""
        groups = []
        for team, opened in self._open.items():
            for group in opened:
                members = tuple(group.members.values())
                whole = plain(TrajectoryGroup(group.task, group.prompt, members))
                groups.append({"team": team, "copies": list(group.members), "group": whole})
        return {"bytes": self._writer.size, "open": groups}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state()`: what was written after it comes once more."""
        self._writer.cut(int(state["bytes"]))
        self._open = {}
        for entry in state["open"]:
            group = parse(TrajectoryGroup, entry["group"], "the checkpoint's trajectories")
            members = dict(zip(entry["copies"], group.trajectories, strict=True))
            opened = self._open.setdefault(int(entry["team"]), [])
            opened.append(_Open(group.task, group.prompt, members))

    def close(self) -> None:
        """Write what waits, and let go of the file."""
        for opened in self._open.values():
            for group in opened:
                self._write(group)
        self._open = {}
        self._writer.close()


def _trajectory(info: Mapping[str, Any]) -> Trajectory:
    verdicts = [
        name.removeprefix(VERDICT) for name in info if name.startswith(VERDICT) and info[name]
    ]
    return Trajectory(
        str(info["program"]),
        float(info["episode_return"]),
        verdicts[0] if verdicts else "",
        tuple(Message(role, text) for role, text in info.get("messages", ())),
    )
