"""Run folders: settings, status, metrics and checkpoints of one training run."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fugu.core.config import read_toml
from fugu.core.errors import UsageError, nearest_names
from fugu.core.files import DOCUMENT, read_bytes
from fugu.core.machine import is_running
from fugu.core.writing import write_whole
from fugu.store import values
from fugu.store.checkpoint import (
    CheckpointError,
    read_state,
    replaced,
    save_checkpoint,
    trust_checkpoint,
    verify_checkpoint,
)
from fugu.store.signing import canonical, is_signed, sign

if TYPE_CHECKING:
    import numpy as np
    import torch

log = logging.getLogger("fugu.store")

SIGNATURE = "signature.json"  # who wrote the settings; see `fugu.store.signing`
_SIGNS = ("run.json", "metrics.jsonl", "config.json", "config.toml", "checkpoints")
_STEP = re.compile(r"\.?(step_(\d{1,18}))(\.old)?")
_LATEST = 2**35  # seconds since 1970, to the year 3058: no clock shows more


def is_run(folder: Path) -> bool:
    """Return whether a folder looks like that of a run."""
    return folder.is_dir() and any((folder / sign).exists() for sign in _SIGNS)


class Run:
    """A run folder: `run.json`, `config.json`, `metrics.jsonl`, `checkpoints/step_000000123/`.

    One process at a time writes into a run; any number may read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @classmethod
    def create(
        cls,
        root: str | Path = "runs",
        name: str | None = None,
        env: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> Run:
        """Make the folder of a new run, `<root>/<env>-<date>-<time>-<random>` or the name given."""
        chosen = cls.new_name(env) if name is None else name
        if not re.fullmatch(r"\w[\w .-]*", chosen) or chosen == "latest":
            raise UsageError(
                f"run: given the name {chosen!r}; allowed: letters, digits, space, _ . and -, "
                "but not 'latest'."
            )
        folder = Path(root) / chosen
        taken = UsageError(
            f"run: given the name {chosen!r}, which is taken in {root}; allowed: a new name. "
            "Resume that run, or leave the name out."
        )
        if folder.exists():
            raise taken
        _bury_halves(folder)
        # Under another name until it is whole: a kill leaves no run without settings.
        token = f"{os.getpid()}-{secrets.token_hex(4)}"
        fresh = cls(folder.with_name(f".{chosen}.new-{token}"))
        fresh.folder.mkdir(parents=True)
        try:
            _write(fresh.folder / "run.json", {"env": env, "created": time.time()})
            fresh.mark("running")
            if config is not None:
                fresh.write_config(config)
            fresh.folder.rename(folder)
        except OSError as error:
            raise (taken if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else error) from None
        finally:
            shutil.rmtree(fresh.folder, ignore_errors=True)
        return cls(folder)

    @staticmethod
    def new_name(env: str) -> str:
        """Return `<env>-<date>-<time>-<random>`, which no run has."""
        plain = re.sub(r"[^\w.-]+", "_", env).strip("_.") or "run"
        return f"{plain}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"

    @classmethod
    def open(cls, name_or_path: str | Path, root: str | Path = "runs") -> Run:
        """Open the run of that path or name, a prefix that only one has, or "latest"."""
        return cls(_find(str(name_or_path), [run.folder for run in cls.list(root)], root))

    @classmethod
    def list(cls, root: str | Path = "runs") -> list[Run]:
        """Return all runs of a folder, oldest first."""
        if not Path(root).is_dir():
            return []
        folders = [path for path in Path(root).iterdir() if not path.name.startswith(".")]
        runs = [cls(folder) for folder in folders if is_run(folder)]
        return sorted(runs, key=lambda run: (run.created, run.name))

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @property
    def env(self) -> str:
        """The environment that it trains on; empty if unknown."""
        return str(_read(self.folder / "run.json").get("env") or self.config.get("env") or "")

    @property
    def created(self) -> float:
        """When it started, in seconds since 1970."""
        given = _read(self.folder / "run.json").get("created")
        if isinstance(given, int | float) and abs(given) < _LATEST:
            return float(given)
        return self.folder.stat().st_mtime

    @property
    def facts(self) -> dict[str, Any]:
        """Other facts that were noted of it."""
        known = _read(self.folder / "run.json")
        return {name: value for name, value in known.items() if name not in ("env", "created")}

    def note(self, facts: Mapping[str, Any]) -> None:
        """Note facts, in place of earlier ones of the same names."""
        path = self.folder / "run.json"
        _write(path, {**_read(path), **facts, "env": self.env, "created": self.created})

    @property
    def metrics_path(self) -> Path:
        """The file of metrics, one line each."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints_folder(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def config(self) -> dict[str, Any]:
        """Its settings, from `config.json` or `config.toml`; empty if there is neither."""
        path = self.folder / "config.toml"
        if path.is_file():
            return read_toml(path)
        return _read(self.folder / "config.json")

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings, once: a run has the same ones from beginning to end."""
        for name in ("config.json", "config.toml"):
            if (self.folder / name).exists():
                raise UsageError(
                    f"run {self.name}: it has a {name}; allowed: one config. "
                    "Begin a new run for other settings."
                )
        _write(self.folder / "config.json", config)
        self.sign(self.config)

    def sign(self, settings: Mapping[str, Any]) -> None:
        """Record that these settings of the run are this user's own, beside others of it."""
        signature = sign("settings", canonical(settings))
        if signature is not None:
            known = [each for each in self._signatures() if each != signature][-15:]
            _write(self.folder / SIGNATURE, {"settings": [*known, signature]})

    def is_own(self, settings: Mapping[str, Any] | None = None) -> bool:
        """Return whether this user wrote or trusted the settings, by default `config`."""
        content = canonical(self.config if settings is None else settings)
        return any(is_signed("settings", content, each) for each in self._signatures())

    def _signatures(self) -> Sequence[Any]:
        """Return the signatures of settings; a search has some before those of its winner."""
        found = _read(self.folder / SIGNATURE).get("settings")
        return found[:16] if isinstance(found, list) else []

    def trust(self) -> None:
        """Take its settings and its checkpoints, whoever wrote them, for this user's own.

        A folder that cannot be written stays as it is.
        """
        with contextlib.suppress(OSError):
            self.sign(self.config)
        for path in self.checkpoints():
            with contextlib.suppress(OSError, CheckpointError):  # a broken one stays a stranger's
                trust_checkpoint(path)

    def mark(self, status: str) -> None:
        """Set the status: running, finished, stopped or failed."""
        facts = {"status": status, "process": os.getpid(), "host": socket.gethostname()}
        _write(self.folder / "status.json", facts | {"time": time.time()})

    @property
    def status(self) -> str:
        """The status that was marked last; "killed" if it is running but its process is gone."""
        facts = _read(self.folder / "status.json")
        status = str(facts.get("status", "unknown"))
        here = facts.get("host") == socket.gethostname()
        return "killed" if status == "running" and here and _gone(_process(facts)) else status

    @property
    def alive(self) -> bool:
        """Whether its process trains it now, as far as this machine can tell."""
        host = _read(self.folder / "status.json").get("host")
        return self.status == "running" and host == socket.gethostname()

    @property
    def process(self) -> int:
        """The process that trains it, or did last; 0 if unknown."""
        return _process(_read(self.folder / "status.json"))

    def save(
        self,
        step: int,
        *,
        tensors: Mapping[str, Mapping[str, torch.Tensor | np.ndarray[Any, Any]]],
        state: Mapping[str, Any],
        score: float | None = None,
    ) -> Path:
        """Write the checkpoint of a step; `score` (more is better) decides which is the best.

        The state gets `step` and `score` with it.
        """
        whole = {**state, "step": step, "score": score}
        return save_checkpoint(self.checkpoint_path(step), tensors=tensors, state=whole)

    def checkpoint_path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.checkpoints_folder / f"step_{step:09d}"

    def checkpoints(self) -> Sequence[Path]:
        """Return all checkpoints by step, lowest first, broken ones too."""
        if not self.checkpoints_folder.is_dir():
            return []
        found = {}
        for path in self.checkpoints_folder.iterdir():
            # `.step_5.old` alone: a run was killed while another took its place.
            match = _STEP.fullmatch(path.name)
            if match and path.name.startswith(".") == path.name.endswith(".old"):
                found[int(match[2])] = path.with_name(match[1])
        return [found[step] for step in sorted(found)]

    def latest(self) -> Path | None:
        """Return the newest checkpoint that verifies; newer ones that do not are logged."""
        return next(self._verifying(reversed(self.checkpoints())), None)

    def best(self) -> Path | None:
        """Return the checkpoint of the highest score that verifies, the newest of equals."""
        scored = [
            (score, path) for path in self.checkpoints() if (score := _score(path)) is not None
        ]
        ranked = [path for _, path in sorted(scored, reverse=True)]
        return next(self._verifying(iter(ranked)), None)

    def prune(self, keep: int = 3) -> Sequence[Path]:
        """Delete all checkpoints but the last `keep` that verify and the best; return the deleted.

        Broken ones among the last are no substitute and are left: somebody may want to look.
        What a killed save left half written is deleted.
        """
        if keep < 1:
            raise UsageError(f"keep: given {keep}; allowed: 1 or more.")
        if not self.checkpoints_folder.is_dir():
            return []
        self._bury_leftovers()
        paths, best = self.checkpoints(), self.best()
        kept = list(itertools.islice(self._verifying(reversed(paths)), keep))
        older = paths[: paths.index(kept[-1])] if len(kept) == keep else []
        doomed = [path for path in older if path != best]
        for path in doomed:
            # First its name goes: a delete that is cut short leaves no broken checkpoint.
            grave = path.with_name(f".{path.name}.new-{secrets.token_hex(4)}")
            (path if path.is_dir() else replaced(path)).rename(grave)
            shutil.rmtree(grave, ignore_errors=True)
        return doomed

    def _bury_leftovers(self) -> None:
        """Delete what killed saves left: halves of new files, and old ones that were replaced."""
        for path in self.folder.glob(".*.json.*"):
            path.unlink(missing_ok=True)
        for path in self.checkpoints_folder.glob(".step_*.new-*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self.checkpoints():
            if path.is_dir():
                shutil.rmtree(replaced(path), ignore_errors=True)

    def _verifying(self, paths: Iterator[Path]) -> Iterator[Path]:
        for path in paths:
            try:
                verify_checkpoint(path)
            except CheckpointError as error:
                log.warning("skipped a broken checkpoint: %s", error)
            else:
                yield path


def _find(given: str, folders: Sequence[Path], root: str | Path) -> Path:
    """Return the folder of a run out of all in `root`, oldest first, by what people type."""
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


def _score(path: Path) -> float | None:
    try:
        score = read_state(path).get("score")
    except CheckpointError:
        return None
    # NaN is no score: it would be neither above nor below the others.
    return float(score) if isinstance(score, int | float) and score == score else None


def _bury_halves(folder: Path) -> None:
    """Delete what processes left that were killed while they made this run's folder."""
    for path in folder.parent.glob(f".{folder.name}.new-*"):
        match = re.search(r"\.new-(\d{1,9})-\w+$", path.name)
        if match and _gone(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _process(facts: Mapping[str, Any]) -> int:
    """Return the process that marked a run; 0 if that is no process id."""
    found = facts.get("process")
    return found if isinstance(found, int) and 0 < found < 1 << 31 else 0


def _gone(process: int) -> bool:
    return os.name == "posix" and not is_running(process)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, values.dump(content))


def _read(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; an empty one if there is no file."""
    try:
        found = values.load(read_bytes(path, DOCUMENT))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: it is no JSON: {error}. Restore or delete it.") from None
    return found if isinstance(found, dict) else {}
