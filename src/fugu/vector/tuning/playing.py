"""Playing: random legal actions for whole rows at a time, and a learner that is only busy."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import PackError
from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup, Buffers
from fugu.spaces import Layout

VARIANTS = 16  # sets of actions that are drawn beforehand, at the least
SAMPLES = 256  # rows that are drawn for them; a longer batch repeats them
ATTEMPTS = 20  # at a value that fits: a space without bounds draws what its limits do not allow
BLOCK = bytes(4096)
Head = tuple[NDArray[Any], int, int]  # its entries in the rows, its first choice, its choices


class Player:
    """Draws the actions of `count` rows of one group, the same ones for the same seed.

    They are drawn beforehand, so that a trial times the environments and not the drawing; only
    choices that a mask may forbid are drawn when they are needed, all rows at once.
    """

    def __init__(self, group: AgentGroup, count: int, seed: int) -> None:
        self._layout, self._turn = group.action_layout, 0
        self._masked = group.mask_width > 0
        self._generator = np.random.default_rng(derive(seed))
        places = np.arange(max(VARIANTS, SAMPLES // count) * count).reshape(-1, count)
        self._variants = _samples(self._layout, seed)[places % SAMPLES]  # [variants, count, size]

    def actions(self, rows: Buffers) -> NDArray[Any]:
        """The next actions, legal for these rows."""
        self._turn = (self._turn + 1) % len(self._variants)
        actions: NDArray[Any] = self._variants[self._turn]
        if self._masked and not rows.action_masks.all():
            actions = actions.copy()
            self._draw_legal(actions, rows.action_masks)
        return actions

    def _draw_legal(self, actions: NDArray[Any], masks: NDArray[np.bool_]) -> None:
        column = 0
        for entries, first, count in _heads(self._layout.space, self._layout.views(actions)):
            allowed = masks[:, column : column + count]
            scores = self._generator.random(allowed.shape) * allowed
            entries[:] = first + scores.argmax(axis=1)
            column += count


def _samples(layout: Layout, seed: int) -> NDArray[Any]:
    space = copy.deepcopy(layout.space)  # the environment's own keeps its generator as it is
    space.seed(derive(seed) >> 33)
    rows = layout.zeros(SAMPLES)
    for row in rows:
        _sample(space, layout, row)
    return rows


def _sample(space: Space[Any], layout: Layout, row: NDArray[Any]) -> None:
    for attempt in range(ATTEMPTS):
        try:
            layout.pack(space.sample(), row)
        except PackError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def _heads(space: Space[Any], views: Any) -> Iterator[Head]:
    """The discrete heads in the order of their masks."""
    match space:
        case spaces.Discrete():
            yield views, int(space.start), int(space.n)
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            entries = views.reshape(len(views), -1)
            counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else 2
            counts = np.broadcast_to(counts, space.shape).reshape(-1)
            firsts = np.broadcast_to(getattr(space, "start", 0), space.shape).reshape(-1)
            for i, (first, count) in enumerate(zip(firsts, counts, strict=True)):
                yield entries[:, i], int(first), int(count)
        case spaces.Dict():
            for key, item in space.spaces.items():
                yield from _heads(item, views[key])
        case spaces.Tuple():
            for item, view in zip(space.spaces, views, strict=True):
                yield from _heads(item, view)


def be_busy(seconds: float) -> None:
    """Use a core for a while, without the GIL for the most part, as a policy does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        hashlib.sha256(BLOCK)
