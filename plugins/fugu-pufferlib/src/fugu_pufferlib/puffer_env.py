"""`PufferEnv`: environments of many agents that write into the arrays they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import EnvError, UsageError
from fugu_pufferlib.spaces import joint_space

Arrays = Mapping[str, NDArray[Any]]
Received = tuple[
    NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], list[Any], NDArray[Any], NDArray[Any]
]
BUFFERS = ("observations", "rewards", "terminals", "truncations", "masks", "actions")
_ACTIONS = (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)


def set_buffers(env: Any, buf: Arrays | None = None) -> None:
    """Give an environment (or a vector) its arrays: those of `buf`, or some of its own."""
    if buf is None:
        agents, seen = env.num_agents, env.single_observation_space
        done = joint_space(env.single_action_space, agents)
        is_box = isinstance(env.single_action_space, spaces.Box)
        buf = {
            "observations": np.zeros((agents, *seen.shape), seen.dtype),
            "rewards": np.zeros(agents, np.float32),
            "terminals": np.zeros(agents, np.bool_),
            "truncations": np.zeros(agents, np.bool_),
            "masks": np.ones(agents, np.bool_),
            "actions": np.zeros(done.shape, done.dtype if is_box else np.int32),
        }
    for name in BUFFERS:
        setattr(env, name, buf[name])


class PufferEnv:
    """The base of environments that step all of their agents at once and restart them themselves.

    A subclass sets `single_observation_space` (a Box), `single_action_space` (Discrete,
    MultiDiscrete or Box) and `num_agents`, then calls `super().__init__(buf)`, and writes what its
    agents see and get into `observations`, `rewards`, `terminals`, `truncations` and `masks`, in
    place. `reset` and `step` return what PufferLib's do; infos are a list of dicts.
    """

    single_observation_space: Any
    single_action_space: Any
    num_agents: int
    observations: NDArray[Any]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    masks: NDArray[np.bool_]
    actions: NDArray[Any]
    infos: list[Any]

    def __init__(self, buf: Arrays | None = None) -> None:
        self._check()
        set_buffers(self, buf)
        self.action_space = joint_space(self.single_action_space, self.num_agents)
        self.observation_space = joint_space(self.single_observation_space, self.num_agents)
        self.agent_ids = np.arange(self.num_agents)

    def _check(self) -> None:
        name = type(self).__name__
        for needed in ("single_observation_space", "single_action_space", "num_agents"):
            if not hasattr(self, needed):
                raise UsageError(
                    f"{name}: given no {needed}; allowed: one that is set before "
                    "super().__init__(buf) is called."
                )
        for wrong in ("observation_space", "action_space"):
            if hasattr(self, wrong):
                raise UsageError(f"{name}: given {wrong}; allowed: single_{wrong}, of one agent.")
        seen, done = self.single_observation_space, self.single_action_space
        if not isinstance(seen, spaces.Box):
            raise UsageError(f"single_observation_space: given {seen}; allowed: a Box.")
        if not isinstance(done, _ACTIONS):
            raise UsageError(
                f"single_action_space: given {done}; allowed: Discrete, MultiDiscrete, Box."
            )
        if self.num_agents < 1:
            raise UsageError(f"num_agents: given {self.num_agents}; allowed: 1 or more.")

    @property
    def agents_per_batch(self) -> int:
        """Agents that `recv` tells of: all."""
        return self.num_agents

    @property
    def agent_per_batch(self) -> int:
        """The same, as PufferLib spells it."""
        return self.num_agents

    @property
    def emulated(self) -> bool:
        """No: its observations are arrays already."""
        return False

    @property
    def done(self) -> bool:
        """Never: it restarts episodes itself."""
        return False

    @property
    def driver_env(self) -> PufferEnv:
        """Itself."""
        return self

    def reset(self, seed: int | None = None) -> tuple[NDArray[Any], list[Any]]:
        """Begin anew."""
        raise NotImplementedError("reset(seed) -> (observations, infos)")

    def step(self, actions: NDArray[Any]) -> tuple[Any, Any, Any, Any, list[Any]]:
        """Step all agents."""
        raise NotImplementedError(
            "step(actions) -> (observations, rewards, terminals, truncations, infos)"
        )

    def close(self) -> None:
        """Let go of everything; many have nothing to let go of."""

    def async_reset(self, seed: int | None = None) -> None:
        """Begin anew; `recv` tells what came of it."""
        self.infos = listed(self, self.reset(seed)[1])

    def send(self, actions: NDArray[Any]) -> None:
        """Step; `recv` tells what came of it."""
        self.infos = listed(self, self.step(actions)[4])

    def recv(self) -> Received:
        """Observations, rewards, terminals, truncations, infos, agent ids and masks."""
        return (
            self.observations, self.rewards, self.terminals, self.truncations,
            self.infos, self.agent_ids, self.masks,
        )  # fmt: skip


def listed(env: PufferEnv, infos: Any) -> list[Any]:
    """The infos, if they are a list."""
    if isinstance(infos, list):
        return infos
    raise EnvError(
        f"{type(env).__name__}: given infos of type {type(infos).__name__}; allowed: a list of "
        "dicts, empty if there is nothing to say."
    )
