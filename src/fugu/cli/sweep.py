"""`fugu sweep`: find the settings with the best score for their cost."""

from __future__ import annotations

import dataclasses
import importlib.util
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fugu.cli.flags import field_documents, plain_options
from fugu.core.config import Tree, from_flags, from_tree, merge, read_toml
from fugu.core.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from fugu.sweep.plan import SweepPlan
    from fugu.sweep.running import ExecutionConfig, SweepResult

HELP = """usage: fugu sweep ENV [options] [--SECTION.SETTING VALUE] [--sweep.SECTION.SETTING.KEY X]
       fugu sweep --resume [NAME] [options]

Train with many settings and find those with the best score for their cost. The ranges of settings
are in the environment's file, in the file of --config below [sweep.SECTION.SETTING], or in flags:

  --sweep.train.gamma.low 0.9 --sweep.train.gamma.high 0.999 --sweep.train.gamma.logit
  keys: low and high with log, logit, power-of-two or none of them, and integer; or choices a,b,c

  --only A,B         vary these settings only, such as train.learning_rate,train.gamma
  --name NAME        name of the sweep (default: made from the environment and the time)
  --root FOLDER      folder of sweeps (default: sweeps)
  --resume           continue a sweep: its name, its folder, or the newest; also joins a running one
  --trust            with --resume: trust the sweep from now on, whoever started it, such as you on
                     another machine; its trials run what its settings name
  --workers N        number of concurrent trials (default: 1)
  --storage URL      store it in a database that Optuna can open, for several machines
  --cluster ray      run trials on a Ray cluster: --ray-address auto, --ray-cpus 1 for each trial
  --engine wandb     let Weights & Biases search: --wandb-project fugu, --wandb-sweep ID to join one
  --wandb            log trials to Weights & Biases too, in one group
  --config FILE, --preset NAME, --algo NAME, --seed N, --device NAME   as in fugu train
  --no-first         do not evaluate the unchanged settings first
  --dry-run          print the ranges and exit
  --quiet            show no progress

Other settings are those of fugu train (fugu train --help), the same in every trial."""
TRAIN_OPTIONS = ("algo", "seed", "device")
WORDS = (
    "name", "root", "only", "config", "preset", "workers", "storage", "cluster", "ray-address",
    "ray-cpus", "engine", "wandb-project", "wandb-sweep", *TRAIN_OPTIONS,
)  # fmt: skip
FLAGS = ("resume", "trust", "wandb", "dry-run", "quiet", "no-first")


@dataclass(frozen=True)
class Sweep:
    """Find the settings with the best score for their cost."""

    names: tuple[str, ...] = ()
    tree: Tree = field(default_factory=dict)
    search: Tree = field(default_factory=dict)
    options: Tree = field(default_factory=dict)

    @classmethod
    def parse(cls, args: list[str]) -> Sweep:
        """Return the command that flags describe."""
        tree, rest = from_flags(args)
        if not rest or {"-h", "--help"} & {*rest}:
            print(HELP + "\n\n" + _search_help())
            raise SystemExit(0 if rest else 2)
        documents = _search_documents()
        searched = [name.replace("_", "-") for name in documents if name != "first"]
        options, names = plain_options(rest, dict.fromkeys((*WORDS, *searched), str), FLAGS)
        if "env" in tree:
            tree["env_kwargs"] = tree.pop("env")
        tree |= {name: options.pop(name) for name in TRAIN_OPTIONS if name in options}
        search = {name: options.pop(name) for name in documents if name in options}
        if options.pop("no_first", False):
            search["first"] = False
        return cls(tuple(names), tree, search, options)

    def run(self) -> int:
        """Run the sweep and return the exit code: 0 if it is complete."""
        for package in ("optuna", "scipy"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, "sweep")
        if self.options.get("resume"):
            return self._resume()
        if self.options.get("trust"):
            raise UsageError("trust: expected with --resume only; got it for a new sweep.")
        if len(self.names) != 1:
            raise UsageError(
                f"sweep: expected one environment; got {list(self.names)}. See fugu sweep --help."
            )
        plan, engine = self._plan(), self.options.get("engine", "optuna")
        if self.options.get("dry_run"):
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

        fixed = [name for name in ("name", "config", "preset", "only", "engine")
                 if name in self.options]  # fmt: skip
        refused = [*self.tree, *self.search, *fixed]
        if len(self.names) > 1 or refused:
            raise UsageError(
                "resume: expected one sweep, and options of where it runs (--workers, --storage, "
                f"--cluster, --root); got {[*self.names, *refused]}. Its settings stay as they are."
            )
        name = self.names[0] if self.names else "latest"
        trust = self.options.get("trust", False)
        return _print_result(resume_sweep(name, self._execution(), trust=trust))

    def _run_agent(self, plan: SweepPlan) -> int:
        from fugu.sweep.wandb_agent import run_agent

        folder = self._execution().root / plan.name
        project = self.options.get("wandb_project", "fugu")
        sweep = run_agent(plan, folder, project=project, sweep=self.options.get("wandb_sweep"))
        print(f"Sweep {sweep} of Weights & Biases; runs are in {folder}")
        return 0

    def _plan(self) -> SweepPlan:
        from fugu.sweep.plan import SearchConfig, make_plan

        file = read_toml(self.options["config"]) if "config" in self.options else {}
        given = merge(file, self.tree)
        ranges = given.pop("sweep", {})
        return make_plan(
            self.names[0],
            name=self.options.get("name"),
            given=given,
            preset=self.options.get("preset"),
            ranges=ranges,
            only=[path for path in self.options.get("only", "").split(",") if path],
            search=from_tree(SearchConfig, self.search),
            wandb=bool(self.options.get("wandb", False)),
        )

    def _execution(self) -> ExecutionConfig:
        from fugu.sweep.running import ExecutionConfig

        names = [item.name for item in dataclasses.fields(ExecutionConfig)]
        given = {name: self.options[name] for name in names if name in self.options}
        return from_tree(ExecutionConfig, given | {"show": not self.options.get("quiet", False)})


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


def _search_documents() -> dict[str, str]:
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("optuna", "sweep")
    from fugu.sweep.plan import SearchConfig

    return field_documents(SearchConfig)


def _search_help() -> str:
    """Return the help of every setting of the search."""
    documents = _search_documents()
    from fugu.sweep.plan import SearchConfig

    lines = ["search:"]
    for item in dataclasses.fields(SearchConfig):
        if item.name == "first":  # is --no-first above
            continue
        line = f"  --{item.name.replace('_', '-')} ({item.default})  {documents[item.name]}"
        lines += textwrap.wrap(line, 100, subsequent_indent=" " * 6, break_on_hyphens=False)
    return "\n".join(lines)
