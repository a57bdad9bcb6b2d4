"""Where metrics go: files, TensorBoard, Weights & Biases, and the terminal."""

from fugu.track.combine import CombinedSink
from fugu.track.dashboard import Dashboard
from fugu.track.jsonl import JsonlSink, read_metrics
from fugu.track.sinks import Sink
from fugu.track.snapshot import Snapshot
from fugu.track.tensorboard import TensorboardSink
from fugu.track.wandb import WandbSink

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
