"""PettingZoo environments, parallel and turn by turn, as `Env`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from fugu.core.errors import AgentError, EnvError, SpaceError, UsageError
from fugu.envs.contract import Info
from fugu.envs.emulated import EmulatedEnv
from fugu.envs.slots import EmulationSettings, Slot, make_groups
from fugu.spaces import Layout


class PettingZooEnv(EmulatedEnv):
    """The base of both kinds: a slot for every possible agent."""

    def __init__(self, env: Any, cfg: EmulationSettings) -> None:
        if cfg.infos == "all":
            raise UsageError("infos: given 'all' for an environment of many agents; see emulate.")
        agents = getattr(env, "possible_agents", None)
        if not agents:
            raise SpaceError(
                f"given {env}, which has no possible_agents; allowed: an environment that names "
                "all agents that may ever appear, so that each can have its row."
            )
        groups = make_groups(list(agents), env.observation_space, env.action_space, cfg)
        space = getattr(env, "state_space", None) if cfg.global_state else None
        if space is not None:  # the first group carries the state for all
            groups = (replace(groups[0], state_layout=Layout.of(space)), *groups[1:])
        super().__init__(env, groups, cfg)

    def _write_state(self, rows: NDArray[Any]) -> None:
        """Write the current global state, if it is asked for."""
        layout = self.groups[0].state_layout
        if layout is not None:
            layout.pack(self.source.state(), rows[0])

    def _slot(self, agent: Hashable) -> Slot:
        try:
            return self._slots[agent]
        except (KeyError, TypeError):
            raise AgentError(
                f"agent: given {agent!r}; allowed: the possible_agents {list(self._slots)}."
            ) from None

    def _hide_all_but(self, shown: Iterable[Hashable]) -> None:
        keep = set(shown)
        for agent, slot in self._slots.items():
            if slot.live and agent not in keep:
                slot.hide()


class ParallelEnv(PettingZooEnv):
    """A PettingZoo ParallelEnv: all present agents act at once."""

    def _begin_episode(self, options: dict[str, Any]) -> None:
        result = self.source.reset(**self._next_reset(options))
        if not isinstance(result, tuple) or len(result) != 2:
            raise EnvError(
                f"reset: given {type(result).__name__}; allowed: a tuple (observations, infos)."
            )
        observations, infos = result
        agents = list(self.source.agents)
        if not agents:
            raise EnvError("reset: given no agents; allowed: at least one in env.agents.")
        self._hide_all_but(agents)
        for agent in agents:
            info = infos.get(agent) or {}
            self._slot(agent).show(self._observation(observations, agent), info)
            if info:
                self._stats[agent].note(info)
        self._write_state(self.buffers[0].global_state)

    def _step(self) -> None:
        acting = [agent for agent, slot in self._slots.items() if slot.live]
        actions = {agent: self._slots[agent].action() for agent in acting}
        observations, rewards, terminations, truncations, infos = self.source.step(actions)
        self._clear_rows()
        self.infos = ended = []
        # An agent that is over may linger in env.agents; without the flags it is back.
        over = {a for a in self.source.agents if terminations.get(a) or truncations.get(a)}
        alive = set(self.source.agents) - over
        for agent in acting:
            slot, info = self._slots[agent], infos.get(agent) or {}
            terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
            slot.reward(rewards.get(agent, 0.0))
            slot.pay(info)
            self._stats[agent].add(rewards.get(agent, 0.0), info)
            if terminated or truncated:
                slot.end(observations.get(agent), terminated, truncated)
                slot.hide()
                ended.append(self._emit(agent))
            elif agent not in alive:
                raise EnvError(
                    f"step: given no {agent!r} in env.agents any more, neither terminated nor "
                    "truncated; allowed: agents that leave by one of the two."
                )
        if ended:
            self._write_state(self.buffers[0].final_state)
        if not alive:
            self._begin_episode({})
            return
        for agent in self.source.agents:
            if agent not in alive:
                continue
            self._slot(agent).show(self._observation(observations, agent), infos.get(agent))
        self._write_state(self.buffers[0].global_state)

    def _observation(self, observations: Any, agent: Hashable) -> Any:
        try:
            return observations[agent]
        except KeyError:
            raise EnvError(
                f"given no observation for {agent!r}, which is in env.agents; allowed: one for "
                f"each agent there, not only for {list(observations)}."
            ) from None


class TurnEnv(PettingZooEnv):
    """A PettingZoo AECEnv: one agent acts at a time, and only its row is live.

    A row's reward is all that reached the agent since it acted last, written when its turn comes
    again or its episode ends.
    """

    def __init__(self, env: Any, cfg: EmulationSettings) -> None:
        super().__init__(env, cfg)
        self._acted: set[Hashable] = set()  # and have not received their reward yet

    def _begin_episode(self, options: dict[str, Any]) -> None:
        self.source.reset(**self._next_reset(options))
        self._acted.clear()
        if not self.source.agents:
            raise EnvError("reset: given no agents; allowed: at least one in env.agents.")
        agent = self.source.agent_selection
        observation, _, terminated, truncated, info = self.source.last()
        if terminated or truncated:
            raise EnvError(f"reset: given {agent!r}, whose episode is over already.")
        self._slot(agent).show(observation, info)
        self._write_state(self.buffers[0].global_state)

    def _step(self) -> None:
        agent = self.source.agent_selection
        action = self._slot(agent).action()
        self._clear_rows()
        self._slots[agent].hide()
        self._acted.add(agent)
        self.source.step(action)
        self.infos = self._pass_turns()

    def _rest(self) -> Any:
        return [list(self._slots).index(agent) for agent in self._acted]

    def _set_rest(self, rest: Any) -> None:
        self._acted = {list(self._slots)[i] for i in rest}

    def _pass_turns(self) -> list[Info]:
        """Advance to the next agent that can act, past those whose episode is over."""
        ended: list[Info] = []
        for _ in range(2 * len(self._slots) + 1):
            if not self.source.agents:
                self._begin_episode({})
                return ended
            agent = self.source.agent_selection
            slot = self._slot(agent)
            observation, reward, terminated, truncated, info = self.source.last()
            slot.reward(reward)
            if agent in self._acted:
                slot.pay(info)
            self._stats[agent].add(reward, info or {}, steps=int(agent in self._acted))
            self._acted.discard(agent)
            if not (terminated or truncated):
                slot.show(observation, info)
                self._write_state(self.buffers[0].global_state)
                return ended
            slot.end(observation, terminated, truncated)
            self._write_state(self.buffers[0].final_state)
            ended.append(self._emit(agent))
            self.source.step(None)
        raise EnvError(
            f"step: given {self.source.agents} as agents after each was told that it is over; "
            "allowed: agents that leave env.agents on their last step(None)."
        )
