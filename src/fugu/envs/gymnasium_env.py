"""Gymnasium environments as `Env`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from fugu import native
from fugu.core.errors import EnvError, UsageError
from fugu.envs.contract import Buffers
from fugu.envs.emulated import EmulatedEnv, FlatEnv
from fugu.envs.slots import EmulationSettings, make_groups

if native.available:
    from fugu._native import Stepper

AGENT = "agent_0"


class GymnasiumEnv(EmulatedEnv):
    """A Gymnasium environment: one group of one agent."""

    def __init__(self, env: gymnasium.Env[Any, Any], cfg: EmulationSettings) -> None:
        refuse_autoreset(env)
        self._all_infos, self._has_costs = cfg.infos == "all", bool(cfg.costs)
        self._action_masks = find_mask_method(env)
        groups = make_groups(
            [AGENT], lambda _: env.observation_space, lambda _: env.action_space, cfg
        )
        super().__init__(env, groups, cfg)
        self._one_stats = self._stats[AGENT]

    def bind(self, *buffers: Buffers) -> None:
        """Read and write these buffers from now on; `reset` comes next."""
        super().bind(*buffers)
        slot = self._one_slot = self._slots[AGENT]
        self._stepper: Stepper | None = None
        masked = slot.sees_mask and slot.mask_width
        plain = masked or self._action_masks or slot.clips
        if (
            native.available and not plain and self._snapshot is None
        ):  # a stepper's sums are its own
            (rows,) = buffers
            self._stepper = Stepper(
                self.source.step,
                slot.action,
                self.action_layout.packer,
                rows.actions[0],
                self.observation_layout.packer,
                rows.observations[0],
                rows.rewards,
                0,
            )

    def to_gymnasium(self) -> FlatEnv:
        """Return the Gymnasium environment with flat rows as observations.

        >>> env = GymnasiumEnv(gymnasium.make("Blackjack-v1"), EmulationSettings()).to_gymnasium()
        >>> env.reset(seed=1)[0].shape, env.observation_space.shape, env.action_space
        ((3,), (3,), Discrete(2))
        """
        return FlatEnv(self.source, self.observation_layout)

    def _begin_episode(self, options: dict[str, Any]) -> None:
        arguments = self._next_reset(options)
        if self._stepper is not None:
            self._stepper.collect()  # of an episode that was left
        result = self.source.reset(**arguments)
        if not isinstance(result, tuple) or len(result) != 2:
            raise EnvError(
                f"reset: given {type(result).__name__}; allowed: a tuple (observation, info), as "
                "Gymnasium 1 asks for. For an environment of the old Gym, use shimmy."
            )
        observation, info = result
        if self._all_infos:
            self.infos = (info,) if info else ()
        elif info:
            self._one_stats.note(info)
        mask = None if self._action_masks is None else self._action_masks()
        self._one_slot.show(observation, info, mask)

    def step(self) -> None:
        """Take the action and write everything that follows."""
        stepper = self._stepper
        if stepper is None or self._ended or self._episode < 0:
            super().step()
            return
        if self._taken is not None:
            self._record_actions()
        try:
            rest = stepper.step()
            if rest is None:
                if self._all_infos:
                    self.infos = ()
                if self._has_costs:
                    self._one_slot.pay({})
            elif type(rest) is dict:
                self._take_info(rest)
                if self._has_costs:
                    self._one_slot.pay(rest)
                self._one_slot.mask(None, rest)
            else:
                self._handle(rest)
        except Exception as error:
            self._note(error, "step")
            raise

    def where(self) -> str:
        """Return which environment, seed, episode and step this is, for errors."""
        if self._stepper is not None:
            self._steps = self._one_stats.length + self._stepper.count
        return super().where()

    def _note(self, error: Exception, call: str) -> None:
        if self._stepper is not None and call == "step":
            self._steps = self._one_stats.length + self._stepper.count + 1
        super()._note(error, call)

    def _step(self) -> None:
        if self._ended:
            self._clear_rows()
            self.infos, self._ended = (), False
        self._handle(self.source.step(self._one_slot.action()))

    def _handle(self, result: Any) -> None:
        """Write a step's result, whatever it is."""
        if self._has_costs and isinstance(result, tuple) and len(result) == 6:
            result = (*result[:2], *result[3:5], {**result[5], "cost": result[2]})
        if not isinstance(result, tuple) or len(result) != 5:
            count = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise EnvError(
                f"step: given {count}; allowed: (observation, reward, terminated, truncated, info)"
                ", as Gymnasium 1 asks for. For an environment of the old Gym, use shimmy; for one "
                "whose third value is a cost, costs=('cost',)."
            )
        observation, reward, terminated, truncated, info = result
        slot = self._one_slot
        slot.reward(reward)
        slot.pay(info)
        self._one_stats.add(reward, {} if self._all_infos else info)
        if terminated or truncated:
            slot.end(observation, terminated, truncated)
            if self._stepper is not None:
                self._one_stats.add_many(*self._stepper.collect())
            summary, self._ended = self._emit(AGENT), True
            self._begin_episode({})
            if self._all_infos:
                first = self.infos[0] if self.infos else {}
                self.infos = ({**first, "final_info": info},)
            else:
                self.infos = (summary,)
        else:
            if self._all_infos:
                self._take_info(info)
            mask = None if self._action_masks is None else self._action_masks()
            slot.show(observation, info, mask)

    def _take_info(self, info: Any) -> None:
        """Handle an info in the middle of an episode."""
        if self._all_infos:
            self.infos = (info,) if info else ()
        else:
            self._one_stats.note(info)


class WaitingEnv(GymnasiumEnv):
    """A Gymnasium environment whose steps may wait for something outside.

    Beside `step` it has `begin_step(action)`, which returns at once, and `poll()`, which returns
    what `step` would have, or None as long as that is not known. While one waits, others of the
    same worker step.
    """

    def bind(self, *buffers: Buffers) -> None:
        """Read and write these buffers from now on; `reset` comes next."""
        super().bind(*buffers)
        self._stepper = None

    def begin_step(self) -> None:
        """Start a step with the action."""
        if self._episode < 0:
            super().step()  # which raises
        self._steps += 1
        if self._taken is not None:
            self._record_actions()
        if self._ended:
            self._clear_rows()
            self.infos, self._ended = (), False
        try:
            self.source.begin_step(self._one_slot.action())
        except Exception as error:
            self._note(error, "step")
            raise

    def poll(self) -> bool:
        """Return whether the step is done and everything that followed is written."""
        try:
            result = self.source.poll()
            if result is not None:
                self._handle(result)
        except Exception as error:
            self._note(error, "step")
            raise
        return result is not None


def waits(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether it has `begin_step` and `poll`; wrappers hide them."""
    return all(callable(getattr(env, name, None)) for name in ("begin_step", "poll"))


def find_mask_method(env: gymnasium.Env[Any, Any]) -> Callable[[], Any] | None:
    """Return `env.action_masks`, if the environment or something it wraps has it."""
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
