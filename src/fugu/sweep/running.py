"""Running sweeps: new ones, and those that were begun."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import BaseStorage
from optuna.study import Study

from fugu.core.config import Tree, to_tree
from fugu.core.errors import UsageError
from fugu.core.writing import tells_full_disk, write_whole
from fugu.store.run import Run
from fugu.store.signing import sign
from fugu.sweep.conductor import Conductor
from fugu.sweep.plan import Plan, SearchConfig
from fugu.sweep.ray_trials import ray_launcher
from fugu.sweep.report import SweepReport, write_report
from fugu.sweep.sampler import make_sampler
from fugu.sweep.showing import View
from fugu.sweep.space import make_space
from fugu.sweep.storage import (
    JOURNAL,
    check_signed,
    create_study,
    full_disk_advice,
    load_study,
    open_storage,
)
from fugu.sweep.trials import LocalTrial
from fugu.training.config import resolve_config

PLACE = "sweep.json"  # in a sweep's folder: its name, and where it is kept


@dataclass(frozen=True)
class Place:
    """Where a sweep runs.

    Attributes:
        root: The folder of sweeps.
        storage: A URL of Optuna; None: a journal in the sweep's folder.
        workers: Trials at a time.
        cluster: None: processes of this machine; "ray": a cluster's.
        ray_address: Of the cluster.
        ray_cpus: Processors of the cluster for each trial.
        show: Whether to show how it goes.
    """

    root: Path = Path("sweeps")
    storage: str | None = None
    workers: int = 1
    cluster: Literal["ray"] | None = None
    ray_address: str | None = None
    ray_cpus: float = 1.0
    show: bool = True

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UsageError(f"workers: given {self.workers}; allowed: 1 or more.")


@dataclass(frozen=True)
class SweepResult:
    """What came of running a sweep.

    Attributes:
        report: Of all trials so far.
        signals: That stopped it; empty if it came to its end.
    """

    report: SweepReport
    signals: tuple[int, ...] = ()


def make_plan(
    env: str,
    *,
    name: str | None = None,
    given: Tree | None = None,
    preset: str | None = None,
    ranges: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    search: SearchConfig | None = None,
    wandb: bool = False,
) -> Plan:
    """The plan of a sweep, once nothing is wrong with it.

    Args:
        env: What to train on.
        name: Of the sweep; made of the environment and the time if not given.
        given: Settings that differ from those `fugu train` would use.
        preset: A named set of settings below them.
        ranges: Ranges beside those of the environment's file, as in TOML below `sweep`.
        only: Paths of the settings to vary.
        search: How to search.
        wandb: Whether trials are runs of Weights & Biases too.
    """
    cfg = resolve_config(env, preset=preset, overrides=given)
    space = make_space(cfg, ranges or {}, only)
    chosen = name or Run.new_name(env)
    if not re.fullmatch(r"\w[\w.-]*", chosen) or chosen == "latest":
        raise UsageError(
            f"name: given {chosen!r}; allowed: letters, digits, _ . and -, but not 'latest'."
        )
    kept = _typed(given or {}, to_tree(cfg))
    return Plan(chosen, env, kept, preset, space.to_tree(), search or SearchConfig(), wandb)


def _typed(given: Mapping[str, Any], known: Mapping[str, Any]) -> Tree:
    """Settings that were given, as the settings have them: flags are texts before."""
    found: Tree = {}
    for key, value in given.items():
        short = key.replace("-", "_").rstrip("_")
        name = short if short in known else f"{short}_"
        now = known[name]
        if isinstance(value, Mapping) and isinstance(now, Mapping):
            found[name] = _typed(value, now) if name != "env_kwargs" else dict(now)
        else:
            found[name] = "none" if now is None else str(now) if isinstance(now, Path) else now
    return found


def begin_sweep(plan: Plan, place: Place) -> SweepResult:
    """Run a new sweep."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = place.root / plan.name
    if folder.exists():
        raise UsageError(
            f"name: given {plan.name!r}, which is taken in {place.root}; allowed: a new name, or "
            f"fugu sweep --resume {plan.name}."
        )
    folder.mkdir(parents=True)
    storage = open_storage(folder, place.storage)
    study = create_study(storage, plan)
    _write_place(folder, plan.name, place.storage)
    first = plan.space.parameters(plan.cfg) if plan.search.first else None
    if first is not None:
        study.enqueue_trial(first)
    return _run(plan, study, storage, folder, place)


def resume_sweep(given: str, place: Place, *, trust: bool = False) -> SweepResult:
    """Go on with a sweep, after a stop or a kill, or beside others that run it.

    Args:
        given: Its name, its folder, or "latest".
        place: Where it runs from now on. A storage need not be given again, unless its URL has a
            password, or the sweep was begun on another machine.
        trust: Trust the sweep from now on, whoever began it: its trials run what its settings name.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder, name = _find(given, place)
    url = place.storage or _own_storage(folder, trust)
    if url is None and not (folder / JOURNAL).exists():
        raise UsageError(
            f"resume: given {given!r}, whose folder has no {JOURNAL}; allowed: with the storage "
            "that it was begun with, by --storage URL."
        )
    folder.mkdir(parents=True, exist_ok=True)
    storage = open_storage(folder, url)
    study, plan = load_study(storage, name, trust=trust)
    _write_place(folder, name, url)
    return _run(plan, study, storage, folder, place)


def _run(plan: Plan, study: Study, storage: BaseStorage, folder: Path, place: Place) -> SweepResult:
    folder = folder.resolve()
    search = plan.search
    study.sampler = make_sampler(
        search.sampler, plan.space.distributions, abs(plan.cfg.seed), max_cost=search.max_cost
    )
    launch = (
        LocalTrial if place.cluster is None else ray_launcher(place.ray_address, place.ray_cpus)
    )
    with tells_full_disk(lambda: full_disk_advice(folder)), View(plan, place.show) as view:
        conductor = Conductor(
            plan,
            study,
            storage,
            launch,
            folder,
            place.workers,
            view,
            resumable=place.cluster is None,
        )
        conductor.run()
    return SweepResult(write_report(plan, study, folder), tuple(conductor.signals))


def _find(given: str, place: Place) -> tuple[Path, str]:
    """The folder and the name of a sweep."""
    if given != "latest":
        folder = Path(given) if (Path(given) / PLACE).is_file() else place.root / given
        if not (folder / PLACE).is_file() and place.storage is None:
            raise UsageError(
                f"resume: given {given!r}, which is no sweep in {str(place.root)!r}; allowed: "
                f"{', '.join(_names(place.root)) or 'none there'}. One of another machine needs "
                "--storage URL."
            )
        return folder, str(_read_place(folder).get("name", Path(given).name))
    names = _names(place.root)
    if not names:
        raise UsageError(
            f"resume: {str(place.root)!r} holds no sweeps; allowed: one that was begun. "
            "Name their folder by --root."
        )
    return place.root / names[-1], names[-1]


def _names(root: Path) -> list[str]:
    """All sweeps of a folder, oldest first."""
    found = [path.parent for path in root.glob(f"*/{PLACE}")]
    return [folder.name for folder in sorted(found, key=lambda f: (f / PLACE).stat().st_mtime)]


def _read_place(folder: Path) -> dict[str, Any]:
    path = folder / PLACE
    told: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return told


def _write_place(folder: Path, name: str, url: str | None) -> None:
    """Once; a URL with a password is not written."""
    path = folder / PLACE
    if path.exists():
        return
    kept = url if url is None or not re.search(r"://[^/@]*:[^/@]*@", url) else None
    signature = None if kept is None else sign("storage", kept.encode())
    told = {"name": name, "storage": kept, "signature": signature}
    write_whole(path, json.dumps(told) + "\n")


def _own_storage(folder: Path, trust: bool) -> str | None:
    """The URL of a sweep's database, which is not opened if somebody else wrote it there."""
    told = _read_place(folder)
    url = told.get("storage")
    if url is not None and not trust:
        check_signed(folder.name, "storage", str(url), [told.get("signature")])
    return url
