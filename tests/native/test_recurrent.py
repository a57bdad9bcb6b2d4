"""Recurrent kernels themselves: their functions' accuracy, and what they refuse.

Cores are compared with torch in tests/policies/test_recurrence.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fugu import native

pytestmark = pytest.mark.skipif(not native.available, reason="the extension is not built")

if native.available:
    from fugu import _native

Floats = NDArray[np.float32]


def lstm_gates(numbers: Floats) -> Floats:
    """Input, forget, cell and output gate of each number: sigmoids, and one tanh."""
    hidden = numbers.size
    inputs = np.tile(numbers, 4)[None]
    none, bias = np.zeros_like(inputs), np.zeros(4 * hidden, np.float32)
    after, output, kept = (np.empty((1, n * hidden), np.float32) for n in (1, 1, 4))
    before = np.zeros((1, hidden), np.float32)
    arrays: Any = (inputs, none, bias, bias, before, None, None, after, output, kept, None)
    _native.lstm_step(*arrays, 1)
    return kept.reshape(4, hidden)


def spread() -> Floats:
    """Numbers from tiny to 60, of both signs."""
    sizes = np.concatenate([np.geomspace(1e-30, 60, 200_001), np.linspace(0, 60, 200_001)])
    return np.concatenate([sizes, -sizes]).astype(np.float32)


def test_functions_are_accurate() -> None:
    numbers = spread()
    sigmoids, _, tanhs, _ = lstm_gates(numbers)
    x = numbers.astype(np.float64)
    np.testing.assert_allclose(sigmoids, 1 / (1 + np.exp(-x)), rtol=1e-6)
    np.testing.assert_allclose(tanhs, np.tanh(x), rtol=1e-6)


def test_functions_at_their_ends() -> None:
    numbers = np.array([0, -0.0, np.inf, -np.inf, 1e30, -1e30, np.nan], np.float32)
    sigmoids, _, tanhs, _ = lstm_gates(numbers)
    np.testing.assert_allclose(sigmoids, [0.5, 0.5, 1, 0, 1, 0, np.nan], atol=1e-25)
    np.testing.assert_array_equal(tanhs, [0, 0, 1, -1, 1, -1, np.nan])
    assert sigmoids[3] > np.finfo(np.float32).tiny  # nothing denormal


def step_arrays(rows: int = 3, hidden: int = 4) -> list[Any]:
    return [
        np.zeros((rows, 4 * hidden), np.float32), np.zeros((rows, 4 * hidden), np.float32),
        np.zeros(4 * hidden, np.float32), np.zeros(4 * hidden, np.float32),
        np.zeros((rows, hidden), np.float32), np.zeros(rows, bool), np.zeros(rows, bool),
        np.empty((rows, hidden), np.float32), np.empty((rows, hidden), np.float32), None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("place", [0, 1, 2, 3, 5, 6, 7, 8])
def test_arrays_that_do_not_fit_are_refused(place: int) -> None:
    _native.lstm_step(*step_arrays(), 1)
    arrays = step_arrays()
    arrays[place] = arrays[place][:-1]
    with pytest.raises(ValueError, match="do not fit"):
        _native.lstm_step(*arrays, 1)
    arrays[place] = np.zeros((2, 2, 2, 2))
    with pytest.raises(TypeError):
        _native.lstm_step(*arrays, 1)


def test_an_lstm_needs_an_output() -> None:
    arrays = step_arrays()
    arrays[8] = None
    with pytest.raises(ValueError, match="output is missing"):
        _native.lstm_step(*arrays, 1)


def test_a_scan_of_no_steps_keeps_nothing() -> None:
    gates, start = np.zeros((3, 0, 8), np.float32), np.ones((3, 4), np.float32)
    outputs, start_grad = np.zeros((3, 0, 4), np.float32), np.ones((3, 4), np.float32)
    _native.mingru_scan(gates, start, None, outputs, 1)
    _native.mingru_scan_back(gates, start, None, outputs, outputs, gates, start_grad, 1)
    assert (start_grad == 0).all()


def test_strided_rows_are_taken() -> None:
    """States stand in parts of wider rows."""
    arrays, random = step_arrays(), np.random.default_rng(0)
    arrays[0] = random.standard_normal((3, 16)).astype(np.float32)
    wide = random.standard_normal((3, 12)).astype(np.float32)
    arrays[4] = wide[:, 4:8]
    _native.lstm_step(*arrays, 1)
    plain = step_arrays()
    plain[0], plain[4] = arrays[0], np.ascontiguousarray(arrays[4])
    _native.lstm_step(*plain, 1)
    np.testing.assert_array_equal(arrays[7], plain[7])
    assert (arrays[7] != 0).all()
