"""Servers of policies, and clients to ask them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serving import Place

pytest.importorskip("uvicorn")
sys.path.insert(0, str(Path(__file__).parent))  # for serving.py


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A server of a plain policy, with small limits."""
    from serving import load_kind, serving

    with serving(load_kind("mlp"), max_batch=8, max_queue=64, max_body_mb=0.002) as found:
        yield found
