"""The files and settings that a shared run may contain: names, size limits and checksums."""

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
