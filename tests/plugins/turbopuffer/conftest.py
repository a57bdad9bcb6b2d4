"""Shared by the tests of the memory in Turbopuffer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "plugins/fugu-turbopuffer"))
sys.path.insert(0, str(Path(__file__).parent))

from turbopuffer_server import Service

PACKAGE = Path(__file__).parents[3] / "plugins/fugu-turbopuffer"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of a test import the package."""
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE), prepend=os.pathsep)


@pytest.fixture
def service() -> Iterator[Service]:
    """A server on loopback that speaks the API of Turbopuffer."""
    with Service() as running:
        yield running
