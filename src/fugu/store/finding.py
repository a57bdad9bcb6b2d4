"""Which run folder is meant by what people type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fugu.core.errors import UsageError, nearest_names

_SIGNS = ("run.json", "metrics.jsonl", "config.json", "config.toml", "checkpoints")


def is_run(folder: Path) -> bool:
    """Whether a folder looks like that of a run."""
    return folder.is_dir() and any((folder / sign).exists() for sign in _SIGNS)


def find_run(given: str, folders: Sequence[Path], root: str | Path) -> Path:
    """The folder that is meant, out of all in `root`, oldest first; UsageError if none is."""
    if is_run(Path(given)):
        return Path(given)
    if not folders:
        raise UsageError(
            f"run: given {given!r}, but {str(root)!r} holds no runs; allowed: the name or path of "
            "a run. Name their folder by --root."
        )
    if given == "latest":
        return folders[-1]
    by_name = {folder.name: folder for folder in folders}
    if given in by_name:
        return by_name[given]
    matches = [name for name in by_name if given and name.startswith(given)]
    if len(matches) == 1:
        return by_name[matches[0]]
    if matches:
        raise UsageError(
            f"run: given {given!r}, which begins {len(matches)} names: {_listed(matches)}; "
            "allowed: a beginning that only one has."
        )
    nearest = nearest_names(given, by_name, 3)
    raise UsageError(
        f"run: given {given!r}, which is no run in {str(root)!r}; nearest: {_listed(nearest)}; "
        "allowed: a name, its beginning, a path, or 'latest'."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
