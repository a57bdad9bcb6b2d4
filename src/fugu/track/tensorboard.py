"""Metrics for TensorBoard."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fugu.core.errors import MissingExtraError
from fugu.track.sinks import Sink, Values, finite


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
        array = finite(values)
        if array.size:
            self._writer.add_histogram(name, array, step)

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()
