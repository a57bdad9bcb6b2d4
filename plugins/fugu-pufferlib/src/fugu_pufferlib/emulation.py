"""Gymnasium and PettingZoo environments as PufferLib's: flat rows, no restarts of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import ActionError, PackError, SpaceError, UsageError
from fugu_pufferlib.errors import InvalidAgentError
from fugu_pufferlib.layouts import (
    action_layout,
    flat_action_space,
    flat_observation_space,
    observation_layout,
    struct_dtype,
)
from fugu_pufferlib.puffer_env import Arrays, set_buffers


class Emulation:
    """What both kinds share: the spaces of one agent, and values in and out of rows.

    Attributes:
        emulated: The dtypes that `pytorch.nativize_dtype` takes.
        obs_dtype: The structured dtype of an observation.
        is_obs_emulated: Whether observations are other than the environment's own.
        is_atn_emulated: The same of actions.
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    masks: NDArray[np.bool_]
    actions: NDArray[Any]

    def _describe(
        self, observed: gymnasium.Space[Any], acted: gymnasium.Space[Any], num_agents: int
    ) -> None:
        self.num_agents = num_agents
        self._seen, self._done = observation_layout(observed), action_layout(acted)
        self.single_observation_space = flat_observation_space(observed)
        self.single_action_space = flat_action_space(acted)
        self.is_obs_emulated = self.single_observation_space is not observed
        self.is_atn_emulated = self.single_action_space is not acted
        self.obs_dtype = struct_dtype(self._seen)
        self.emulated = {
            "observation_dtype": self.single_observation_space.dtype,
            "emulated_observation_dtype": self.obs_dtype,
        }

    def _bind(self, buf: Arrays | None) -> None:
        set_buffers(self, buf)
        self._rows = self.observations.reshape(self.num_agents, self._seen.size)

    def _action(self, action: Any) -> Any:
        """An action as its space has it, of numbers of any width."""
        try:
            row = self._done.fit_rows(np.asarray(action).reshape(1, -1), 1)[0]
            return self._done.unpack(row, True)
        except PackError as error:
            raise ActionError(error.path, error.given, error.allowed, error.advice) from None


class GymnasiumPufferEnv(Emulation, gymnasium.Env[Any, Any]):
    """A Gymnasium environment with flat observations and actions.

    >>> env = GymnasiumPufferEnv(env_creator=gymnasium.make, env_args=["Blackjack-v1"])
    >>> observations, info = env.reset(seed=1)
    >>> observations.shape, observations.dtype, env.single_action_space
    ((1, 3), dtype('int32'), Discrete(2))
    """

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence[Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        buf: Arrays | None = None,
        seed: int | None = 0,
    ) -> None:
        self.env = _make(env, env_creator, env_args, env_kwargs)
        self._describe(self.env.observation_space, self.env.action_space, 1)
        self.observation_space = self.single_observation_space
        self.action_space = self.single_action_space
        self.initialized, self.done = False, True
        self._bind(buf)

    @property
    def render_mode(self) -> Any:  # type: ignore[override]  # it cannot be set
        """The environment's."""
        return self.env.render_mode

    def reset(  # type: ignore[override]  # as in PufferLib, there are no options
        self, seed: int | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self.initialized, self.done = True, False
        self._write(observation, 0.0, False, False)
        return self.observations, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step; after an episode's end, only `reset` goes on."""
        _check_order(self.initialized, self.done)
        result = self.env.step(self._action(action))
        observation, reward, terminated, truncated, info = result
        self._write(observation, reward, terminated, truncated)
        self.done = terminated or truncated
        return self.observations, reward, terminated, truncated, info

    def render(self) -> Any:
        """What the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _write(self, observation: Any, reward: Any, terminated: bool, truncated: bool) -> None:
        self._seen.pack(observation, self._rows[0])
        self.rewards[0], self.masks[0] = reward, True
        self.terminals[0], self.truncations[0] = terminated, truncated


class PettingZooPufferEnv(Emulation):
    """A PettingZoo ParallelEnv with flat observations and actions, a row for every possible agent.

    All agents need the same spaces. One that is not there has a row of zeros, with its terminal
    set and its mask not.
    """

    def __init__(
        self,
        env: Any = None,
        env_creator: Callable[..., Any] | None = None,
        env_args: Sequence[Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        buf: Arrays | None = None,
        seed: int | None = 0,
    ) -> None:
        self.env = _make(env, env_creator, env_args, env_kwargs)
        observed, acted = _shared_spaces(self.env)
        self._describe(observed, acted, len(self.possible_agents))
        self.initialized, self.all_done = False, True
        self._bind(buf)

    @property
    def render_mode(self) -> Any:
        """The environment's."""
        return self.env.render_mode

    @property
    def agents(self) -> Any:
        """Agents that are there now."""
        return self.env.agents

    @property
    def possible_agents(self) -> Any:
        """Agents that may ever be there."""
        return self.env.possible_agents

    @property
    def done(self) -> bool:
        """Whether nobody is left to act."""
        return len(self.agents) == 0 or self.all_done

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Of one agent."""
        self._check_agents([agent])
        return self.single_observation_space

    def action_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Of one agent."""
        self._check_agents([agent])
        return self.single_action_space

    def reset(self, seed: int | None = None) -> tuple[dict[Any, NDArray[Any]], Any]:
        """Begin an episode."""
        observations, infos = self.env.reset(seed=seed)
        self.initialized, self.all_done = True, False
        for row, agent in enumerate(self.possible_agents):
            self._write(row, observations.get(agent), 0.0, False, False)
        return self._seen_by_agent(), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Step with an array of all agents' actions, or a dict of those that are there."""
        _check_order(self.initialized, self.done)
        taken = self._actions(actions)
        self._check_agents(taken)
        taken = {agent: self._action(a) for agent, a in taken.items() if agent in self.agents}
        observations, rewards, terminations, truncations, infos = self.env.step(taken)
        agents = self.possible_agents
        earned = {agent: rewards.get(agent, 0) for agent in agents}
        over = {agent: terminations.get(agent, True) for agent in agents}
        cut = {agent: truncations.get(agent, False) for agent in agents}
        for row, agent in enumerate(agents):
            self._write(row, observations.get(agent), earned[agent], over[agent], cut[agent])
        self.all_done = all(terminations[a] or truncations.get(a) for a in terminations)
        return self._seen_by_agent(), earned, over, cut, infos

    def render(self) -> Any:
        """What the environment renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _write(self, row: int, observation: Any, reward: Any, over: bool, cut: bool) -> None:
        there = observation is not None
        self.masks[row], self.rewards[row] = there, reward if there else 0.0
        self.terminals[row], self.truncations[row] = over or not there, cut and there
        if there:
            self._seen.pack(observation, self._rows[row])
        else:
            self._rows[row] = 0

    def _seen_by_agent(self) -> dict[Any, NDArray[Any]]:
        return dict(zip(self.possible_agents, self.observations, strict=True))

    def _actions(self, actions: Any) -> dict[Any, Any]:
        if isinstance(actions, Mapping):
            return dict(actions)
        if len(actions) != self.num_agents:
            raise UsageError(
                f"step: given {len(actions)} actions; allowed: {self.num_agents}, one for each of "
                "possible_agents."
            )
        return dict(zip(self.possible_agents, actions, strict=True))

    def _check_agents(self, agents: Any) -> None:
        for agent in agents:
            if agent not in self.possible_agents:
                raise InvalidAgentError(agent, self.possible_agents)


def _make(
    env: Any,
    creator: Callable[..., Any] | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
) -> Any:
    """The environment, or what its creator makes."""
    if (env is None) == (creator is None):
        raise ValueError("given both env and env_creator, or none; allowed: one of the two.")
    if creator is None:
        if callable(env) or inspect.isclass(env):
            raise TypeError(f"env: given {env!r}; allowed: an environment. Give it as env_creator.")
        return env
    if not callable(creator):
        raise TypeError(f"env_creator: given {creator!r}; allowed: something to call.")
    return creator(*(args or ()), **(kwargs or {}))


def _check_order(initialized: bool, done: bool) -> None:
    if not initialized or done:
        when = "after the episode's end" if initialized else "before reset"
        raise UsageError(f"step: given {when}; call reset first.")


def _shared_spaces(env: Any) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Of all agents."""
    agents = env.possible_agents
    shared = env.observation_space(agents[0]), env.action_space(agents[0])
    for agent in agents[1:]:
        own = env.observation_space(agent), env.action_space(agent)
        if own != shared:
            raise SpaceError(
                f"agent {agent!r}: given the spaces {own}; allowed: those of {agents[0]!r}, "
                f"{shared}. fugu.make takes agents of several kinds."
            )
    return shared
