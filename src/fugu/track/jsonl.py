"""Metrics as one JSON object a line: the sink that is always on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fugu.core.errors import UsageError
from fugu.track.sinks import Sink

RESERVED = ("step", "seconds")


class JsonlSink(Sink):
    """Appends lines such as `{"step": 1024, "seconds": 0.5, "loss": 0.25}`, each at once.

    Numbers are read back as the same floats: NaN as null, infinities as 1e999, which every
    reader of JSON takes for one. `seconds` counts the time of training, over resumes too.

    Args:
        path: The file; its folder is made.
        resume_step: Go on after this step: later lines are cut off. None: go on at the end.
    """

    def __init__(self, path: str | Path, resume_step: int | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        before = _cut(self.path, resume_step) if self.path.exists() else 0.0
        self._start = time.monotonic() - before
        self._file = self.path.open("a", buffering=1, encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line."""
        for name in RESERVED:
            if name in metrics:
                raise UsageError(
                    f"metrics: given {name!r}; allowed: names other than {', '.join(RESERVED)}, "
                    "which the sink writes itself."
                )
        entries = {"step": int(step), "seconds": round(time.monotonic() - self._start, 3)}
        numbers = {**entries, **metrics}
        line = ", ".join(f"{json.dumps(name)}: {_number(x)}" for name, x in numbers.items())
        self._file.write(f"{{{line}}}\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: str | Path) -> Iterator[dict[str, float | None]]:
    """The lines of a file of metrics in order; a broken one, such as a last half, is left out."""
    if not Path(path).is_file():
        return
    with Path(path).open("rb") as file:
        for line in file:
            entry = parse_metrics(line)
            if entry is not None:
                yield entry


def _number(value: Any) -> str:
    if isinstance(value, int):
        return str(int(value))
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    return "null" if math.isnan(number) else "1e999" if number > 0 else "-1e999"


def parse_metrics(line: bytes) -> dict[str, float | None] | None:
    """One line of a file of metrics; None if it is broken."""
    try:
        entry = json.loads(line)
        "".join(entry).encode()  # names that cannot be shown
    except (ValueError, TypeError, RecursionError):
        return None
    whole = isinstance(entry, dict) and isinstance(entry.get("step"), int)
    return entry if whole and all(map(_is_number, entry.values())) else None


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return value is None or isinstance(value, float)


def _cut(path: Path, resume_step: int | None) -> float:
    """Cut off later steps and a last line without its end; return the seconds of what stays."""
    end, seconds = 0, 0.0
    with path.open("rb+") as file:
        for line in file:
            entry = parse_metrics(line)
            step = entry["step"] if entry else None
            if not line.endswith(b"\n"):
                break
            if resume_step is not None and step is not None and step > resume_step:
                break
            end += len(line)
            seconds = float((entry or {}).get("seconds") or seconds)
        file.truncate(end)
    return seconds
