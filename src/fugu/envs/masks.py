"""Action masks: the choices of the discrete heads that are allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import EnvError
from fugu.spaces import Layout


def mask_heads(layout: Layout) -> list[int]:
    """Return the number of choices of each discrete head, in the order of the layout's leaves.

    >>> space = spaces.Dict(move=spaces.MultiDiscrete([3, 2]), push=spaces.Box(-1, 1, (2,)))
    >>> mask_heads(Layout.of(space))
    [3, 2]
    """
    return list(_heads(layout.space))


def _heads(space: Space[Any]) -> Iterator[int]:
    match space:
        case spaces.Discrete():
            yield int(space.n)
        case spaces.MultiDiscrete():
            yield from map(int, space.nvec.reshape(-1))
        case spaces.MultiBinary():
            yield from [2] * int(np.prod(space.shape))
        case spaces.Dict():
            for item in space.spaces.values():
                yield from _heads(item)
        case spaces.Tuple():
            for item in space.spaces:
                yield from _heads(item)


class MaskWriter:
    """Writes the masks that an environment gives, flat or as a tree, into rows."""

    def __init__(self, layout: Layout) -> None:
        self._space = layout.space
        self._heads = mask_heads(layout)
        self._starts = np.cumsum([0, *self._heads[:-1]])
        self.width = sum(self._heads)

    def write(self, mask: Any, row: NDArray[np.bool_]) -> None:
        """Write `mask`: flat, or in the form that `action_space.sample(mask=...)` takes."""
        flat = self._flatten(mask)
        if flat.shape != row.shape:
            raise EnvError(
                f"action mask: given {flat.size} entries; allowed: {self.width}, one for each "
                f"choice of {self._space}."
            )
        row[:] = flat
        if not np.logical_or.reduceat(row, self._starts).all():
            raise EnvError(
                f"action mask: given {row.astype(int).tolist()}, which forbids every choice of a "
                f"head (heads of {self._heads}); allowed: at least one choice for each. An agent "
                "that cannot act should not be asked to."
            )

    def _flatten(self, mask: Any) -> NDArray[Any]:
        if isinstance(mask, np.ndarray) and mask.dtype != object:
            return mask.reshape(-1)
        leaves = [np.asarray(leaf).reshape(-1) for leaf in _leaves(self._space, mask)]
        return np.concatenate(leaves) if leaves else np.zeros(0, np.bool_)


def _leaves(space: Space[Any], mask: Any) -> Iterator[Any]:
    """Yield the leaves of a mask tree in the order of the heads; None allows everything."""
    if mask is None:
        yield np.ones(sum(_heads(space)), np.bool_)
    elif isinstance(mask, Mapping) and isinstance(space, spaces.Dict):
        for key, item in space.spaces.items():
            yield from _leaves(item, mask.get(key))
    elif isinstance(mask, tuple) and isinstance(space, spaces.Tuple):
        for item, part in zip(space.spaces, mask, strict=True):
            yield from _leaves(item, part)
    elif isinstance(mask, tuple | list) and any(np.ndim(part) for part in mask):
        for part in mask:  # of a MultiDiscrete: a mask for each of its entries
            yield from _leaves(space, part) if isinstance(part, tuple) else [part]
    else:
        yield mask


def find_mask(observation: Any, info: Mapping[str, Any], width: int) -> Any:
    """Return the mask in `info["action_mask"]` or the observation's `action_mask`, or None."""
    mask = info.get("action_mask") if info else None
    if mask is None and isinstance(observation, dict):
        mask = observation.get("action_mask")
        if mask is not None and np.size(mask) != width:
            return None  # an observation that only happens to have that name
    return mask


def sample_mask(space: Space[Any], flat: Iterator[Any]) -> Any:
    """Return the next entries of a flat mask in the form that `space.sample` takes.

    >>> pair = spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1)))
    >>> sample_mask(pair, iter([True, False]))
    (array([1, 0], dtype=int8), None)
    """

    def take(counts: Any) -> Any:
        if np.ndim(counts):
            return tuple(take(part) for part in counts)
        return np.fromiter(islice(flat, int(counts)), np.int8, int(counts))

    match space:
        case spaces.Discrete():
            return take(space.n)
        case spaces.MultiDiscrete():
            return take(space.nvec)
        case spaces.MultiBinary():  # 0 and 1: forbidden but for this value; 2: both are allowed
            pairs = take(2 * np.prod(space.shape)).reshape(*space.shape, 2)
            return np.where(pairs.all(-1), 2, pairs[..., 1]).astype(np.int8)
        case spaces.Dict():
            return {key: sample_mask(item, flat) for key, item in space.spaces.items()}
        case spaces.Tuple():
            return tuple(sample_mask(item, flat) for item in space.spaces)
        case _:
            return None
