"""Checkpoints: folders of safetensors and JSON, written whole or not at all, never pickled.

While a folder is written it has another name, `.<name>.new-<random>`; one rename makes it the
checkpoint. One that it replaces is `.<name>.old` for that moment, and is read where a run was
killed just then.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fugu.core.errors import FuguError, MissingExtraError, UsageError
from fugu.core.files import DOCUMENT, read_bytes
from fugu.core.writing import write_whole
from fugu.store import values
from fugu.store.signing import is_signed, sign

if TYPE_CHECKING:
    import torch

SCHEMA = 1  # the schema version that is written
Document = dict[str, Any]
Tensors = dict[str, dict[str, Any]]
Migration = Callable[[Document, Tensors], tuple[Document, Tensors]]

STATE, CHECKSUMS, ENDING = "state.json", "checksums.json", ".safetensors"
SIGNATURE = "signature"  # the file that says that this user's own fugu wrote the checksums
STATES = re.compile(r"(rank\d+\.)?environments")
"""Tensors that environments take as they are, native ones into their memory."""
POLICY_ONLY = "policy_only"  # in a state: there is nothing but weights, and no training to resume
_MISFITS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
_NAME = re.compile(r"\w[\w.-]*")  # of a file of tensors, without its ending
_FILE = re.compile(_NAME.pattern + re.escape(ENDING))


class CheckpointError(FuguError, RuntimeError):
    """A checkpoint that is missing, broken, or not of fugu.

    Attributes:
        folder: The checkpoint.
        file: The file at fault; empty for the folder itself.
    """

    def __init__(self, folder: Path, file: str, reason: str) -> None:
        self.folder, self.file, self.reason = folder, file, reason
        super().__init__(
            f"checkpoint {folder}: {file or 'the folder'}: {reason}. Use another checkpoint."
        )

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[Path, str, str]]:
        return type(self), (self.folder, self.file, self.reason)


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint, in memory."""

    tensors: dict[str, dict[str, torch.Tensor]]
    """Tensors on the CPU, by file and name."""
    state: dict[str, Any]
    """Counters, settings and all else that is JSON."""
    libraries: dict[str, str] = field(default_factory=dict)
    """Versions of the libraries that wrote it."""


def save_checkpoint(
    folder: Path,
    *,
    tensors: Mapping[str, Mapping[str, torch.Tensor | np.ndarray[Any, Any]]],
    state: Mapping[str, Any],
    signed: bool = True,
) -> Path:
    """Write a checkpoint whole or not at all, and return its folder.

    Each entry of `tensors` becomes a file `<entry>.safetensors`. A checkpoint of that name is
    replaced. UsageError if something cannot be written exactly; then nothing is. It is signed
    (see `fugu.store.signing`) unless it is written for other people.
    """
    folder = Path(folder).absolute()
    files = {f"{name}{ENDING}": _pack(name, group) for name, group in tensors.items()}
    document = {"schema": SCHEMA, "libraries": _libraries(), "state": state}
    files[STATE] = values.dump(document)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[CHECKSUMS] = values.dump(sums)
    if signed and (signature := sign("checkpoint", files[CHECKSUMS])) is not None:
        files[SIGNATURE] = signature.encode()
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.new-{secrets.token_hex(4)}")
    fresh.mkdir()
    try:
        for name, content in files.items():
            with (fresh / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _sync(fresh)
        _put(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return folder


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint of this schema version or an older one.

    CheckpointError names the file if something is missing, changed or newer than this fugu.
    """
    place = _place(folder)
    contents = _verified(place, None)
    tensors: Tensors = {
        name.removesuffix(ENDING): _unpack(place, name, content)
        for name, content in contents.items()
        if name.endswith(ENDING)
    }
    document, tensors = _current(place, contents[STATE], tensors)
    return Checkpoint(tensors, document["state"], document.get("libraries", {}))


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint without its tensors, verified alone."""
    place = _place(folder)
    document, _ = _current(place, _verified(place, (STATE,))[STATE], {})
    state: dict[str, Any] = document["state"]
    return state


def verify_checkpoint(folder: Path) -> None:
    """Raise CheckpointError if `load_checkpoint` would refuse this one for its bytes or schema."""
    place = _place(folder)
    _current(place, _verified(place, None)[STATE], {})


def is_own(folder: Path) -> bool:
    """Return whether this user's own fugu wrote or trusted the checkpoint as it is now."""
    try:
        place = _place(folder)
        signature = read_bytes(place / SIGNATURE).decode("ascii", "replace")
        return is_signed("checkpoint", read_bytes(place / CHECKSUMS), signature)
    except (OSError, CheckpointError):
        return False


def trust_checkpoint(folder: Path) -> None:
    """Sign a checkpoint that somebody else wrote."""
    place = _place(folder)
    signature = sign("checkpoint", read_bytes(place / CHECKSUMS))
    if signature is not None:
        write_whole(place / SIGNATURE, signature)


@contextlib.contextmanager
def refuses_misfits(whose: str) -> Iterator[None]:
    """Raise UsageError where a checkpoint is whole, but not of what it is loaded into."""
    try:
        yield
    except FuguError:
        raise
    except _MISFITS as error:
        reason = f"{type(error).__name__}: {error}"[:500]
        raise UsageError(
            f"checkpoint: given one that does not fit {whose} ({reason}); allowed: one of the same "
            "environment and settings. Use another checkpoint."
        ) from error


def replaced(folder: Path) -> Path:
    """Return where a checkpoint of that name is while another takes its place."""
    return folder.with_name(f".{folder.name}.old")


def _pack(name: str, group: Mapping[str, Any]) -> bytes:
    """Return the bytes of one file of tensors."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"tensors: given the file {name!r}; allowed: letters, digits, _ . and -.")
    torch, safetensors = _libraries_of_tensors()
    plain: dict[str, Any] = {}
    seen: set[int] = set()
    for key, value in group.items():
        try:
            if not isinstance(value, torch.Tensor):
                value = np.require(value, requirements=["C", "W"])  # as torch wants it
            tensor = torch.as_tensor(value).detach().cpu().contiguous()
        except (TypeError, ValueError, RuntimeError) as error:
            kind = getattr(value, "dtype", type(value).__name__)
            raise _refused(f"{name}.{key}", kind) from error
        # Tied weights share memory, which the format refuses: each is written on its own.
        storage = tensor.untyped_storage().data_ptr()
        plain[key] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    try:
        packed: bytes = safetensors.save(plain)
    except KeyError as error:  # a dtype that the format lacks
        raise _refused(name, error.args[0]) from error
    return packed


def _refused(place: str, kind: Any) -> UsageError:
    return UsageError(
        f"tensors: given {kind} at {place!r}; allowed: bool, integers, floats, complex64. "
        "Store what is none of these as two arrays, or in the state."
    )


def _unpack(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    _, safetensors = _libraries_of_tensors()
    try:
        unpacked: dict[str, Any] = safetensors.load(content)
    except Exception as error:
        raise CheckpointError(folder, name, f"no safetensors: {error}") from error
    return unpacked


def _libraries_of_tensors() -> tuple[Any, Any]:
    for package in ("torch", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "train")
    # Here and not above: run folders are listed without torch, which takes seconds to import.
    import safetensors.torch
    import torch

    return torch, safetensors.torch


def _libraries() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("fugu-rl", "torch", "numpy", "safetensors", "gymnasium"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _put(fresh: Path, folder: Path) -> None:
    """Give the checkpoint its name; at every moment it or the one before can be read."""
    old = replaced(folder)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    fresh.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _place(folder: Path) -> Path:
    """Return the folder of a checkpoint: its name, or that of one to be replaced."""
    folder = Path(folder)
    if folder.is_dir():
        return folder
    if replaced(folder).is_dir():
        return replaced(folder)
    raise CheckpointError(folder, "", "there is no such folder")


def _verified(folder: Path, names: tuple[str, ...] | None) -> dict[str, bytes]:
    """Return the files of those names, by default all, after checking their checksums."""
    try:
        sums = values.load(read_bytes(folder / CHECKSUMS, DOCUMENT))
    except FileNotFoundError:
        reason = "it is missing; this is no checkpoint of fugu"
        raise CheckpointError(folder, CHECKSUMS, reason) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(folder, CHECKSUMS, f"it cannot be read: {error}") from error
    if not isinstance(sums, dict) or STATE not in sums:
        raise CheckpointError(folder, CHECKSUMS, f"it does not name {STATE}")
    for name in sums:
        if name != STATE and not _FILE.fullmatch(name):
            raise CheckpointError(folder, CHECKSUMS, f"it names {name!r}, which no checkpoint has")
    for path in folder.iterdir():
        if path.name not in sums and path.suffix == ENDING:
            raise CheckpointError(folder, path.name, f"{CHECKSUMS} does not name it")
    contents = {}
    for name in sums if names is None else names:
        try:
            contents[name] = read_bytes(folder / name, DOCUMENT if name == STATE else None)
        except OSError as error:
            raise CheckpointError(folder, name, f"it cannot be read: {error.strerror}") from error
        if hashlib.sha256(contents[name]).hexdigest() != sums[name]:
            reason = "its bytes are not those that were written (sha256 differs)"
            raise CheckpointError(folder, name, reason)
    return contents


def migrate(
    document: Document, tensors: Tensors, migrations: Mapping[int, Migration] | None = None
) -> tuple[Document, Tensors]:
    """Return the same checkpoint in today's schema; KeyError where no migration leads there.

    >>> migrate({"schema": 0, "step": 7}, {})[0]
    {'schema': 1, 'libraries': {}, 'state': {'step': 7}}
    """
    steps = MIGRATIONS if migrations is None else migrations
    while document["schema"] != SCHEMA:
        version = document["schema"]
        document, tensors = steps[version](document, tensors)
        document["schema"] = version + 1
    return document, tensors


def _nest_state(document: Document, tensors: Tensors) -> tuple[Document, Tensors]:
    """Version 0 had the entries of the state beside the schema, and no library versions."""
    state = {key: value for key, value in document.items() if key != "schema"}
    return {"schema": 0, "libraries": {}, "state": state}, tensors


MIGRATIONS: dict[int, Migration] = {0: _nest_state}
"""By the version that a migration starts from.

A migration also runs without tensors, where only the state is asked for: it changes those that
are there.
"""


def _current(folder: Path, state: bytes, tensors: Tensors) -> tuple[Document, Tensors]:
    """Return the document in today's schema, and the tensors with it."""
    try:
        document = values.load(state)
    except ValueError as error:
        raise CheckpointError(folder, STATE, f"it is no JSON: {error}") from error
    version = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(version, int) or version not in {SCHEMA, *MIGRATIONS}:
        allowed = ", ".join(map(str, sorted({SCHEMA, *MIGRATIONS})))
        reason = f"given schema version {version!r}; this fugu reads: {allowed}"
        raise CheckpointError(folder, STATE, reason)
    try:
        document, tensors = migrate(document, tensors)
    except Exception as error:
        raise CheckpointError(folder, STATE, f"no way from version {version}: {error}") from error
    if not isinstance(document.get("state"), dict):
        raise CheckpointError(folder, STATE, "it holds no state; this is no checkpoint of fugu")
    return document, tensors
