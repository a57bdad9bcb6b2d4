"""`fugu runs`: list runs, and compare their results."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.store import Run


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
        """List, show, compare or plot the runs, and return the exit status."""
        from fugu.cli import run_facts
        from fugu.store import Run

        if self.action == "list":
            facts = run_facts.facts_of_all(self._chosen(required=False), self.metric)
            if self.json:
                print(json.dumps([asdict(fact) for fact in facts], indent=2))
            elif not facts:
                print(f"There are no runs in {self.root!r}.")
            else:
                run_facts.show_table(facts, self.metric)
        elif self.action == "show":
            if len(self.runs) > 1:
                raise UsageError(f"runs show: given {len(self.runs)} runs; allowed: one.")
            run = Run.open(self.runs[0] if self.runs else "latest", self.root)
            details = run_facts.details_of(run, self.metric)
            if self.json:
                print(json.dumps(details, indent=2, default=str))
            else:
                run_facts.show_details(run, details)
        elif self.action == "compare":
            run_facts.compare(self._chosen(), self.metric)
        else:
            run_facts.plot(self._chosen(), self.metric, self.out)
        return 0

    def _chosen(self, *, required: bool = True) -> list[Run]:
        from fugu.store import Run

        if self.runs:
            return [Run.open(name, self.root) for name in self.runs]
        found = Run.list(self.root)
        if required and not found:
            raise UsageError(f"runs: {self.root!r} holds none. Name their folder by --root.")
        return found
