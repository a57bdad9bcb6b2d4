"""`fugu profile`: where the time of an update goes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fugu.cli.parsing import EnvName, TrainingCommand

if TYPE_CHECKING:
    from fugu.training.profiling import Profile as Found

OPERATORS = 12  # that are shown


@dataclass(frozen=True, kw_only=True)
class Profile(TrainingCommand):
    """Show where the time of an update goes.

    Some updates are trained with their parts timed, then as many under torch's profiler. Only the
    trace is kept. --SECTION.SETTING VALUE sets any of the settings below, and --env.KEY VALUE an
    argument of the environment.
    """

    env: EnvName
    """The environment, as of fugu train."""
    updates: int = 5
    """Updates to time, and to trace, after 2 to warm up."""
    out: Path = Path("profile.json")
    """The trace, for chrome://tracing or ui.perfetto.dev."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> int:
        """Profile the training and return the exit status."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's tracer prints when it starts
        from fugu.training.config import resolve_config
        from fugu.training.profiling import profile_training

        cfg = resolve_config(
            self.env, preset=self.preset, files=self.files, overrides=self.overrides
        )
        found = profile_training(cfg, self.out, self.updates)
        if self.json:
            print(json.dumps(asdict(found)))
        else:
            _show(found, self.out)
        return 0


def _show(found: Found, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    parts, operators = (Table(box=None, pad_edge=False, header_style="dim") for _ in range(2))
    for table, first in ((parts, "an update"), (operators, "\noperators by their own time")):
        table.add_column(first, min_width=32, no_wrap=True)
        for name in ("ms", "share", "calls"):
            table.add_column(name, justify="right", vertical="bottom")
    for part in found.parts:
        name = f"  {part.name}" if part.name else f"[bold cyan]{part.phase}[/]"
        parts.add_row(name, *_figures(part.seconds, part.share, part.calls))
    for operator in found.operators[:OPERATORS]:
        figures = _figures(operator.seconds, operator.share, operator.calls)
        operators.add_row(f"  {operator.name}", *figures)
    rate = found.steps / found.seconds
    console.print(
        f"{found.steps:,.0f} steps in {1e3 * found.seconds:.1f} ms an update: {rate:,.0f}/s\n"
    )
    console.print(parts)
    console.print(operators)
    slower = max(0.0, found.traced_seconds / found.seconds - 1)
    console.print(
        f"\nmatrix products: {found.matrix_products:.1%} of the update's wall clock\n"
        f"[dim]operators are of other updates, which the tracer made {slower:.0%} slower[/]"
    )
    print(f"Written: {out}")


def _figures(seconds: float, share: float, calls: float) -> tuple[str, str, str]:
    return f"{1e3 * seconds:.2f}", f"{share:.1%}", f"{calls:,.0f}"
