"""Loaded policies act on observations of an environment, one or many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fugu.core.errors import UsageError
from fugu.export.engine import AttentiveEngine, Engine
from fugu.nets.net import Floats
from fugu.spaces.action_sampler import ActionSampler

Random = np.random.Generator


class LoadedPolicy:
    """A policy that acts, with any inference engine.

    The same seed gives the same actions with every engine. A state of zeros begins an episode; the
    caller hands back the state that came with the previous action. One thread at a time may call
    it.

    Attributes:
        facts: Layouts and sizes.
        sampler: What draws its actions.
        random: Its own generator, for calls that give none.
    """

    def __init__(self, engine: Engine, name: str = "", seed: int = 0) -> None:
        self.engine, self.name, self.facts = engine, name, engine.facts
        self.sampler = ActionSampler(self.facts.action, self.facts.continuous)
        self.random = np.random.default_rng(seed)
        self._attentive = engine if isinstance(engine, AttentiveEngine) else None
        leaves = self.facts.observation.leaves
        self._floats = [leaf for leaf in leaves if leaf.dtype.kind == "f" and leaf.nbytes]

    def __repr__(self) -> str:
        facts = self.facts
        return f"LoadedPolicy({self.name!r}, {facts.observation.space} -> {facts.action.space})"

    def initial_state(self, batch: int | None = None) -> Floats:
        """Return zeros, which begin episodes: `[batch, state_size]`, or `[state_size]`."""
        shape = (self.facts.state_size,) if batch is None else (batch, self.facts.state_size)
        return np.zeros(shape, np.float32)

    def act(
        self,
        observation: Any,
        state: Floats | None = None,
        *,
        mask: ArrayLike | None = None,
        greedy: bool = True,
        random: Random | None = None,
        agent: int = 0,
        reward: float = 0.0,
    ) -> tuple[Any, float, Floats]:
        """Choose an action for one observation.

        Args:
            observation: A value of the observation space.
            state: The state that came with the previous action; None begins an episode.
            mask: Allowed choices of all heads side by side, `[num_choices]`; None allows all.
            greedy: Take the most probable choices and the means, or sample.
            random: A generator; the policy's own by default.
            agent: The index of the agent, for policies that tell agents apart.
            reward: The reward of the previous action, for policies that aim at a return.

        Returns:
            action: A value of the action space.
            value: The first critic's value; NaN if there are no critics.
            state: To be handed back with the next observation, `[state_size]`.

        Raises:
            PackError: If the observation is no value of its space.
            UsageError: If it holds a NaN, or another argument does not fit.
        """
        rows = self.facts.observation.zeros(1)
        self.facts.observation.pack(observation, rows[0])
        states = None if state is None else np.asarray(state)[None]
        masks = None if mask is None else np.asarray(mask).reshape(1, -1)
        actions, values, after = self.act_rows(
            rows,
            states,
            masks,
            greedy=greedy,
            random=random,
            agents=np.array([agent]),
            rewards=np.array([reward], np.float32),
        )
        value = float(values[0, 0]) if values.shape[1] else float("nan")
        return self.facts.action.unpack(actions[0]), value, after[0]

    def act_rows(
        self,
        rows: ArrayLike,
        state: ArrayLike | None = None,
        masks: ArrayLike | None = None,
        *,
        greedy: bool = True,
        random: Random | None = None,
        agents: NDArray[np.int64] | None = None,
        rewards: Floats | None = None,
    ) -> tuple[NDArray[Any], Floats, Floats]:
        """Choose actions for many observations at once; see `act`.

        Args:
            rows: Observations as their layout packs them, `[batch, size]`.
            state: `[batch, state_size]`; None begins episodes.
            masks: Allowed choices, `[batch, num_choices]`.
            greedy: Take the most probable choices and the means, or sample.
            random: A generator; the policy's own by default.
            agents: The agents' indices, `[batch]`; 0, 1, 2 and so on by default.
            rewards: Rewards of their previous actions, `[batch]`.

        Returns:
            actions: As their layout packs them, `[batch, size]`.
            values: `[batch, num_critics]`
            state: `[batch, state_size]`
        """
        fitted = self._rows(rows)
        before, allowed = self._state(state, len(fitted)), self._masks(masks, len(fitted))
        attentive = self._attentive
        if attentive is not None:
            who = np.arange(len(fitted)) if agents is None else np.asarray(agents)
            if rewards is not None:
                before = attentive.earned(before, np.asarray(rewards, np.float32))
            fitted = attentive.look(fitted, who)
        params, values, after = self.engine.forward(fitted, before)
        samples, _ = self.sampler.sample(params, allowed, random or self.random, greedy=greedy)
        if attentive is not None:
            after = attentive.acted(after, samples)
        return self.sampler.to_rows(samples), values, after

    def _rows(self, rows: ArrayLike) -> NDArray[Any]:
        layout = self.facts.observation
        array = np.asarray(rows)
        count = len(array) if array.ndim else 0
        if not count:
            raise UsageError(
                f"rows: given an array of shape {array.shape}; allowed: (batch, {layout.size}), "
                "with a row at least."
            )
        fitted = np.ascontiguousarray(layout.fit_rows(array, count))
        self._refuse_nan(fitted)
        return fitted

    def _refuse_nan(self, rows: NDArray[Any]) -> None:
        if rows.dtype.kind == "f" and not np.isnan(rows).any():
            return
        raw = rows.view(np.uint8)
        for leaf in self._floats:
            numbers = raw[:, leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype)
            bad = np.isnan(numbers).any(1)
            if bad.any():
                place = f" at '{leaf.path}'" if leaf.path else ""
                raise UsageError(
                    f"observation: given a NaN{place} in row {int(bad.argmax())}; allowed: "
                    "numbers. Look where it comes from: a policy makes nothing of it."
                )

    def _state(self, state: ArrayLike | None, batch: int) -> Floats:
        if state is None:
            return self.initial_state(batch)
        found = np.ascontiguousarray(state, np.float32)
        shape = (batch, self.facts.state_size)
        if found.shape != shape:
            raise UsageError(
                f"state: given an array of shape {found.shape}; allowed: {shape}, what came with "
                "the action before, or None to begin."
            )
        return found

    def _masks(self, masks: ArrayLike | None, batch: int) -> NDArray[np.bool_] | None:
        if masks is None:
            return None
        found, shape = np.ascontiguousarray(masks), (batch, self.sampler.num_choices)
        if found.shape != shape or found.dtype.kind not in "biu":
            raise UsageError(
                f"mask: given {found.dtype} of shape {found.shape}; allowed: booleans of shape "
                f"{shape}, one for each choice of each head."
            )
        return found.astype(np.bool_)
