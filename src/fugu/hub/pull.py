"""`pull`: a shared run becomes a run of this machine, if every file is what it should be."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fugu.core.errors import UsageError
from fugu.envs.untrusted import CALLED, UntrustedError, check_env
from fugu.hub.contents import (
    CHECKSUMS,
    CONFIG,
    MOST_BYTES,
    RUN,
    RefusedError,
    check_names,
    check_safetensors,
    check_sizes,
    copy_checked,
    load_checksums,
    load_object,
    verified,
)
from fugu.hub.places import Place, find_place
from fugu.hub.settings import check_config
from fugu.store import values
from fugu.store.checkpoint import ENDING, STATES, CheckpointError, verify_checkpoint
from fugu.store.run import Run

ORIGIN = "origin.json"
# Bytes that environments take as they are, native ones into their memory.
_STATES = re.compile(rf".*/{STATES.pattern}\.safetensors")


@dataclass(frozen=True)
class Pulled:
    """What came of a pull.

    Attributes:
        run: The run's folder.
        commit: Of the repository; None for a folder.
        left: Files that were left out, since nobody said that they are trusted.
    """

    run: Run
    commit: str | None
    left: tuple[str, ...]


def pull(
    repo: str | Path,
    into: str | Path | None = None,
    *,
    revision: str | None = None,
    root: str | Path = "runs",
    trust: bool = False,
    max_bytes: int = MOST_BYTES,
    token: str | None = None,
) -> Pulled:
    """Make a run folder of a shared run; no program of it is run, or imported.

    Args:
        repo: `user/name` of the Hub, or a folder that starts with `./`, `../`, `~` or `/`.
        into: The run's folder, which must be new; `runs/name` if not given.
        revision: A branch, tag or commit.
        root: Where runs are.
        trust: Trust the run from now on. Take all of its settings, such as an environment that is
            a Python factory or a native library, which is called when it is played or trained,
            and states of environments, with which it goes on exactly. Without them a resumed run
            begins new episodes.
        max_bytes: The most that may be downloaded.
        token: Of the Hub; by default that of `HF_TOKEN` or `hf auth login`.

    Raises:
        RefusedError: A file is missing, changed, too large, or none of a run; it names the file.
        HubError: The Hub cannot be reached, or refuses.
    """
    place = find_place(repo, revision, token)
    name = Path(place.name).resolve().name
    target = Path(into) if into is not None else Path(root) / name
    if target.exists():
        raise UsageError(
            f"into: given {str(target)!r}, which exists; allowed: a new folder. Give another by "
            "--into, or delete that one."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
            left = _fill(place, Path(folder) / target.name, trust, max_bytes)
            (Path(folder) / target.name).rename(target)
    except OSError as error:
        raise UsageError(
            f"into: given {str(target)!r}, which cannot be made: {error}; allowed: a folder that "
            "can be."
        ) from error
    return Pulled(Run(target), place.commit, left)


def _fill(place: Place, folder: Path, trust: bool, most: int) -> tuple[str, ...]:
    folder.mkdir()
    left = fetch(
        place,
        folder,
        wanted=lambda name: trust or not _STATES.fullmatch(name),
        trust=trust,
        most=most,
    )
    (folder / ORIGIN).write_bytes(values.dump({"place": place.name, "commit": place.commit}))
    Run(folder).mark("pulled")
    if trust:
        Run(folder).trust()
    return left


def fetch(
    place: Place,
    folder: Path,
    *,
    wanted: Callable[[str], bool],
    trust: bool,
    most: int,
    given: bool = False,
) -> tuple[str, ...]:
    """Fill an empty folder with the wanted files of a run, verified; what was left out.

    Args:
        place: Where the run is shared.
        folder: The folder to fill.
        wanted: Called with a file's name: whether to take it.
        trust: Take settings that are more than data.
        most: The most bytes to download.
        given: Whether the caller makes the environment.
    """
    with place.session():
        sizes = place.sizes()
        check_names(place.name, sizes)
        if CHECKSUMS not in sizes:
            raise RefusedError(place.name, CHECKSUMS, "it is missing; this is no run of fugu")
        # The settings first: they may be all that it takes to refuse the rest.
        names = sorted(verified(filter(wanted, sizes)), key=lambda name: (name != CONFIG, name))
        check_sizes(place.name, {name: sizes[name] for name in [CHECKSUMS, *names]}, most)
        sums = load_checksums(place.name, _read(place, CHECKSUMS, sizes), sizes)
        _check_parts(place.name, sums)
        for name in names:
            _take(place, name, sizes[name], sums[name], folder / name)
            if name == CONFIG:
                _check_settings(place.name, (folder / name).read_bytes(), trust, given)
    load_object(place.name, RUN, (folder / RUN).read_bytes())
    left = tuple(sorted(sums.keys() - set(names)))
    for checkpoint in sorted({Path(name).parent for name in names if name.endswith(ENDING)}):
        _check_checkpoint(place.name, folder, checkpoint, left)
    return left


def _read(place: Place, name: str, sizes: dict[str, int]) -> bytes:
    """A small file; of one that is longer than it was said to be, no more than that."""
    with place.fetch(name).open("rb") as file:
        return file.read(sizes[name])


def _take(place: Place, name: str, size: int, expected: str, target: Path) -> None:
    found = copy_checked(place.fetch(name), target, size)
    if found != expected:
        reason = f"its SHA-256 is {found}; {CHECKSUMS} says {expected}: it was changed, or broke"
        raise RefusedError(place.name, name, reason)
    if name.endswith(ENDING):
        check_safetensors(place.name, name, target)


def _check_parts(place: str, names: dict[str, str]) -> None:
    """Raise RefusedError if something is missing that every run has."""
    for name in (CONFIG, RUN):
        if name not in names:
            raise RefusedError(place, name, "it is missing; this is no whole run of fugu")
    if not any(name.startswith("checkpoints/") for name in names):
        raise RefusedError(place, "checkpoints", "there is none; this is no whole run of fugu")


def _check_settings(place: str, text: bytes, trust: bool, given: bool) -> None:
    config = load_object(place, CONFIG, text)
    check_config(place, config)
    if trust:
        return
    remedy = "If you know who made the run, trust it (--trust, in Python trust=True)"
    env, kwargs = config.get("env", ""), config.get("env_kwargs", {})
    if not isinstance(kwargs, dict):
        raise RefusedError(place, CONFIG, f"env_kwargs: expected an object; got {kwargs!r:.80}")
    try:
        check_env(CALLED if given else env, kwargs, remedy)
    except UntrustedError as error:
        raise RefusedError(place, CONFIG, str(error)) from error


def _check_checkpoint(place: str, folder: Path, checkpoint: Path, left: tuple[str, ...]) -> None:
    """Let it say no more of what was left out; RefusedError if it is not whole then."""
    path = folder / checkpoint / CHECKSUMS
    if not path.is_file():
        raise RefusedError(place, f"{checkpoint}/{CHECKSUMS}", "it is missing")
    own = load_object(place, f"{checkpoint}/{CHECKSUMS}", path.read_bytes())
    kept = {name: value for name, value in own.items() if f"{checkpoint}/{name}" not in left}
    if kept != own:
        path.write_bytes(values.dump(kept))
    try:
        verify_checkpoint(folder / checkpoint)
    except (CheckpointError, RecursionError) as error:
        reason = error.reason if isinstance(error, CheckpointError) else "it is nested too deeply"
        file = error.file if isinstance(error, CheckpointError) else CHECKSUMS
        raise RefusedError(place, f"{checkpoint}/{file}", reason) from error
