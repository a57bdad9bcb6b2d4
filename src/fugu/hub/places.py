"""Where shared runs are: repositories of the Hub, and folders that look the same."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from fugu.core.errors import DiskFullError, UsageError
from fugu.core.writing import FULL
from fugu.hub.contents import BESIDE, CHECKSUMS, RefusedError, check_names
from fugu.hub.remote import HubPlace

_REPO = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_FOLDERS = (".", "~", "/")  # how paths begin


class Place(Protocol):
    """Somewhere to put a run, and to get it from."""

    @property
    def name(self) -> str:
        """As people call it."""
        raise NotImplementedError("name -> str")

    @property
    def commit(self) -> str | None:
        """The version that `sizes` and `fetch` are about; None where there are none."""
        raise NotImplementedError("commit -> str | None")

    def session(self) -> AbstractContextManager[None]:
        """Around all that is asked of it at a time."""
        raise NotImplementedError("session() -> AbstractContextManager[None]")

    def sizes(self) -> dict[str, int]:
        """Bytes of all files, by their names."""
        raise NotImplementedError("sizes() -> dict[str, int]")

    def fetch(self, name: str) -> Path:
        """A file's content, on this machine."""
        raise NotImplementedError("fetch(name) -> Path")

    def prepare(self) -> None:
        """Make it ready to be written, or raise what stands against that."""
        raise NotImplementedError("prepare() -> None")

    def publish(self, files: Mapping[str, Path], message: str) -> str:
        """Put these files there, and none of an older run; where they are then."""
        raise NotImplementedError("publish(files, message) -> str")


def find_place(
    given: str | Path,
    revision: str | None = None,
    token: str | None = None,
    *,
    private: bool = False,
) -> Place:
    """The place that is meant: `user/name`, or a folder, whose path begins with one of `./~`."""
    is_path = isinstance(given, Path) or given.startswith(_FOLDERS) or os.path.isabs(given)
    if is_path:
        for name, value in (("revision", revision), ("private", private or None)):
            if value is not None:
                raise UsageError(f"{name}: given with the folder {given}; allowed: with user/name.")
        return FolderPlace(Path(given))
    if not _REPO.fullmatch(str(given)):
        raise UsageError(
            f"repo: given {given!r}; allowed: user/name of the Hub, or the path of a folder that "
            "begins with ./, ../, ~ or /."
        )
    return HubPlace(str(given), revision, token, private=private)


class FolderPlace:
    """A folder of this machine. What is hidden there, such as `.git`, is none of its files."""

    def __init__(self, folder: Path) -> None:
        text = folder.as_posix()
        self.name = text if text.startswith(_FOLDERS) or folder.is_absolute() else f"./{text}"
        self.folder, self.commit = folder.expanduser(), None

    def session(self) -> AbstractContextManager[None]:
        """Nothing is needed."""
        return nullcontext()

    def sizes(self) -> dict[str, int]:
        """Bytes of all files; RefusedError for a link or a device."""
        if not self.folder.is_dir():
            raise UsageError(f"folder: given {self.name!r}; allowed: a folder that exists.")
        found = {}
        for folder, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for entry in [*folders, *(name for name in names if not name.startswith("."))]:
                path = Path(folder) / entry
                name, facts = path.relative_to(self.folder).as_posix(), path.lstat()
                if stat.S_ISREG(facts.st_mode):
                    found[name] = facts.st_size
                elif not stat.S_ISDIR(facts.st_mode):
                    raise RefusedError(self.name, name, "it is neither a file nor a folder")
        return found

    def fetch(self, name: str) -> Path:
        """Where the file is."""
        return self.folder / name

    def prepare(self) -> None:
        """Make the folder; RefusedError if it holds anything but a run."""
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            check_names(self.name, self.sizes())

    def publish(self, files: Mapping[str, Path], message: str) -> str:
        """Copy all files, then put them in place, checksums last: no half of a run is pulled."""
        with (
            self._writing(),
            tempfile.TemporaryDirectory(prefix=".new-", dir=self.folder) as fresh,
        ):
            for name, source in files.items():
                target = Path(fresh) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            stale = self.sizes().keys() - files.keys() - {*BESIDE}
            for name in sorted(stale | {CHECKSUMS}):
                (self.folder / name).unlink(missing_ok=True)
            for name in sorted(files, key=lambda name: name == CHECKSUMS):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(fresh) / name).replace(self.folder / name)
            self._drop_empty()
        return self.name

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise DiskFullError(
                    f"{error.strerror} for {self.name}",
                    "What was shared there before is as it was. Free some space and push again.",
                ) from error
            raise UsageError(
                f"folder: given {self.name!r}, which cannot be written: {error}; allowed: a "
                "folder that can."
            ) from error

    def _drop_empty(self) -> None:
        for parent in ("checkpoints", "league"):
            for folder in [*(self.folder / parent).glob("step_*"), self.folder / parent]:
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
