"""The functions that written C has instead of a library, against NumPy over all that they take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_tools import at, library
from numpy.typing import NDArray

from fugu.export.c_text import functions_for

# Every 509th float from 0 on, so subnormals and large ones too, and infinity.
POSITIVE = np.concatenate(
    [np.arange(0, 0x7F800000, 509, np.uint32), np.array([0x7F800000], np.uint32)]
).view(np.float32)
ALL = np.concatenate([POSITIVE, -POSITIVE, np.float32([np.nan])])
NORMAL = POSITIVE[(np.finfo(np.float32).tiny <= POSITIVE) & np.isfinite(POSITIVE)]
TURNS = np.arange(0, 2**24, 1009, np.uint32)
SMALLEST = float(np.finfo(np.float32).tiny)  # below it, floats have fewer digits


def erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.vectorize(math.erf, otypes=[np.float64])(x)
    return found


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0, -x))


FUNCTIONS: dict[str, tuple[Any, NDArray[np.float32]]] = {
    "exp_of": (np.exp, ALL),
    "log_of": (np.log, NORMAL),
    "log1p_of": (np.log1p, POSITIVE),
    "sqrt_of": (np.sqrt, POSITIVE),
    "tanh_of": (np.tanh, ALL),
    "erf_of": (erf, ALL[::7].copy()),
    "sigmoid_of": (sigmoid, ALL),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_within_a_millionth(name: str, tmp_path: Path) -> None:
    function, numbers = FUNCTIONS[name]
    loop = (
        "void all(const float* x, float* y, int count);\n"
        "void all(const float* x, float* y, int count) {\n"
        "    for (int i = 0; i < count; ++i)\n"
        f"        y[i] = {name}(x[i]);\n"
        "}\n"
    )
    found = np.zeros_like(numbers)
    text = "#include <stdint.h>\n" + functions_for(loop) + loop
    library(tmp_path, text).all(at(numbers), at(found), len(numbers))
    with np.errstate(all="ignore"):
        exact = function(numbers.astype(np.float64))
        expected = exact.astype(np.float32)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    error = np.abs(found[finite] - exact[finite]) / np.maximum(np.abs(exact[finite]), SMALLEST)
    assert error.max() < 3e-7


def test_the_cosine_is_within_a_millionth(tmp_path: Path) -> None:
    loop = (
        "void all(const uint32_t* x, float* y, int count);\n"
        "void all(const uint32_t* x, float* y, int count) {\n"
        "    for (int i = 0; i < count; ++i)\n"
        "        y[i] = cos_of_turn(x[i]);\n"
        "}\n"
    )
    found = np.zeros(len(TURNS), np.float32)
    text = "#include <stdint.h>\n" + functions_for(loop) + loop
    library(tmp_path, text).all(at(TURNS), at(found), len(TURNS))
    np.testing.assert_allclose(found, np.cos(TURNS * (math.tau / 2**24)), atol=2e-7)
