"""`make`, and the vectors it makes: PufferLib's calls on a fugu vector."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.machine import usable_cores
from fugu.vector.making import Backend
from fugu.vector.making import make as make_vector
from fugu.vector.vector import Vector
from fugu_pufferlib.hosting import HostedEnv, Recipe
from fugu_pufferlib.layouts import group_of
from fugu_pufferlib.puffer_env import PufferEnv, Received
from fugu_pufferlib.spaces import joint_space

OPTIONS = (
    "num_workers", "batch_size", "zero_copy", "sync_traj", "overwork", "step_timeout",
    "max_restarts",
)  # fmt: skip
Count = int | Literal["auto"] | None


class VecEnv:
    """What all backends share: copies of an environment behind `send` and `recv`.

    Rows are PufferLib's: a mask is set where a row holds something, a terminal also where it does
    not. A step that a fault broke is truncated, and the fault stands in its info.

    Args:
        env_creators: What makes each copy; it takes `buf` and `seed` too.
        env_args: Arguments of each.
        env_kwargs: Named arguments of each.
        num_envs: Copies.
        num_workers: Workers; at most as many as cores if not given.
        batch_size: Copies of a batch; all if not given.
        zero_copy: Give batches in a fixed order; else the first that are ready.
        sync_traj: The same: only both give a fixed order.
        overwork: Nothing: workers that wait take no core.
        seed: Of the first copy; the others count on from it.
        options: `step_timeout` and `max_restarts` of `fugu.make`.

    Attributes:
        vector: The fugu vector.
        batch: What was received last, with the last observations of ended episodes.
        driver_env: One copy, to ask for its spaces and the like.
    """

    backend: ClassVar[Backend]

    def __init__(
        self,
        env_creators: Sequence[Callable[..., Any]],
        env_args: Sequence[Sequence[Any]],
        env_kwargs: Sequence[Mapping[str, Any]],
        num_envs: int,
        num_workers: Count = None,
        batch_size: Count = None,
        zero_copy: bool = True,
        sync_traj: bool = True,
        overwork: bool = False,
        seed: int | None = 0,
        **options: Any,
    ) -> None:
        parts = (env_creators, env_args, env_kwargs)
        recipes = [Recipe(*part) for part in list(zip(*parts, strict=True))[:num_envs]]
        self.driver_env = self._probe = driver = recipes[0].make()
        group, size = group_of(driver), _batch_size(batch_size, num_envs)
        try:
            self.vector = self._make(
                partial(HostedEnv, recipes, group, seed),
                num_envs,
                num_workers=_num_workers(num_workers, num_envs),
                batch_size=size,
                ordered=zero_copy and sync_traj,
                **options,
            )
        except BaseException:
            self._close_probe()
            raise
        self.num_workers, self.num_environments = self.vector.num_workers, num_envs
        self.num_agents = driver.num_agents * num_envs
        self.agents_per_batch = driver.num_agents * size
        self.single_observation_space = driver.single_observation_space
        self.single_action_space = driver.single_action_space
        self.observation_space = joint_space(self.single_observation_space, self.agents_per_batch)
        self.action_space = joint_space(self.single_action_space, self.agents_per_batch)
        self.emulated = driver.emulated
        self._low, self._high = _bounds(self.action_space)

    @property
    def num_envs(self) -> int:
        """Agents of a batch, as PufferLib has it; `num_environments` is the number of copies."""
        return int(self.agents_per_batch)

    def async_reset(self, seed: int | None = 0) -> None:
        """Begin all copies anew: copy i with `seed + i`, or without a seed if that is None."""
        copies = range(self.num_environments)
        self.vector.async_reset([None if seed is None else seed + i for i in copies])

    def recv(self) -> Received:
        """Observations, rewards, terminals, truncations, infos, agent ids and masks of a batch.

        Arrays are valid until the next `send`.
        """
        self.batch = batch = self.vector.recv()
        rows = batch.groups[0].rows
        infos = [info for env in batch.env_ids.tolist() for info in batch.infos.get(env, ())]
        truncations = rows.truncations
        if not rows.valid.all():
            truncations = truncations | ~rows.valid
            infos += self._faults()
        ended = rows.terminations | truncations
        left = ended & ~rows.live
        if left.any():  # while others go on: what such an agent saw last
            rows.observations[left] = rows.final[left]
        masks = rows.live | ended
        observations = rows.observations.reshape(self.observation_space.shape)
        terminals = rows.terminations | ~masks
        return observations, rows.rewards, terminals, truncations, infos, batch.agent_ids, masks

    def send(self, actions: Any) -> None:
        """Step the copies of the last batch."""
        given = np.asarray(actions)
        fits = given.shape == self.action_space.shape and given.dtype.kind in "iufb"
        if not fits or not ((given >= self._low) & (given <= self._high)).all():
            raise UsageError(
                f"send: given {given.dtype} actions of shape {given.shape}"
                f"{f', {given.min()} to {given.max()}' if fits else ''}; allowed: values of "
                f"{self.action_space}."
            )
        self.vector.send(given.reshape(self.agents_per_batch, -1))

    def reset(self, seed: int | None = 42) -> tuple[NDArray[Any], list[Any]]:
        """Begin anew: the observations and infos of a batch."""
        self.async_reset(seed)
        received = self.recv()
        return received[0], received[4]

    def step(
        self, actions: Any
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], list[Any]]:
        """Step: observations, rewards, terminals, truncations and infos of the next batch."""
        self.send(actions)
        return self.recv()[:5]

    def notify(self) -> None:
        """Call `notify` of every copy; all must have been received."""
        self.vector.call("notify")

    def close(self) -> None:
        """End all workers and close the environments. Calling it again does nothing."""
        self.vector.close()
        self._close_probe()

    def _close_probe(self) -> None:
        """Close the copy that is in no vector, once: C code may not survive a second time."""
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()

    def _faults(self) -> list[Any]:
        """What broke steps of the last batch, an info each."""
        rows, env_ids = self.batch.groups[0].rows, self.batch.env_ids
        broken = env_ids[~rows.valid.reshape(len(env_ids), -1).all(1)].tolist()
        faults = list(self.vector.faults)[::-1]
        return [
            {"fault": str(next((fault for fault in faults if env in fault.envs), "unknown"))}
            for env in broken
        ]

    def _make(self, factory: Callable[[], HostedEnv], num_envs: int, **options: Any) -> Vector:
        return make_vector(factory, num_envs, backend=self.backend, **options)


class Serial(VecEnv):
    """All copies in this process; an error in one of them is raised."""

    backend = "serial"

    def __init__(self, *args: Any, max_restarts: int = 0, **kwargs: Any) -> None:
        super().__init__(*args, max_restarts=max_restarts, **kwargs)
        self._close_probe()
        self.envs = [host.source for host in self.vector.apply(_itself)]
        self.driver_env = self.envs[0]


class Multiprocessing(VecEnv):
    """Copies in processes, which begin as Python's own do on this platform."""

    backend = "process"

    def _make(self, factory: Callable[[], HostedEnv], num_envs: int, **options: Any) -> Vector:
        method: Any = multiprocessing.get_start_method(allow_none=True)
        method = method or multiprocessing.get_all_start_methods()[0]  # the default is the first
        return super()._make(factory, num_envs, start_method=method, **options)


class Ray(VecEnv):
    """Copies in actors: of the cluster that RAY_ADDRESS names, else of one that begins here."""

    backend = "ray"

    def _make(self, factory: Callable[[], HostedEnv], num_envs: int, **options: Any) -> Vector:
        address = "auto" if "RAY_ADDRESS" in os.environ else "local"
        return super()._make(factory, num_envs, ray_address=address, **options)


BACKENDS: dict[str, Any] = {
    "PufferEnv": PufferEnv, "Serial": Serial, "Multiprocessing": Multiprocessing, "Ray": Ray,
}  # fmt: skip


def make(
    env_creator_or_creators: Callable[..., Any] | Sequence[Callable[..., Any]],
    env_args: Any = None,
    env_kwargs: Any = None,
    backend: Any = PufferEnv,
    num_envs: int = 1,
    seed: int | None = 0,
    **kwargs: Any,
) -> Any:
    """Copies of an environment.

    Args:
        env_creator_or_creators: What makes a copy, or a list of what makes each.
        env_args: Arguments of it, or a list of those of each.
        env_kwargs: Named arguments of it, or a list of those of each.
        backend: `PufferEnv` (the environment itself, if it is one), `Serial`, `Multiprocessing`,
            `Ray`, or one of these names.
        num_envs: Copies.
        seed: Of the first copy; the others count on from it.
        **kwargs: As of `VecEnv`.
    """
    kind: Any = BACKENDS.get(backend) if isinstance(backend, str) else backend
    known = isinstance(kind, type) and issubclass(kind, VecEnv | PufferEnv)
    if not known or any(name not in OPTIONS for name in kwargs):
        raise UsageError(
            f"make: given backend {backend!r}, {kwargs}; allowed: {', '.join(BACKENDS)}, and the "
            f"options {', '.join(OPTIONS)}."
        )
    if num_envs != int(num_envs) or num_envs < 1:
        raise UsageError(f"num_envs: given {num_envs}; allowed: a whole number from 1 on.")
    if kind is PufferEnv:
        return _itself_alone(env_creator_or_creators, env_args, env_kwargs, num_envs)
    if isinstance(env_creator_or_creators, list | tuple):
        lists = [
            env_creator_or_creators,
            env_args or [()] * num_envs,
            env_kwargs or [{}] * num_envs,
        ]
        if any(len(each) != num_envs for each in lists):
            raise UsageError(
                f"make: given lists of {[len(each) for each in lists]} creators, args and kwargs; "
                f"allowed: {num_envs} of each, as num_envs says."
            )
    else:
        lists = [
            [one] * num_envs for one in (env_creator_or_creators, env_args or (), env_kwargs or {})
        ]
    if kind is Serial and kwargs.get("batch_size") is not None:
        num_envs = _batch_size(kwargs.pop("batch_size"), num_envs)
    return kind(*lists, num_envs, seed=seed, **kwargs)


def _itself_alone(creator: Any, args: Any, kwargs: Any, num_envs: int) -> PufferEnv:
    env = creator(*(args or ()), **(kwargs or {}))
    if isinstance(env, PufferEnv) and num_envs == 1:
        return env
    raise UsageError(
        f"make: given {num_envs} of {type(env).__name__} for the backend PufferEnv; allowed: one "
        "PufferEnv, which is its own vector. Use Serial or Multiprocessing."
    )


def _batch_size(given: Count, num_envs: int) -> int:
    if given == "auto":
        return max(1, num_envs // 2)
    return num_envs if given is None else given


def _num_workers(given: Count, num_envs: int) -> int:
    return min(num_envs, usable_cores()) if given in (None, "auto") else int(given)


def _bounds(space: spaces.MultiDiscrete | spaces.Box) -> tuple[NDArray[Any], NDArray[Any]]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    return space.start, space.start + space.nvec - 1


def _itself(env: HostedEnv) -> HostedEnv:
    return env
