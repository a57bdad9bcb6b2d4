"""Where hostile files are laid out: a small tree of folders that nobody may touch around them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Kind = Literal["link", "hard link", "pipe", "device", "folder"]


@dataclass(frozen=True)
class Odd:
    """What is no ordinary file.

    Attributes:
        kind: What it is.
        target: Of links; a path that begins with a slash is as it stands.
    """

    kind: Kind
    target: str = ""


Files: TypeAlias = Mapping[str, bytes | Odd]


class Arena:
    """Folders for one input: `work/target` holds it, `work/out` is for what readers write.

    Everything else, `outside` above all, must stay as it is, and no `canary` may appear.

    Args:
        folder: A new folder, best in memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary, self.outside = folder / "canary", folder / "outside"
        self.work, self.target, self.out = (
            folder / "work", folder / "work" / "target", folder / "work" / "out",
        )  # fmt: skip
        self.outside.mkdir(parents=True)
        (self.outside / "secret.txt").write_text("nobody writes here\n")
        (self.outside / "deep").mkdir()
        (self.outside / "deep" / "secret.json").write_text('{"nobody": "writes here"}\n')
        self.work.mkdir()
        (self.work / "neighbour.json").write_text("{}\n")
        for path in folder.rglob("*.*"):
            os.utime(path, (0, 0))  # alike, whichever process made it
        self.untouched = self.look()

    def fill(self, files: Files) -> None:
        """Lay an input out, in place of the one before."""
        for place in (self.target, self.out):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
        write_tree(self.target, files)

    def look(self) -> dict[str, tuple[int, int, int]]:
        """All that stands around the input: mode, size and time of each file."""
        found: dict[str, tuple[int, int, int]] = {}
        ours = {self.target.name, self.out.name}
        for folder in (self.folder, self.outside, self.outside / "deep", self.work):
            for entry in os.scandir(folder):
                if folder == self.work and entry.name in ours:
                    continue
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    found[entry.path] = (facts.st_mode, 0, 0)
                else:
                    found[entry.path] = (facts.st_mode, facts.st_size, facts.st_mtime_ns)
        return found

    def harm(self) -> str:
        """What was done outside of the input, and mended now; empty if nothing was."""
        found = self.look()
        if found == self.untouched:
            return ""
        changed = sorted(
            path
            for path in found.keys() | self.untouched.keys()
            if found.get(path) != self.untouched.get(path)
        )
        told = "code was run" if str(self.canary) in changed else f"touched {', '.join(changed)}"
        folder = self.folder
        shutil.rmtree(folder)
        self.__init__(folder)  # type: ignore[misc]
        return told


def write_tree(root: Path, files: Files) -> None:
    """Files, and odd things, into a folder."""
    made = {root}
    for name, content in files.items():
        path = root / name
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        if isinstance(content, Odd):
            _write_odd(path, content)
        else:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(handle, content)
            os.close(handle)


def _write_odd(path: Path, odd: Odd) -> None:
    path.unlink(missing_ok=True)
    match odd.kind:
        case "link":
            path.symlink_to(odd.target)
        case "hard link":
            source = path.parent / odd.target
            path.hardlink_to(source if source.is_file() else __file__)
        case "folder":
            path.mkdir(exist_ok=True)
        case "pipe":
            os.mkfifo(path)
        case "device":
            try:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # zeros without an end
            except PermissionError:
                path.symlink_to("/dev/zero")


def read_tree(root: Path) -> dict[str, bytes | Odd]:
    """What `write_tree` wrote."""
    found: dict[str, bytes | Odd] = {}
    for folder, folders, names in os.walk(root):
        for name in sorted([*folders, *names]):
            path = Path(folder) / name
            mode, place = path.lstat().st_mode, path.relative_to(root).as_posix()
            if stat.S_ISLNK(mode):
                found[place] = Odd("link", os.readlink(path))
            elif stat.S_ISREG(mode):
                found[place] = path.read_bytes()
            elif not stat.S_ISDIR(mode):
                found[place] = Odd("pipe" if stat.S_ISFIFO(mode) else "device")
            elif not any(path.iterdir()):
                found[place] = Odd("folder")
    return found
