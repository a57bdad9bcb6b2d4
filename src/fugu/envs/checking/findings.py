"""Findings: single troubles, gathered into one row for each check."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fugu.envs.checking.report import Row, Status

_SHOWN = 6  # findings of one check; the rest is counted
_WORST: tuple[Status, ...] = ("fail", "warn")


@dataclass(frozen=True)
class Finding:
    """One trouble.

    Attributes:
        check: The check it belongs to.
        status: "warn" or "fail".
        where: The leaf or agent; the same trouble at the same place is told once and counted.
        text: What was seen.
        advice: What to do. Also tells kinds of trouble apart, so it names no values.
    """

    check: str
    status: Status
    where: str
    text: str
    advice: str


class Broken(Exception):  # noqa: N818  not an error of fugu: it carries one of the environment
    """The environment cannot go on; ends a run and becomes a failure of `check`."""

    def __init__(self, check: str, text: str, advice: str) -> None:
        super().__init__(text)
        self.check, self.text, self.advice = check, text, advice


@dataclass
class _Counted:
    finding: Finding
    place: str
    count: int = 1

    def __str__(self) -> str:
        times = f"{self.count} times, first at " if self.count > 1 else ""
        return self.finding.text + (f" ({times}{self.place})" if self.place else "")


class Ledger:
    """Every check's findings, or what it saw when it found none."""

    def __init__(self) -> None:
        self._findings: dict[str, dict[tuple[str, str], _Counted]] = {}
        self._passed: dict[str, str] = {}
        self._skipped: dict[str, str] = {}

    def add(self, finding: Finding, place: str = "") -> None:
        """Note a finding, and where in the run it was made."""
        findings = self._findings.setdefault(finding.check, {})
        known = findings.setdefault((finding.where, finding.advice), _Counted(finding, place, 0))
        known.count += 1

    def fail(self, check: str, text: str, advice: str) -> None:
        """Note that a check failed as a whole."""
        self.add(Finding(check, "fail", text, text, advice))

    def warn(self, check: str, text: str, advice: str) -> None:
        """Note a warning of a check as a whole."""
        self.add(Finding(check, "warn", text, text, advice))

    def passed(self, check: str, detail: str) -> None:
        """Note that a check ran, and what it saw; findings weigh more."""
        self._passed[check] = detail

    def skipped(self, check: str, reason: str) -> None:
        """Note why a check could not run."""
        self._skipped[check] = reason

    def failed(self) -> list[str]:
        """The checks with failures so far."""
        return [name for name in self._findings if self._row(name, "").status == "fail"]

    def rows(self, checks: tuple[str, ...], reason: str) -> Iterator[Row]:
        """A row for each check; those that did not run have a reason of their own, or this one."""
        for check in checks:
            yield self._row(check, reason)

    def _row(self, check: str, reason: str) -> Row:
        found = list(self._findings.get(check, {}).values())
        if not found:
            if check in self._passed:
                return Row(check, "ok", self._passed[check])
            return Row(check, "skip", self._skipped.get(check, reason))
        found.sort(key=lambda counted: _WORST.index(counted.finding.status))
        lines = [str(counted) for counted in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"and {len(found) - _SHOWN} more like these")
        advice = dict.fromkeys(
            counted.finding.advice for counted in found if counted.finding.advice
        )
        return Row(check, found[0].finding.status, "\n".join(lines), "\n".join(advice))
