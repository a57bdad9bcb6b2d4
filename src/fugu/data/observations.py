"""Observations of segments: in plain memory, on the learner's device, or pinned beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fugu.policies.unpack import torch_dtype


class Observations:
    """What agents saw, `[rows, horizon, size]`, written step by step and read row by row.

    For a policy on the CPU they are plain memory. For one on another device they stand there, so
    that a minibatch is gathered without leaving it; or, if they are `offloaded`, in pinned memory
    of the CPU, from where a minibatch's rows are copied without blocking.

    Attributes:
        table: All of them; what `array` shows, if they are in the CPU's memory.
        array: The same for NumPy; None on another device.
        offloaded_bytes: What the device is spared.

    >>> seen = Observations((4, 2, 3), np.dtype(np.float32), torch.device("cpu"))
    >>> seen.write(slice(1, 3), 0, np.ones((2, 3), np.float32))
    >>> seen.read(np.array([2, 0]))[:, 0].tolist()
    [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        dtype: np.dtype[Any],
        device: torch.device,
        offload: bool = False,
    ) -> None:
        self._device, self._dtype = device, torch_dtype(dtype)
        self._pinned = offload and device.type == "cuda"
        home = torch.device("cpu") if offload else device
        self.offloaded_bytes = 0
        if offload and device.type != "cpu":
            self.offloaded_bytes = math.prod(shape) * dtype.itemsize
        if home.type == "cpu" and not self._pinned:  # NumPy asks for large pages
            self.table = torch.from_numpy(np.zeros(shape, dtype))
        else:
            options: dict[str, Any] = {"device": home, "pin_memory": self._pinned}
            self.table = torch.zeros(shape, dtype=self._dtype, **options)
        self._row = shape[1:]  # steps, and numbers of each
        self._cells = self.table.view(torch.uint8)  # every dtype is copied alike
        self._rows, self._steps = self._cells.flatten(1), self._cells.flatten(0, 1)
        self.array: NDArray[Any] | None = self.table.numpy() if home.type == "cpu" else None

    def write(self, rows: Any, times: Any, seen: NDArray[Any], on_device: Any = None) -> None:
        """What was seen at these places; `on_device` is the same where the policy is."""
        if self.array is not None and not isinstance(rows, slice):
            self.array[rows, times] = seen
            return
        given = torch.from_numpy(seen) if on_device is None else on_device
        if self.array is not None:
            self.table[rows, times].copy_(given)  # by several threads
            return
        places = [self._index(part) for part in (rows, times)]
        self._cells[places[0], places[1]] = given.to(self._device).view(torch.uint8)

    def read(self, rows: NDArray[np.int64], times: NDArray[np.int64] | None = None) -> Tensor:
        """Some rows, `[rows, horizon, size]`, or one step of each, on the policy's device."""
        horizon, size = self._row
        cells, length = (self._rows, horizon) if times is None else (self._steps, 1)
        places = rows if times is None else rows * horizon + times
        index = torch.from_numpy(places).to(self.table.device)
        options: dict[str, Any] = {"device": self.table.device, "pin_memory": self._pinned}
        out = torch.empty((len(rows), cells.shape[1]), dtype=torch.uint8, **options)
        torch.index_select(cells, 0, index, out=out)
        found = out.view(self._dtype).view(len(rows), length, size)
        return found.to(self._device, non_blocking=True)

    def _index(self, part: Any) -> Any:
        return torch.from_numpy(part).to(self._device) if isinstance(part, np.ndarray) else part
