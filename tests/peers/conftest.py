"""Shared by the tests against other people's code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for peer_toys.py and its like


@pytest.fixture(params=["serial", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)
