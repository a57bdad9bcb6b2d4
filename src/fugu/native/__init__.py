"""Typed front of the extension module `fugu._native`, each part with a slow NumPy reference.

Without the extension everything works, more slowly: `available` is False, and `reason` says why.
"""

from __future__ import annotations

reason: str = ""
try:
    import fugu._native as _native  # noqa: F401

    available = True
except ImportError as error:
    available, reason = False, str(error)

__all__ = ["available", "reason"]
