"""Where runs are shared: repositories of the Hugging Face Hub, and folders with the same files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fugu.core.errors import DiskFullError, MissingExtraError, UsageError
from fugu.core.writing import tells_full_disk
from fugu.hub.contents import CHECKSUMS, UNVERIFIED, RefusedError

if TYPE_CHECKING:
    from fugu.hub.remote import HubRepository

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_PATHS = (".", "~", "/")  # paths begin with one of these

Repository: TypeAlias = "FolderRepository | HubRepository"
"""What holds the files of one shared run."""


@contextlib.contextmanager
def open_repository(
    given: str | Path,
    revision: str | None = None,
    token: str | None = None,
    *,
    private: bool = False,
) -> Iterator[Repository]:
    """Yield the repository `user/name`, or the folder whose path begins with one of `./~`."""
    if isinstance(given, Path) or given.startswith(_PATHS) or os.path.isabs(given):
        for option, value in (("revision", revision), ("private", private or None)):
            if value is not None:
                raise UsageError(f"{option}: {given} is a folder. Give it with user/name only.")
        yield FolderRepository(Path(given))
        return
    if not _NAME.fullmatch(given):
        raise UsageError(
            "repo: expected user/name, or the path of a folder that begins with ./, ../, ~ or /; "
            f"got {given!r}."
        )
    if importlib.util.find_spec("huggingface_hub") is None:
        raise MissingExtraError("huggingface_hub", "hub")
    from fugu.hub.remote import HubRepository, limited_requests

    with limited_requests():
        yield HubRepository(given, revision, token, private)


class FolderRepository:
    """A folder of this machine; hidden files, such as `.git`, are ignored."""

    def __init__(self, folder: Path) -> None:
        text = folder.as_posix()
        self.name = text if text.startswith(_PATHS) or folder.is_absolute() else f"./{text}"
        self.commit: str | None = None
        self._folder = folder.expanduser()

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files; RefusedError for a link or a device."""
        if not self._folder.is_dir():
            raise UsageError(f"folder: {self.name!r} does not exist. Check the path.")
        found = {}
        for folder, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for entry in [*folders, *(name for name in names if not name.startswith("."))]:
                path = Path(folder, entry)
                name, facts = path.relative_to(self._folder).as_posix(), path.lstat()
                if stat.S_ISREG(facts.st_mode):
                    found[name] = facts.st_size
                elif not stat.S_ISDIR(facts.st_mode):
                    raise RefusedError(self.name, name, "it is neither a file nor a folder")
        return found

    def fetch(self, name: str) -> Path:
        """Return the path of a file."""
        return self._folder / name

    def prepare(self) -> None:
        """Create the folder."""
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)

    def publish(self, files: Mapping[str, Path], message: str) -> str:
        """Replace the run in the folder.

        All files are copied before the first one is replaced. Checksums are removed first and
        written last, so that no incomplete run can be pulled.
        """
        with (
            self._writing(),
            tempfile.TemporaryDirectory(prefix=".new-", dir=self._folder) as fresh,
        ):
            for name, source in files.items():
                Path(fresh, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, Path(fresh, name))
            old = self.sizes().keys() - {*UNVERIFIED}
            for name in sorted(old, key=lambda name: name != CHECKSUMS):
                path = self._folder / name
                path.unlink()
                with contextlib.suppress(OSError):  # it is not empty
                    os.removedirs(path.parent)
            for name in sorted(files, key=lambda name: name == CHECKSUMS):
                path = self._folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                Path(fresh, name).replace(path)
        return self.name

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Explain why the folder cannot be written."""
        try:
            with tells_full_disk(lambda: f"The run in {self.name} is unchanged. Free some space."):
                yield
        except DiskFullError:
            raise
        except OSError as error:
            raise UsageError(
                f"folder: {self.name!r} cannot be written: {error}. Choose another folder."
            ) from error
