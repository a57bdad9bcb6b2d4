"""A process killed with -9 while it saves leaves the old checkpoint or the new, none broken."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from fugu.store import CheckpointError, Run, load_checkpoint, verify_checkpoint

# A process that imports torch once and forks, for each line with a delay, a child that saves
# without end; it kills the child that long after its first save.
PROGRAM = """
import os, signal, sys, time
import numpy as np
import safetensors.torch
from fugu.store import Run, save_checkpoint

def save_for_ever(run, told):
    value = 0
    while True:
        value += 1
        tensors = {name: {"x": np.full(50_000, value)} for name in ("policy", "optimizer", "rows")}
        save_checkpoint(run.folder / "one", tensors=tensors, state={"value": value})
        run.save(value, tensors=tensors, state={}, score=value)
        run.prune(keep=2)
        os.write(told, b".")

for line in sys.stdin:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        save_for_ever(Run(sys.argv[1]), writer)
    os.read(reader, 1)
    time.sleep(float(line))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    print("killed", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_points(tmp_path: Path) -> None:
    """One process after another goes on in the same folder, as a resumed run does."""
    run = Run.create(tmp_path, name="run")
    chance = random.Random(5)
    middles = 0
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(run.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(20):
            process.stdin.write(f"{chance.random() * 0.06}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "killed\n"
            middles += check(run)
        process.stdin.close()
    run.prune(keep=1)
    assert not [path for path in run.checkpoints_folder.iterdir() if path.name.startswith(".")]
    assert middles, "no kill hit the middle of a save: the test proves nothing"


def check(run: Run) -> int:
    """Everything that has a final name is whole; how many saves were cut short."""
    found = load_checkpoint(run.folder / "one")
    value = found.state["value"]
    assert len(found.tensors) == 3
    assert all((group["x"] == value).all() for group in found.tensors.values())
    paths = run.checkpoints()
    for path in paths:
        verify_checkpoint(path)
    assert run.latest() == paths[-1]
    return len([*run.folder.glob(".one.*"), *run.checkpoints_folder.glob(".step_*")])


def test_the_check_can_fail(tmp_path: Path) -> None:
    """A negative control: a folder that was written half under its final name is refused."""
    run = Run.create(tmp_path, name="run")
    run.save(1, tensors={}, state={})
    (run.checkpoint_path(1) / "checksums.json").unlink()
    with pytest.raises(CheckpointError):
        verify_checkpoint(run.checkpoint_path(1))
