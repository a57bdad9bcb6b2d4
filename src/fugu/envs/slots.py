"""Slots: one agent's row of its group's buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from fugu.core.errors import ActionError, EnvError, PackError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.envs.emulation_settings import EmulationSettings
from fugu.envs.masks import MaskWriter, find_mask
from fugu.native.nodes import join


class Slot:
    """Reads and writes one agent's row."""

    def __init__(
        self, group: AgentGroup, buffers: Buffers, row: int, cfg: EmulationSettings
    ) -> None:
        clip = cfg.clip_actions
        self._row = row
        self._costs, self._paid = cfg.costs, buffers.costs[row]
        self._clip_to = group.action_layout.space if clip else None
        self._observation, self._final = buffers.observations[row], buffers.final[row]
        self._action, self._mask = buffers.actions[row], buffers.action_masks[row]
        self._rewards, self._live = buffers.rewards, buffers.live
        self._terminations, self._truncations = buffers.terminations, buffers.truncations
        self._pack, self._unpack = group.observation_layout.pack, group.action_layout.unpack
        self._mask_writer = MaskWriter(group.action_layout)
        self.mask_width = self._mask_writer.width
        self.clips = clip
        space = group.observation_layout.space
        self.sees_mask = isinstance(space, spaces.Dict) and "action_mask" in space.spaces
        self.live = False
        self._mask[:] = True
        self._masked = False
        self.hide()

    def action(self) -> Any:
        """What the agent does, as a value of its action space; never a view of the buffers."""
        try:
            value = self._unpack(self._action, True)
            return value if self._clip_to is None else clipped(self._clip_to, value)
        except PackError as error:
            raise ActionError(error.path, error.given, error.allowed, error.advice) from None

    def show(self, observation: Any, info: Any = None, mask: Any = None) -> None:
        """Show the agent what it acts on next."""
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
        """Nothing to act on: the row is padding."""
        self._observation[:] = 0
        self._live[self._row] = self.live = False

    def take_over(self) -> None:
        """Go on from a row that somebody else has written."""
        self.live, self._masked = bool(self._live[self._row]), True

    def reward(self, reward: Any) -> None:
        """What reached the agent since it acted last."""
        try:
            if reward is None or isinstance(reward, str | bytes):  # NumPy would take them
                raise TypeError
            self._rewards[self._row] = reward
        except (TypeError, ValueError):
            raise EnvError(f"reward: given {reward!r}; allowed: one real number.") from None

    def pay(self, info: Any) -> None:
        """What it cost the agent, if infos tell."""
        for i, name in enumerate(self._costs):
            try:
                self._paid[i] = find_entry(info, name)
            except (LookupError, TypeError, ValueError):
                raise EnvError(
                    f"info: given {info!r}, without a number {name!r}; allowed: one on every step, "
                    "since costs= names it."
                ) from None

    def end(self, observation: Any, terminated: bool, truncated: bool) -> None:
        """The agent's episode is over, and this is the last it saw."""
        if observation is not None:
            self._pack(observation, self._final)
        elif truncated and not terminated:
            raise EnvError(
                "given no observation for an agent whose episode was truncated; allowed: its last "
                "one, since the value of a truncated episode goes on from it."
            )
        else:
            self._final[:] = 0
        self._terminations[self._row] = terminated
        self._truncations[self._row] = truncated


def find_entry(info: Any, path: str) -> Any:
    """An entry of an info, of what it holds, or of a list in it.

    >>> find_entry({"cost": 1.0}, "cost"), find_entry({"costs": {"speed": [0, 2]}}, "costs/speed/1")
    (1.0, 2)
    """
    if isinstance(info, Mapping) and path in info:
        return info[path]
    for name in path.split("/"):
        info = info[name] if isinstance(info, Mapping) else info[int(name)]
    return info


def clipped(space: Space[Any], value: Any, path: str = "") -> Any:
    """`value` with its Box parts moved into their bounds; not-a-number is still refused."""
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
