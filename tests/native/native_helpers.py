"""What tests of native environments share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.envs import suite
from fugu.vector import Vector
from fugu.vector.random_actions import RandomActions

NAMES = suite.names()
TOYS = Path(__file__).parent / "toys"
FIELDS = ("observations", "action_masks", "rewards", "costs", "terminations", "truncations")
ALL_FIELDS = (*FIELDS, "live", "valid")


class Players:
    """Random legal actions of all groups; the same ones for the same seed."""

    def __init__(self, vec: Vector, count: int, seed: int = 0) -> None:
        self._players = [
            RandomActions(group, count * group.num_agents, seed + i)
            for i, group in enumerate(vec.groups)
        ]

    def actions(self, rows: Any) -> Any:
        found = [p.sample(r).copy() for p, r in zip(self._players, rows, strict=True)]
        return found[0] if len(found) == 1 else tuple(found)


def play(vec: Vector, steps: int, seed: int = 0) -> list[bytes]:
    """The bytes of every array and the infos of every step, all copies in order."""
    players, found = Players(vec, vec.batch_size, seed), []
    rounds = vec.num_envs // vec.batch_size
    for _ in range(steps):
        for _ in range(rounds):
            batch = vec.recv()
            found.append(_bytes(batch))
            vec.send(players.actions([group.rows for group in batch.groups]), None)
    return found


def step_all(vec: Vector, players: Players) -> NDArray[np.uint8]:
    """One step of all copies; what came of it."""
    vec.send(players.actions(vec._buffers.rows))
    return np.frombuffer(_bytes(vec.recv()), np.uint8)


def _bytes(batch: Any) -> bytes:
    arrays = [getattr(group.rows, name) for group in batch.groups for name in ALL_FIELDS]
    for group in batch.groups:  # the others' are what is left of episodes before
        arrays.append(group.rows.final[group.rows.terminations | group.rows.truncations])
    infos = repr(sorted(dict(batch.infos).items())).encode()
    return b"".join(array.tobytes() for array in arrays) + infos
