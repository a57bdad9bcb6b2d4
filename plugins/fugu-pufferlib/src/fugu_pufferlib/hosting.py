"""PufferLib environments behind fugu's contract, for vectors and trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import EnvError, UsageError
from fugu.core.seeding import episode_seed
from fugu.envs.contract import AgentGroup, Buffers, Env, Info
from fugu_pufferlib.emulation import GymnasiumPufferEnv, PettingZooPufferEnv
from fugu_pufferlib.layouts import group_of
from fugu_pufferlib.puffer_env import PufferEnv, listed
from fugu_pufferlib.wrappers import unroll_nested_dict

KINDS = (PufferEnv, GymnasiumPufferEnv, PettingZooPufferEnv)


@dataclass(frozen=True)
class Recipe:
    """How to make one copy of an environment."""

    creator: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def make(self, **more: Any) -> Any:
        """One that PufferLib's vectors would take."""
        env = self.creator(*self.args, **self.kwargs, **more)
        if isinstance(env, KINDS):
            return env
        raise UsageError(
            f"env_creator: given {type(env).__module__}.{type(env).__qualname__}; allowed: "
            f"something that makes a {', '.join(kind.__name__ for kind in KINDS)} of "
            "fugu_pufferlib."
        )


def to_fugu(creator: Callable[..., Any], *args: Any, **kwargs: Any) -> HostedEnv:
    """A PufferLib environment as fugu's, for `fugu.make`, `fugu.train` and `fugu train`.

    Args:
        creator: Makes it, a subclass of `PufferEnv` say; it takes `buf` and `seed` too.
        args: Of the creator.
        kwargs: Of the creator.
    """
    recipe = Recipe(creator, args, kwargs)
    probe = recipe.make()
    group = group_of(probe)
    probe.close()
    return HostedEnv((recipe,), group, tells="episodes")


class HostedEnv(Env):
    """A PufferLib environment that writes straight into the rows it is bound to.

    Emulated ones are restarted in the step that ends them. Those that restart themselves do not
    tell what they saw last: if episodes are told, `final` is what was acted on.

    Args:
        recipes: How to make each copy, by its number in the vector; one stands for all.
        group: Its agents.
        seed: Of the first copy when it is made; the others count on from it.
        tells: "all": infos as they come. "episodes": one for each episode, with its return.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe],
        group: AgentGroup,
        seed: int | None = 0,
        tells: str = "all",
    ) -> None:
        self.groups = (group,)
        self.source: Any = None
        self._recipes, self._seed = recipes, seed
        self._tally = Tally(group.num_agents) if tells == "episodes" else None

    def bind(self, *buffers: Buffers) -> None:
        """Make the environment on these rows."""
        (rows,) = buffers
        (group,) = self.groups
        rows.check(group)
        rows.valid[:] = rows.live[:] = rows.action_masks[:] = True
        self.close()
        self.buffers, agents = buffers, group.num_agents
        seen, done = group.observation_layout.space, group.action_layout.space
        self._observations = rows.observations.reshape(agents, *(seen.shape or ()))
        self._actions = rows.actions.reshape(agents, *(done.shape or ()))
        recipe = self._recipes[self.copy_number % len(self._recipes)]
        self.source = recipe.make(
            buf={
                "observations": self._observations,
                "rewards": rows.rewards,
                "terminals": rows.terminations,
                "truncations": rows.truncations,
                "masks": rows.live,
                "actions": self._actions,
            },
            seed=None if self._seed is None else self._seed + self.copy_number,
        )
        self._rows, self._is_native = rows, isinstance(self.source, PufferEnv)
        found = group_of(self.source)
        if found != group:
            raise EnvError(
                f"environment {self.copy_number}: given {found}; allowed: those of the first "
                f"copy, {group}."
            )

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Begin anew."""
        if options:
            raise UsageError(f"options: given {dict(options)}; allowed: none, as in PufferLib.")
        if self.source is None:
            self.bind(Buffers.allocate(self.groups[0]))
        for array in (self._rows.rewards, self._rows.terminations, self._rows.truncations):
            array.fill(0)
        if seed is not None and seed >= 1 << 31:
            seed = episode_seed(seed, 0)  # many generators take 32 bits
        infos = self._restart(seed)
        self.infos = infos if self._tally is None else self._tally.begin()

    def step(self) -> None:
        """Take the actions and write everything that follows."""
        rows = self._rows
        acted = rows.live.copy()
        if self._is_native:
            if self._tally is not None:  # who reads batches alone does not ask for it
                rows.final[...] = rows.observations
            told = listed(self.source, self.source.step(self._actions)[4])
            self._check_in_place()
        else:
            info = self.source.step(self._actions)[4]
            told = [info] if info else []
            if self.source.done or len(acted) > 1:
                told += self._end_episodes(rows, acted)
        if self._tally is not None:
            ended = rows.terminations | rows.truncations
            told = self._tally.add(rows.rewards, acted, ended, told)
        self.infos = told

    def close(self) -> None:
        """Close the environment. Calling it again does nothing."""
        source, self.source = self.source, None
        if source is not None:
            source.close()

    def render(self) -> Any:
        """What the environment renders."""
        return self.source.render()

    def _restart(self, seed: int | None) -> list[Info]:
        infos = (self.source.reset() if seed is None else self.source.reset(seed=seed))[1]
        if self._is_native:
            self._check_in_place()
            return listed(self.source, infos)
        self._rows.terminations.fill(False)  # of agents that are not there
        return [infos]

    def _end_episodes(self, rows: Buffers, acted: NDArray[np.bool_]) -> list[Info]:
        """Keep what agents saw last, and begin again where nobody is left."""
        over = rows.terminations | rows.truncations
        if not over.any():
            return []
        rows.terminations[~acted] = False  # those that were not there are marked as well
        rows.truncations[~acted] = False
        ended = over & acted
        rows.final[ended] = rows.observations[ended]
        if self.source.done:
            marks = (rows.rewards, rows.terminations, rows.truncations)
            kept = [array.copy() for array in marks]
            infos = self._restart(None)
            for array, before in zip(marks, kept, strict=True):
                array[...] = before
            return [info for info in infos if info]
        rows.live[over] = False
        rows.observations[~rows.live] = 0
        return []

    def _check_in_place(self) -> None:
        if self.source.observations is not self._observations:
            raise EnvError(
                f"{type(self.source).__name__}: given other observations than the array it was "
                "given; allowed: the same, written in place: self.observations[:] = ..."
            )


class Tally:
    """Returns and lengths of the episodes of many agents."""

    def __init__(self, num_agents: int) -> None:
        self._returns = np.zeros(num_agents)
        self._lengths = np.zeros(num_agents, np.int64)
        self._said: Info = {}  # numbers that the environment told last

    def begin(self) -> tuple[Info, ...]:
        """All agents begin anew."""
        self._returns[:], self._lengths[:] = 0.0, 0
        self._said = {}
        return ()

    def add(
        self,
        rewards: NDArray[np.float32],
        acted: NDArray[np.bool_],
        ended: NDArray[np.bool_],
        told: Sequence[Info],
    ) -> list[Info]:
        """One step; an info for each episode that ended."""
        self._returns += rewards
        self._lengths += acted
        for info in told:
            self._said |= dict(unroll_nested_dict(info))
        agents = np.flatnonzero(ended)
        found = [
            {
                **self._said,
                "episode_return": float(self._returns[agent]),
                "episode_length": int(self._lengths[agent]),
            }
            for agent in agents.tolist()
        ]
        self._returns[agents], self._lengths[agents] = 0.0, 0
        return found
