"""Actions: random ones, legal where the environment says which are."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.seeding import derive
from fugu.envs.checking.agents import Spaces
from fugu.envs.checking.moments import Moment
from fugu.envs.masks import MaskWriter, find_mask

Mask = NDArray[np.bool_]


class Player:
    """Chooses actions, from generators of its own."""

    def __init__(self, agents: Spaces, seed: int) -> None:
        self._generator = np.random.default_rng(derive(seed))
        self._spaces: dict[Hashable, Space[Any]] = {}
        self._writers: dict[Hashable, MaskWriter] = {}
        for i, (agent, known) in enumerate(agents.items()):
            # A copy: the environment's own spaces keep the state of their generators.
            self._spaces[agent] = copy.deepcopy(known.action)
            self._spaces[agent].seed(derive(seed, i) >> 33)
            if known.action_layout is not None:
                self._writers[agent] = MaskWriter(known.action_layout)

    def choose(self, agent: Hashable, mask: Mask | None) -> Any:
        """A random action that the mask allows."""
        space = self._spaces[agent]
        action = space.sample()
        if mask is None or not mask.size or mask.all():
            return action
        return restrict(space, action, list(mask), self._generator)

    def mask(self, moment: Moment, given: Any = None) -> Mask | None:
        """The flat mask of a moment, looked for where emulation looks; `given` comes first."""
        writer = self._writers.get(moment.agent)
        if writer is None or not writer.width:
            return None
        if given is None:
            info = moment.info if isinstance(moment.info, dict) else {}
            given = find_mask(moment.observation, info, writer.width)
        if given is None:
            return None
        row = np.zeros(writer.width, np.bool_)
        writer.write(given, row)
        return row


def restrict(
    space: Space[Any], action: Any, mask: list[Any], generator: np.random.Generator
) -> Any:
    """`action` with every forbidden choice drawn again; takes what it uses off `mask`.

    >>> generator = np.random.default_rng(0)
    >>> restrict(spaces.Discrete(3, start=5), np.int64(5), [False, True, False], generator)
    np.int64(6)
    """
    match space:
        case spaces.Discrete():
            choice = _legal(int(action - space.start), int(space.n), mask, generator)
            return type(action)(space.start + choice)
        case spaces.MultiDiscrete() | spaces.MultiBinary():
            start = getattr(space, "start", 0)
            counts = space.nvec if isinstance(space, spaces.MultiDiscrete) else 2
            counts = np.broadcast_to(counts, action.shape).reshape(-1)
            pairs = zip((action - start).reshape(-1), counts, strict=True)
            chosen = [_legal(int(choice), int(n), mask, generator) for choice, n in pairs]
            return (np.reshape(chosen, action.shape) + start).astype(action.dtype)
        case spaces.Dict():
            return {
                key: restrict(item, action[key], mask, generator)
                for key, item in space.spaces.items()
            }
        case spaces.Tuple():
            pairs = zip(space.spaces, action, strict=True)
            return tuple(restrict(item, part, mask, generator) for item, part in pairs)
        case _:
            return action


def _legal(choice: int, count: int, mask: list[Any], generator: np.random.Generator) -> int:
    head, mask[:] = np.asarray(mask[:count], np.bool_), mask[count:]
    return choice if head[choice] else int(generator.choice(np.flatnonzero(head)))
