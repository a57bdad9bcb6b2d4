"""Kinds of spaces to ask `isinstance` of, and the space of many agents together."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from fugu.core.errors import SpaceError

Box = (spaces.Box,)
Dict = (spaces.Dict,)
Discrete = (spaces.Discrete,)
MultiBinary = (spaces.MultiBinary,)
MultiDiscrete = (spaces.MultiDiscrete,)
Tuple = (spaces.Tuple,)


def joint_space(space: Space[Any], n: int) -> spaces.MultiDiscrete | spaces.Box:
    """The space of `n` agents that each have this one.

    >>> joint_space(spaces.Discrete(3), 2)
    MultiDiscrete([3 3])
    >>> joint_space(spaces.MultiDiscrete([3, 5]), 2).shape, joint_space(spaces.Box(0, 1), 4).shape
    ((2, 2), (4, 1))
    """
    match space:
        case spaces.Discrete():
            return spaces.MultiDiscrete([int(space.n)] * n, start=[int(space.start)] * n)
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
        case spaces.Box():
            low, high = space.low, space.high
        case _:
            raise SpaceError(f"space: given {space}; allowed: Discrete, MultiDiscrete, Box.")
    least, most = (np.repeat(bound[None], n, axis=0) for bound in (low, high))
    return spaces.Box(least, most, dtype=space.dtype)  # type: ignore[arg-type]
