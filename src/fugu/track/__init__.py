"""Metrics: sinks, curves, and the dashboard in the terminal."""

from fugu.track.dashboard import Dashboard, Snapshot
from fugu.track.sinks import CombinedSink, JsonlSink, Sink, TensorboardSink, WandbSink, read_metrics

__all__ = [
    "CombinedSink",
    "Dashboard",
    "JsonlSink",
    "Sink",
    "Snapshot",
    "TensorboardSink",
    "WandbSink",
    "read_metrics",
]
