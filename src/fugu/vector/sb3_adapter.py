"""A vector as Stable-Baselines3's `VecEnv`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, PackError
from fugu.envs.contract import Info
from fugu.vector.bridge import Arrival, Bridge, bridge_to, is_wrapped_in, refusal
from fugu.vector.sb3_spaces import ActionForm, ObservationForm
from fugu.vector.vector import Vector

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error

Indices = int | Iterable[int] | None


def to_sb3(
    env: Vector | str | Callable[..., Any],
    num_envs: int | None = None,
    *,
    action_bins: int | None = None,
    **make_options: Any,
) -> StableBaselinesVecEnv:
    """A vector as a `stable_baselines3.common.vec_env.VecEnv`.

    Given an environment, it makes the vector, and everything equals Stable-Baselines3's own
    `DummyVecEnv`. Given a `Vector` from `fugu.make`, it stays as it was made: by default with
    fugu's seeds, one for every episode, and with one info for each episode, which is quicker.

    Observations that Stable-Baselines3 does not know (nested, or with texts and sequences) become
    one Dict of their leaves, "outer/inner", for its `MultiInputPolicy`. Trees of actions become one
    MultiDiscrete or one Box. Every info of an episode's end has the "episode" that it logs.

    A step that a fault broke (a worker that was restarted) counts as one cut off by a time limit.

    Args:
        env: A vector of single agents, or what `fugu.make` makes one of.
        num_envs: Copies, if the vector is to be made.
        action_bins: Make choices of continuous actions: so many values each. Needed only for
            actions that mix them with choices, which Stable-Baselines3 cannot give.
        **make_options: Of `fugu.make`, if the vector is to be made.

    >>> envs = to_sb3("CartPole-v1", 3, backend="serial")
    >>> envs.seed(1)
    [1, 2, 3]
    >>> envs.reset().shape
    (3, 4)
    >>> observations, rewards, dones, infos = envs.step(np.ones(3, int))
    >>> infos[0], rewards
    ({'TimeLimit.truncated': False}, array([1., 1., 1.], dtype=float32))
    >>> envs.close()
    """
    bridge = bridge_to(env, num_envs, make_options)
    try:
        return StableBaselinesVecEnv(bridge, action_bins)
    except BaseException:
        if bridge.vector is not env:
            bridge.vector.close()
        raise


class StableBaselinesVecEnv(VecEnv):
    """A fugu vector that Stable-Baselines3 takes; `to_sb3` makes it.

    Attributes:
        vector: The vector itself.
    """

    def __init__(self, bridge: Bridge, action_bins: int | None) -> None:
        self._bridge, self.vector = bridge, bridge.vector
        self._observations = ObservationForm(bridge.observation_layout)
        self._actions = ActionForm(bridge.action_layout, action_bins)
        super().__init__(bridge.num_envs, self._observations.space, self._actions.space)
        self.metadata = bridge.metadata
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._start = time.time()

    # ------------------------------------------------------------------ reset and step

    def reset(self) -> Any:
        """Begin anew, with what `seed` and `set_options` were given last."""
        seeds = None if all(seed is None for seed in self._seeds) else self._seeds
        batch = self._bridge.reset(seeds, self._options)
        self.reset_infos = [
            dict(batch.infos[env][0]) if env in batch.infos else {} for env in range(self.num_envs)
        ]
        self._returns[:], self._lengths[:] = 0.0, 0
        self._reset_seeds()
        self._reset_options()
        return self._observations.take(batch.observations)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step of all."""
        try:
            rows = self._actions.rows(actions, self.num_envs)
        except PackError as error:
            raise refusal(error) from None
        self._bridge.send(rows)

    def step_wait(self) -> tuple[Any, NDArray[Any], NDArray[Any], list[Info]]:
        """End the step: `(observations, rewards, dones, infos)`."""
        arrival = self._bridge.recv()
        rows = arrival.rows
        self._returns += rows.rewards
        self._lengths += 1
        infos = [
            {**arrival.infos.get(env, {}), "TimeLimit.truncated": bool(cut)}
            for env, cut in enumerate(arrival.truncations & ~rows.terminations)
        ]
        for env in arrival.final:
            self._end_episode(env, infos[env], arrival)
        return self._observations.take(rows.observations), rows.rewards.copy(), arrival.ended, infos

    def _end_episode(self, env: int, info: Info, arrival: Arrival) -> None:
        info["terminal_observation"] = self._observations.take(arrival.final[env])
        # An environment in a Monitor says it itself.
        info.setdefault(
            "episode",
            {
                "r": round(float(self._returns[env]), 6),
                "l": int(self._lengths[env]),
                "t": round(time.time() - self._start, 6),
            },
        )
        self.reset_infos[env] = arrival.first_infos.get(env, {})
        self._returns[env], self._lengths[env] = 0.0, 0

    # ------------------------------------------------------------------ the environments themselves

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute of each environment."""
        return self._ask(f"get {attr_name}", indices)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of each environment to one value."""
        self._ask(f"set {attr_name}", indices, values=[value] * self.num_envs)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: Indices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Call a method of each environment: what each said."""
        return self._ask(f"call {method_name}", indices, arguments=method_args, named=method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Whether each environment has a wrapper of that class."""
        name = (wrapper_class.__module__, wrapper_class.__name__)
        return list(self.vector.apply(is_wrapped_in, *name, env_ids=self._numbers(indices)))

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """A picture of each environment, if they were made with `render_mode="rgb_array"`."""
        if self.render_mode != "rgb_array":
            warnings.warn(
                f"get_images: given environments with render_mode={self.render_mode!r}; allowed: "
                "'rgb_array'. Make them with it.",
                stacklevel=2,
            )
            return [None] * self.num_envs
        return list(self.vector.render())

    def close(self) -> None:
        """End the vector's workers. Calling it again does nothing."""
        self.vector.close()

    def _ask(self, name: str, indices: Indices, **arguments: Any) -> list[Any]:
        return list(self.vector.ask(name, env_ids=self._numbers(indices), **arguments))

    def _numbers(self, indices: Indices) -> list[int]:
        """The environments that indices name; as in lists, negative ones count from the end."""
        return [range(self.num_envs)[int(index)] for index in self._get_indices(indices)]
