"""Observations of segments: every dtype, in place or on a device, reads what was written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fugu.data.observations import Observations

CPU = torch.device("cpu")


class OnDevice(Observations):
    """As if the CPU were another device, so that what runs there is run."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.array = None


@pytest.mark.parametrize("kind", [Observations, OnDevice])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint16", "int64", "float32"])
def test_rows_come_back_as_they_were_written(kind: type[Observations], dtype: str) -> None:
    random = np.random.default_rng(0)
    store = kind((6, 4, 5), np.dtype(dtype), CPU)
    truth = np.zeros((6, 4, 5), dtype)
    for rows, times in [(slice(1, 4), 2), (np.array([0, 5, 3]), np.array([1, 3, 0]))]:
        seen = random.integers(0, 2, (3, 5)).astype(dtype)
        truth[rows, times] = seen
        store.write(rows, times, seen, torch.from_numpy(seen))
    chosen = np.array([5, 1, 1, 0])
    assert np.array_equal(store.read(chosen).numpy(), truth[chosen])


def test_reading_is_a_copy() -> None:
    store = Observations((2, 2, 2), np.dtype(np.float32), CPU)
    store.read(np.array([0]))[:] = 7.0
    assert not store.table.any()


def test_a_cpu_has_nothing_to_be_spared() -> None:
    assert Observations((2, 2, 2), np.dtype(np.float32), CPU, True).offloaded_bytes == 0


def test_what_another_device_is_spared_is_counted() -> None:
    meta = torch.device("meta")
    assert Observations((2, 3, 5), np.dtype(np.float32), meta, True).offloaded_bytes == 120
    assert Observations((2, 3, 5), np.dtype(np.float32), meta).offloaded_bytes == 0
