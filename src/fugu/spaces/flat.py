"""The space of a layout's rows."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from fugu.spaces.layout import Layout


def flat_space(layout: Layout) -> spaces.Box:
    """The space of a layout's flat rows.

    >>> flat_space(Layout.of(spaces.Dict(gear=spaces.Discrete(5), speed=spaces.Box(0, 9, (2,)))))
    Box(0, 255, (16,), uint8)
    """
    dtype = layout.dtype
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, (layout.size,), dtype.type)
    if dtype.kind == "b":
        return spaces.Box(0, 1, (layout.size,), dtype.type)
    limits = np.iinfo(dtype)
    return spaces.Box(int(limits.min), int(limits.max), (layout.size,), dtype.type)
