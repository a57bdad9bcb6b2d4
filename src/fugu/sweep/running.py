"""Starting and resuming sweeps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import optuna
from optuna.storages import BaseStorage
from optuna.study import Study

from fugu.core.errors import UsageError
from fugu.core.intervals import CheckedConfig, NonNegativeFloat, PositiveInt
from fugu.core.writing import tells_full_disk
from fugu.sweep.controller import Controller
from fugu.sweep.plan import SweepPlan
from fugu.sweep.report import SweepReport, SweepView, write_report
from fugu.sweep.sampler import make_sampler
from fugu.sweep.storage import (
    JOURNAL,
    create_study,
    find_sweep,
    full_disk_advice,
    load_study,
    name_taken,
    open_storage,
    stored_url,
    write_sweep_file,
)
from fugu.sweep.trials import LocalTrial, ray_launcher


@dataclass(frozen=True)
class ExecutionConfig(CheckedConfig):
    """Where and how the trials of a sweep run.

    Attributes:
        root: The folder of sweeps.
        storage: URL of a database that Optuna can open; None: a journal in the sweep's folder.
        workers: Number of concurrent trials.
        cluster: None: trials are processes of this machine; "ray": of a Ray cluster.
        ray_address: Address of the cluster.
        ray_cpus: Number of CPUs that each trial requests from the cluster.
        show: Whether to show the progress.
    """

    root: Path = Path("sweeps")
    storage: str | None = None
    workers: PositiveInt = 1
    cluster: Literal["ray"] | None = None
    ray_address: str | None = None
    ray_cpus: NonNegativeFloat = 1.0
    show: bool = True


@dataclass(frozen=True)
class SweepResult:
    """The result of running a sweep.

    Attributes:
        plan: The plan of the sweep.
        report: The report of all trials so far.
        signals: Signals that stopped the sweep; empty if it is complete.
    """

    plan: SweepPlan
    report: SweepReport
    signals: tuple[int, ...] = ()


def start_sweep(plan: SweepPlan, execution: ExecutionConfig) -> SweepResult:
    """Run a new sweep until it is complete or a signal stops it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = execution.root / plan.name
    if folder.exists():
        raise UsageError(name_taken(plan.name, str(execution.root)))
    folder.mkdir(parents=True)
    storage = open_storage(folder, execution.storage)
    study = create_study(storage, plan)
    write_sweep_file(folder, plan.name, execution.storage)
    first = plan.default_parameters() if plan.search.first else None
    if first is not None:
        study.enqueue_trial(first)
    return _run(plan, study, storage, folder, execution)


def resume_sweep(given: str, execution: ExecutionConfig, *, trust: bool = False) -> SweepResult:
    """Continue a sweep that was stopped or killed, or join one that other processes run.

    Args:
        given: The name of the sweep, its folder, or "latest".
        execution: Where and how its trials run from now on. The storage must be given again only if
            its URL has a password, or if the sweep was started on another machine.
        trust: Trust the sweep, whoever started it: its trials run what its settings name.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder, name = find_sweep(given, execution.root, execution.storage)
    url = execution.storage or stored_url(folder, trust)
    if url is None and not (folder / JOURNAL).exists():
        raise UsageError(
            f"resume: expected a sweep with a {JOURNAL}; got {given!r}, which has none. Give the "
            "storage that it was started with: --storage URL."
        )
    folder.mkdir(parents=True, exist_ok=True)
    storage = open_storage(folder, url)
    study, plan = load_study(storage, name, trust=trust)
    write_sweep_file(folder, name, url)
    return _run(plan, study, storage, folder, execution)


def _run(
    plan: SweepPlan, study: Study, storage: BaseStorage, folder: Path, execution: ExecutionConfig
) -> SweepResult:
    folder, search = folder.resolve(), plan.search
    study.sampler = make_sampler(
        search.sampler, plan.distributions, abs(plan.cfg.seed), max_cost=search.max_cost
    )
    is_local = execution.cluster is None
    launch = LocalTrial if is_local else ray_launcher(execution.ray_address, execution.ray_cpus)
    with (
        tells_full_disk(lambda: full_disk_advice(folder)),
        SweepView(plan, execution.show) as view,
    ):
        controller = Controller(
            plan, study, storage, launch, folder, execution.workers, view, resumable=is_local
        )
        controller.run()
    return SweepResult(plan, write_report(plan, study, folder), tuple(controller.signals))
