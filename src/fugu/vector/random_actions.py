"""Random legal actions, for whole batches at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import PackError
from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup, Buffers
from fugu.spaces import Layout
from fugu.vector.batching import Batch

if TYPE_CHECKING:
    from fugu.vector.vector import Vector

VARIANTS = 16  # batches of actions that are drawn in advance, at the least
SAMPLES = 256  # rows that are drawn for them; a longer batch repeats rows
ATTEMPTS = 20  # at a value that fits: an unbounded space samples values that its limits refuse
Head = tuple[NDArray[Any], int, int]  # its column of the rows, its first choice, its choices


class RandomActions:
    """Draws random legal actions for one group of agents, the same ones for the same seed.

    They are drawn in advance, so that timing an environment does not time the sampling. Only
    choices that an action mask may forbid are drawn when they are needed, all rows at once.

    Args:
        group: The group of agents.
        count: The number of rows of a batch.
        seed: The seed of the actions.
    """

    def __init__(self, group: AgentGroup, count: int, seed: int) -> None:
        self._layout, self._turn = group.action_layout, 0
        self._masked = group.mask_width > 0
        self._generator = np.random.default_rng(derive(seed))
        indices = np.arange(max(VARIANTS, SAMPLES // count) * count).reshape(-1, count)
        self._variants = _samples(self._layout, seed)[indices % SAMPLES]  # [variants, count, size]

    def sample(self, rows: Buffers) -> NDArray[Any]:
        """Return the next actions, which are legal for these rows."""
        self._turn = (self._turn + 1) % len(self._variants)
        actions: NDArray[Any] = self._variants[self._turn]
        if self._masked and not rows.action_masks.all():
            actions = actions.copy()
            self._sample_legal(actions, rows.action_masks)
        return actions

    def _sample_legal(self, actions: NDArray[Any], masks: NDArray[np.bool_]) -> None:
        column = 0
        for entries, first, count in _heads(self._layout.space, self._layout.views(actions)):
            allowed = masks[:, column : column + count]
            scores = self._generator.random(allowed.shape) * allowed
            entries[:] = first + scores.argmax(axis=1)
            column += count


def random_policy(vec: Vector, seed: int = 0) -> Callable[[Batch], Any]:
    """Return a function from a batch to random legal actions for it, as `Vector.send` takes them.

    Args:
        vec: The vector that the batches come from.
        seed: The seed of the actions: the same seed gives the same actions.
    """
    samplers = [
        RandomActions(group, vec.batch_size * group.num_agents, derive(seed, i))
        for i, group in enumerate(vec.groups)
    ]

    def act(batch: Batch) -> Any:
        groups = zip(samplers, batch.groups, strict=True)
        actions = [sampler.sample(group.rows) for sampler, group in groups]
        return actions[0] if len(actions) == 1 else tuple(actions)

    return act


def _samples(layout: Layout, seed: int) -> NDArray[Any]:
    space = copy.deepcopy(layout.space)  # the environment's own keeps the state of its generator
    space.seed(derive(seed) >> 33)
    rows = layout.zeros(SAMPLES)
    for row in rows:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                layout.pack(space.sample(), row)
                break
            except PackError:
                if attempt == ATTEMPTS:
                    raise
    return rows


def _heads(space: Space[Any], views: Any) -> Iterator[Head]:
    """Yield the discrete heads in the order of their masks."""
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
