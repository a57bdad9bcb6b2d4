"""`fugu coding bench`: how many programs a second each backend runs on one core here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fugu.core.errors import UsageError
from fugu.sandbox import BACKENDS, Backend, installed
from fugu.sandbox.bench import Rate, measure


@dataclass(frozen=True)
class CodingBench:
    """Measure executions a second and a core of every backend that is installed.

    A program is a function of one line, run and graded with all walls; backends take turns. What
    the programs themselves take comes on top.
    """

    backends: tuple[Backend, ...] = ()
    """Which; all that are installed if not given. unsafe is measured only if it is named."""
    seconds: float = 3.0
    """Of each backend."""
    json: bool = False
    """Print the rates as one JSON object and nothing else."""

    def run(self) -> int:
        """Measure; 0 if every backend ran."""
        if self.seconds <= 0:
            raise UsageError(f"seconds: given {self.seconds}; allowed: more than 0.")
        chosen = self.backends or installed()
        if not chosen:
            raise UsageError(
                "coding bench: given nothing, and no backend is installed here; allowed: "
                f"{', '.join(BACKENDS)}, on a machine that has it. See fugu doctor."
            )
        rates = _measure(chosen, self.seconds, show=not self.json)
        if self.json:
            print(json.dumps([asdict(rate) for rate in rates], indent=2))
        else:
            _show(rates)
        return 0 if all(rate.programs_per_second is not None for rate in rates) else 1


def _measure(backends: Sequence[Backend], seconds: float, *, show: bool) -> list[Rate]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<22}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not show) as progress:
        bar = progress.add_task("", total=1.0)
        return measure(
            backends,
            seconds,
            tell=lambda what, share: progress.update(bar, description=what, completed=share),
        )


def _show(rates: Sequence[Rate]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "backend", "executions/s/core", "ms", "what it is", title="one core, one at a time"
    )
    for column in table.columns[1:3]:
        column.justify = "right"
    for rate in rates:
        speed = rate.programs_per_second
        figures = ("-", "-") if speed is None else (f"{speed:,.0f}", f"{1e3 / speed:.2f}")
        table.add_row(rate.backend, *figures, rate.why or _KINDS[rate.backend])
    Console().print(table)


_KINDS: dict[Backend, str] = {
    "zygote": "a child of a warm interpreter, all walls",
    "bubblewrap": "bubblewrap and an interpreter each time, all walls",
    "monty": "Monty, and the zygote for what it does not know",
    "gvisor": "gVisor's kernel and an interpreter each time",
    "docker": "a container each time; it may use other cores",
    "unsafe": "a process, no walls",
}
