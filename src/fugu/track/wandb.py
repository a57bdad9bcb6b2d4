"""Metrics for Weights & Biases, online or offline."""

from __future__ import annotations

import importlib
import importlib.util
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from fugu.core.errors import MissingExtraError
from fugu.track.sinks import Sink, Values, finite


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
        array = finite(values)
        if array.size:
            self._run.log({name: self._wandb.Histogram(array)}, step=step)

    def close(self) -> None:
        """Finish the run there.

        The process of wandb may still write its file for a moment; it has ended when this
        process ends.
        """
        self._run.finish()


def _run_id(folder: Path) -> str:
    """The id of this run folder, the same for every process that goes on with it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "wandb_id.txt"
    if path.is_file():
        return path.read_text().strip()
    run_id = secrets.token_hex(4)
    path.write_text(f"{run_id}\n")
    return run_id
