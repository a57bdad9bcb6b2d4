"""The agents of an environment and their spaces, as declared."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import Space

from fugu.core.errors import SpaceError
from fugu.envs.checking.findings import Finding, Ledger
from fugu.envs.checking.guard import FAULTS, last_lines
from fugu.envs.contract import AgentGroup
from fugu.envs.emulation_settings import EmulationSettings, make_groups
from fugu.envs.gymnasium_env import AGENT
from fugu.spaces import Layout
from fugu.spaces.compile import Limits


@dataclass(frozen=True)
class AgentSpaces:
    """One agent's spaces; a layout is None if its space does not compile."""

    observation: Any
    action: Any
    observation_layout: Layout | None
    bounded_layout: Layout | None  # of the observation, with its bounds
    action_layout: Layout | None


Spaces = Mapping[Hashable, AgentSpaces]


def action_limits(limits: Limits) -> Limits:
    """The limits of the actions: a number goes for both, paths are those of the observation."""
    return limits if isinstance(limits, int) else None


def declared(env: Any, kind: str, agent: Hashable) -> Any:
    """The "observation" or "action" space of an agent."""
    space = getattr(env, f"{kind}_space")
    return space if isinstance(env, gymnasium.Env) else space(agent)


def read_agents(env: Any) -> list[Hashable]:
    """All agents that may appear."""
    return [AGENT] if isinstance(env, gymnasium.Env) else list(env.possible_agents)


def read_spaces(env: Any, limits: Limits, ledger: Ledger) -> Spaces:
    """Every agent's spaces, compiled; what does not compile is a finding of the layout."""
    agents = read_agents(env)
    if not agents:
        ledger.fail(
            "layout",
            "given no possible_agents; allowed: at least one",
            "Name in possible_agents all agents that may ever appear: each gets a row.",
        )
    compiler = _Compiler(ledger)
    result = {}
    for agent in agents:
        observation, action = (declared(env, kind, agent) for kind in ("observation", "action"))
        of = "" if isinstance(env, gymnasium.Env) else f" of {agent!r}"
        result[agent] = AgentSpaces(
            observation,
            action,
            compiler.compile(observation, limits, False, f"observation_space{of}"),
            compiler.compile(observation, limits, True, f"observation_space{of}"),
            compiler.compile(action, action_limits(limits), True, f"action_space{of}"),
        )
    return result


class _Compiler:
    """Compiles each space once, since all agents of a kind declare the same."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: list[tuple[Any, Limits, bool, Layout | None]] = []

    def compile(self, space: Any, limits: Limits, strict: bool, name: str) -> Layout | None:
        for known, known_limits, known_strict, layout in self._known:
            if known_limits == limits and known_strict == strict and known == space:
                return layout
        result = self._compile(space, limits, strict, name)
        self._known.append((space, limits, strict, result))
        return result

    def _compile(self, space: Any, limits: Limits, strict: bool, name: str) -> Layout | None:
        try:
            if not isinstance(space, Space):
                raise SpaceError(f"given {space!r}; allowed: a gymnasium Space.")
            return Layout.of(space, limits=limits, strict=strict)
        except SpaceError as error:
            self._note(name, str(error))
        except FAULTS as error:
            self._note(name, last_lines(error))
        return None

    def _note(self, name: str, text: str) -> None:
        if "without a maximum length" in text:
            number = ": a number, since paths are those of the observation"
            advice = f"Pass limits= to check{number if name.startswith('action') else ''}."
        elif text.startswith("limits:"):
            advice = "Pass limits= for the parts that need one, and no others."
        else:
            advice = "Declare the space with the kinds that Gymnasium has for it."
        self._ledger.add(Finding("layout", "fail", name, f"{name}: {text}", advice))


def read_groups(env: Any, spaces: Spaces, limits: Limits) -> tuple[AgentGroup, ...]:
    """The groups of agents that emulation makes of them."""
    cfg = EmulationSettings(limits=limits, action_limits=action_limits(limits))
    return make_groups(
        list(spaces),
        lambda agent: declared(env, "observation", agent),
        lambda agent: declared(env, "action", agent),
        cfg,
    )


def name_of(env: Any) -> str:
    """What to call an environment."""
    spec = getattr(env, "spec", None)
    inner = getattr(env, "unwrapped", env)
    metadata = getattr(env, "metadata", None) or {}
    return str(getattr(spec, "id", None) or metadata.get("name") or type(inner).__name__)


def describe_group(group: AgentGroup) -> str:
    """A group, its agents and layouts in a line."""
    layouts = f"observations {group.observation_layout}, actions {group.action_layout}"
    if group.agents == (AGENT,):
        return layouts
    agents = ", ".join(map(str, group.agents[:6])) + (", ..." if group.num_agents > 6 else "")
    return f"group {group.name} ({agents}): {layouts}"


def find_unstable_spaces(env: Any, spaces: Spaces, ledger: Ledger) -> None:
    """Ask every agent's spaces again: they must be what they were."""
    for agent, known in spaces.items():
        for kind in ("observation", "action"):
            before = getattr(known, kind)
            now = declared(env, kind, agent)
            asked = f"{kind}_space({agent!r}) gives another"
            if now is before:
                continue
            if now == before:
                advice = "Return the same object each time, else seeding it has no effect."
                text = f"{asked} object, equal, when asked again"
                ledger.add(Finding("agents", "warn", kind, text, advice))
            else:
                advice = "Fix each agent's spaces when the environment is made."
                text = f"{asked} space when asked again: {now} after {before}"
                ledger.add(Finding("agents", "fail", kind, text, advice))
