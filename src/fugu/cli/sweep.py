"""`fugu sweep`: find the settings with the best score for their cost."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import tyro

from fugu.cli.parsing import TrainingCommand, arguments_of
from fugu.core.config import Tree, from_tree, merge, read_toml
from fugu.core.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from fugu.sweep.plan import SweepPlan
    from fugu.sweep.running import ExecutionConfig, SweepResult

# Options of a sweep that is resumed; the others are those of a new sweep.
PLACES = ("root", "workers", "storage", "cluster", "ray_address", "ray_cpus")


@dataclass(frozen=True, kw_only=True)
class Sweep(TrainingCommand):
    """Train with many settings and find those with the best score for their cost.

    fugu sweep breakout --only train.gamma,train.learning_rate | fugu sweep --resume

    The ranges of settings are in the environment's file, in the file of --config below
    [sweep.SECTION.SETTING], or in flags such as --sweep.train.gamma.low 0.9
    --sweep.train.gamma.high 0.999 --sweep.train.gamma.logit. Their keys are low and high with log,
    logit, power-of-two or none of them, and integer; or choices a,b,c. Other settings are those of
    fugu train, the same in every trial.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ENV|SWEEP")] = ()
    """The environment; with --resume the sweep: its name, its folder, or the newest if not given.
    """
    algo: str | None = None
    """The algorithm, as of fugu train."""
    only: Annotated[str | None, tyro.conf.arg(metavar="A,B")] = None
    """Vary these settings only, such as train.learning_rate,train.gamma."""
    name: str | None = None
    """Name of the sweep; made from the environment and the time if not given."""
    root: Path | None = None
    """The folder of sweeps; sweeps if not given."""
    resume: bool = False
    """Continue a sweep; also joins a running one."""
    trust: bool = False
    """With --resume: trust the sweep from now on, whoever started it, such as you on another
    machine; its trials run what its settings name."""
    workers: int | None = None
    """Number of concurrent trials; 1 if not given."""
    storage: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """Store it in a database that Optuna can open, for several machines."""
    cluster: str | None = None
    """ray: run trials on a Ray cluster."""
    ray_address: str | None = None
    """Address of the cluster."""
    ray_cpus: float | None = None
    """Number of CPUs that each trial requests from the cluster; 1 if not given."""
    engine: str | None = None
    """wandb: let Weights & Biases search; optuna if not given."""
    wandb_project: str = "fugu"
    """Project of Weights & Biases."""
    wandb_sweep: Annotated[str | None, tyro.conf.arg(metavar="ID")] = None
    """A sweep of Weights & Biases to join."""
    wandb: bool = False
    """Log trials to Weights & Biases too, in one group."""
    no_first: bool = False
    """Do not evaluate the unchanged settings first."""
    dry_run: bool = False
    """Print the ranges."""
    quiet: bool = False
    """Show no progress."""
    sections: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def options(cls) -> list[tuple[str, Any, Any]]:
        """Return the settings of the search as options; only those given count."""
        if importlib.util.find_spec("optuna") is None:
            raise MissingExtraError("optuna", "sweep")
        from fugu.sweep.plan import SearchConfig

        found = []
        for argument in arguments_of(SearchConfig):
            name = argument.flag.removeprefix("--")
            if name == "first":  # is --no-first above
                continue
            text = f"{argument.help} {argument.default} if not given."
            mark = tyro.conf.arg(metavar="VALUE", help=text)
            found.append((name.replace("-", "_"), Annotated[str | None, mark], None))
        return found

    def run(self) -> int:
        """Run the sweep and return the exit code: 0 if it is complete."""
        for package in ("optuna", "scipy"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, "sweep")
        if self.resume:
            return self._resume()
        if self.trust:
            raise UsageError("trust: expected with --resume only; got it for a new sweep.")
        if len(self.names) != 1:
            raise UsageError(
                f"sweep: expected one environment; got {list(self.names)}. See fugu sweep --help."
            )
        plan, engine = self._plan(), self.engine or "optuna"
        if self.dry_run:
            for each in plan.ranges:
                print(f"{each.path}: {each}")
            return 0
        if engine == "wandb":
            return self._run_agent(plan)
        if engine != "optuna":
            raise UsageError(f"engine: expected one of 'optuna', 'wandb'; got {engine!r}.")
        from fugu.sweep.running import start_sweep

        return _print_result(start_sweep(plan, self._execution()))

    def _resume(self) -> int:
        from fugu.sweep.running import resume_sweep

        fixed = ("name", "config", "preset", "only", "engine")
        named = [name for name in fixed if getattr(self, name) is not None]
        refused = [*self.overrides, *self._search(), *named]
        if len(self.names) > 1 or refused:
            raise UsageError(
                "resume: expected one sweep, and options of where it runs (--workers, --storage, "
                f"--cluster, --root); got {[*self.names, *refused]}. Its settings stay as they are."
            )
        name = self.names[0] if self.names else "latest"
        return _print_result(resume_sweep(name, self._execution(), trust=self.trust))

    def _run_agent(self, plan: SweepPlan) -> int:
        from fugu.sweep.wandb_agent import run_agent

        folder = self._execution().root / plan.name
        sweep = run_agent(plan, folder, project=self.wandb_project, sweep=self.wandb_sweep)
        print(f"Sweep {sweep} of Weights & Biases; runs are in {folder}")
        return 0

    def _search(self) -> Tree:
        """Return the settings of the search that were given."""
        names = [name for name, *_ in self.options()]
        given = {name: getattr(self, name) for name in names}
        found = {name: value for name, value in given.items() if value is not None}
        return found | ({"first": False} if self.no_first else {})

    def _plan(self) -> SweepPlan:
        from fugu.sweep.plan import SearchConfig, make_plan

        file = read_toml(self.config) if self.config is not None else {}
        given = merge(file, self.overrides)
        ranges = given.pop("sweep", {})
        return make_plan(
            self.names[0],
            name=self.name,
            given=given,
            preset=self.preset,
            ranges=ranges,
            only=[path for path in (self.only or "").split(",") if path],
            search=from_tree(SearchConfig, self._search()),
            wandb=self.wandb,
        )

    def _execution(self) -> ExecutionConfig:
        from fugu.sweep.running import ExecutionConfig

        given = {name: getattr(self, name) for name in PLACES}
        given = {name: value for name, value in given.items() if value is not None}
        return from_tree(ExecutionConfig, given | {"show": not self.quiet})


def _print_result(result: SweepResult) -> int:
    """Print the report of a sweep; return 0 if it is complete and has a best trial."""
    from rich.console import Console

    from fugu.sweep.report import front_table

    plan, report = result.plan, result.report
    counts = f"{report.complete} complete, {report.pruned} pruned, {report.failed} failed"
    print(f"{report.name}: {counts}; results are in {report.folder}")
    if report.best is not None:
        Console(highlight=False).print(front_table(plan.search, report.front))
    for title, shares in report.importances.items():
        line = ", ".join(f"{path} {share:.0%}" for path, share in shares.items())
        print(f"Importance for the {title}: {line}")
    if report.best is not None:
        print(f"Train with the best: fugu train {report.env} --config {report.folder}/best.toml")
    if result.signals:
        print(f"Continue with: fugu sweep --resume {report.name}")
        return 128 + result.signals[0]
    return 0 if report.best is not None else 1
