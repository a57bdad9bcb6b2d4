"""Typed front of the extension module `fugu._native`, each part beside a slow NumPy reference.

`available` says whether the extension is there and `reason` why it is not; without it everything
works, more slowly.
"""

from __future__ import annotations

reason: str = ""
try:
    import fugu._native as _native  # noqa: F401

    available = True
except ImportError as error:
    available, reason = False, str(error)

__all__ = ["available", "reason"]
