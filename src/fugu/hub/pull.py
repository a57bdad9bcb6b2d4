"""Pull a shared run: every file is checked before a run folder is made of it."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fugu.core.errors import UsageError
from fugu.envs.untrusted import CALLED, UntrustedError, check_env
from fugu.hub.repositories import (
    CHECKSUMS,
    CONFIG,
    MAX_BYTES,
    RUN,
    UNVERIFIED,
    RefusedError,
    Repository,
    check_config,
    check_names,
    check_sizes,
    load_checksums,
    load_object,
    open_repository,
)
from fugu.store import values
from fugu.store.checkpoint import ENDING, STATES, CheckpointError, verify_checkpoint
from fugu.store.run import Run

ORIGIN = "origin.json"
_CHUNK = 1 << 20
# Environments restore these bytes unchecked, native ones straight into their memory.
_STATES = re.compile(rf".*/{STATES.pattern}\.safetensors")


@dataclass(frozen=True)
class Pulled:
    """Result of a pull.

    Attributes:
        run: The new run.
        commit: The commit of the repository; None for a folder.
        skipped: Names of the files that were left out because the run is not trusted.
    """

    run: Run
    commit: str | None
    skipped: tuple[str, ...]


def pull(
    repo: str | Path,
    into: str | Path | None = None,
    *,
    revision: str | None = None,
    root: str | Path = "runs",
    trust: bool = False,
    max_bytes: int = MAX_BYTES,
    token: str | None = None,
) -> Pulled:
    """Download a shared run into a new run folder; no code of it is imported or executed.

    Args:
        repo: `user/name` on the Hub, or a folder that starts with `./`, `../`, `~` or `/`.
        into: The run folder to create; `<root>/<name>` if not given.
        revision: A branch, tag or commit.
        root: The folder of all runs.
        trust: Trust the run from now on: accept all of its settings, such as an environment that
            is a Python factory or a native library, which is called when the run is played or
            trained, and states of environments, with which a resumed run continues exactly.
            Without them a resumed run begins new episodes.
        max_bytes: The most bytes to download.
        token: A token of the Hub; that of `HF_TOKEN` or `hf auth login` if not given.

    Raises:
        RefusedError: A file is missing, changed, too large or not allowed; it names the file.
        HubError: The Hub cannot be reached, or denies access.
    """
    with open_repository(repo, revision, token) as repository:
        target = Path(into or Path(root) / Path(repository.name).resolve().name)
        if target.exists():
            raise UsageError(
                f"into: expected a new folder; got {str(target)!r}, which exists. Choose another "
                "with --into, or delete it."
            )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
                run = Run(Path(folder) / target.name)
                skipped = fetch(
                    repository,
                    run.folder,
                    wanted=lambda name: trust or not _STATES.fullmatch(name),
                    trust=trust,
                    max_bytes=max_bytes,
                )
                origin = {"repository": repository.name, "commit": repository.commit}
                (run.folder / ORIGIN).write_bytes(values.dump(origin))
                run.mark("pulled")
                if trust:
                    run.trust()
                run.folder.rename(target)
        except OSError as error:
            raise UsageError(
                f"into: {str(target)!r} cannot be created: {error}. Choose another with --into."
            ) from error
        return Pulled(Run(target), repository.commit, skipped)


def fetch(
    repository: Repository,
    folder: Path,
    *,
    wanted: Callable[[str], object],
    trust: bool,
    max_bytes: int,
    env_given: bool = False,
) -> tuple[str, ...]:
    """Download and verify the wanted files of a shared run; return the names of the others.

    Without `trust`, the environment must be data, unless the caller provides one (`env_given`).
    """
    source, sizes = repository.name, repository.sizes()
    check_names(source, sizes)
    for name in (CHECKSUMS, CONFIG, RUN):
        if name not in sizes:
            raise RefusedError(source, name, "it is missing; this is not a complete run of fugu")
    if not any(name.startswith("checkpoints/") for name in sizes):
        raise RefusedError(source, "checkpoints", "a complete run has one; this one has none")
    # The settings come first: they may be reason enough to refuse the run.
    names = [CONFIG, *sorted(filter(wanted, sizes.keys() - {*UNVERIFIED, CHECKSUMS, CONFIG}))]
    check_sizes(source, {name: sizes[name] for name in (CHECKSUMS, *names)}, max_bytes)
    with repository.fetch(CHECKSUMS).open("rb") as file:
        checksums = load_checksums(source, file.read(sizes[CHECKSUMS]), sizes)
    for name in names:
        target = folder / name
        _copy_verified(repository, name, sizes[name], checksums[name], target)
        if name == CONFIG:
            _check_settings(source, target.read_bytes(), trust, env_given)
    load_object(source, RUN, (folder / RUN).read_bytes())
    skipped = tuple(sorted(checksums.keys() - set(names)))
    for checkpoint in sorted({Path(name).parent for name in names if name.endswith(ENDING)}):
        _check_checkpoint(source, folder, checkpoint, skipped)
    return skipped


def _copy_verified(
    repository: Repository, name: str, size: int, checksum: object, target: Path
) -> None:
    """Copy a file; RefusedError if it is not the one that the checksum is of."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), size + 1  # never much more than the listing says
    with repository.fetch(name).open("rb") as file, target.open("wb") as out:
        while chunk := file.read(min(_CHUNK, left)):
            digest.update(chunk)
            out.write(chunk)
            left -= len(chunk)
    if digest.hexdigest() != checksum:
        reason = f"{CHECKSUMS} has the SHA-256 {checksum!r:.80}, but it is {digest.hexdigest()}"
        raise RefusedError(repository.name, name, f"{reason}: it was changed or is incomplete")
    if name.endswith(ENDING):
        with target.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
            if header > size - 8 or file.read(1) != b"{":
                raise RefusedError(repository.name, name, "it is not a safetensors file")


def _check_settings(source: str, text: bytes, trust: bool, env_given: bool) -> None:
    """Raise RefusedError unless the settings are data that this machine may use."""
    config = load_object(source, CONFIG, text)
    check_config(source, config)
    if trust:
        return
    env, kwargs = config.get("env", ""), config.get("env_kwargs", {})
    if not isinstance(kwargs, dict):
        raise RefusedError(source, CONFIG, f"env_kwargs: expected an object; got {kwargs!r:.80}")
    remedy = "If you know who made the run, trust it (--trust, in Python trust=True)"
    try:
        check_env(CALLED if env_given else env, kwargs, remedy)
    except UntrustedError as error:
        raise RefusedError(source, CONFIG, str(error)) from error


def _check_checkpoint(
    source: str, folder: Path, checkpoint: Path, skipped: tuple[str, ...]
) -> None:
    """Remove skipped files from a checkpoint's own list; RefusedError unless it is whole then."""
    path = folder / checkpoint / CHECKSUMS
    if not path.is_file():
        raise RefusedError(source, f"{checkpoint}/{CHECKSUMS}", "it is missing")
    own = load_object(source, f"{checkpoint}/{CHECKSUMS}", path.read_bytes())
    kept = {name: value for name, value in own.items() if f"{checkpoint}/{name}" not in skipped}
    if kept != own:
        path.write_bytes(values.dump(kept))
    try:
        verify_checkpoint(folder / checkpoint)
    except CheckpointError as error:
        raise RefusedError(source, f"{checkpoint}/{error.file}", error.reason) from error
    except RecursionError:
        reason = "it is nested too deeply"
        raise RefusedError(source, f"{checkpoint}/{CHECKSUMS}", reason) from None
