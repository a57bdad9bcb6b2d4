"""One forward pass for several requests, each with its own masks, seed and share of chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import FuguError
from fugu.export.engine import AttentiveEngine
from fugu.export.player import LoadedPolicy
from fugu.nets.net import Floats
from fugu.serve.messages import Answer, Ask

Flags = NDArray[np.bool_]


class UnansweredError(FuguError):
    """A policy that has no finite answer for a request's observations."""


class Passes:
    """Makes them for a policy."""

    def __init__(self, policy: LoadedPolicy) -> None:
        engine = policy.engine
        self._policy = policy
        self._attentive = engine if isinstance(engine, AttentiveEngine) else None

    def answer(self, asks: Sequence[Ask]) -> list[Answer | UnansweredError]:
        """Answers to requests; each is what it would be alone."""
        rows = np.concatenate([ask.rows for ask in asks])
        state = np.concatenate([ask.state for ask in asks])
        policy, attentive = self._policy, self._attentive
        if attentive is not None:
            state = attentive.earned(state, np.concatenate([ask.rewards for ask in asks]))
            rows = attentive.look(rows, np.concatenate([ask.agents for ask in asks]))
        params, values, after = policy.engine.forward(rows, state)
        finite: Flags = np.logical_and.reduce(np.isfinite(params), axis=1)
        finite &= np.logical_and.reduce(np.isfinite(after), axis=1)
        parts = _parts(asks)
        samples = _draw(policy, asks, parts, params, finite)
        if attentive is not None:
            after = attentive.acted(after, samples)
        actions, all_finite = policy.sampler.to_rows(samples), bool(finite.all())
        return [
            Answer(actions[part], values[part], after[part])
            if all_finite or finite[part].all()
            else UnansweredError(_unanswered(ask, finite[part]))
            for ask, part in zip(asks, parts, strict=True)
        ]


def _parts(asks: Sequence[Ask]) -> list[slice]:
    """Where the rows of each request stand."""
    parts, begin = [], 0
    for ask in asks:
        parts.append(slice(begin, begin + len(ask.rows)))
        begin += len(ask.rows)
    return parts


def _draw(
    policy: LoadedPolicy,
    asks: Sequence[Ask],
    parts: Sequence[slice],
    params: Floats,
    finite: Flags,
) -> Floats:
    """Samples of all rows: of the greedy together, of the unseeded together, of others alone."""
    sampler = policy.sampler
    masks = _masks(asks, parts, (len(params), sampler.num_choices))
    sizes = [len(ask.rows) for ask in asks]
    samples = np.zeros((len(params), sampler.num_samples), np.float32)
    for greedy in (True, False):
        together = [ask.greedy == greedy and (greedy or ask.seed is None) for ask in asks]
        if any(together):
            live = np.repeat(together, sizes) & finite
            samples += sampler.sample(params, masks, policy.random, greedy, live)[0]
    for ask, part in zip(asks, parts, strict=True):
        if ask.seed is not None and not ask.greedy:
            random, live = np.random.default_rng(ask.seed), finite[part]
            allowed = None if masks is None else masks[part]
            samples[part] = sampler.sample(params[part], allowed, random, live=live)[0]
    return samples


def _masks(asks: Sequence[Ask], parts: Sequence[slice], shape: tuple[int, int]) -> Flags | None:
    if all(ask.masks is None for ask in asks):
        return None
    masks = np.ones(shape, np.bool_)
    for ask, part in zip(asks, parts, strict=True):
        if ask.masks is not None:
            masks[part] = ask.masks
    return masks


def _unanswered(ask: Ask, finite: Flags) -> str:
    field = "observation" if ask.single else f"observations[{int(finite.argmin())}]"
    return (
        f"{field}: given one for which the policy has no finite answer; allowed: observations "
        "like those it was trained on."
    )
