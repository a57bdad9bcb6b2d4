"""Preemption: runs that continue when a scheduler gives a machine back."""

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
    """SLURM did not queue a job again."""


def newest_alike(
    cfg: Config, settings_of: Callable[[Run], Tree] = lambda run: run.config
) -> Run | None:
    """Return the newest run of the same settings that did not fail; None if there is none.

    Settings of the section `run` may differ; if they name a run, only that one is considered, and
    UsageError says that it has other settings, or is under way here.
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
        latest = run.latest()  # one that was pulled from the zoo has nothing to resume
        policy_only = latest is not None and read_state(latest).get(POLICY_ONLY)
        if not named and (run.status == "failed" or policy_only):
            continue
        return run
    return None


def _alike(settings: Tree, cfg: Config) -> bool:
    """Return whether settings of a run are the same, compared as JSON, which knows no tuples."""
    if settings.get("algo", "ppo") != cfg.algo:  # which would be imported
        return False
    try:
        trees = to_tree(read_config(settings)), to_tree(cfg)
    except FuguError:  # settings of another version
        return False
    one, other = (json.dumps({**tree, "run": None}, default=str, sort_keys=True) for tree in trees)
    return one == other


def requeue() -> bool:
    """Have SLURM queue this job again; False if this is none, RequeueError if it does not."""
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
        reason = str(error.stderr or error).strip()
        raise RequeueError(
            f"requeue: given in job {job}, which scontrol did not queue again ({reason}); allowed: "
            "jobs submitted with --requeue. Submit the job again: it goes on by itself."
        ) from None
    return True
