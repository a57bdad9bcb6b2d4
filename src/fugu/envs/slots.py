"""Emulation's settings, the groups that agents fall into, and each agent's row of the buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium import Space, spaces

from fugu.core.errors import ActionError, EnvError, PackError, UsageError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.envs.episode_stats import Reduction
from fugu.envs.masks import MaskWriter, find_mask
from fugu.native.nodes import join
from fugu.spaces import Layout
from fugu.spaces.compile import Limits, limited_paths


@dataclass(frozen=True)
class EmulationSettings:
    """How an environment is emulated; `fugu.emulate` documents each."""

    limits: Limits = None
    action_limits: Limits = None
    group_by: Callable[[Any], str] | None = None
    seeding: Literal["auto", "episode", "first"] = "auto"
    reset_options: Mapping[str, Any] = field(default_factory=dict)
    reduce: Mapping[str, Reduction] = field(default_factory=dict)
    clip_actions: bool = False
    infos: Literal["episode", "all"] = "episode"
    resumable: bool = False
    costs: Sequence[str] = ()
    global_state: bool = False

    def __post_init__(self) -> None:
        if self.infos not in ("episode", "all"):
            raise UsageError(f"infos: given {self.infos!r}; allowed: 'episode', 'all'.")
        if self.seeding not in ("auto", "episode", "first"):
            raise UsageError(
                f"seeding: given {self.seeding!r}; allowed: 'auto', 'episode', 'first'."
            )
        if isinstance(self.costs, str) or not all(self.costs):
            raise UsageError(
                f"costs: given {self.costs!r}; allowed: names of entries of infos, as ('cost',)."
            )


def make_groups(
    agents: list[Any],
    observation_space: Callable[[Any], Space[Any]],
    action_space: Callable[[Any], Space[Any]],
    cfg: EmulationSettings,
) -> tuple[AgentGroup, ...]:
    """Put agents with equal spaces, and an equal name by `group_by` if given, into one group."""
    keys: list[tuple[str, Space[Any], Space[Any]]] = []
    members: list[list[Any]] = []
    for agent in agents:
        name = cfg.group_by(agent) if cfg.group_by else ""
        key = (name, observation_space(agent), action_space(agent))
        if key not in keys:
            keys.append(key)
            members.append([])
        members[keys.index(key)].append(agent)
    names = _group_names([name for name, *_ in keys], members)
    observation_limits = _limits_of_each(cfg.limits, [observation for _, observation, _ in keys])
    action_limits = _limits_of_each(cfg.action_limits, [action for _, _, action in keys])
    return tuple(
        AgentGroup(
            names[i],
            tuple(members[i]),
            Layout.of(observation, limits=observation_limits[i]),
            Layout.of(action, limits=action_limits[i], strict=not cfg.clip_actions, plain=True),
            len(cfg.costs),
        )
        for i, (_, observation, action) in enumerate(keys)
    )


def _limits_of_each(limits: Limits, each: list[Space[Any]]) -> list[Limits]:
    """Give each space its own of the limits by path; unknown paths go to all, to be refused."""
    if not isinstance(limits, Mapping) or len(each) == 1:
        return [limits] * len(each)
    paths = [limited_paths(space) for space in each]
    unknown = set(limits) - set().union(*paths)
    return [{p: limit for p, limit in limits.items() if p in own | unknown} for own in paths]


def _group_names(given: list[str], members: list[list[Any]]) -> list[str]:
    """Return the given names, or common parts ("speaker" of "speaker_0"), or numbers."""
    names = given
    if not all(names):
        stems = [{str(agent).rstrip("0123456789").rstrip("_-") for agent in m} for m in members]
        names = [stem.pop() if len(stem) == 1 else "" for stem in stems]
        if len(members) == 1:
            names = [names[0] or "agents"]
    if all(names) and len(set(names)) == len(names):
        return names
    return [f"{name or 'group'}_{i}" for i, name in enumerate(names)]


class Slot:
    """Reads and writes one agent's row of its group's buffers."""

    def __init__(
        self, group: AgentGroup, buffers: Buffers, row: int, cfg: EmulationSettings
    ) -> None:
        self._row = row
        self._cost_names, self._costs = cfg.costs, buffers.costs[row]
        self._clip_to = group.action_layout.space if cfg.clip_actions else None
        self._observation, self._final = buffers.observations[row], buffers.final[row]
        self._action, self._mask = buffers.actions[row], buffers.action_masks[row]
        self._rewards, self._live = buffers.rewards, buffers.live
        self._terminations, self._truncations = buffers.terminations, buffers.truncations
        self._pack, self._unpack = group.observation_layout.pack, group.action_layout.unpack
        self._mask_writer = MaskWriter(group.action_layout)
        self.mask_width = self._mask_writer.width
        self.clips = cfg.clip_actions
        space = group.observation_layout.space
        self.sees_mask = isinstance(space, spaces.Dict) and "action_mask" in space.spaces
        self.live = False
        self._mask[:] = True
        self._masked = False
        self.hide()

    def action(self) -> Any:
        """Return the action as a value of the action space; never a view of the buffers."""
        try:
            value = self._unpack(self._action, True)
            return value if self._clip_to is None else clipped(self._clip_to, value)
        except PackError as error:
            raise ActionError(error.path, error.given, error.allowed, error.advice) from None

    def show(self, observation: Any, info: Any = None, mask: Any = None) -> None:
        """Write the observation that the agent acts on next."""
        self._pack(observation, self._observation)
        self._live[self._row] = self.live = True
        if self.mask_width:
            self.mask(observation, info, mask)

    def mask(self, observation: Any, info: Any, mask: Any = None) -> None:
        """Write the mask, or that of the observation or the info; without one, allow all."""
        if mask is None and (info or self.sees_mask):
            mask = find_mask(observation, info, self.mask_width)
        if mask is not None:
            self._mask_writer.write(mask, self._mask)
            self._masked = True
        elif self._masked:
            self._mask[:] = True
            self._masked = False

    def hide(self) -> None:
        """Mark the row as padding: the agent cannot act."""
        self._observation[:] = 0
        self._live[self._row] = self.live = False

    def take_over(self) -> None:
        """Continue from a row that somebody else has written."""
        self.live, self._masked = bool(self._live[self._row]), True

    def reward(self, reward: Any) -> None:
        """Write what reached the agent since it acted last."""
        try:
            if reward is None or isinstance(reward, str | bytes):  # NumPy would take them
                raise TypeError
            self._rewards[self._row] = reward
        except (TypeError, ValueError):
            raise EnvError(f"reward: given {reward!r}; allowed: one real number.") from None

    def pay(self, info: Any) -> None:
        """Write the costs of a step that its info holds."""
        for i, name in enumerate(self._cost_names):
            try:
                self._costs[i] = find_entry(info, name)
            except (LookupError, TypeError, ValueError):
                raise EnvError(
                    f"info: given {info!r}, without a number {name!r}; allowed: one on every step, "
                    "since costs= names it."
                ) from None

    def end(self, observation: Any, terminated: bool, truncated: bool) -> None:
        """Write the end of the agent's episode and its last observation."""
        if observation is not None:
            self._pack(observation, self._final)
        elif truncated and not terminated:
            raise EnvError(
                "given no observation for an agent whose episode was truncated; allowed: its last "
                "one, since a truncated episode is bootstrapped from its value."
            )
        else:
            self._final[:] = 0
        self._terminations[self._row] = terminated
        self._truncations[self._row] = truncated


def find_entry(info: Any, path: str) -> Any:
    """Return an entry of an info, of a dict in it, or of a list in it.

    >>> find_entry({"cost": 1.0}, "cost"), find_entry({"costs": {"speed": [0, 2]}}, "costs/speed/1")
    (1.0, 2)
    """
    if isinstance(info, Mapping) and path in info:
        return info[path]
    for name in path.split("/"):
        info = info[name] if isinstance(info, Mapping) else info[int(name)]
    return info


def clipped(space: Space[Any], value: Any, path: str = "") -> Any:
    """Return `value` with its Box parts moved into their bounds; NaN is still refused."""
    match space:
        case spaces.Box():
            if np.isnan(value).any():
                raise PackError(path, "not a number", f"{space.low.min()} to {space.high.max()}")
            return np.clip(value, space.low, space.high)
        case spaces.Dict():
            return {k: clipped(space.spaces[k], v, join(path, k)) for k, v in value.items()}
        case spaces.Tuple():
            items = enumerate(zip(space.spaces, value, strict=True))
            return tuple(clipped(item, part, join(path, i)) for i, (item, part) in items)
        case _:
            return value
