"""The bridge to vectors of other libraries, which the adapters share.

Those have one agent in each environment, all environments at once, and no broken steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from fugu.core.errors import ActionError, PackError, UsageError
from fugu.envs.contract import Buffers, Env, Info
from fugu.spaces import Layout
from fugu.vector.backends import Fault, WorkerError
from fugu.vector.batching import Batch
from fugu.vector.make import make
from fugu.vector.supervisor import Options, Seeds
from fugu.vector.vector import Vector

# Options by which a vector resets and has infos as vectors of other libraries, which hand on NaN.
AS_OTHERS_DO = {"seeding": "first", "infos": "all", "check_finite": False}
UNKNOWN = "its worker ended between two steps"


@dataclass(frozen=True)
class Arrival:
    """The result of a step.

    Attributes:
        rows: The rows of all environments, valid until the next step.
        ended: Which episodes ended.
        truncations: Which episodes were truncated, by the environment or by a fault.
        infos: The infos of the steps, by environment.
        first_infos: The infos of the resets that followed an episode's end.
        final: The last observation of each episode that ended, flat, by environment.
    """

    rows: Buffers
    ended: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    infos: dict[int, Info]
    first_infos: dict[int, Info]
    final: dict[int, NDArray[Any]]


class Bridge:
    """Resets and steps a vector of single agents for an adapter.

    A step that a fault broke becomes one that was cut off: its final observation is the one that
    was acted on, and its info holds the fault under "fault". A reset that one broke is an error.
    """

    def __init__(self, vector: Vector) -> None:
        _check(vector)
        self.vector, self.num_envs = vector, vector.num_envs
        self.observation_layout: Layout = vector.observation_layout
        self.action_layout: Layout = vector.action_layout
        if vector.backend == "batch":  # copies of which nothing can be asked
            about = describe(None)
        else:
            (about,) = vector.apply(describe, env_ids=[0])
        self.metadata: dict[str, Any] = about["metadata"]
        self.render_mode: str | None = about["render_mode"]
        spec = about["spec"]  # one that cannot be sent comes as its text
        self.spec = spec if isinstance(spec, EnvSpec) else None
        self._exact_seeds = about["seeding"] == "first"
        self._begun = False
        self._batch: Batch | None = None
        self._acted_on = self.observation_layout.zeros(self.num_envs)

    def reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: Options = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> Batch:
        """Reset all environments, or those of a mask; return the rows of all."""
        seeds = self._seeds(seed)
        if mask is not None:
            batch = self.vector.reset_some(mask, seeds, options)
        else:
            self.vector.async_reset(seeds, options)
            batch = self.vector.recv()
        for env in np.flatnonzero(~batch.valid).tolist():
            self._batch = None
            raise WorkerError(f"reset failed in environment {env}", self._fault(env))
        self._begun, self._batch = True, batch
        return batch

    def send(self, actions: NDArray[Any]) -> None:
        """Step all with flat rows of actions; a wrong one is refused before any steps."""
        if self._batch is None:
            raise UsageError("step: given before reset, or twice at once; call reset first.")
        try:
            rows = self.action_layout.fit_rows(actions, self.num_envs)
        except PackError as error:
            raise refusal(error) from None
        for env, row in enumerate(rows):
            try:
                self.action_layout.unpack(row)
            except PackError as error:
                raise refusal(error, env) from None
        self._acted_on[...] = self._batch.observations
        self._batch = None
        self.vector.send(rows)

    def recv(self) -> Arrival:
        """Wait for all environments."""
        batch = self._batch = self.vector.recv()
        rows = batch.groups[0].rows
        broken = () if rows.valid.all() else np.flatnonzero(~rows.valid).tolist()
        truncations = rows.truncations | ~rows.valid
        ended = rows.terminations | truncations
        infos: dict[int, Info] = {}
        first_infos: dict[int, Info] = {}
        for env, (info, *_) in batch.infos.items():
            infos[env], first_infos[env] = info, {}
            if ended[env] and "final_info" in info:  # the rest is of the reset that followed
                infos[env] = info["final_info"]
                first_infos[env] = {k: v for k, v in info.items() if k != "final_info"}
        final = {env: rows.final[env] for env in np.flatnonzero(ended).tolist()}
        for env in broken:
            infos[env] = {"fault": str(self._fault(env) or UNKNOWN)}
            final[env] = self._acted_on[env]
        return Arrival(rows, ended, truncations, infos, first_infos, final)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Seeds:
        """Return the seeds for the vector; without a seed, the episodes continue."""
        if seed is None and not self._begun:
            seed = self.vector.seed
            if seed is None and not self._exact_seeds:
                return None  # the vector chooses
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            exact = [int(seed) + env for env in range(self.num_envs)]
            return exact if self._exact_seeds else int(seed)
        return [None if one is None else int(one) for one in seed]

    def _fault(self, env: int) -> Fault | None:
        """Return the last fault of an environment; None if its worker ended between two steps."""
        return next((fault for fault in reversed(self.vector.faults) if env in fault.envs), None)


def bridge_to(env: Any, num_envs: int | None, options: dict[str, Any]) -> Bridge:
    """Return the bridge to a vector, or to one that is made with `AS_OTHERS_DO`."""
    if isinstance(env, Vector):
        if num_envs is not None or options:
            given = ", ".join(["num_envs"] * (num_envs is not None) + list(options))
            raise UsageError(f"given a Vector and {given}; allowed: a Vector alone, as it is.")
        return Bridge(env)
    vector = make(env, 1 if num_envs is None else num_envs, **{**AS_OTHERS_DO, **options})
    try:
        return Bridge(vector)
    except BaseException:
        vector.close()
        raise


def refusal(error: PackError, env: int | None = None) -> ActionError:
    """Return the same error for an action."""
    found = ActionError(error.path, error.given, error.allowed, error.advice)
    if env is not None:
        found.add_note(f"in the action of environment {env}; none has stepped")
    return found


def describe(env: Env | None) -> dict[str, Any]:
    """Return what an adapter needs to know of an environment."""
    source = getattr(env, "source", env)
    return {
        "metadata": dict(getattr(source, "metadata", None) or {}),
        "render_mode": getattr(source, "render_mode", None),
        "spec": getattr(source, "spec", None),
        "seeding": getattr(getattr(env, "settings", None), "seeding", "episode"),
    }


def is_wrapped_in(env: Env, module: str, name: str) -> bool:
    """Return whether an environment has a wrapper of a class, without importing the class."""
    layer: Any = getattr(env, "source", env)
    while isinstance(layer, gymnasium.Wrapper):
        if any((kind.__module__, kind.__name__) == (module, name) for kind in type(layer).__mro__):
            return True
        layer = layer.env
    return False


def _check(vector: Vector) -> None:
    agents = [group.num_agents for group in vector.groups]
    if agents != [1]:
        names = ", ".join(f"{group.num_agents} {group.name}" for group in vector.groups)
        raise UsageError(
            f"given a vector of environments with {sum(agents)} agents ({names}); allowed: one "
            "agent each, since other libraries' vectors know no more. Use send and recv."
        )
    if vector.batch_size != vector.num_envs:
        raise UsageError(
            f"given batches of {vector.batch_size} of {vector.num_envs} environments; allowed: "
            "all at once. Leave batch_size out of fugu.make."
        )
