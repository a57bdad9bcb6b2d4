"""Write the programs of training episodes as trajectories beside the run's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fugu.core.errors import UsageError
from fugu.store.trajectories import Message, Trajectory, TrajectoryGroup, TrajectoryWriter
from fugu.store.values import parse, plain

INFO_KEYS = ("task", "prompt", "program")  # in the last info of an episode
VERDICT = "verdict/"
MOST_OPEN = 8  # incomplete groups of a set of copies; beyond, the oldest is written as it is


@dataclass
class _Open:
    """A group whose episode has not ended in some copies."""

    task: str
    prompt: str
    members: dict[int, Trajectory] = field(default_factory=dict)  # by copy


class TrajectoryRecorder:
    """Writes the programs of ended episodes; attempts of copies at one prompt are one group.

    Copies may come in any order, each with its own episodes in theirs. It is called with what the
    learner receives, so that one process writes, whatever steps the environments.

    Copies of a team begin each episode alike.
    """

    def __init__(self, folder: Path, run: str, team_size: int) -> None:
        self._writer = TrajectoryWriter(folder)
        self._run, self._team_size = run, team_size
        self._open: dict[int, list[_Open]] = {}  # by team, oldest first

    def __call__(self, copy: int, info: Mapping[str, Any]) -> None:
        """Add an ended episode of a copy."""
        missing = [name for name in INFO_KEYS if name not in info]
        if missing:
            raise UsageError(
                f"run.trajectories: given an environment whose episodes do not tell {missing}; "
                "allowed: coding:humaneval and the like, or one whose last info has "
                f"{', '.join(INFO_KEYS)}."
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
        """Return the oldest group that lacks this copy's attempt, or a new one."""
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
        """Return the size of the file, and the groups that wait, for JSON."""
        groups = []
        for team, opened in self._open.items():
            for group in opened:
                members = tuple(group.members.values())
                whole = plain(TrajectoryGroup(group.task, group.prompt, members))
                groups.append({"team": team, "copies": list(group.members), "group": whole})
        return {"bytes": self._writer.size, "open": groups}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state()`; what was written after it will be written again."""
        self._writer.cut(int(state["bytes"]))
        self._open = {}
        for entry in state["open"]:
            group = parse(TrajectoryGroup, entry["group"], "the checkpoint's trajectories")
            members = dict(zip(entry["copies"], group.trajectories, strict=True))
            opened = self._open.setdefault(int(entry["team"]), [])
            opened.append(_Open(group.task, group.prompt, members))

    def close(self) -> None:
        """Write the groups that wait, and close the file."""
        for opened in self._open.values():
            for group in opened:
                self._write(group)
        self._open = {}
        self._writer.close()


def _trajectory(info: Mapping[str, Any]) -> Trajectory:
    verdicts = [name for name in info if name.startswith(VERDICT) and info[name]]
    return Trajectory(
        str(info["program"]),
        float(info["episode_return"]),
        verdicts[0].removeprefix(VERDICT) if verdicts else "",
        tuple(Message(role, text) for role, text in info.get("messages", ())),
    )
