"""Gymnasium environments as `Env`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from fugu.core.errors import EnvError, UsageError
from fugu.envs.contract import Buffers
from fugu.envs.emulated import EmulatedEnv, EmulationSettings, make_groups

AGENT = "agent_0"


class GymnasiumEnv(EmulatedEnv):
    """A Gymnasium environment: one group of one agent."""

    def __init__(self, env: gymnasium.Env[Any, Any], cfg: EmulationSettings) -> None:
        refuse_autoreset(env)
        self._action_masks = find_mask_method(env)
        groups = make_groups(
            [AGENT], lambda _: env.observation_space, lambda _: env.action_space, cfg
        )
        super().__init__(env, groups, cfg)
        self._one_stats = self._stats[AGENT]

    def bind(self, *buffers: Buffers) -> None:
        """Read and write these buffers from now on; `reset` comes next."""
        super().bind(*buffers)
        self._one_slot = self._slots[AGENT]

    def _begin_episode(self, options: dict[str, Any]) -> None:
        arguments = self._next_reset(options)
        result = self.source.reset(**arguments)
        if not isinstance(result, tuple) or len(result) != 2:
            raise EnvError(
                f"reset: given {type(result).__name__}; allowed: a tuple (observation, info), as "
                "Gymnasium 1 asks for. For an environment of the old Gym, use shimmy."
            )
        observation, info = result
        if info:
            self._one_stats.note(info)
        mask = None if self._action_masks is None else self._action_masks()
        self._one_slot.show(observation, info, mask)

    def _step(self) -> None:
        slot = self._one_slot
        result = self.source.step(slot.action())
        if not isinstance(result, tuple) or len(result) != 5:
            count = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise EnvError(
                f"step: given {count}; allowed: (observation, reward, terminated, truncated, info)"
                ", as Gymnasium 1 asks for. For an environment of the old Gym, use shimmy."
            )
        observation, reward, terminated, truncated, info = result
        if self._ended:
            self._clear_rows()
            self.infos, self._ended = (), False
        slot.reward(reward)
        self._one_stats.add(reward, info)
        if terminated or truncated:
            slot.end(observation, terminated, truncated)
            self.infos, self._ended = (self._emit(AGENT),), True
            self._begin_episode({})
        else:
            mask = None if self._action_masks is None else self._action_masks()
            slot.show(observation, info, mask)

    _ended = False  # whether the last step ended an episode, so that its marks must go


def find_mask_method(env: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """`env.action_masks`, if the environment or something it wraps has it."""
    try:
        method = env.get_wrapper_attr("action_masks")
    except AttributeError:
        return None
    return method if callable(method) else None


def refuse_autoreset(env: Any) -> None:
    """Raise if a wrapper restarts episodes too: they would restart twice."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.Autoreset):
            raise UsageError(
                "given an environment in gymnasium.wrappers.Autoreset; allowed: one without, since "
                "fugu restarts episodes itself. Take the wrapper off."
            )
        env = env.env
