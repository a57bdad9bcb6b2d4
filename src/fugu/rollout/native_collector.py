"""Native collection: whole segments of native environments, without a return to Python."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.nets.learning import ActionPart, NativeLearner
from fugu.policies.distribution import ActionDistribution
from fugu.rollout.collector import Actor, Collector
from fugu.vector import Batch, Vector
from fugu.vector.backends.native import EpisodeInfos


class NativeCollector(Collector):
    """A collector whose segments are filled natively, all but their last steps.

    It writes what `Collector` writes: the last step of a collection, which completes segments and
    begins others, is taken as any other step.
    """

    def __init__(self, vec: Vector, actor: Actor, learner: NativeLearner) -> None:
        super().__init__(vec, [actor])
        self._actor, self._learner = actor, learner
        self._parts = action_parts(actor.policy.distribution)
        self._tables = learner.bind(actor.segments)

    @torch.no_grad()
    def collect(self) -> None:
        """As `Collector` does."""
        while not self._actor.full:
            batch = self._held.pop(0) if self._held else self.vec.recv()
            if self._in_step(batch):
                self._fill_rows(batch)
            else:
                self.handle(batch)

    def _in_step(self, batch: Batch) -> bool:
        """Whether all agents act, stand at the same step, and have more than one to go."""
        plain = self.on_batch is None and self.episodes.listener is None
        whole = len(batch.env_ids) == self.vec.num_envs
        rows = batch.groups[0].rows
        segments = self._actor.segments
        return (
            plain
            and whole
            and segments.steps_in_line is not None
            and segments.steps_in_line < segments.shape.horizon
            and bool(rows.live.all() and rows.valid.all())
        )

    def _fill_rows(self, batch: Batch) -> None:
        actor, segments = self._actor, self._actor.segments
        begin, first = segments.steps_in_line, segments.first_row
        assert begin is not None
        self.episodes.note(batch.infos)
        rows = batch.groups[0].rows
        ended = rows.terminations | rows.truncations
        if begin:  # else nobody has acted yet
            actor.returns.note(batch.groups[0].agent_ids, rows.rewards, ended, rows.valid)
        agents, steps = len(rows.live), segments.shape.horizon - begin
        distribution = actor.policy.distribution
        infos = batch.infos
        assert isinstance(infos, EpisodeInfos)
        episodes = np.zeros(1 + len(infos.names))
        with self.vec.step_natively() as pool:
            try:
                self._learner.collect(
                    pool,
                    self._tables,
                    first,
                    begin,
                    steps,
                    begin > 0,
                    actor.states.numpy(),
                    distribution.choices,
                    distribution.num_continuous,
                    draw_chance(actor.random, distribution, steps, agents),
                    self._parts,
                    episodes,
                )
            except FloatingPointError:
                raise UsageError(
                    "collect: given a policy that says what is no finite number; allowed: finite "
                    "ones. Try a lower train.learning-rate, or look at what the environment shows."
                ) from None
        segments.advance(steps)
        self.episodes.add_totals(infos.names, episodes)
        self.steps += agents * steps
        mine = np.s_[begin : segments.shape.horizon - 1, first : first + agents]
        ended = segments.terminations[mine] | segments.truncations[mine]
        actor.returns.note_rows(segments.rewards[mine], ended)


def draw_chance(
    random: np.random.Generator, distribution: ActionDistribution, steps: int, agents: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The numbers that actions are drawn with, `[steps, agents, ...]`, as steps would draw them."""
    heads, dims = distribution.num_heads, distribution.num_continuous
    uniforms = np.zeros((steps, agents, heads), np.float32)
    noise = np.zeros((steps, agents, dims), np.float32)
    if not dims and type(random) is np.random.Generator:  # steps follow each other in any case
        return random.random(uniforms.shape, np.float32), noise
    for step in range(steps):
        if heads:
            uniforms[step] = random.random((agents, heads), np.float32)
        if dims:
            noise[step] = random.standard_normal((agents, dims), np.float32)
    return uniforms, noise


def action_parts(distribution: ActionDistribution) -> list[ActionPart]:
    """Where numbers of an action stand in its row, and the bounds of floats."""
    writer, parts = distribution.sampler.writer, list[ActionPart]()
    for choice in writer.choices:
        parts.append((choice.leaf.offset, len(choice.counts), None, None))
    for numbers in writer.numbers:
        bounds = (numbers.low.astype(np.float32), numbers.high.astype(np.float32))
        parts.append((numbers.leaf.offset, len(numbers.low), *bounds))
    return parts


def can_fill_segments(
    vec: Vector, learner: NativeLearner, distribution: ActionDistribution
) -> bool:
    """Return whether collection can be native: native copies whose agents all act, all at once."""
    if not vec.all_act or vec.batch_size != vec.num_envs or len(vec.groups) != 1:
        return False
    group, writer = vec.groups[0], distribution.sampler.writer
    whole = all(c.leaf.dtype.itemsize == 8 and not c.start.any() for c in writer.choices)
    floats = all(n.leaf.dtype == np.float32 for n in writer.numbers)
    return group.num_agents <= learner.most_agents and not group.num_costs and whole and floats
