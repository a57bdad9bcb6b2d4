"""Vectors: many copies of an environment, stepped in parallel."""

from fugu.vector.batch import Batch, GroupBatch
from fugu.vector.faults import Fault, WorkerError
from fugu.vector.making import make
from fugu.vector.vector import Vector

__all__ = ["Batch", "Fault", "GroupBatch", "Vector", "WorkerError", "make"]
