"""Names that may be those of environments or of runs, and the policies of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fugu.core.errors import UsageError
from fugu.envs import suite
from fugu.store.finding import is_run

if TYPE_CHECKING:
    from fugu.cli.parsing import ActingOptions
    from fugu.hub.agent import Agent
    from fugu.store.run import Run


def find_run(name: str, root: Path) -> Run | None:
    """Return the run of that name; None if it is an environment's.

    A run's full name, its folder and "latest" come first, then environments, then beginnings of
    runs' names.
    """
    from fugu.envs.resolve import resolve
    from fugu.store.run import Run

    runs = {run.name: run for run in Run.list(root)}
    if name == "latest" or name in runs or is_run(Path(name)):
        return Run.open(name, root)
    if suite.find(name) or ":" in name or name.endswith(suite.SUFFIXES):
        return None
    try:
        resolve(name)
    except UsageError:
        if any(other.startswith(name) for other in runs):
            return Run.open(name, root)
        raise UsageError(_neither(name, root, list(runs))) from None
    return None


def load_agent(run: Run, options: ActingOptions) -> Agent:
    """Return the policies of a run, from its last checkpoint or its best one."""
    from fugu.hub import agent
    from fugu.training.inputs import RunInputs

    checkpoint = run.best() if options.best else None
    if options.best and checkpoint is None:
        raise UsageError(
            f"best: given with {run.name!r}, whose checkpoints have no score; allowed: a run "
            "in which an episode ended. Leave it out for the last checkpoint."
        )
    return agent.load_agent(run, checkpoint, RunInputs(trust=options.trust))


def refuse_run_options(env: str, options: ActingOptions) -> None:
    """Raise UsageError for options of a run that are given with an environment."""
    for option in ("best", "sample"):
        if getattr(options, option):
            raise UsageError(f"{option}: given with {env!r}; allowed: with a run.")


def _neither(name: str, root: Path, runs: list[str]) -> str:
    from fugu.cli.catalogue import families
    from fugu.envs.suite import nearest

    others = [other for names in families().values() for other in names]
    names = [*suite.names(), *others, *runs, *(["latest"] if runs else [])]
    return (
        f"given {name!r}, which is neither an environment nor a run in {str(root)!r}. "
        f"{nearest(name, names)} fugu envs and fugu runs list them."
    )
