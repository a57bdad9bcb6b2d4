"""Dreams: what a world model predicts with closed eyes, beside what really happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.algos.dreamer.agent import DreamerAgent
from fugu.algos.dreamer.decoder import Part
from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.policies.policy import Policy
from fugu.training.evaluate import Players
from fugu.vector import Vector
from fugu.vector.batching import GroupBatch

Step = tuple[NDArray[Any], NDArray[Any]]  # what was seen, and the sample of what was done
DREAMS = 0x6472  # the branch of the seed tree
PATIENCE = 5_000  # steps to wait for an episode that is long enough


@dataclass(frozen=True)
class Dream:
    """Stretches of episodes and their predictions, `[time, stretches, ...]` for each part.

    Attributes:
        parts: Of the observation.
        truths: What was seen.
        predictions: Of steps before the context's end from what is seen, then from actions alone.
        context: Steps that were looked at.
    """

    parts: list[Part]
    truths: list[NDArray[Any]]
    predictions: list[NDArray[Any]]
    context: int

    def errors(self) -> tuple[float, float]:
        """Mean squared errors of what was dreamed: the model's, and of the last sight for ever."""
        model, copied = [], []
        for truth, prediction in zip(self.truths, self.predictions, strict=True):
            after = truth[self.context :].astype(np.float64)
            model.append(np.square(prediction[self.context :] - after))
            copied.append(np.square(truth[self.context - 1].astype(np.float64) - after))
        return (
            float(np.mean([error.mean() for error in model])),
            float(np.mean([error.mean() for error in copied])),
        )


def dream(
    policies: Sequence[Policy],
    vec: Vector,
    *,
    stretches: int = 1,
    context: int = 16,
    steps: int = 48,
    greedy: bool = False,
    seed: int = 0,
) -> Dream:
    """Play episodes, look at their beginnings and predict how they go on.

    Args:
        policies: Of a run of Dreamer; the agents of the first group dream.
        vec: Where to play.
        stretches: How many episodes.
        context: Steps that are looked at.
        steps: That are predicted.
        greedy: Take the most probable actions and not random ones.
        seed: Of all chance.
    """
    for name, value in (("context", context), ("steps", steps), ("stretches", stretches)):
        if value < 1:
            raise UsageError(f"{name}: given {value}; allowed: 1 or more.")
    agent = policies[0]
    if not isinstance(agent, DreamerAgent):
        raise UsageError(
            "dream: given a run without a world model; allowed: one of --algo dreamer."
        )
    seen, samples = _play(list(policies), vec, stretches, context + steps, greedy, seed)
    device = next(agent.parameters()).device
    random = torch.Generator(device).manual_seed(derive(seed, DREAMS) >> 1)
    found = agent.world.open_loop(
        torch.from_numpy(seen).to(device), torch.from_numpy(samples).to(device), context, random
    )
    return Dream(
        agent.world.decoder.parts,
        [truth.cpu().numpy() for truth in found.truths],
        [prediction.cpu().numpy() for prediction in found.predictions],
        context,
    )


def _play(
    policies: list[Policy], vec: Vector, stretches: int, length: int, greedy: bool, seed: int
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """What was seen and done in stretches from episodes' starts, `[time, stretches, ...]`."""
    players = Players(policies, vec, derive(seed, DREAMS, 1), greedy=greedy)
    trails: list[list[Step]] = [[] for _ in range(vec.num_envs * vec.groups[0].num_agents)]
    found: list[list[Step]] = []
    longest = 0
    vec.async_reset(derive(seed, DREAMS, 2))
    for _ in range(PATIENCE):
        batch = vec.recv()
        actions = players(batch)
        _note(trails, batch.groups[0], players.drawn[0])
        longest = max(longest, *map(len, trails))
        found += [trail.copy() for trail in trails if len(trail) == length]
        if len(found) >= stretches:
            break
        vec.send(actions)
    else:
        raise UsageError(
            f"steps: given {length} with the context; allowed: {longest}, the longest episode in "
            f"{PATIENCE:,} steps, or fewer."
        )
    chosen = found[:stretches]
    seen = np.stack([[step[0] for step in trail] for trail in chosen], 1)
    return seen, np.stack([[step[1] for step in trail] for trail in chosen], 1)


def _note(trails: list[list[Step]], group: GroupBatch, samples: NDArray[np.float32]) -> None:
    """Let agents remember what they see and do, until their episodes end."""
    rows = group.rows
    ended = rows.terminations | rows.truncations | ~rows.valid
    for row, agent in enumerate(group.agent_ids):
        if ended[row]:
            trails[agent] = []
        if rows.live[row]:
            trails[agent].append((rows.observations[row].copy(), samples[row].copy()))
