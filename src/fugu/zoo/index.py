"""The index of a zoo, with the scores and checksums of its policies, and runs made of them."""

from __future__ import annotations

import difflib
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fugu.core.errors import FuguError, UsageError
from fugu.core.files import DOCUMENT, read_bytes
from fugu.core.writing import write_whole
from fugu.hub import pull as hub
from fugu.hub.repositories import sha256_of
from fugu.store import values
from fugu.store.run import Run
from fugu.store.schema import parse

FOLDER = Path(__file__).parent / "policies"
"""The zoo that is installed with fugu."""
INDEX = "index.json"
FORMAT = 1
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_REMEDY = "Nothing was loaded. Reinstall fugu, or restore the folder of the zoo."


class ZooError(FuguError, RuntimeError):
    """The index or a file of a zoo is missing, changed or broken."""


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


@dataclass(frozen=True)
class _Index:
    """The content of an index file."""

    format: int
    policies: tuple[ZooPolicy, ...]


def read_index(folder: Path = FOLDER) -> list[ZooPolicy]:
    """Return the policies of a zoo.

    Raises:
        UsageError: The folder has no index.
        ZooError: The index is broken.
    """
    path = Path(folder) / INDEX
    try:
        index = parse(_Index, values.load(read_bytes(path, DOCUMENT)), "index")
    except FileNotFoundError:
        raise UsageError(
            f"folder: expected the folder of a zoo; got {str(folder)!r}, which has no {INDEX}."
        ) from None
    except (OSError, ValueError, RecursionError, UsageError) as error:
        raise ZooError(f"zoo {path}: {error} {_REMEDY}") from None
    if index.format != FORMAT:
        raise ZooError(f"zoo {path}: expected format {FORMAT}; got {index.format}. {_REMEDY}")
    for policy in index.policies:
        if not _NAME.fullmatch(policy.name):  # it must stay inside the folder
            raise ZooError(f"zoo {path}: {policy.name!r} is not a valid name. {_REMEDY}")
    return list(index.policies)


def write_index(folder: Path, policies: list[ZooPolicy]) -> None:
    """Write the index of a zoo, sorted by name."""
    ordered = sorted(policies, key=lambda policy: policy.name.lower())
    index = _Index(FORMAT, tuple(ordered))
    write_whole(folder / INDEX, values.dump(asdict(index)))


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


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files of a policy by their paths below its folder."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path for path in found}


def check_files(policy: ZooPolicy, folder: Path) -> None:
    """Compare the files of a policy with the index.

    Raises:
        ZooError: A file is missing, changed or not in the index; it names the file.
    """
    own = Path(folder) / policy.name
    found = files_of(own)
    for file in sorted({*found, *policy.files}):
        if file not in found:
            problem = f"{own / file} is missing"
        elif file not in policy.files:
            problem = f"{own / file} is not in the index"
        elif (checksum := sha256_of(found[file])) != policy.files[file]:
            problem = f"checksum mismatch of {own / file}: expected SHA-256 {policy.files[file]}, "
            problem += f"got {checksum}"
        else:
            continue
        raise ZooError(f"zoo policy {policy.name}: {problem}. {_REMEDY}")


def pull(
    name: str, into: Path | None = None, *, root: Path = Path("runs"), folder: Path = FOLDER
) -> Run:
    """Copy a policy into a new run folder; every file is verified and no code of it is run.

    Args:
        name: The policy's name, or its environment's.
        into: The run folder to create; `<root>/<name>` if not given.
        root: The folder of all runs.
        folder: The folder of the zoo.

    Raises:
        ZooError: A file is missing or its checksum differs.
    """
    policy = find_policy(name, folder)
    check_files(policy, folder)
    source = (Path(folder) / policy.name).absolute()
    return hub.pull(source, into if into is not None else root / policy.name).run


@contextmanager
def opened(name: str, folder: Path = FOLDER) -> Iterator[tuple[ZooPolicy, Run]]:
    """Yield a policy's index entry and a verified copy of it as a run, which is deleted after."""
    with tempfile.TemporaryDirectory(prefix="fugu-zoo-") as place:
        policy = find_policy(name, folder)
        yield policy, pull(policy.name, Path(place) / policy.name, folder=folder)
