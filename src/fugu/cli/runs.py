"""`fugu runs`: what was trained, and how it went."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.store import Run
    from fugu.track.curves import Curve


@dataclass(frozen=True)
class Runs:
    """List the runs, show one, compare some in the terminal, or draw their curves.

    fugu runs | fugu runs show latest | fugu runs compare A B | fugu runs plot A B --out curves.png

    A run is named by its folder, by the beginning of its name, or as latest.
    """

    action: Annotated[Literal["list", "show", "compare", "plot"], tyro.conf.Positional] = "list"
    """list: a table of all; show: one in full; compare: curves in the terminal; plot: a picture."""
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Which runs; latest if none is given to show, all if none is given to compare or plot."""
    metric: str = "episode_return"
    """What to list, compare or plot."""
    root: str = "runs"
    """The folder of the runs."""
    out: Path = Path("curves.png")
    """The picture to write: .png, .svg or .pdf."""
    json: bool = False
    """Print list or show as JSON and nothing else."""

    def run(self) -> int:
        """Do it; 0 if it went well."""
        if self.action == "list":
            self._list()
        elif self.action == "show":
            self._show()
        elif self.action == "compare":
            _compare([self._curve(run) for run in self._chosen()], self.metric)
        else:
            self._plot()
        return 0

    def _chosen(self) -> list[Run]:
        from fugu.store import Run

        if self.runs:
            return [Run.open(name, self.root) for name in self.runs]
        found = Run.list(self.root)
        if not found:
            raise UsageError(f"runs: {self.root!r} holds none. Name their folder by --root.")
        return found

    def _list(self) -> None:
        from fugu.cli.run_facts import facts_of
        from fugu.store import Run

        chosen = self._chosen() if self.runs else Run.list(self.root)
        facts = [facts_of(run, self.metric) for run in chosen]
        if self.json:
            print(json.dumps([asdict(fact) for fact in facts], indent=2))
        elif not facts:
            print(f"There are no runs in {self.root!r}.")
        else:
            from fugu.cli.run_facts import show_table

            show_table(facts, self.metric)

    def _show(self) -> None:
        from fugu.cli.run_facts import details_of, show_details
        from fugu.store import Run

        if len(self.runs) > 1:
            raise UsageError(f"runs show: given {len(self.runs)} runs; allowed: one.")
        run = Run.open(self.runs[0] if self.runs else "latest", self.root)
        if self.json:
            print(json.dumps(details_of(run, self.metric), indent=2, default=str))
        else:
            show_details(run, self.metric)

    def _curve(self, run: Run) -> Curve:
        from fugu.track.curves import read_curve

        return read_curve(run.metrics_path, self.metric, run.name)

    def _plot(self) -> None:
        """Runs of one environment as one curve: their mean, with a band."""
        from fugu.track.curves import average, check_picture, draw_curves

        check_picture(self.out)
        groups: dict[str, list[Curve]] = {}
        for run in self._chosen():
            groups.setdefault(run.env or run.name, []).append(self._curve(run))
        curves = [
            group[0] if len(group) == 1 else average(group, env) for env, group in groups.items()
        ]
        draw_curves(curves, self.metric, self.out)
        print(f"Drawn: {self.out}")


def _compare(curves: Sequence[Curve], metric: str) -> None:
    if importlib.util.find_spec("plotext") is not None:
        _plot_in_terminal(curves, metric)
    _show_sparklines(curves, metric)


def _plot_in_terminal(curves: Sequence[Curve], metric: str) -> None:
    plotext: Any = importlib.import_module("plotext")
    columns, lines = shutil.get_terminal_size((100, 30))
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(min(columns, 120), max(min(lines - len(curves) - 4, 24), 10))
    colours = itertools.cycle(("cyan", "orange", "blue", "red", "green", "magenta"))
    for curve, colour in zip(curves, colours, strict=False):
        points = curve.steps.tolist(), curve.values.tolist()
        plotext.plot(*points, label=curve.label, color=colour, marker="braille")
    plotext.title(f"{metric} against steps")
    picture: str = plotext.build()
    print(picture if sys.stdout.isatty() else plotext.uncolorize(picture))


def _show_sparklines(curves: Sequence[Curve], metric: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fugu.track.text import number, sparkline

    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for name in ("steps", "last", "best"):
        table.add_column(name, justify="right")
    table.add_column(metric, no_wrap=True)
    for curve in curves:
        numbers = [number(x) for x in (curve.steps[-1], curve.values[-1], curve.values.max())]
        table.add_row(Text(curve.label), *numbers, sparkline(curve.values.tolist(), 30))
    Console().print(table)
