"""Shared by the tests of the memory in Turbopuffer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from turbopuffer_server import Service


@pytest.fixture
def service() -> Iterator[Service]:
    """A server on loopback that speaks the API of Turbopuffer."""
    with Service() as running:
        yield running
