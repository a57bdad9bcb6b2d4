"""Dreams: what a world model predicts from actions alone, beside what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.algos.dreamer.agent import DreamerAgent
from fugu.algos.dreamer.networks import Part
from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.policies.policy import Policy
from fugu.training.evaluate import Players
from fugu.vector import Vector

Step = tuple[NDArray[Any], NDArray[Any]]  # an observation, and the sample of the action
DREAMS = 0x6472  # the branch of the seed tree
MOST_STEPS = 5_000  # until an episode must have been long enough


@dataclass(frozen=True)
class Dream:
    """Beginnings of episodes and their predictions, `[time, episodes, ...]` for each part.

    Up to the context's end, predictions are made from observations, then from actions alone.
    """

    parts: list[Part]  # of the observation
    truths: list[NDArray[Any]]
    predictions: list[NDArray[Any]]
    context: int  # observations that the model saw

    def errors(self) -> tuple[float, float]:
        """Return the mean squared errors of the model, and of repeating the last observation."""
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
    """Play episodes, show the model their beginnings, and let it predict the rest.

    Args:
        policies: Of a run of Dreamer; the agents of the first group dream.
        vec: Where to play.
        stretches: Number of episodes.
        context: Observations that the model sees.
        steps: Steps that it predicts.
        greedy: Take the most probable actions, not random ones.
        seed: Random seed.
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
    predictions, truths = agent.world.open_loop(
        torch.from_numpy(seen).to(device), torch.from_numpy(samples).to(device), context, random
    )
    return Dream(
        agent.world.decoder.parts,
        [truth.cpu().numpy() for truth in truths],
        [prediction.cpu().numpy() for prediction in predictions],
        context,
    )


def _play(
    policies: list[Policy], vec: Vector, stretches: int, length: int, greedy: bool, seed: int
) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return observations and samples from episodes' starts on, `[time, episodes, ...]`."""
    players = Players(policies, vec, derive(seed, DREAMS, 1), greedy=greedy)
    trails: list[list[Step]] = [[] for _ in range(vec.num_envs * vec.groups[0].num_agents)]
    found: list[list[Step]] = []
    longest = 0
    vec.async_reset(derive(seed, DREAMS, 2))
    for _ in range(MOST_STEPS):
        batch = vec.recv()
        actions = players(batch)
        rows, agents = batch.groups[0].rows, batch.groups[0].agent_ids
        ended = rows.terminations | rows.truncations | ~rows.valid
        for row, agent in enumerate(agents):
            if ended[row]:
                trails[agent] = []
            if rows.live[row]:
                trails[agent].append((rows.observations[row].copy(), players.drawn[0][row].copy()))
        longest = max(longest, *map(len, trails))
        found += [trail.copy() for trail in trails if len(trail) == length]
        if len(found) >= stretches:
            break
        vec.send(actions)
    else:
        raise UsageError(
            f"steps: given {length} with the context; allowed: {longest}, the longest episode in "
            f"{MOST_STEPS:,} steps, or fewer."
        )
    chosen = found[:stretches]
    seen = np.stack([[step[0] for step in trail] for trail in chosen], 1)
    return seen, np.stack([[step[1] for step in trail] for trail in chosen], 1)
