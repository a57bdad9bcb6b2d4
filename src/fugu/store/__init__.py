"""Run folders and checkpoints."""

from fugu.store.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    read_state,
    save_checkpoint,
    verify_checkpoint,
)
from fugu.store.run import Run

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Run",
    "load_checkpoint",
    "read_state",
    "save_checkpoint",
    "verify_checkpoint",
]
