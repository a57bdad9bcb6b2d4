"""The index of a zoo: which policies its folder holds, how well they play, and their checksums."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fugu.core.errors import FuguError, UsageError
from fugu.core.files import DOCUMENT, read_bytes
from fugu.core.writing import write_whole
from fugu.hub.contents import most_bytes_of, sha256_of
from fugu.store import values

FOLDER = Path(__file__).parent / "policies"
"""The zoo that is installed with fugu."""
INDEX = "index.json"
FORMAT = 1
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REFUSED = "Nothing was loaded. Reinstall fugu, or restore the folder of the zoo."


class ZooError(FuguError, RuntimeError):
    """A zoo whose index or files are not what they should be."""


@dataclass(frozen=True)
class ZooPolicy:
    """A trained policy of a zoo.

    Attributes:
        name: Its name, which is that of its folder too.
        env: The environment it was trained on.
        algo: The algorithm it was trained with.
        steps: Agent steps of the training.
        seed: Seed of the training.
        score: Mean return of greedy episodes.
        deviation: Standard deviation of these returns.
        episodes: Number of these episodes.
        note: How it was chosen, such as "best of 5 seeds".
        bytes: Size of all its files.
        files: SHA-256 of every file, by its path below the policy's folder.
    """

    name: str
    env: str
    algo: str
    steps: int
    seed: int
    score: float
    deviation: float
    episodes: int
    note: str
    bytes: int
    files: Mapping[str, str]


def read_index(folder: Path = FOLDER) -> list[ZooPolicy]:
    """Return the policies of a zoo, sorted by name.

    Raises:
        UsageError: The folder has no index.
        ZooError: The index is broken.
    """
    path = Path(folder) / INDEX
    try:
        document = values.load(read_bytes(path, DOCUMENT))
    except FileNotFoundError:
        raise UsageError(
            f"folder: given {str(folder)!r}, which has no {INDEX}; allowed: the folder of a zoo."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ZooError(f"zoo {path}: it is not valid JSON: {error}. {_REFUSED}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ZooError(f"zoo {path}: expected an object of format {FORMAT}. {_REFUSED}")
    listed = document.get("policies")
    if not isinstance(listed, list):
        raise ZooError(f"zoo {path}: expected a list of policies. {_REFUSED}")
    found = [_read_policy(path, entry) for entry in listed]
    return sorted(found, key=lambda policy: policy.name.lower())


def write_index(folder: Path, policies: list[ZooPolicy]) -> None:
    """Write the index of a zoo, sorted by name."""
    ordered = sorted(policies, key=lambda policy: policy.name.lower())
    document = {"format": FORMAT, "policies": [asdict(policy) for policy in ordered]}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / INDEX, values.dump(document))


def find_policy(name: str, folder: Path = FOLDER) -> ZooPolicy:
    """Return the policy of that name, or of that environment if only one policy has it.

    Raises:
        UsageError: There is none; it names the nearest.
    """
    policies = read_index(folder)
    by_name = {policy.name: policy for policy in policies}
    if name in by_name:
        return by_name[name]
    same_env = [policy for policy in policies if policy.env == name]
    if len(same_env) == 1:
        return same_env[0]
    if not policies:
        raise UsageError(f"name: got {name!r}, but the zoo in {str(folder)!r} holds no policies.")
    lowered = {key.lower(): key for key in by_name}
    close = difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.0)
    nearest = ", ".join(repr(lowered[key]) for key in close)
    raise UsageError(
        f"name: the zoo has no policy {name!r}. Nearest names: {nearest}. "
        "fugu zoo list shows all of them."
    )


def check_files(policy: ZooPolicy, folder: Path) -> None:
    """Compare every file of a policy with the index.

    Raises:
        ZooError: A file is missing or its checksum differs; it names the file.
    """
    own = Path(folder) / policy.name
    for file, expected in policy.files.items():
        path = own / file
        if path.is_symlink() or not path.is_file():
            raise ZooError(f"zoo policy {policy.name}: {path} is missing. {_REFUSED}")
        found = sha256_of(path)
        if found != expected:
            raise ZooError(
                f"zoo policy {policy.name}: checksum mismatch of {path}: expected SHA-256 "
                f"{expected}, got {found}. {_REFUSED}"
            )
    listed = {path.relative_to(own).as_posix() for path in own.rglob("*") if not path.is_dir()}
    for file in sorted(listed - policy.files.keys()):
        raise ZooError(f"zoo policy {policy.name}: {own / file} is not in the index. {_REFUSED}")


def _read_policy(path: Path, entry: Any) -> ZooPolicy:
    """Read one entry of an index; names and paths in it must stay inside the zoo's folder."""
    if not isinstance(entry, dict):
        raise ZooError(f"zoo {path}: expected an object for every policy. {_REFUSED}")
    kinds: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (int, float),
        "Mapping[str, str]": (dict,),
    }
    for field in fields(ZooPolicy):
        value = entry.get(field.name)
        if not isinstance(value, kinds[str(field.type)]) or isinstance(value, bool):
            name = entry.get("name")
            raise ZooError(
                f"zoo {path}: policy {name!r}: {field.name}: expected {field.type}, got "
                f"{value!r}. {_REFUSED}"
            )
    policy = ZooPolicy(**{field.name: entry[field.name] for field in fields(ZooPolicy)})
    if not _NAME.fullmatch(policy.name):
        raise ZooError(f"zoo {path}: {policy.name!r} is not a valid name. {_REFUSED}")
    for file, checksum in policy.files.items():
        if most_bytes_of(file) is None or not _SHA256.fullmatch(str(checksum)):
            raise ZooError(
                f"zoo {path}: policy {policy.name!r}: {file!r} is not a file of a policy with a "
                f"SHA-256. {_REFUSED}"
            )
    return policy
