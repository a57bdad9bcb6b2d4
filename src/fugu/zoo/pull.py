"""Make a run folder of a policy of the zoo."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fugu.hub import pull as hub
from fugu.store.run import Run
from fugu.zoo.index import FOLDER, ZooPolicy, check_files, find_policy


def pull(
    name: str, into: Path | None = None, *, root: Path = Path("runs"), folder: Path = FOLDER
) -> Run:
    """Copy a policy into a new run folder; every file is verified and no code of it is run.

    Args:
        name: The policy's name, or its environment's.
        into: The run folder to create; `<root>/<name>` if not given.
        root: Where runs are.
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
