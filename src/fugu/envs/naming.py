"""What a name means among those that there are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


def newest(name: str, names: Iterable[str]) -> str | None:
    """What `name` means among `names`: itself, or its newest version if it says none.

    >>> newest("Hopper", ["Hopper-v4", "Hopper-v5", "HopperHop-v9"]), newest("a_v1", ["a_v2"])
    ('Hopper-v5', None)
    """
    known = list(names)
    if name in known:
        return name
    versions = [each for each in known if re.fullmatch(rf"{re.escape(name)}[-_]v\d+", each)]
    return max(versions, key=lambda each: int(each.rpartition("v")[2]), default=None)


def nearest(given: str, names: Iterable[str]) -> str:
    """A sentence with the names most like the one given, whatever their case."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=0.5)
    return f"Nearest: {', '.join(by_lower[name] for name in close)}." if close else "None is near."
