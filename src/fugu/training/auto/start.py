"""Starts a search for settings in a new run folder, or resumes one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fugu.algos.settings import Config
from fugu.core.config import Tree
from fugu.core.errors import UsageError
from fugu.core.writing import tells_full_disk
from fugu.envs.untrusted import UntrustedError
from fugu.store.checkpoint import read_state
from fugu.store.run import Run
from fugu.training.auto.members import check_searchable
from fugu.training.auto.record import SearchRecord, base_settings, read_record
from fugu.training.auto.report import show_progress
from fugu.training.auto.search import Interruption, Search, TrainMember, new_record
from fugu.training.evaluate import load_policies
from fugu.training.inputs import RunInputs
from fugu.training.preemption import newest_alike
from fugu.training.result import Result
from fugu.training.trainer import find_device


def train_auto(
    cfg: Config,
    inputs: RunInputs,
    train_member: TrainMember,
    *,
    keep: bool = True,
    show: bool = True,
    auto_resume: bool = False,
    init_from: str | Path | None = None,
) -> Result:
    """Search for settings and train with them; see `fugu.train` for the arguments."""
    check_searchable(cfg, inputs.ranks.size)
    with _folder(cfg.run.folder, keep) as folder:
        cfg = replace(cfg, run=replace(cfg.run, folder=folder))
        found = newest_alike(cfg, base_settings) if auto_resume and keep else None
        record = None if found is None else read_record(found)
        if found is None or record is None:
            source = None if init_from is None else str(Run.open(init_from, folder).folder)
            record = new_record(cfg, inputs, source)
            found = Run.create(folder, cfg.run.name, cfg.env)
            found.sign(record.config)
        result = _search(found, record, inputs, train_member, show)
        return result if keep else replace(result, run=None)


def resume_auto(
    run: Run, inputs: RunInputs, train_member: TrainMember, overrides: Tree, show: bool = True
) -> Result:
    """Resume a search that was stopped or killed before it chose."""
    record = read_record(run)
    assert record is not None
    if not inputs.trust and not run.is_own(record.config):
        raise UntrustedError(
            f"resume: expected a search that was started here; got {str(run.folder)!r}, which "
            "somebody else may have written. If you know who did, use --trust (in Python "
            "trust=True)."
        )
    run.sign(record.config)
    if overrides:
        raise UsageError(
            f"resume: {run.name} is a search that has not chosen yet, and its settings are fixed; "
            f"got {', '.join(overrides)}. Resume it without settings."
        )
    return _search(run, record, inputs, train_member, show)


def _search(
    run: Run, record: SearchRecord, inputs: RunInputs, train_member: TrainMember, show: bool
) -> Result:
    began = time.perf_counter()
    report = show_progress if show else lambda record: None
    with tells_full_disk(lambda: f"Free some space, then: fugu resume {run.folder}"):
        found = Search(run, record, inputs, train_member, report).run()
    seconds = time.perf_counter() - began
    if isinstance(found, Interruption):
        return Result(run, [], 0, seconds, None, "stopped", found.signals)
    cfg, policies = load_policies(run, None, inputs)
    newest = run.latest()
    assert newest is not None
    state = read_state(newest)
    episodes = sum(count for count, _ in state["recent"])
    score = sum(total for _, total in state["recent"]) / episodes if episodes else None
    device = find_device(cfg.device)
    on_device = [policy.to(device) for policy in policies]
    return Result(run, on_device, int(state["steps"]), seconds, score, "finished")


@contextmanager
def _folder(root: Path, keep: bool) -> Iterator[Path]:
    """Yield the folder of runs; a temporary one if the run is not kept."""
    if keep:
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="fugu-auto-") as folder:
        yield Path(folder)
