"""Requirements: what a package's metadata asks for, and whether a version will do."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Requirement:
    """One line of Requires-Dist, as far as it is of use here."""

    name: str
    extras: tuple[str, ...]
    versions: str
    """Such as ">=2.0,<3"; empty if any will do."""
    extra: str
    """The extra that brings it; empty for one that is always required."""
    condition: str
    """The rest of its marker, which is shown and not judged."""

    @staticmethod
    def parse(line: str) -> Requirement:
        """Read `name[extras]versions; marker`."""
        match = re.fullmatch(r"([\w.-]+)\s*(?:\[(.*?)\])?\s*\(?([^;()]*)\)?\s*(?:;(.*))?", line)
        if match is None:
            raise ValueError(f"given {line!r}; allowed: name[extras]versions; marker")
        name, extras, versions, marker = (part or "" for part in match.groups())
        clause = r"extra\s*==\s*[\"']([^\"']+)[\"']"
        extra = re.search(clause, marker)
        condition = re.sub(rf"(\s*and\s+)?{clause}(\s+and\s+)?", "", marker).strip(" ()")
        return Requirement(
            name,
            tuple(re.findall(r"[\w.-]+", extras)),
            versions.replace(" ", ""),
            extra.group(1) if extra else "",
            condition,
        )


def satisfies(version: str, versions: str) -> bool:
    """Whether a version lies within a range, judged by its numbers alone (no pre-releases).

    >>> satisfies("2.13.0+cpu", ">=2.5,<3"), satisfies("81.0", "<81"), satisfies("2", "==2.0")
    (True, False, True)
    """
    return all(_in_clause(version, clause) for clause in versions.split(",") if clause)


def _in_clause(version: str, clause: str) -> bool:
    match = re.fullmatch(r"(\D+)(\d+(?:\.\d+)*)", clause)
    if match is None or match.group(1) not in _COMPARISONS:
        raise ValueError(f"given {clause!r}; allowed: {' '.join(_COMPARISONS)} and numbers")
    pairs = list(zip_longest(_numbers(version), _numbers(match.group(2)), fillvalue=0))
    return _COMPARISONS[match.group(1)]([have for have, _ in pairs], [want for _, want in pairs])


def _numbers(version: str) -> list[int]:
    match = re.match(r"\d+(\.\d+)*", version)
    if match is None:
        raise ValueError(f"given version {version!r}; allowed: one that begins with a number")
    return [int(part) for part in match.group().split(".")]
