"""A vector as Gymnasium's `VectorEnv`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from fugu.core.errors import PackError, UsageError
from fugu.spaces import Layout
from fugu.spaces.layout import flat_space
from fugu.vector.bridge import Bridge, bridge_to, refusal
from fugu.vector.vector import Vector

try:
    from gymnasium.vector import AutoresetMode
except ImportError as error:
    raise UsageError(
        f"to_gymnasium: given gymnasium {gymnasium.__version__}, whose vectors do not say when "
        "they restart episodes; allowed: 1.1 or newer."
    ) from error

_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
Array = NDArray[Any]


def to_gymnasium(
    env: Vector | str | Callable[..., Any],
    num_envs: int | None = None,
    *,
    copy: bool = True,
    flat: bool = False,
    **make_options: Any,
) -> GymnasiumVectorEnv:
    """Return a vector as a `gymnasium.vector.VectorEnv` that restarts episodes in the same step.

    Given an environment, it makes the vector, and everything equals Gymnasium's own
    `SyncVectorEnv(..., autoreset_mode=AutoresetMode.SAME_STEP)`: copy `i` is seeded with
    `seed + i` once, and every info of every step is there. (Rewards pass through 32 bits, and an
    action outside its space is refused.)

    Given a `Vector` from `fugu.make`, it stays as it was made. By default that means fugu's seeds,
    one for every episode, and its infos, one summary of each episode in `infos["final_info"]`,
    which is quicker. With `seeding="first", infos="all"` it equals Gymnasium's.

    `reset()` without a seed continues with the next episodes. A step that a fault broke (a worker
    that was restarted) is truncated, with the fault in `infos["final_info"]["fault"]`.

    Args:
        env: A vector of single agents, or what `fugu.make` makes one of.
        num_envs: The number of copies, if the vector is to be made.
        copy: Return copies of observations, which are overwritten by the next step otherwise.
        flat: Return observations as flat rows of `observation_layout`, for policies that unpack
            them in their first layer.
        **make_options: Arguments of `fugu.make`, if the vector is to be made.

    >>> envs = to_gymnasium("Blackjack-v1", 3, backend="serial")
    >>> observations, infos = envs.reset(seed=1)
    >>> [part.shape for part in observations], envs.single_observation_space
    ([(3,), (3,), (3,)], Tuple(Discrete(32), Discrete(11), Discrete(2)))
    >>> observations, rewards, terminations, truncations, infos = envs.step(np.ones(3, int))
    >>> envs.close()
    """
    return GymnasiumVectorEnv(bridge_to(env, num_envs, make_options), copy=copy, flat=flat)


class GymnasiumVectorEnv(VectorEnv[Any, Any, Array]):
    """A fugu vector that Gymnasium's tools take; `to_gymnasium` makes it.

    Attributes:
        vector: The vector itself.
        observation_layout: The layout of its observations in flat rows.
        action_layout: The layout of its actions in flat rows.
    """

    def __init__(self, bridge: Bridge, *, copy: bool, flat: bool) -> None:
        self._bridge, self.vector, self.num_envs = bridge, bridge.vector, bridge.num_envs
        layout = self.observation_layout = bridge.observation_layout
        self.action_layout = bridge.action_layout
        self.metadata = {**bridge.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode, self.spec = bridge.render_mode, bridge.spec
        self.single_observation_space = flat_space(layout) if flat else layout.space
        self.single_action_space = self.action_layout.space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._form = BatchedObservations(layout, self.num_envs, copy=copy, flat=flat)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all copies, or some of them.

        Args:
            seed: The seed of all copies, or a list with that of each; None continues their own.
            options: Options of every copy. The entry "reset_mask" names those to reset; the others
                stay as they are.
        """
        given = dict(options or {})
        mask = given.pop("reset_mask", None)
        if mask is not None:
            _check_mask(mask, self.num_envs)
        batch = self._bridge.reset(seed, given, mask)
        infos: dict[str, Any] = {}
        for env in sorted(batch.infos):
            self._add_info(infos, batch.infos[env][0], env)
        return self._form.batch(batch.observations), infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step all copies: `(observations, rewards, terminations, truncations, infos)`."""
        self._bridge.send(self._action_rows(actions))
        arrival = self._bridge.recv()
        infos: dict[str, Any] = {}
        for env in sorted(arrival.infos.keys() | arrival.final.keys()):
            info = arrival.infos.get(env, {})
            if env in arrival.final:
                final = self._form.single(arrival.final[env])
                self._add_info(infos, {"final_obs": final, "final_info": info}, env)
                info = arrival.first_infos.get(env, {})
            self._add_info(infos, info, env)
        rows = arrival.rows
        return (
            self._form.batch(rows.observations),
            rows.rewards.astype(np.float64),
            rows.terminations.copy(),
            arrival.truncations,
            infos,
        )

    def call(self, name: str, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """Call a method of every environment (or get an attribute) and return the results."""
        return self.vector.call(name, *arguments, **named)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment; as in Gymnasium, a method is called."""
        return self.vector.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment, to one value or to one for each in a list."""
        self.vector.set_attr(name, values)

    def render(self) -> tuple[Any, ...]:
        """Return what every environment renders, in the render mode it was made with."""
        return self.vector.render()

    @property  # type: ignore[misc]  # as in Gymnasium's own vectors, it cannot be set
    def np_random(self) -> Any:
        """The generators of the environments, or copies of them from other processes."""
        return self.vector.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """The seeds that the environments were reset with last."""
        return self.vector.get_attr("np_random_seed")

    def close_extras(self, **_: Any) -> None:
        """End the vector's workers."""
        self.vector.close()

    def _action_rows(self, actions: Any) -> Array:
        """Return batched actions as flat rows, or raise an `ActionError`."""
        layout, count = self.action_layout, self.num_envs
        if isinstance(layout.space, _ARRAYS):
            flat = np.asarray(actions)
            whole = flat.shape == (count, *(layout.space.shape or ()))
            return flat.reshape(count, layout.size) if whole else flat
        each = list(iterate(self.action_space, actions))
        rows = layout.zeros(len(each))
        for env, (action, row) in enumerate(zip(each, rows, strict=True)):
            try:
                layout.pack(action, row)
            except PackError as error:
                raise refusal(error, env) from None
        return rows


class BatchedObservations:
    """Gives flat rows the form in which Gymnasium's vectors have observations.

    Spaces that are arrays, in dicts and tuples, become views of the rows; Gymnasium leaves texts,
    sequences and the like one by one.
    """

    def __init__(self, layout: Layout, num_envs: int, *, copy: bool, flat: bool = False) -> None:
        self._layout, self._num_envs, self._copy, self._flat = layout, num_envs, copy, flat
        self._room: Any = None  # for values one by one, unless they are copied
        self._one_by_one = not flat and not _is_array_tree(layout.space)
        if self._one_by_one:
            self._room = create_empty_array(layout.space, num_envs)

    def batch(self, rows: Array) -> Any:
        """Return all rows together."""
        if self._one_by_one:
            space = self._layout.space
            room = create_empty_array(space, self._num_envs) if self._copy else self._room
            values = [self._layout.unpack(row, self._copy) for row in rows]
            return concatenate(space, values, room)
        tree = rows if self._flat else self._layout.views(rows)
        return _copied(tree) if self._copy else tree

    def single(self, row: Array) -> Any:
        """Return a copy of one row as a value of its space."""
        return row.copy() if self._flat else self._layout.unpack(row, True)


def _is_array_tree(space: Space[Any]) -> bool:
    match space:
        case spaces.Dict():
            return all(map(_is_array_tree, space.spaces.values()))
        case spaces.Tuple():
            return all(map(_is_array_tree, space.spaces))
        case _:
            return isinstance(space, _ARRAYS)


def _copied(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _copied(item) for key, item in tree.items()}
    return tuple(map(_copied, tree)) if isinstance(tree, tuple) else tree.copy()


def _check_mask(mask: Any, num_envs: int) -> None:
    is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (num_envs,)
    if not is_mask or not mask.any():
        raise UsageError(
            f"options['reset_mask']: given {mask!r}; allowed: a NumPy array of {num_envs} bools, "
            "at least one of them True."
        )
