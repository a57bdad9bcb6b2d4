"""How an environment is emulated, and the groups that its agents fall into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gymnasium import Space

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.envs.episode_stats import Reduction
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
    """Agents with equal spaces (and an equal name by `group_by`, if given) in one group each."""
    spaces: list[tuple[str, Space[Any], Space[Any]]] = []
    members: list[list[Any]] = []
    for agent in agents:
        name = cfg.group_by(agent) if cfg.group_by else ""
        key = (name, observation_space(agent), action_space(agent))
        for known, group in zip(spaces, members, strict=True):
            if known == key:
                group.append(agent)
                break
        else:
            spaces.append(key)
            members.append([agent])
    names = _group_names([name for name, *_ in spaces], members)
    seen = _limits_of_each(cfg.limits, [observation for _, observation, _ in spaces])
    done = _limits_of_each(cfg.action_limits, [action for _, _, action in spaces])
    return tuple(
        AgentGroup(
            names[i],
            tuple(members[i]),
            Layout.of(observation, limits=seen[i]),
            Layout.of(action, limits=done[i], strict=not cfg.clip_actions, plain=True),
            len(cfg.costs),
        )
        for i, (_, observation, action) in enumerate(spaces)
    )


def _limits_of_each(limits: Limits, spaces: list[Space[Any]]) -> list[Limits]:
    """Of limits by path, to each space its own; what no space has goes to all, to be refused."""
    if not isinstance(limits, Mapping) or len(spaces) == 1:
        return [limits] * len(spaces)
    paths = [limited_paths(space) for space in spaces]
    unknown = set(limits) - set().union(*paths)
    return [{p: limit for p, limit in limits.items() if p in own | unknown} for own in paths]


def _group_names(given: list[str], members: list[list[Any]]) -> list[str]:
    """The given names, or what the members' names share ("speaker" of "speaker_0"), or numbers."""
    names = given
    if not all(names):
        stems = [{str(agent).rstrip("0123456789").rstrip("_-") for agent in m} for m in members]
        names = [stem.pop() if len(stem) == 1 else "" for stem in stems]
        if len(members) == 1:
            names = [names[0] or "agents"]
    if all(names) and len(set(names)) == len(names):
        return names
    return [f"{name or 'group'}_{i}" for i, name in enumerate(names)]
