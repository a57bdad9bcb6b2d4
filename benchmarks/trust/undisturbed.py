"""A run that nobody disturbs: all others must equal it, but for what clocks say."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

from commands import BrokenError, succeed

from fugu.store.checkpoint import CheckpointError, replaced, verify_checkpoint
from fugu.store.run import Run
from fugu.track.sinks import parse_metrics


class Undisturbed:
    """A run with all its checkpoints.

    Args:
        args: Of `fugu train`, with a folder of runs.
        root: That folder.

    Attributes:
        run: Its folder.
        seconds: That it took.
    """

    def __init__(self, args: list[str], root: Path) -> None:
        began = time.monotonic()
        succeed([*args, "--run.name", "whole", "--run.keep", "1000"], root / "log")
        self.seconds = time.monotonic() - began
        self.run = Run(root / "whole")
        self._folders = {path.name: _files(path) for path in self.run.checkpoints()}
        self._lines = [_told(line) for line in self.run.metrics_path.read_bytes().splitlines()]
        if len(self._folders) != len(self._lines):
            raise BrokenError(f"{len(self._folders)} checkpoints of {len(self._lines)} updates")
        self._check_itself(root / "control")

    def _check_itself(self, folder: Path) -> None:
        """A negative control: one other byte, or a line that is missing, must be noticed."""
        for damage in (_change_byte, _drop_line):
            shutil.copytree(self.run.folder, folder)
            damage(Run(folder))
            try:
                self.check_finished(Run(folder))
            except (BrokenError, CheckpointError):
                shutil.rmtree(folder)
            else:
                raise BrokenError(f"what {damage.__name__} does goes unnoticed")

    def check(self, run: Run) -> int:
        """Raise unless all that a run has so far is as here; how many checkpoints that are."""
        paths = run.checkpoints()
        for path in paths:
            verify_checkpoint(path)
            if _files(path) != self._folders.get(path.name):
                raise BrokenError(f"{path} is not that of an undisturbed run")
        if paths and run.latest() != paths[-1]:
            raise BrokenError(f"the newest is {paths[-1]}, not {run.latest()}")
        content = run.metrics_path.read_bytes() if run.metrics_path.exists() else b""
        whole = [_told(line) for line in content.split(b"\n")[:-1]]
        if whole != self._lines[: len(whole)]:
            raise BrokenError(f"{run.metrics_path} has gaps, repeats or other numbers")
        if paths and step_of(paths[-1]) not in [line["step"] for line in whole]:
            raise BrokenError(f"{run.metrics_path} ends before {paths[-1]}")
        return len(paths)

    def check_finished(self, run: Run) -> int:
        """As `check`, of a run that went to its end; no half of anything may be left."""
        count = self.check(run)
        newest, lines = run.latest(), run.metrics_path.read_bytes().splitlines()
        if run.status != "finished" or len(lines) != len(self._lines):
            raise BrokenError(f"{run}: {run.status}, {len(lines)} of {len(self._lines)} updates")
        if newest is None or newest.name != max(self._folders):
            raise BrokenError(f"{run} ends with {newest}")
        if left := halves(run):
            raise BrokenError(f"{run}: left behind: {', '.join(sorted(left))}")
        return count


def _change_byte(run: Run) -> None:
    path = run.checkpoints()[-1] / "policy_0.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _drop_line(run: Run) -> None:
    lines = run.metrics_path.read_bytes().splitlines(keepends=True)
    run.metrics_path.write_bytes(b"".join(lines[:3] + lines[4:]))


def saved_lines(run: Run) -> bytes:
    """The lines of metrics up to the newest checkpoint: whoever goes on from it keeps them."""
    newest = run.latest()
    if newest is None:
        return b""
    kept = b""
    for line in run.metrics_path.read_bytes().splitlines(keepends=True):
        kept += line
        if _told(line)["step"] == step_of(newest):
            return kept
    raise BrokenError(f"{run.metrics_path} ends before {newest}")


def halves(run: Run) -> set[str]:
    """Names of what is under way in a run's folder, or was when it was killed."""
    found = {path.name for path in run.folder.parent.glob(f".{run.folder.name}.*")}
    for folder in (run.folder, run.checkpoints_folder):
        with contextlib.suppress(FileNotFoundError):
            found |= {name for name in os.listdir(folder) if name.startswith(".")}
    return found


def describe(run: Run, names: set[str]) -> set[str]:
    """What these halves are of."""
    newest, found = run.latest(), set()
    for name in names:
        if name.startswith(".step_"):
            step = int(name.split(".")[1].removeprefix("step_"))
            gone = newest is not None and step <= step_of(newest)
            found.add("deleting a checkpoint" if gone else "writing a checkpoint")
        elif name.startswith(f".{run.folder.name}."):
            found.add("making the run's folder")
        else:
            found.add("writing a small file")
    with contextlib.suppress(FileNotFoundError):
        if not (run.metrics_path.read_bytes() or b"\n").endswith(b"\n"):
            found.add("writing a line of metrics")
    return found


def step_of(checkpoint: Path) -> int:
    """The step of a checkpoint's folder."""
    return int(checkpoint.name.removeprefix("step_"))


def _files(checkpoint: Path) -> dict[str, bytes]:
    place = checkpoint if checkpoint.is_dir() else replaced(checkpoint)
    return {path.name: path.read_bytes() for path in place.iterdir()}


def _told(line: bytes) -> dict[str, Any]:
    """A line of metrics without what clocks say."""
    entry = parse_metrics(line)
    if entry is None:
        raise BrokenError(f"a broken line of metrics: {line!r}")
    return {name: value for name, value in entry.items() if "second" not in name}
