"""For tests/sandbox/sandbox_helpers.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(autouse=True)
def _patience(request: pytest.FixtureRequest) -> None:
    """A test that starts processes has its way out in the executors; this is for when they fail."""
    request.node.add_marker(pytest.mark.timeout(300))
