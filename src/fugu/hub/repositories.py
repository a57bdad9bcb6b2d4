"""Where runs are shared, the Hub or a folder, and the files and settings they may contain."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fugu.core.errors import DiskFullError, FuguError, MissingExtraError, UsageError
from fugu.core.writing import tells_full_disk
from fugu.store import values

if TYPE_CHECKING:
    from fugu.hub.remote import HubRepository

CARD, CHECKSUMS, CONFIG, RUN = "README.md", "checksums.json", "config.json", "run.json"
METRICS, EVALUATION, CURVE = "metrics.jsonl", "evaluation.json", "curve.png"
VIDEO, GIF = "replay.mp4", "replay.gif"
# People or the Hub write these files: they are neither verified nor pulled, and a push keeps them.
UNVERIFIED = (CARD, "LICENSE", "LICENSE.md", "LICENSE.txt", ".gitattributes")
MAX_FILES = 10_000
MAX_BYTES = 16 << 30

_CHECKPOINT = r"(checkpoints|league)/step_\d{1,18}/"
_MAX_SIZES = {  # pattern of names: bytes
    re.escape(CHECKSUMS): 4 << 20,
    re.escape(CONFIG): 1 << 20,
    re.escape(RUN): 1 << 20,
    re.escape(EVALUATION): 1 << 20,
    re.escape(METRICS): 2 << 30,
    re.escape(CURVE): 64 << 20,
    r"replay\.(mp4|gif)": 256 << 20,
    rf"{_CHECKPOINT}(state|checksums)\.json": 256 << 20,
    rf"{_CHECKPOINT}\w[\w.-]*\.safetensors": MAX_BYTES,
}
# Paths, addresses and accounts of one machine: a push leaves them out, a pull refuses them.
_LOCAL_SETTINGS = {
    "run": ("folder", "name", "record_data", "trajectories", "tensorboard", "wandb"),
    "vec": ("ray_address", "ray_cpus", "ray_resources", "ray_timeout"),
    "league": ("database",),
    "train": ("data", "reward_model"),
}
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_PATHS = (".", "~", "/")  # paths begin with one of these

Repository: TypeAlias = "FolderRepository | HubRepository"
"""What holds the files of one shared run."""


class RefusedError(FuguError, RuntimeError):
    """A shared run has a file that is missing, changed, too large or not allowed.

    Attributes:
        repository: The repository or folder that holds the run.
        file: The name of the file at fault.
        reason: What is wrong with it.
    """

    def __init__(self, repository: str, file: str, reason: str) -> None:
        self.repository, self.file, self.reason = repository, file, reason
        super().__init__(f"{repository}: {file}: {reason}. Nothing was written.")

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str, str]]:
        return type(self), (self.repository, self.file, self.reason)


def max_size(name: str) -> int | None:
    """Return the most bytes that a file of this name may have; None if no run has such a file.

    >>> max_size("checkpoints/step_000000100/policy_0.safetensors") == MAX_BYTES
    True
    >>> max_size("../config.json"), max_size("policy.pkl")
    (None, None)
    """
    matches = (size for key, size in _MAX_SIZES.items() if re.fullmatch(key, name, re.ASCII))
    return next(matches, None)


def check_names(repository: str, names: Iterable[str]) -> None:
    """Raise RefusedError for the first file that no run has."""
    for name in names:
        if name not in UNVERIFIED and max_size(name) is None:
            reason = "no run of fugu has such a file; pickles and programs are never loaded"
            raise RefusedError(repository, name, reason)


def check_sizes(repository: str, sizes: Mapping[str, int], max_bytes: int) -> None:
    """Raise RefusedError if a file, or all files together, are larger than allowed."""
    if len(sizes) > MAX_FILES:
        reason = f"expected at most {MAX_FILES:,} files; got {len(sizes):,}"
        raise RefusedError(repository, "the listing", reason)
    for name, size in sizes.items():
        limit = min(max_size(name) or max_bytes, max_bytes)
        if not 0 <= size <= limit:
            reason = f"expected at most {limit:,} bytes; got {size:,}"
            raise RefusedError(repository, name, reason)
    total = sum(sizes.values())
    if total > max_bytes:
        reason = f"expected at most {max_bytes:,} bytes in total; got {total:,} (--max-gb sets it)"
        raise RefusedError(repository, "the listing", reason)


def dump_checksums(files: Mapping[str, Path]) -> bytes:
    """Return the content of `checksums.json` for these files, by name."""
    return values.dump({name: sha256_of(files[name]) for name in sorted(_verified(files))})


def load_checksums(repository: str, text: bytes, names: Iterable[str]) -> dict[str, Any]:
    """Return the checksums in the text of `checksums.json`, by name.

    Raises:
        RefusedError: One of the files has no checksum, or a checksum has no file.
    """
    checksums = load_object(repository, CHECKSUMS, text)
    for name in sorted(_verified(names) ^ checksums.keys()):
        problem = "lists it, but it is missing" if name in checksums else "does not list it"
        raise RefusedError(repository, name, f"{CHECKSUMS} {problem}")
    return checksums


def load_object(repository: str, name: str, text: bytes) -> dict[str, Any]:
    """Return the object that a JSON file holds, or raise RefusedError."""
    try:
        found = values.load(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(repository, name, f"it is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise RefusedError(repository, name, "it is not a JSON object")
    return found


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shared_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that concern one machine only.

    >>> shared_config({"seed": 1, "run": {"name": "a", "keep": 3}})
    {'seed': 1, 'run': {'keep': 3}}
    """
    return {
        section: {
            key: inner
            for key, inner in value.items()
            if key not in _LOCAL_SETTINGS.get(section, ())
        }
        if isinstance(value, Mapping)
        else value
        for section, value in config.items()
    }


def check_config(repository: str, config: Mapping[str, Any]) -> None:
    """Raise RefusedError for a setting that concerns one machine only."""
    for section, value in config.items():
        if _plain(section) != section:  # a second spelling would hide it from other checks
            reason = f"expected the section {_plain(section)!r}; got {section!r}"
            raise RefusedError(repository, CONFIG, reason)
        for key in value if isinstance(value, Mapping) else ():
            if _plain(key) in _LOCAL_SETTINGS.get(section, ()):
                reason = f"{section}.{key} is a setting of one machine and cannot be shared"
                raise RefusedError(repository, CONFIG, reason)


def _plain(key: str) -> str:
    """Return a setting's name in the spelling of `read_config`."""
    return key.replace("-", "_").rstrip("_")


def _verified(names: Iterable[str]) -> set[str]:
    """Return the names of the files that have a checksum."""
    return set(names) - {*UNVERIFIED, CHECKSUMS}


# ---------------------------------------------------------------------- repositories


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
