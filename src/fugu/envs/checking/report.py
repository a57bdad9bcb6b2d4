"""Report: what the checks found, as rows, a table, plain text and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Status = Literal["ok", "warn", "fail", "skip"]
_COLOURS: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


@dataclass(frozen=True)
class Row:
    """One check.

    Attributes:
        name: Of the check.
        status: "ok"; "warn": works, but look at it; "fail": broken; "skip": could not run.
        detail: What was seen.
        advice: What to do about it; empty if there is nothing to do.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """What `fugu.check` found. Printing it with rich gives a table, `str` plain text.

    Attributes:
        rows: One for each check, in the order in which they are best mended.
        subject: The environment's name.

    >>> report = Report((Row("layout", "ok", "4 x float32"), Row("rewards", "fail", "nan")), "Maze")
    >>> report.ok, [row.name for row in report.failures]
    (False, ['rewards'])
    >>> print(report)
    Maze
      ok    layout   4 x float32
      FAIL  rewards  nan
    Maze fails: 1 failure (rewards), no warnings.
    """

    rows: tuple[Row, ...]
    subject: str = "environment"

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Row, ...]:
        """The checks that failed."""
        return tuple(row for row in self.rows if row.status == "fail")

    @property
    def warnings(self) -> tuple[Row, ...]:
        """The checks that passed with a warning."""
        return tuple(row for row in self.rows if row.status == "warn")

    @property
    def verdict(self) -> str:
        """All of it in one line."""
        failures, warnings = _count("failure", self.failures), _count("warning", self.warnings)
        return f"{self.subject} {'passes' if self.ok else 'fails'}: {failures}, {warnings}."

    def __getitem__(self, name: str) -> Row:
        """The row of the check `name`."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"check: given {name!r}; allowed: {[row.name for row in self.rows]}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        rows = [asdict(row) for row in self.rows]
        return {"subject": self.subject, "ok": self.ok, "verdict": self.verdict, "rows": rows}

    def table(self) -> Table:
        """A table for rich to print, the advice below each detail."""
        table = Table(title=f"fugu.check: {self.subject}", title_justify="left", expand=False)
        table.add_column("check", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("what was seen", overflow="fold")
        for row in self.rows:
            colour = _COLOURS[row.status]
            # Text, not markup: details are full of brackets.
            detail = Text(row.detail, style="dim" if row.status == "skip" else "")
            if row.advice:
                detail.append(f"\n-> {row.advice}", style="cyan")
            table.add_row(Text(row.name), Text(row.status, style=colour), detail)
        return table

    def __rich__(self) -> Table:
        return self.table()

    def show(self) -> None:
        """Print the table and the verdict to stdout."""
        console = Console()
        console.print(self.table())
        style = _COLOURS["ok" if self.ok else "fail"]
        console.print(Text(self.verdict, style=style), soft_wrap=True)

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0) + 2
        indent = "\n" + " " * (8 + width)
        lines = [self.subject]
        for row in self.rows:
            mark = "FAIL" if row.status == "fail" else row.status
            text = row.detail + (f"\n-> {row.advice}" if row.advice else "")
            lines.append(f"  {mark:<6}{row.name:<{width}}{text.replace(chr(10), indent)}".rstrip())
        return "\n".join([*lines, self.verdict])


def _count(noun: str, rows: tuple[Row, ...]) -> str:
    if not rows:
        return f"no {noun}s"
    names = ", ".join(row.name for row in rows)
    return f"{len(rows)} {noun}{'s' * (len(rows) > 1)} ({names})"
