"""Shared by all tests."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

for folder in (
    ".",
    "envs",
    "native",
    "vector",
):  # for tests/strategies.py, tests/envs/toys.py and their like
    sys.path.insert(0, str(Path(__file__).parent / folder))

settings.register_profile(
    "fugu",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("fugu")
