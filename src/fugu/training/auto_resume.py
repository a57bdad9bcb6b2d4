"""Preemption: schedulers that take a machine away and give it back, and runs that go on then."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

from fugu.algos.settings import Config, read_config
from fugu.core.config import Tree, to_tree
from fugu.core.errors import FuguError, UsageError
from fugu.store.checkpoint import POLICY_ONLY, read_state
from fugu.store.run import Run

REQUEUE_STATUS = 75  # EX_TEMPFAIL of sysexits.h: try again, nothing is wrong
JOB = "SLURM_JOB_ID"
SCONTROL_SECONDS = 60.0


class RequeueError(FuguError, RuntimeError):
    """The scheduler did not take a job back."""


def newest_alike(
    cfg: Config, settings_of: Callable[[Run], Tree] = lambda run: run.config
) -> Run | None:
    """The newest run of the same settings that did not fail; None if there is none.

    What is kept of a run, the section `run`, may differ; a name that is given is that of the run.

    Args:
        cfg: The settings.
        settings_of: Returns the settings of a run to compare with them.

    Raises:
        UsageError: The run is under way here, or has the name but other settings.
    """
    for run in reversed(Run.list(cfg.run.folder)):
        named = run.name == cfg.run.name
        if cfg.run.name is not None and not named:
            continue
        if not _alike(settings_of(run), cfg):
            if named:
                raise UsageError(
                    f"run.name: given {run.name!r}, a run of other settings; allowed with resume "
                    "auto: those that it began with, or another name."
                )
            continue
        if run.alive and run.process != os.getpid():
            raise UsageError(
                f"resume: given auto, but {run.name} is under way (process {run.process}); "
                "allowed: a run that has ended. Wait for it, or give --run.name for another."
            )
        if not named and (run.status == "failed" or _holds_policy_only(run)):
            continue
        return run
    return None


def _holds_policy_only(run: Run) -> bool:
    """Return whether there is nothing to resume, as in a run that was pulled from the zoo."""
    latest = run.latest()
    return latest is not None and bool(read_state(latest).get(POLICY_ONLY))


def _alike(settings: Tree, cfg: Config) -> bool:
    if settings.get("algo", "ppo") != cfg.algo:  # which would be imported
        return False
    try:
        theirs = read_config(settings)
    except FuguError:  # settings of another version
        return False
    return _compared(theirs) == _compared(cfg)


def _compared(cfg: Config) -> str:
    """Settings as JSON, which knows no tuples."""
    tree = {name: value for name, value in to_tree(cfg).items() if name != "run"}
    return json.dumps(tree, default=str, sort_keys=True)


def requeue() -> bool:
    """Have SLURM queue this job again; False if this is none.

    Raises:
        RequeueError: SLURM did not do so.
    """
    job = os.environ.get(JOB)
    if not job:
        return False
    try:
        subprocess.run(
            ["scontrol", "requeue", job],
            check=True,
            capture_output=True,
            text=True,
            timeout=SCONTROL_SECONDS,
        )
    except FileNotFoundError:
        raise RequeueError(
            f"requeue: given in job {job}, but there is no scontrol in {os.environ.get('PATH')}; "
            "allowed: on nodes that have it. Submit the job again: it goes on by itself."
        ) from None
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = str(error.stderr or error).strip()
        raise RequeueError(
            f"requeue: given in job {job}, which scontrol did not queue again ({said}); allowed: "
            "jobs submitted with --requeue. Submit the job again: it goes on by itself."
        ) from None
    return True
