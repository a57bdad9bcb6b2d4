"""Loaded policies: they act on observations as an environment gives them, one or many at once."""

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
    """A policy that acts, whatever engine runs it.

    The same seed gives the same actions with every engine. A state of zeros begins an episode; who
    plays hands back the state that came with the action before. One thread at a time may call it.

    Args:
        engine: What runs it.
        name: Of the engine.
        seed: Of its own generator, for calls that give none.

    Attributes:
        engine: What runs it.
        name: Of the engine.
        facts: Layouts and sizes.
        sampler: What draws its actions.
        random: Its own generator.
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
        """The states at the start of episodes, `[batch, state_size]`; of one, without a batch."""
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
        """What to do now.

        Args:
            observation: A value of the observation space.
            state: What came with the action before; None begins an episode.
            mask: Which choices are allowed, `[num_choices]`, those of all heads side by side; all,
                if missing.
            greedy: Take the most probable choices and the means, or draw.
            random: Where chance comes from; its own generator if missing.
            agent: Whose turn it is, for policies that know their agents apart.
            reward: What came of the action before, for policies that aim at a return.

        Returns:
            action: A value of the action space.
            value: What the first critic expects; NaN if there are no critics.
            state: To be handed back with the next observation, `[state_size]`.

        Raises:
            PackError: If the observation is no value of its space.
            UsageError: If it holds a NaN, or anything else does not fit.
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
        """What to do now, for many at once.

        Args:
            rows: Observations as their layout packs them, `[batch, size]`.
            state: `[batch, state_size]`; None begins episodes.
            masks: Which choices are allowed, `[batch, num_choices]`; all, if missing.
            greedy: Take the most probable choices and the means, or draw.
            random: Where chance comes from; its own generator if missing.
            agents: Whose rows they are; 0, 1, 2 and so on, if missing.
            rewards: What came of their actions before, `[batch]`; nothing, if missing.

        Returns:
            actions: As their layout packs them, `[batch, size]`.
            values: `[batch, num_critics]`
            state: `[batch, state_size]`
        """
        seen = self._rows(rows)
        before, allowed = self._state(state, len(seen)), self._masks(masks, len(seen))
        attentive = self._attentive
        if attentive is not None:
            who = np.arange(len(seen)) if agents is None else np.asarray(agents)
            if rewards is not None:
                before = attentive.earned(before, np.asarray(rewards, np.float32))
            seen = attentive.look(seen, who)
        params, values, after = self.engine.forward(seen, before)
        chance = self.random if random is None else random
        samples, _ = self.sampler.sample(params, allowed, chance, greedy=greedy)
        if attentive is not None:
            after = attentive.acted(after, samples)
        return self.sampler.to_rows(samples), values, after

    # ------------------------------------------------------------------ what is given

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
