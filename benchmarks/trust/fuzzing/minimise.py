"""Findings made smaller: fewer files, and fewer bytes in them, with the same outcome."""

from __future__ import annotations

import time
from dataclasses import replace

from fuzzing.arena import Arena
from fuzzing.runner import Finding, Input, Reader, run_child

TRIALS = 150
SECONDS = 10.0


def repeats(reader: Reader, arena: Arena, given: Input) -> Finding | None:
    """What is found with an input; None if nothing is."""
    found = run_child(reader, arena, lambda index: given, [0]).findings
    return found[0] if found else None


def minimise(reader: Reader, arena: Arena, given: Input, finding: Finding) -> Input:
    """An input as small as some trials make it that has the same signature."""
    if finding.what.startswith(("HangError", "hang", "slow", "memory")):
        return given  # each trial would take as long
    left, deadline = TRIALS, time.monotonic() + SECONDS

    def still(trial: Input) -> bool:
        nonlocal left
        left = left - 1 if time.monotonic() < deadline else 0
        found = repeats(reader, arena, trial)
        return found is not None and found.signature == finding.signature

    for name in list(given.files):
        fewer = replace(given, files={k: v for k, v in given.files.items() if k != name})
        if left > 0 and still(fewer):
            given = fewer
    for name, content in list(given.files.items()):
        size = len(content) // 2 if isinstance(content, bytes) else 0
        while size and left > 0:
            start = 0
            while isinstance(content, bytes) and start < len(content) and left > 0:
                shorter = content[:start] + content[start + size :]
                trial = replace(given, files={**given.files, name: shorter})
                if still(trial):
                    given, content = trial, shorter
                else:
                    start += size
            size //= 2
    return given
