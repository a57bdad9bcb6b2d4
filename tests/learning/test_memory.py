"""A memory adds what no prompt tells; without one, families must be learned by heart.

Seeds, steps and thresholds are fixed. `benchmarks/memory.py` shows it for several seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_lessons import study

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
STEPS, SEED = 60_000, 1


def test_programs_of_the_same_family_are_copied(tmp_path: Path) -> None:
    found = study(tmp_path, 1, SEED, STEPS)
    assert found.held_out >= 0.7
    assert found.new_families >= 0.8


def test_without_a_memory_new_families_stay_unknown(tmp_path: Path) -> None:
    found = study(tmp_path, 0, SEED, STEPS)
    assert found.held_out <= 0.55
    assert found.new_families <= 0.25
