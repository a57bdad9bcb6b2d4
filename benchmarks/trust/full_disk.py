"""Disks that fill up under whoever writes: it must say so, and lose nothing.

Each case writes something on a small tmpfs, leaves so many bytes of room, and lets the writer write
more. That must end with fugu's own error; what was there must be as it was; with room again, the
same must work, and a training must end as if nothing had been.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commands import BrokenError, Started, run, succeed
from rich.console import Console
from undisturbed import Undisturbed, halves, saved_lines

from fugu.core.errors import DiskFullError
from fugu.data.offline import Dataset
from fugu.league.ledger import Ledger
from fugu.store.run import Run
from fugu.sweep.storage import load_study, open_storage

SAID = "the disk is full"
PAGE = 4096
BALLAST = "ballast"


@dataclass
class Outcome:
    """What came of filling a disk under one writer.

    Attributes:
        writer: Who wrote.
        tries: How often, each with another amount of room.
        said: The last error.
        fault: What was wrong; empty if nothing was.
    """

    writer: str
    tries: int = 0
    said: str = ""
    fault: str = ""

    @property
    def row(self) -> str:
        """As a line of a table."""
        verdict = "yes | yes | yes"
        if self.fault:
            verdict = f"**no**: {self.fault.splitlines()[0]} | |"
        return f"| {self.writer} | {self.tries} | {verdict} |"


@dataclass
class Disk:
    """A tmpfs of four megabytes, and what else a case needs.

    Attributes:
        place: Where it is.
        log: The file, elsewhere, for what commands print.
        args: Of `fugu train`, but for the folder of runs.
        whole: The undisturbed run of these, elsewhere.
    """

    place: Path
    log: Path
    args: list[str]
    whole: Undisturbed
    tries: int = field(default=0)
    said: str = ""

    def fill(self, room: int) -> None:
        """Leave so many bytes of room."""
        self.free()
        facts = os.statvfs(self.place)
        size = facts.f_bavail * facts.f_frsize - room
        with (self.place / BALLAST).open("wb") as file:
            if size > 0:
                os.posix_fallocate(file.fileno(), 0, size)
        self.tries += 1

    def free(self) -> None:
        """Make room again."""
        (self.place / BALLAST).unlink(missing_ok=True)

    def fails(self, args: list[str]) -> str:
        """What a command says that cannot write; it must be our own error."""
        return self.expect(*run(args, self.log))

    def expect(self, status: int, text: str) -> str:
        """Check how a command ended."""
        if status != 1 or SAID not in text or "Traceback" in text:
            raise BrokenError(f"status {status}: {text[-3000:]}")
        self.said = next(line for line in text.splitlines() if SAID in line)
        return self.said

    def succeed(self, args: list[str]) -> None:
        """Run a command that must go well."""
        succeed(args, self.log)

    def train(self, name: str) -> list[str]:
        """`fugu train` on this disk; all checkpoints are kept."""
        return [*self.args, "--run.folder", str(self.place), "--run.name", name, "--run.keep", "99"]


def files(folder: Path) -> dict[str, bytes]:
    """All that is in a folder; halves of files, which are hidden, may not be left."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.name.startswith("."):
            raise BrokenError(f"left behind: {path}")
        if path.is_file() and name != BALLAST:
            found[name] = path.read_bytes()
    return found


# ---------------------------------------------------------------------- cases


def train_a_page_further(disk: Disk) -> None:
    """Page by page more room: every file of a run and of a checkpoint is the last once."""
    for pages in range(44):
        name = f"room-{pages}"
        run_folder = Run(disk.place / name)
        disk.fill(pages * PAGE)
        said = disk.fails(disk.train(name))
        disk.whole.check(run_folder)
        if left := halves(run_folder):
            raise BrokenError(f"left behind: {left}")
        newest = run_folder.latest()
        if newest is not None and (str(newest) not in said or "fugu resume" not in said):
            raise BrokenError(f"it does not say what is safe: {said}")
        disk.free()
        if newest is not None:
            disk.succeed(["resume", str(run_folder.folder), "--quiet"])
        else:
            shutil.rmtree(run_folder.folder, ignore_errors=True)
            disk.succeed(disk.train(name))
        disk.whole.check_finished(run_folder)
        shutil.rmtree(run_folder.folder)


def train_metrics(disk: Disk) -> None:
    """No checkpoint is due any more, so that the log of metrics is what grows."""
    for room in (0, PAGE):
        run_folder = Run(disk.place / f"metrics-{room}")
        args = [*disk.train(run_folder.folder.name), "--resume", "auto"]
        started = Started(args, disk.log)
        while not started.wait(0.01) and len(run_folder.checkpoints()) < 3:
            pass
        started.kill()
        saved = saved_lines(run_folder)
        disk.fill(room)
        disk.fails([*args, "--run.checkpoint-seconds", "100000"])
        disk.whole.check(run_folder)
        disk.free()
        disk.succeed(args)
        disk.whole.check_finished(run_folder)
        if not run_folder.metrics_path.read_bytes().startswith(saved):
            raise BrokenError("it did not go on from its newest checkpoint")
        shutil.rmtree(run_folder.folder)


def export(disk: Disk) -> None:
    """A policy over an older one."""
    old, new = disk.whole.run.checkpoints()[0], disk.whole.run.checkpoints()[-1]
    for kind, out in (("onnx", "policy.onnx"), ("c", "policy"), ("wasm", "policy.wasm")):
        command = ["--to", kind, "--out", str(disk.place / out)]
        disk.succeed(["export", str(old), *command])
        before = files(disk.place)
        for room in (0,) if kind == "onnx" else (0, PAGE):  # a page holds that of ONNX
            disk.fill(room)
            disk.fails(["export", str(new), *command])
            if files(disk.place) != before:
                raise BrokenError(f"the old {kind} is not as it was")
        disk.free()
        disk.succeed(["export", str(new), *command])
        if files(disk.place) == before:
            raise BrokenError(f"the new {kind} is the old one")


def record_data(disk: Disk) -> None:
    """More episodes to a dataset."""
    folder = disk.place / "data"

    def command(episodes: int, seed: int) -> list[str]:
        numbers = ["--episodes", str(episodes), "--seed", str(seed)]
        return ["record", "cartpole", "--data", str(folder), *numbers]

    disk.succeed(command(16, 1))
    before = [episode.checksum for episode in Dataset(folder)]
    for room in (0, PAGE, 8 * PAGE):
        disk.fill(room)
        disk.fails(command(4096, 2))
        data = Dataset(folder)
        data.verify()
        if [episode.checksum for episode in data] != before:
            raise BrokenError("the dataset is not as it was")
    disk.free()
    disk.succeed(command(16, 2))
    data = Dataset(folder)
    data.verify()
    if len(data) != 32 or [data[i].checksum for i in range(16)] != before:
        raise BrokenError("the dataset did not grow")


def record_film(disk: Disk) -> None:
    """A film over an older one."""
    command = ["record", "cartpole", "--video", str(disk.place / "film.gif"), "--steps"]
    disk.succeed([*command, "5"])
    before = files(disk.place)
    for room in (0, PAGE):
        disk.fill(room)
        disk.fails([*command, "60"])
        if files(disk.place) != before:
            raise BrokenError("the old film is not as it was")
    disk.free()
    disk.succeed([*command, "60"])


def sweep(disk: Disk) -> None:
    """The journal of a sweep, once a trial has ended."""
    root, folder = disk.place / "sweeps", disk.place / "sweeps" / "one"
    plan = ["sweep", "cartpole", *disk.args[2:], "--root", str(root), "--name", "one"]
    started = Started([*plan, "--trials", "3", "--only", "train.gamma"], disk.log)
    begin = disk.log.stat().st_size if disk.log.exists() else 0
    while not started.wait(0.05) and not _trials(folder):
        pass
    disk.fill(0)
    disk.expect(started.finish(), disk.log.read_bytes()[begin:].decode(errors="replace"))
    before = _trials(folder)
    disk.free()
    disk.succeed(["sweep", "--resume", str(folder), "--root", str(root), "--quiet"])
    after = _trials(folder)
    if not before or len(after) < 3 or any(after[number] != before[number] for number in before):
        raise BrokenError(f"trials were lost: {before} before, {after} after")


def _trials(folder: Path) -> dict[int, list[float]]:
    """What came of the trials of a sweep that have ended."""
    if not (folder / "sweep.json").exists():
        return {}
    study, _ = load_study(open_storage(folder), folder.name)
    return {trial.number: trial.values for trial in study.trials if trial.values is not None}


def ledger(disk: Disk) -> None:
    """Results of a league."""
    path = disk.place / "league.sqlite"
    for room in (0, PAGE, 8 * PAGE):
        with Ledger(path) as book:
            pair = book.player("pong", "one"), book.player("pong", f"other-{room}")
            book.add({pair: (1, 2, 3)}, source="before")
            before = book.tallies("pong")
            disk.fill(room)
            try:
                for number in range(10_000):
                    book.player("pong", f"{number}-" + "long" * 200)
                    before = book.tallies("pong")
            except DiskFullError as error:
                disk.said = str(error)
            else:
                raise BrokenError("10,000 players had room")
            if book.tallies("pong") != before:
                raise BrokenError("the ledger is not as it was")
        disk.free()
        with Ledger(path) as book:
            if book.tallies("pong") != before:
                raise BrokenError("the ledger is not as it was")
            book.add({pair: (1, 0, 0)}, source="after")


def hub(disk: Disk) -> None:
    """A run pushed to a folder over an older one."""
    shared, runs = disk.place / "shared", disk.place.with_name("pushed")
    options = ["--episodes", "0", "--no-video"]
    old = Run(runs / "old")
    shutil.copytree(disk.whole.run.folder, old.folder)
    for path in old.checkpoints()[1:]:
        shutil.rmtree(path)
    disk.succeed(["hub", "push", str(old.folder), str(shared), *options])
    before = files(shared)
    for room in (0, PAGE, 8 * PAGE):
        disk.fill(room)
        disk.fails(["hub", "push", str(disk.whole.run.folder), str(shared), *options])
        if files(shared) != before:
            raise BrokenError("what was shared is not as it was")
    disk.free()
    disk.succeed(["hub", "push", str(disk.whole.run.folder), str(shared), *options])
    if files(shared) == before:
        raise BrokenError("the new run was not shared")


CASES: dict[str, Callable[[Disk], None]] = {
    "training, with one more page of room each time": train_a_page_further,
    "training between checkpoints (the log of metrics)": train_metrics,
    "`fugu export` over an older policy (ONNX, C, WebAssembly)": export,
    "`fugu record --data` to a dataset": record_data,
    "`fugu record --video` over an older film": record_film,
    "`fugu sweep` (its journal)": sweep,
    "results of a league (its ledger)": ledger,
    "`fugu hub push` to a folder, over an older run": hub,
}


# ---------------------------------------------------------------------- all of them


@contextlib.contextmanager
def tmpfs(place: Path) -> Iterator[None]:
    """A small disk."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "fugu-chaos", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
        place.rmdir()


def fill_disks(args: list[str], root: Path, console: Console) -> list[Outcome] | None:
    """All cases; None if this process may not mount a disk.

    Args:
        args: Of `fugu train`, but for the folder of runs.
        root: A folder to make.
        console: Is told how it goes.
    """
    if os.geteuid() != 0:
        console.print("full disks: left out, for only root may mount a tmpfs")
        return None
    root.mkdir()
    whole = Undisturbed([*args, "--run.folder", str(root)], root)
    outcomes = []
    for writer, case in CASES.items():
        began, fault = time.monotonic(), ""
        place = root / "full"
        with tmpfs(place):
            disk = Disk(place, root / "log", args, whole)
            try:
                case(disk)
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
        said = disk.said.replace(str(root), "FOLDER")
        outcomes.append(Outcome(writer, disk.tries, said, fault))
        verdict = fault or f"held in {disk.tries} tries"
        console.print(f"full disk, {writer}: {verdict} ({time.monotonic() - began:.0f} s)")
    return outcomes
