"""Several sinks as one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

from fugu.track.sinks import Sink, Values

log = logging.getLogger("fugu.track")


class CombinedSink(Sink):
    """Passes everything to each sink; one that fails is reported once and dropped.

    A run is worth more than its curves: hours of training must not end with a full disk of a
    logging service.
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
