"""Shared by the tests of other libraries' interfaces."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for puffer_script.py
