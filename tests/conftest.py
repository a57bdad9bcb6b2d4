"""Shared by all tests."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings

# The key that runs are signed with is not the user's.
_state = tempfile.TemporaryDirectory(prefix="fugu-state-")
os.environ["LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME"] = _state.name

# Tests run side by side: torch's threads would mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# For tests/strategies.py, tests/envs/toys.py, examples/expedition.py and their like.
for folder in (".", "envs", "native", "vector", "../examples"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

settings.register_profile(
    "fugu",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("fugu")
