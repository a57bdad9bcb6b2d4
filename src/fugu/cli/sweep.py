"""`fugu sweep`: which settings train best, for how much?"""

from __future__ import annotations

import dataclasses
import importlib.util
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fugu.cli.flags import field_documents, plain_options
from fugu.core.config import Tree, from_flags, from_tree, merge, read_toml
from fugu.core.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from fugu.sweep.plan import Plan
    from fugu.sweep.report import SweepReport
    from fugu.sweep.running import Place

HELP = """usage: fugu sweep ENV [options] [--SECTION.SETTING VALUE] [--sweep.SECTION.SETTING.KEY X]
       fugu sweep --resume [NAME] [options]

Train with many settings and find those that score best for what they cost. Ranges stand in the
environment's file, in the file of --config below [sweep.SECTION.SETTING], or in flags:

  --sweep.train.gamma.low 0.9 --sweep.train.gamma.high 0.999 --sweep.train.gamma.logit
  keys: low and high with log, logit, power-of-two or none of them, and integer; or choices a,b,c

  --only A,B         vary these settings alone, such as train.learning_rate,train.gamma
  --name NAME        of the sweep; made of the environment and the time if not given
  --root FOLDER      where sweeps are (sweeps)
  --resume           go on with a sweep: its name, its folder, or the newest; also beside others
  --trust            with --resume: trust the sweep from now on, whoever began it, such as you on
                     another machine; its trials run what its settings name
  --workers N        trials at a time (1)
  --storage URL      keep it in a database that Optuna takes, for several machines
  --cluster ray      run trials on a Ray cluster: --ray-address auto, --ray-cpus 1 for each trial
  --engine wandb     let Weights & Biases search: --wandb-project fugu, --wandb-sweep ID to join one
  --wandb            trials are runs of Weights & Biases, in one group
  --config FILE, --preset NAME, --algo NAME, --seed N, --device NAME   as of fugu train
  --dry-run          print the ranges and end
  --quiet            show nothing while it runs

Settings are those of fugu train (fugu train --help), the same for all trials but for the ranges."""
TRAIN_OPTIONS = ("algo", "seed", "device")
WORDS = (
    "name", "root", "only", "config", "preset", "workers", "storage", "cluster", "ray-address",
    "ray-cpus", "engine", "wandb-project", "wandb-sweep", *TRAIN_OPTIONS,
)  # fmt: skip
FLAGS = ("resume", "trust", "wandb", "dry-run", "quiet", "no-first")


@dataclass(frozen=True)
class Sweep:
    """Find settings that train well for what they cost."""

    names: tuple[str, ...] = ()
    tree: Tree = field(default_factory=dict)
    search: Tree = field(default_factory=dict)
    options: Tree = field(default_factory=dict)

    @classmethod
    def parse(cls, args: list[str]) -> Sweep:
        """The command that flags describe."""
        tree, rest = from_flags(args)
        if not rest or {"-h", "--help"} & {*rest}:
            print(HELP + "\n\n" + _search_help())
            raise SystemExit(0 if rest else 2)
        searched = [name.replace("_", "-") for name in _search_documents() if name != "first"]
        kinds = dict.fromkeys((*WORDS, *searched), str)
        options, names = plain_options(rest, kinds, FLAGS)
        if "env" in tree:
            tree["env_kwargs"] = tree.pop("env")
        for name in TRAIN_OPTIONS:
            if name in options:
                tree[name] = options.pop(name)
        search = {name: options.pop(name) for name in _search_documents() if name in options}
        if options.pop("no_first", False):
            search["first"] = False
        return cls(tuple(names), tree, search, options)

    def run(self) -> int:
        """Sweep; 0 if it came to its end."""
        for package in ("optuna", "scipy"):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, "sweep")
        if self.options.get("resume"):
            return self._resume()
        if self.options.get("trust"):
            raise UsageError("trust: expected with --resume only; got it for a new sweep.")
        if len(self.names) != 1:
            raise UsageError(
                f"sweep: given {list(self.names)}; allowed: one environment. See fugu sweep -h"
            )
        plan = self._plan()
        if self.options.get("dry_run"):
            _show_plan(plan)
            return 0
        engine = self.options.get("engine", "optuna")
        if engine == "wandb":
            return self._run_agent(plan)
        if engine != "optuna":
            raise UsageError(f"engine: given {engine!r}; allowed: optuna, wandb.")
        from fugu.sweep.running import begin_sweep

        result = begin_sweep(plan, self._place())
        return _end(plan.name, result.report, result.signals)

    def _resume(self) -> int:
        from fugu.sweep.running import resume_sweep

        refused = [*self.tree, *self.search] + [
            name for name in ("name", "config", "preset", "only", "engine") if name in self.options
        ]
        if len(self.names) > 1 or refused:
            raise UsageError(
                f"resume: given {[*self.names, *refused]}; allowed: one sweep, and where it runs "
                "(--workers, --storage, --cluster, --root). Its settings stay as they are."
            )
        name = self.names[0] if self.names else "latest"
        result = resume_sweep(name, self._place(), trust=self.options.get("trust", False))
        return _end(result.report.name, result.report, result.signals)

    def _run_agent(self, plan: Plan) -> int:
        from fugu.sweep.wandb_agent import run_agent

        folder = self._place().root / plan.name
        project = self.options.get("wandb_project", "fugu")
        found = run_agent(plan, folder, project=project, sweep=self.options.get("wandb_sweep"))
        print(f"Its id at Weights & Biases: {found}; runs are in {folder}")
        return 0

    def _plan(self) -> Plan:
        from fugu.sweep.plan import SearchConfig
        from fugu.sweep.running import make_plan

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

    def _place(self) -> Place:
        from fugu.sweep.running import Place

        names = [item.name for item in dataclasses.fields(Place)]
        given = {name: self.options[name] for name in names if name in self.options}
        return from_tree(Place, given | {"show": not self.options.get("quiet", False)})


def _end(name: str, report: SweepReport, signals: tuple[int, ...]) -> int:
    """Say what came of it; 0 if it came to its end."""
    done = f"{report.complete} complete, {report.pruned} pruned, {report.failed} failed"
    print(f"{name}: {done}; kept in {report.folder}")
    if report.best is not None:
        _show_front(report)
    for title, told in report.importances.items():
        shares = ", ".join(f"{path} {share:.0%}" for path, share in told.items())
        print(f"What mattered for the {title}: {shares}")
    if report.best is not None:
        print(f"Train with the best: fugu train {report.env} --config {report.folder}/best.toml")
    if signals:
        print(f"go on with: fugu sweep --resume {name}")
        return 128 + signals[0]
    return 0 if report.best is not None else 1


def _show_front(report: SweepReport) -> None:
    from rich.console import Console
    from rich.table import Table

    from fugu.track.text import number

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("front: trial", "score", "cost"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("settings", overflow="fold")
    for each in report.front:
        settings = ", ".join(f"{k} {_text(v)}" for k, v in each["settings"].items())
        table.add_row(str(each["trial"]), number(each["score"]), number(each["cost"]), settings)
    Console(highlight=False).print(table)


def _show_plan(plan: Plan) -> None:
    for each in plan.space.ranges:
        print(f"{each.path}: {each}")


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _search_documents() -> dict[str, str]:
    if importlib.util.find_spec("optuna") is None:
        raise MissingExtraError("optuna", "sweep")
    from fugu.sweep.plan import SearchConfig

    return field_documents(SearchConfig)


def _search_help() -> str:
    from fugu.sweep.plan import SearchConfig

    defaults = {item.name: item.default for item in dataclasses.fields(SearchConfig)}
    lines = ["how to search:"]
    for name, text in _search_documents().items():
        flag = "--no-first" if name == "first" else f"--{name.replace('_', '-')}"
        line = f"  {flag} ({defaults[name]})  {' '.join(text.split())}"
        lines += textwrap.wrap(line, 100, subsequent_indent=" " * 6, break_on_hyphens=False)
    return "\n".join(lines)
