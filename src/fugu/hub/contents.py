"""What a shared run is: the files it may have, how large they may be, and their checksums."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fugu.core.errors import FuguError
from fugu.store import values

CARD, CHECKSUMS, CONFIG, RUN = "README.md", "checksums.json", "config.json", "run.json"
METRICS, EVALUATION, CURVE = "metrics.jsonl", "evaluation.json", "curve.png"
VIDEO, GIF = "replay.mp4", "replay.gif"
# What people write themselves, or the Hub does: it is neither verified nor taken.
BESIDE = (CARD, "LICENSE", "LICENSE.md", "LICENSE.txt", ".gitattributes")
MOST_FILES = 10_000
MOST_BYTES = 16 << 30

_FOLDER = r"(checkpoints|league)/step_\d{1,18}/"
_KINDS = {  # how large a file of that name may be
    re.escape(CHECKSUMS): 4 << 20,
    re.escape(CONFIG): 1 << 20,
    re.escape(RUN): 1 << 20,
    re.escape(EVALUATION): 1 << 20,
    re.escape(METRICS): 2 << 30,
    re.escape(CURVE): 64 << 20,
    r"replay\.(mp4|gif)": 256 << 20,
    rf"{_FOLDER}(state|checksums)\.json": 256 << 20,
    rf"{_FOLDER}\w[\w.-]*\.safetensors": MOST_BYTES,
}
_PICKLED = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".npy", ".npz", ".dill")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 20


class RefusedError(FuguError, RuntimeError):
    """A shared run that is not what it should be.

    Attributes:
        place: Where it is.
        file: The file at fault.
    """

    def __init__(self, place: str, file: str, reason: str) -> None:
        self.place, self.file, self.reason = place, file, reason
        super().__init__(f"{place}: {file}: {reason}. Nothing was written.")

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str, str]]:
        return type(self), (self.place, self.file, self.reason)


def most_bytes_of(name: str) -> int | None:
    """How large a file may be; None if no run has one of that name.

    >>> most_bytes_of("checkpoints/step_000000100/policy_0.safetensors") == MOST_BYTES
    True
    >>> most_bytes_of("../config.json"), most_bytes_of("policy.pkl")
    (None, None)
    """
    for pattern, most in _KINDS.items():
        if re.fullmatch(pattern, name, re.ASCII):
            return most
    return None


def check_names(place: str, names: Iterable[str]) -> None:
    """Raise RefusedError for a file that no run has."""
    for name in names:
        if name in BESIDE or most_bytes_of(name) is not None:
            continue
        reason = "no run of fugu has such a file"
        if name.lower().endswith(_PICKLED):
            reason = "it may hold code, which is never loaded; weights are safetensors"
        raise RefusedError(place, name, reason)


def check_sizes(place: str, sizes: Mapping[str, int], most: int) -> None:
    """Raise RefusedError if a file, or all of them, are larger than they may be."""
    if len(sizes) > MOST_FILES:
        raise RefusedError(place, "the listing", f"{len(sizes)} files; allowed: {MOST_FILES}")
    for name, size in sizes.items():
        limit = min(most_bytes_of(name) or most, most)
        if size > limit:
            raise RefusedError(place, name, f"given {size:,} bytes; allowed: {limit:,}")
    total = sum(sizes.values())
    if total > most:
        reason = f"given {total:,} bytes in all; allowed: {most:,} (--max-gb sets it)"
        raise RefusedError(place, "the listing", reason)


def verified(names: Iterable[str]) -> set[str]:
    """Those of some files that have a checksum."""
    return {name for name in names if name not in BESIDE} - {CHECKSUMS}


def dump_checksums(files: Mapping[str, Path]) -> bytes:
    """The file of checksums of all others that are verified."""
    return values.dump({name: sha256_of(files[name]) for name in sorted(verified(files))})


def load_checksums(place: str, text: bytes, names: Iterable[str]) -> dict[str, str]:
    """Checksums by name, of exactly those files that are to be verified.

    Raises:
        RefusedError: A file has no checksum, or a checksum no file.
    """
    sums = load_object(place, CHECKSUMS, text)
    for name, value in sums.items():
        if not isinstance(value, str) or not _SHA256.fullmatch(value):
            raise RefusedError(place, CHECKSUMS, f"{name!r} has no SHA-256 there")
    expected = verified(names)
    for name in sorted(expected - sums.keys()):
        raise RefusedError(place, name, f"{CHECKSUMS} does not name it")
    for name in sorted(sums.keys() - expected):
        raise RefusedError(place, name, f"{CHECKSUMS} names it, but it is missing")
    return sums


def load_object(place: str, name: str, text: bytes) -> dict[str, Any]:
    """What a file of JSON holds; RefusedError if that is no object."""
    try:
        found = values.load(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(place, name, f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise RefusedError(place, name, "it holds no object")
    return found


def check_safetensors(place: str, name: str, path: Path) -> None:
    """Raise RefusedError for a file that says it holds tensors but does not."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(1) if length <= path.stat().st_size - 8 else b""
    if header != b"{":
        raise RefusedError(place, name, "it is no safetensors file")


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_checked(source: Path, target: Path, size: int) -> str:
    """Copy a file of that size and give its checksum; a longer one is cut, and has another."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), size + 1
    with source.open("rb") as file, target.open("wb") as out:
        while chunk := file.read(min(_CHUNK, left)):
            digest.update(chunk)
            out.write(chunk)
            left -= len(chunk)
    return digest.hexdigest()
