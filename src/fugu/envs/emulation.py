"""`fugu.emulate`: a Gymnasium or PettingZoo environment as `Env`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium

from fugu.core.errors import UsageError
from fugu.envs.contract import Env
from fugu.envs.emulated import EmulatedEnv
from fugu.envs.episode_stats import Reduction
from fugu.envs.gymnasium_env import GymnasiumEnv, WaitingEnv, waits
from fugu.envs.pettingzoo_env import ParallelEnv, TurnEnv
from fugu.envs.slots import EmulationSettings
from fugu.spaces.compile import Limits


def emulate(
    env_or_factory: Any,
    *,
    limits: Limits = None,
    action_limits: Limits = None,
    group_by: Callable[[Any], str] | None = None,
    seeding: Literal["auto", "episode", "first"] = "auto",
    reset_options: Mapping[str, Any] | None = None,
    reduce: Mapping[str, Reduction] | None = None,
    clip_actions: bool = False,
    infos: Literal["episode", "all"] = "episode",
    resumable: bool = False,
    costs: Sequence[str] = (),
    global_state: bool = False,
) -> EmulatedEnv:
    """Make a Gymnasium or PettingZoo environment read and write flat rows in place.

    Args:
        env_or_factory: A Gymnasium `Env` (see `WaitingEnv` for one that waits for something
            outside), a PettingZoo `ParallelEnv` or `AECEnv`, or a function that makes one.
        limits: Maximum length of each Sequence and Graph in the observation; see `Layout.of`.
        action_limits: The same for the action.
        group_by: Returns the group's name of an agent; different spaces are always apart.
        seeding: "episode": each episode has a seed of its own, derived from the seed given to
            `reset` and the episode's number, so that any episode can be run again. "first": only
            the first reset has a seed, exactly the one given, as Gymnasium's own vector does.
            "auto": "episode", but for Atari, where each seed loads the game anew: only the first
            episode has one there.
        reset_options: Options of every reset.
        reduce: How `EpisodeStats` sums up each entry of the infos.
        clip_actions: Move continuous actions into their bounds, rather than refuse those outside.
        infos: "episode": one info for each episode, summed up. "all": every info as it is, for
            adapters to other libraries; the next episode's first info then has that of the last
            step under "final_info". Environments of one agent only.
        resumable: Support `state()` and `set_state()`: the environment's own where it gives bytes,
            else the episode's seed and its actions, which are replayed.
        costs: Entries of each step's info that are costs, one per constraint: "cost", or
            "outer/inner" and "costs/0" for nested ones. A step of six values, as in
            safety-gymnasium, has its "cost" in the third place. Episode infos have their sums.
        global_state: Write `state()` of a PettingZoo environment with a `state_space` for critics;
            environments without one have none.

    >>> import gymnasium
    >>> env = emulate(lambda: gymnasium.make("FrozenLake-v1", is_slippery=False))
    >>> env.reset(seed=1)
    >>> (rows,) = env.buffers
    >>> rows.actions[:] = 2
    >>> env.step()
    >>> rows.observations.tolist(), rows.live.tolist()
    ([[1]], [True])
    """
    cfg = EmulationSettings(
        limits=limits,
        action_limits=action_limits,
        group_by=group_by,
        seeding=seeding,
        reset_options=dict(reset_options or {}),
        reduce={**dict.fromkeys(costs, "sum"), **(reduce or {})},
        clip_actions=clip_actions,
        infos=infos,
        resumable=resumable,
        costs=costs,
        global_state=global_state,
    )
    env = env_or_factory
    if not is_environment(env) and callable(env):
        env = env()
    if isinstance(env, gymnasium.Env):
        return WaitingEnv(env, cfg) if waits(env) else GymnasiumEnv(env, cfg)
    if is_environment(env):
        return TurnEnv(env, cfg) if hasattr(env, "agent_iter") else ParallelEnv(env, cfg)
    raise UsageError(refusal(env))


def is_environment(value: Any) -> bool:
    """Whether `emulate` accepts the value itself, not only a factory of it."""
    if isinstance(value, type):
        return False
    if isinstance(value, gymnasium.Env):
        return True
    names = ("possible_agents", "observation_space", "action_space", "reset", "step")
    return not isinstance(value, Env) and all(hasattr(value, name) for name in names)


def refusal(env: Any) -> str:
    """Return why `emulate` does not accept a value."""
    allowed = (
        "allowed: a gymnasium.Env, a PettingZoo ParallelEnv or AECEnv, or a callable that makes one"
    )
    given = f"given {env!r} of type {type(env).__module__}.{type(env).__qualname__}; {allowed}."
    if isinstance(env, Env):
        return f"{given} This one reads and writes rows already."
    if isinstance(env, gymnasium.vector.VectorEnv):
        return f"{given} Give one copy: fugu makes vectors itself."
    if isinstance(env, str):
        return f"{given} For a Gymnasium id: emulate(lambda: gymnasium.make({env!r}))."
    if type(env).__module__.split(".")[0] == "gym" or hasattr(env, "seed"):
        return f"{given} For an environment of the old Gym, use shimmy."
    if hasattr(env, "agents"):
        return f"{given} This one has no possible_agents to give a row to each."
    return given
