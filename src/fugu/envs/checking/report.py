"""Findings of the checks, and the report that lists them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Status = Literal["ok", "warn", "fail", "skip"]
_COLORS: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
_SHOWN = 6  # findings printed for one check; the rest are counted


@dataclass(eq=False)
class Finding(Exception):  # noqa: N818  it reports an error of the environment, not of fugu
    """A problem that a check found; raised where the environment cannot be run any further."""

    check: str  # name of the check
    status: Status  # "warn" or "fail"
    text: str  # what is expected and what was seen
    advice: str  # what to do about it, without values
    where: str = ""  # leaf or part at fault; with equal advice, it is shown once and counted
    place: str = ""  # where in the run it was first seen, such as "episode 0, step 3"
    count: int = 0

    def __str__(self) -> str:
        times = f"{self.count} times, first at " if self.count > 1 else ""
        return self.text + (f" ({times}{self.place})" if self.place else "")


class Findings:
    """All findings, and what the checks that found nothing looked at."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str, str], Finding] = {}
        self._details: dict[str, tuple[Status, str]] = {}

    def add(self, check: str, status: Status, text: str, advice: str, *at: str) -> None:
        """Add a finding; the arguments are those of `Finding`, where and place the last."""
        where, place = (*at, "", "")[:2]
        self.add_finding(Finding(check, status, text, advice, where, place))

    def add_finding(self, finding: Finding) -> None:
        """Add a finding, or count it if there is one like it."""
        key = finding.check, finding.where, finding.advice
        self._findings.setdefault(key, finding).count += 1

    def note(self, check: str, detail: str, status: Status = "ok") -> None:
        """Record what a check looked at, or why it did not run; findings take precedence."""
        self._details[check] = status, detail

    def failed(self) -> list[str]:
        """Return the names of the checks that have failures."""
        found = (finding.check for finding in self._findings.values() if finding.status == "fail")
        return list(dict.fromkeys(found))

    def result(self, check: str, reason: str) -> CheckResult:
        """Return the result of a check; `reason` explains one that never ran."""
        found = [finding for finding in self._findings.values() if finding.check == check]
        if not found:
            return CheckResult(check, *self._details.get(check, ("skip", reason)))
        found.sort(key=lambda finding: finding.status)  # "fail" before "warn"
        lines = [str(finding) for finding in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"and {len(found) - _SHOWN} more")
        advice = dict.fromkeys(finding.advice for finding in found)
        return CheckResult(check, found[0].status, "\n".join(lines), "\n".join(advice))


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: Name of the check.
        status: "ok"; "warn": works, but deserves a look; "fail": broken; "skip": did not run.
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
        rows: One result for each check, in the order in which problems are best fixed.
        subject: Name of the environment.

    >>> results = (CheckResult("layout", "ok", "float32"), CheckResult("rewards", "fail", "nan"))
    >>> report = Report(results, "Maze")
    >>> report.ok, [result.name for result in report.failures]
    (False, ['rewards'])
    >>> print(report)
    Maze
      ok    layout   float32
      FAIL  rewards  nan
    Maze fails: 1 failure (rewards), no warnings.
    """

    rows: tuple[CheckResult, ...]
    subject: str = "environment"

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(row for row in self.rows if row.status == "fail")

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """The checks that passed with a warning."""
        return tuple(row for row in self.rows if row.status == "warn")

    @property
    def verdict(self) -> str:
        """The report in one line."""
        failures, warnings = _count("failure", self.failures), _count("warning", self.warnings)
        return f"{self.subject} {'passes' if self.ok else 'fails'}: {failures}, {warnings}."

    def __getitem__(self, name: str) -> CheckResult:
        """Return the result of the check `name`."""
        results = {row.name: row for row in self.rows}
        if name not in results:
            raise KeyError(f"check: expected one of {list(results)}; got {name!r}.")
        return results[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, ready for JSON."""
        rows = [asdict(row) for row in self.rows]
        return {"subject": self.subject, "ok": self.ok, "verdict": self.verdict, "rows": rows}

    def __rich__(self) -> Table:
        table = Table(title=f"fugu.check: {self.subject}", title_justify="left")
        table.add_column("check", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("what was seen", overflow="fold")
        for row in self.rows:
            # Text, not markup: details are full of brackets.
            detail = Text(row.detail, style="dim" if row.status == "skip" else "")
            if row.advice:
                detail.append(f"\n-> {row.advice}", style="cyan")
            table.add_row(Text(row.name), Text(row.status, style=_COLORS[row.status]), detail)
        return table

    def show(self) -> None:
        """Print the table and the verdict to stdout."""
        console, color = Console(), _COLORS["ok" if self.ok else "fail"]
        console.print(self)
        console.print(Text(self.verdict, style=color), soft_wrap=True)

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0) + 2
        lines = [self.subject]
        for row in self.rows:
            mark = "FAIL" if row.status == "fail" else row.status
            text = row.detail + (f"\n-> {row.advice}" if row.advice else "")
            text = text.replace("\n", "\n" + " " * (8 + width))
            lines.append(f"  {mark:<6}{row.name:<{width}}{text}".rstrip())
        return "\n".join([*lines, self.verdict])


def _count(noun: str, rows: tuple[CheckResult, ...]) -> str:
    names = ", ".join(row.name for row in rows)
    return f"{len(rows)} {noun}{'s' * (len(rows) > 1)} ({names})" if rows else f"no {noun}s"
