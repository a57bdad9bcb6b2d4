"""Sinks of metrics: JSON lines, which are always on, TensorBoard, and Weights & Biases."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fugu.core.errors import MissingExtraError, UsageError

log = logging.getLogger("fugu.track")

Values = Sequence[float] | npt.NDArray[np.generic]
RESERVED = ("step", "seconds")


class Sink(Protocol):
    """A destination of metrics. Derive from it for a `histogram` that does nothing."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step."""
        raise NotImplementedError("write(step: int, metrics: Mapping[str, float]) -> None")

    def histogram(self, step: int, name: str, values: Values) -> None:
        """Take many values of one step; sinks that cannot show them ignore them."""
        return

    def close(self) -> None:
        """Finish all output; nothing is written afterwards."""
        raise NotImplementedError("close() -> None")


class CombinedSink(Sink):
    """Passes everything to each sink; one that fails is reported once and dropped.

    Training must not end because a logging service fails.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self.sinks = list(sinks)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics on."""
        self._each(lambda sink: sink.write(step, metrics))

    def histogram(self, step: int, name: str, values: Values) -> None:
        """Pass the values on."""
        self._each(lambda sink: sink.histogram(step, name, values))

    def close(self) -> None:
        """Close every sink, whatever the others do."""
        self._each(lambda sink: sink.close())
        self.sinks = []

    def _each(self, call: Callable[[Sink], None]) -> None:
        for sink in list(self.sinks):
            try:
                call(sink)
            except Exception as error:
                self.sinks.remove(sink)
                log.warning(
                    "%s failed and gets nothing more; the others go on: %s: %s",
                    type(sink).__name__,
                    type(error).__name__,
                    error,
                )
                with contextlib.suppress(Exception):
                    sink.close()


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
    """Yield the lines of a file of metrics in order, without broken ones such as a last half."""
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
    """Return one line of a file of metrics; None if it is broken."""
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


class TensorboardSink(Sink):
    """Writes event files; show them by `tensorboard --logdir runs`.

    Args:
        folder: Where the event files go.
        resume_step: Go on after this step: TensorBoard leaves out what was written later.
    """

    def __init__(self, folder: str | Path, resume_step: int | None = None) -> None:
        for package, extra in (("tensorboard", "tensorboard"), ("torch", "train")):
            if importlib.util.find_spec(package) is None:
                raise MissingExtraError(package, extra)
        module: Any = importlib.import_module("torch.utils.tensorboard")
        purge = None if resume_step is None else resume_step + 1
        self._writer = module.SummaryWriter(str(folder), purge_step=purge, flush_secs=10)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a scalar for each metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step)

    def histogram(self, step: int, name: str, values: Values) -> None:
        """Add a histogram of the finite values; none of them, no histogram."""
        array = _finite(values)
        if array.size:
            self._writer.add_histogram(name, array, step)

    def close(self) -> None:
        """Write what is buffered."""
        self._writer.close()


class WandbSink(Sink):
    """Logs to a run of Weights & Biases, and to the same one when the run is resumed.

    Args:
        folder: The run folder; `wandb_id.txt` there keeps the id.
        project: The project of Weights & Biases.
        name: What it is called there.
        config: The settings to show with it.
        mode: "offline" needs no network: `wandb sync` sends it later.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        project: str = "fugu",
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        mode: Literal["online", "offline"] = "offline",
    ) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise MissingExtraError("wandb", "wandb")
        self._wandb: Any = importlib.import_module("wandb")
        self.run_id = _run_id(Path(folder))
        self._run = self._wandb.init(
            project=project,
            name=name,
            id=self.run_id,
            resume="allow",
            dir=str(folder),
            config=dict(config or {}),
            mode=mode,
            settings=self._wandb.Settings(silent=True),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def histogram(self, step: int, name: str, values: Values) -> None:
        """Log a histogram of the finite values; none of them, no histogram."""
        array = _finite(values)
        if array.size:
            self._run.log({name: self._wandb.Histogram(array)}, step=step)

    def close(self) -> None:
        """Finish the run there.

        The process of wandb may still write its file for a moment; it has ended when this
        process ends.
        """
        self._run.finish()


def _run_id(folder: Path) -> str:
    """Return the id of this run folder, the same for every process that resumes it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "wandb_id.txt"
    if path.is_file():
        return path.read_text().strip()
    run_id = secrets.token_hex(4)
    path.write_text(f"{run_id}\n")
    return run_id


def _finite(values: Values) -> npt.NDArray[np.float64]:
    """Return the finite values, flat.

    >>> _finite([1.0, float("nan"), 2.0, float("inf")]).tolist()
    [1.0, 2.0]
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]
