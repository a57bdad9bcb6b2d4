"""What the adapters for other libraries' environments share: buffers, seeds, order of calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gymnasium import Space

from fugu.core.errors import UsageError
from fugu.core.seeding import episode_seed, fresh_seed
from fugu.envs.contract import AgentGroup, Buffers, Env, Info
from fugu.envs.episode_stats import EpisodeStats, Reduction
from fugu.envs.slots import Slot
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

    def __post_init__(self) -> None:
        if self.infos not in ("episode", "all"):
            raise UsageError(f"infos: given {self.infos!r}; allowed: 'episode', 'all'.")
        if self.seeding not in ("auto", "episode", "first"):
            raise UsageError(
                f"seeding: given {self.seeding!r}; allowed: 'auto', 'episode', 'first'."
            )


class EmulatedEnv(Env):
    """The part of an adapter that does not depend on whose environment it adapts."""

    def __init__(self, source: Any, groups: tuple[AgentGroup, ...], cfg: EmulationSettings) -> None:
        self.source = source
        """The environment itself."""
        self.groups = groups
        self.settings = cfg
        """How it is emulated."""
        self._seeds_episodes = cfg.seeding == "episode" or (
            cfg.seeding == "auto" and not _reloads_when_seeded(source)
        )
        self._seed: int | None = None
        self._episode = -1
        self._steps = 0
        self._closed = False
        self._stats = {
            agent: EpisodeStats(cfg.reduce) for group in groups for agent in group.agents
        }
        self.bind(*(Buffers.allocate(group) for group in groups))

    def bind(self, *buffers: Buffers) -> None:
        """Read and write these buffers from now on, one for each group; `reset` comes next."""
        if len(buffers) != len(self.groups):
            raise UsageError(
                f"bind: given {len(buffers)} buffers; allowed: {len(self.groups)}, one for each "
                f"group of {[group.name for group in self.groups]}."
            )
        self.buffers = buffers
        self._slots: dict[Hashable, Slot] = {}
        for group, rows in zip(self.groups, buffers, strict=True):
            rows.check(group)
            rows.valid[:] = True
            for row, agent in enumerate(group.agents):
                self._slots[agent] = Slot(group, rows, row, clip=self.settings.clip_actions)
        self._episode = -1

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Begin anew.

        Args:
            seed: Root of every later episode's seed; None goes on with the seed given before, or
                with a fresh one.
            options: For this reset only, on top of those given to `emulate`.
        """
        self._check_open()
        if seed is not None:
            if isinstance(seed, bool) or not hasattr(seed, "__index__"):
                raise UsageError(f"seed: given {seed!r}; allowed: an integer or None.")
            self._seed, self._episode = int(seed), -1
        elif self._seed is None and self._seeds_episodes:
            self._seed = fresh_seed()
        for stats in self._stats.values():
            stats.clear()
        self._clear_rows()
        for slot in self._slots.values():
            slot.hide()
        self.infos = ()
        try:
            self._begin_episode(dict(options or {}))
        except Exception as error:
            self._note(error, "reset")
            raise

    def step(self) -> None:
        """Take the actions of the live agents and write everything that follows."""
        if self._episode < 0:
            self._check_open()
            raise UsageError("step: given before reset; call reset(seed) first.")
        self._steps += 1
        try:
            self._step()
        except Exception as error:
            self._note(error, "step")
            raise

    def close(self) -> None:
        """Close the environment. Calling it again does nothing."""
        if not self._closed:
            self._closed, self._episode = True, -1
            self.source.close()

    def render(self) -> Any:
        """What the environment renders, in the render mode it was made with."""
        self._check_open()
        return self.source.render()

    # ------------------------------------------------------------------ for the adapters

    def _begin_episode(self, options: dict[str, Any]) -> None:
        """Reset the environment and show the first observations."""
        raise NotImplementedError("_begin_episode(options: dict) -> None")

    def _step(self) -> None:
        """Step the environment once."""
        raise NotImplementedError("_step() -> None")

    def _next_reset(self, options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of the next reset."""
        self._episode += 1
        self._steps = 0
        seed = self._seed
        if self._seeds_episodes:
            assert seed is not None
            seed = episode_seed(seed, self._episode)
        elif self._episode > 0:
            seed = None
        elif seed is not None and (self.settings.seeding == "auto" or seed >= 1 << 32):
            seed = episode_seed(seed, 0)  # many generators take 32 bits
        merged = {**self.settings.reset_options, **options}
        return {"seed": seed, "options": merged or None}

    def _clear_rows(self) -> None:
        for rows in self.buffers:
            rows.rewards.fill(0)
            rows.terminations.fill(False)
            rows.truncations.fill(False)

    def _emit(self, agent: Hashable) -> Info:
        info = self._stats[agent].emit()
        return {"agent": agent, **info} if len(self._slots) > 1 else info

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"given {self.source}, which is closed; make a new one.")

    def _note(self, error: Exception, call: str) -> None:
        """Tell, on an error's way out, where it came from."""
        error.add_note(
            f"in {call} of {self.source} (seed {self._seed}, episode {max(self._episode, 0)}, "
            f"step {self._steps})"
        )


def _reloads_when_seeded(source: Any) -> bool:
    """Whether a seed makes the environment load its game anew, as the Arcade Learning Environment.

    There it takes about 20 times as long as a reset without one.
    """
    return getattr(getattr(source, "unwrapped", source), "ale", None) is not None


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
