"""Advantages of tensors: the Triton kernel in its interpreter, and the native one on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fugu.algos.advantage import advantages
from fugu.core.errors import UsageError
from fugu.native.advantage import advantages as on_arrays

# Random segments, as arrays by their names; run here and in the process of the interpreter.
SEGMENTS = """
import numpy as np

def segments(seed, horizon, rows, optional=("ratios", "valid", "live")):
    random = np.random.default_rng(seed)
    floats = lambda times: random.standard_normal((times, rows)).astype(np.float32)
    flags = lambda share: random.random((horizon, rows)) < share
    data = {
        "rewards": floats(horizon), "values": floats(horizon + 1), "final_values": floats(horizon),
        "terminations": flags(0.1), "truncations": flags(0.1).view(np.uint8),
    }
    more = {"ratios": np.exp(floats(horizon)), "valid": flags(0.9), "live": flags(0.7)}
    for name in ("rewards", "ratios", "final_values"):
        {**data, **more}[name][~more["live"] & ("live" in optional)] = np.nan
    return {**data, **{name: more[name] for name in optional}}
"""
INTERPRETED = """
import itertools, torch
from fugu.algos.advantage_triton import advantages_triton
from fugu.native.advantage import advantages

numbers = {"gamma": 0.97, "lambda_": 0.9, "rho_clip": 1.0, "c_clip": 1.1}
optional = [c for n in range(4) for c in itertools.combinations(("ratios", "valid", "live"), n)]
shapes = [(7, 5), (1, 1), (5, 128), (4, 129), (3, 300)]
for seed, (shape, names) in enumerate(itertools.product(shapes, optional)):
    data = segments(seed, *shape, names)
    expected_returns = np.empty(shape, np.float32)
    expected = advantages(**data, **numbers, returns_out=expected_returns, use_native=False)
    tensors = {name: torch.from_numpy(array) for name, array in data.items()}
    returns = torch.empty(shape)
    found = advantages_triton(**tensors, **numbers, returns_out=returns)
    assert found.numpy().tobytes() == expected.tobytes(), (shape, names)
    assert returns.numpy().tobytes() == expected_returns.tobytes(), (shape, names)
    out = torch.empty(shape)
    assert advantages_triton(**tensors, **numbers, out=out).data_ptr() == out.data_ptr()
    assert out.numpy().tobytes() == expected.tobytes()
    turned = {name: tensor.T.contiguous().T for name, tensor in tensors.items()}
    assert advantages_triton(**turned, **numbers).numpy().tobytes() == expected.tobytes()
print("equal", seed + 1)
"""
NUMBERS = {"gamma": 0.97, "lambda_": 0.9, "rho_clip": 1.0, "c_clip": 1.1}
scope: dict[str, Any] = {}
exec(SEGMENTS, scope)
segments = scope["segments"]


def tensors(*arguments: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in segments(*arguments).items()}


def test_triton_equals_the_reference_bit_for_bit(tmp_path: Path) -> None:
    """In a process of its own, since the switch is read when Triton is imported."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", SEGMENTS + INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal 40\n"


def test_triton_refuses_what_will_not_do() -> None:
    pytest.importorskip("triton")
    from fugu.algos.advantage_triton import advantages_triton

    data = tensors(0, 4, 5)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"values": torch.zeros(4, 5)}, r"values: .*\(5, 5\)"),
        ({"rewards": torch.zeros(4, 5, dtype=torch.float64)}, "rewards: given torch.float64"),
        ({"live": torch.zeros(4, 5)}, "live: given torch.float32"),
        ({"gamma": 2.0}, "gamma: given 2.0"),
        ({"out": torch.zeros(5, 4).T}, "out: .*not contiguous"),
    ]
    for change, message in changes:
        with pytest.raises(UsageError, match=message):
            advantages_triton(**{**data, **NUMBERS, **change})


def test_tensors_of_the_cpu_stay_where_they_are() -> None:
    data = segments(1, 6, 70)
    expected = on_arrays(**data, **NUMBERS)
    given = tensors(1, 6, 70)
    given["values"].requires_grad_()
    out, returns = torch.empty(6, 70), torch.empty(6, 70)
    assert advantages(**given, **NUMBERS, out=out, returns_out=returns) is out
    assert out.numpy().tobytes() == expected.tobytes()
    counts = data["valid"] & data["live"]
    assert np.array_equal(returns.numpy()[counts], (expected + data["values"][:-1])[counts])
    assert torch.equal(advantages(**given, **NUMBERS), out)


def test_row_major_tensors_are_given_as_views() -> None:
    given = tensors(2, 6, 70)
    turned = {name: tensor.T.contiguous().T for name, tensor in given.items()}
    assert torch.equal(advantages(**turned, **NUMBERS), advantages(**given, **NUMBERS))


def test_errors_are_those_of_arrays() -> None:
    given = tensors(3, 4, 5)
    with pytest.raises(UsageError, match="rewards: given a float64"):
        advantages(
            **{**given, "rewards": given["rewards"].double()}, **NUMBERS, out=torch.ones(4, 5)
        )
    with pytest.raises(UsageError, match="ratios: given a tensor on meta"):
        advantages(**{**given, "ratios": given["ratios"].to("meta")}, **NUMBERS)
    with pytest.raises(UsageError, match="the CPU or CUDA"):
        advantages(**{k: v.to("meta") for k, v in given.items()}, **NUMBERS)
