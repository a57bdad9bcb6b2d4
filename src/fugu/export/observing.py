"""Observations as a policy meets them, for those who measure how well a copy follows it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.export.loading import Trained
from fugu.training.evaluate import Players
from fugu.vector import make

STEPS, COPIES = 512, 8


def observe(trained: Trained, steps: int = STEPS, copies: int = COPIES) -> NDArray[Any]:
    """What the policy's agents see while the run's policies play: rows `[steps, agents, size]`."""
    cfg, found = trained.cfg, []
    with make(trained.env, copies, backend="serial", **cfg.env_options) as vec:
        place = [group.name for group in vec.groups].index(trained.group.name)
        players = Players(trained.everyone, vec, 0, greedy=False)
        vec.async_reset(0)
        for _ in range(steps):
            batch = vec.recv()
            found.append(batch.groups[place].rows.observations.copy())
            vec.send(players(batch))
    return np.stack(found)
