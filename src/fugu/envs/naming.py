"""What a name means among those that there are."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fugu.core.errors import nearest_names


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
    close = nearest_names(given, names, 3, 0.5)
    return f"Nearest: {', '.join(close)}." if close else "None is near."
