"""The lessons and `benchmarks/learning.py` can be imported, here and in workers."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[2] / "benchmarks"):
    sys.path.insert(0, str(folder))
