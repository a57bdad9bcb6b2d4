"""Findings of the checks, and the report that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

Status = Literal["ok", "warn", "fail", "skip"]
_COLORS: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
_SHOWN = 6  # findings printed for one check; the rest are counted


@dataclass(frozen=True)
class Finding:
    """One problem that a check found.

    Attributes:
        check: Name of the check.
        status: "warn" or "fail".
        text: What is expected and what was seen.
        advice: What to do about it, without values.
        where: Leaf or part at fault. Findings of one check with equal `where` and `advice` are
            shown once and counted.
    """

    check: str
    status: Status
    text: str
    advice: str
    where: str = ""


class FatalFinding(Exception):  # noqa: N818  not an error of fugu: it reports one of the environment
    """A failure after which the environment cannot run any further."""

    def __init__(self, check: str, text: str, advice: str) -> None:
        super().__init__(text)
        self.finding = Finding(check, "fail", text, advice)


class Findings:
    """Table of all findings, and of what was looked at by the checks that found nothing."""

    def __init__(self) -> None:
        self._findings: dict[tuple[str, str, str], tuple[Finding, str]] = {}
        self._counts: dict[tuple[str, str, str], int] = {}
        self._details: dict[str, tuple[Status, str]] = {}

    def add(self, finding: Finding, place: str = "") -> None:
        """Add a finding, and where in the run it was made."""
        key = finding.check, finding.where, finding.advice
        self._findings.setdefault(key, (finding, place))
        self._counts[key] = self._counts.get(key, 0) + 1

    def passed(self, check: str, detail: str) -> None:
        """Record what a check looked at. Its findings, if any, take precedence."""
        self._details[check] = "ok", detail

    def skipped(self, check: str, reason: str) -> None:
        """Record why a check did not run."""
        self._details[check] = "skip", reason

    def __contains__(self, check: str) -> bool:
        return check in self._details or any(key[0] == check for key in self._findings)

    def failed(self) -> list[str]:
        """Return the names of the checks that have failures."""
        return list(
            dict.fromkeys(f.check for f, _ in self._findings.values() if f.status == "fail")
        )

    def results(self, checks: Iterable[str], reason: str) -> tuple[CheckResult, ...]:
        """Return the result of each check; `reason` explains those that never ran."""
        return tuple(self._result(check, reason) for check in checks)

    def _result(self, check: str, reason: str) -> CheckResult:
        keys = [key for key in self._findings if key[0] == check]
        if not keys:
            return CheckResult(check, *self._details.get(check, ("skip", reason)))
        keys.sort(key=lambda key: self._findings[key][0].status)  # "fail" before "warn"
        lines = [self._line(key) for key in keys[:_SHOWN]]
        if len(keys) > _SHOWN:
            lines.append(f"and {len(keys) - _SHOWN} more")
        advice = "\n".join(dict.fromkeys(advice for *_, advice in keys if advice))
        return CheckResult(check, self._findings[keys[0]][0].status, "\n".join(lines), advice)

    def _line(self, key: tuple[str, str, str]) -> str:
        (finding, place), count = self._findings[key], self._counts[key]
        times = f"{count} times, first at " if count > 1 else ""
        return finding.text + (f" ({times}{place})" if place else "")


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
        for row in self.rows:
            if row.name == name:
                return row
        names = ", ".join(repr(row.name) for row in self.rows)
        raise KeyError(f"check: expected one of {names}; got {name!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, ready for JSON."""
        rows = [asdict(row) for row in self.rows]
        return {"subject": self.subject, "ok": self.ok, "verdict": self.verdict, "rows": rows}

    def __rich__(self) -> Table:
        table = Table(title=f"fugu.check: {self.subject}", title_justify="left", expand=False)
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
        console = Console()
        console.print(self)
        console.print(
            Text(self.verdict, style=_COLORS["ok" if self.ok else "fail"]), soft_wrap=True
        )

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0) + 2
        indent = "\n" + " " * (8 + width)
        lines = [self.subject]
        for row in self.rows:
            mark = "FAIL" if row.status == "fail" else row.status
            text = (row.detail + (f"\n-> {row.advice}" if row.advice else "")).replace("\n", indent)
            lines.append(f"  {mark:<6}{row.name:<{width}}{text}".rstrip())
        return "\n".join([*lines, self.verdict])


def _count(noun: str, rows: tuple[CheckResult, ...]) -> str:
    if not rows:
        return f"no {noun}s"
    names = ", ".join(row.name for row in rows)
    return f"{len(rows)} {noun}{'s' * (len(rows) > 1)} ({names})"
