"""A vector as Stable-Baselines3's `VecEnv`.

It takes Box, Discrete, MultiDiscrete and MultiBinary, and for observations one Dict of those. So an
observation becomes one Dict of its layout's leaves, and an action one array of numbers.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, PackError, UsageError
from fugu.envs.contract import Info
from fugu.envs.masks import mask_heads
from fugu.native.nodes import join
from fugu.native.packing import describe
from fugu.spaces import Layout, Leaf
from fugu.vector.bridge import Arrival, Bridge, bridge_to, is_wrapped_in, refusal
from fugu.vector.vector import Vector

try:
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    raise MissingExtraError("stable-baselines3", "sb3") from error

Indices = int | Iterable[int] | None
Array = NDArray[Any]
_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def to_sb3(
    env: Vector | str | Callable[..., Any],
    num_envs: int | None = None,
    *,
    action_bins: int | None = None,
    **make_options: Any,
) -> StableBaselinesVecEnv:
    """Return a vector as a `stable_baselines3.common.vec_env.VecEnv`.

    Given an environment, it makes the vector, and everything equals Stable-Baselines3's own
    `DummyVecEnv`. Given a `Vector` from `fugu.make`, it stays as it was made: by default with
    fugu's seeds, one for every episode, and with one info for each episode, which is quicker.

    Observations that Stable-Baselines3 does not know (nested, or with texts and sequences) become
    one Dict of their leaves, "outer/inner", for its `MultiInputPolicy`. Trees of actions become one
    MultiDiscrete or one Box. Every info of an episode's end has the "episode" that it logs.

    A step that a fault broke (a worker that was restarted) counts as one cut off by a time limit.

    Args:
        env: A vector of single agents, or what `fugu.make` makes one of.
        num_envs: The number of copies, if the vector is to be made.
        action_bins: Turn continuous actions into choices of so many values each. Needed only for
            actions that mix both, which Stable-Baselines3 does not have.
        **make_options: Arguments of `fugu.make`, if the vector is to be made.

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

    def reset(self) -> Any:
        """Reset all, with what `seed` and `set_options` were given last."""
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
        """Begin a step of all environments."""
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
        elapsed = round(time.time() - self._start, 6)
        total, length = round(float(self._returns[env]), 6), int(self._lengths[env])
        # An environment in a Monitor has it already.
        info.setdefault("episode", {"r": total, "l": length, "t": elapsed})
        self.reset_infos[env] = arrival.first_infos.get(env, {})
        self._returns[env], self._lengths[env] = 0.0, 0

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Return an attribute of each environment."""
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
        """Call a method of each environment and return the results."""
        return self._ask(f"call {method_name}", indices, arguments=method_args, named=method_kwargs)

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Indices = None) -> list[bool]:
        """Return whether each environment has a wrapper of that class."""
        name = (wrapper_class.__module__, wrapper_class.__name__)
        return list(self.vector.apply(is_wrapped_in, *name, env_ids=self._numbers(indices)))

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Return a picture of each environment made with `render_mode="rgb_array"`."""
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
        """Return the environments of indices; as in lists, negative ones count from the end."""
        return [range(self.num_envs)[int(index)] for index in self._get_indices(indices)]


# ------------------------------------------------------------------ spaces


def leaf_of(leaf: Leaf, rows: Array) -> Array:
    """Return the view of one leaf in flat rows, `[..., *leaf.shape]`."""
    raw = rows.view(np.uint8)[..., leaf.offset : leaf.offset + leaf.nbytes]
    return raw.view(leaf.dtype).reshape((*rows.shape[:-1], *leaf.shape))


@dataclass(frozen=True)
class OfferedLeaf:
    """A leaf of an observation, and its space for Stable-Baselines3, whose choices begin at 0."""

    leaf: Leaf
    space: Space[Any]
    start: Array | int = 0
    last: Array | int | None = None  # choice; None if it is not one

    def take(self, rows: Array) -> Array:
        """Return a copy of it from flat rows, in its space."""
        shape = (*rows.shape[:-1], *(self.space.shape or ()))
        values = leaf_of(self.leaf, rows).reshape(shape)
        if self.last is not None:
            # What only fills up a sequence is 0, which need not be one of its choices.
            values = np.clip(values - self.start, 0, self.last)
        return values.astype(self.space.dtype)


class ObservationForm:
    """Observations in the form that Stable-Baselines3 takes.

    Spaces that Stable-Baselines3 knows stay as they are. Any other becomes one Dict of the
    layout's leaves by their paths, "outer/inner"; texts and sequences have their lengths, masks
    and items.

    >>> tree = spaces.Dict(a=spaces.Dict(b=spaces.Discrete(3, start=5)), c=spaces.Box(0, 1, ()))
    >>> ObservationForm(Layout.of(tree)).space
    Dict('a/b': Discrete(3), 'c': Box(0.0, 1.0, (1,), float32))
    """

    def __init__(self, layout: Layout) -> None:
        self._single = isinstance(layout.space, _ARRAYS)
        prefix = "" if isinstance(layout.space, spaces.Dict | spaces.Tuple) else "observation/"
        leaves = {f"{prefix}{leaf.path}": leaf for leaf in layout.leaves if leaf.nbytes}
        if not leaves:
            raise UsageError(f"observation: given {layout.space}, which is empty; allowed: a leaf.")
        self._leaves = {key: _offer(leaf) for key, leaf in leaves.items()}
        self.space: Space[Any]
        if self._single:
            (self._only,) = self._leaves.values()
            self.space = self._only.space
        else:
            self.space = spaces.Dict({key: one.space for key, one in self._leaves.items()})

    def take(self, rows: Array) -> Any:
        """Return copies of flat rows, or of one row, in `space`."""
        if self._single:
            return self._only.take(rows)
        return {key: leaf.take(rows) for key, leaf in self._leaves.items()}


def _offer(leaf: Leaf) -> OfferedLeaf:
    space, shape = leaf.space, leaf.shape
    match space:
        case spaces.Discrete() if not shape:
            count = int(space.n)
            return OfferedLeaf(leaf, spaces.Discrete(count), int(space.start), count - 1)
        case spaces.Discrete():  # one for each slot of a sequence
            counts = np.full(int(np.prod(shape)), int(space.n))
            return OfferedLeaf(leaf, spaces.MultiDiscrete(counts), int(space.start), counts - 1)
        case spaces.MultiDiscrete():
            counts = np.broadcast_to(space.nvec, shape).reshape(-1)
            start = np.broadcast_to(space.start, shape).reshape(-1)
            return OfferedLeaf(leaf, spaces.MultiDiscrete(counts), start, counts - 1)
        case spaces.Box() if leaf.dtype != np.bool_:
            low = np.broadcast_to(space.low, shape).reshape(shape or (1,))
            high = np.broadcast_to(space.high, shape).reshape(shape or (1,))
            return OfferedLeaf(leaf, spaces.Box(low, high, dtype=leaf.dtype.type))
        case spaces.MultiBinary() if space.shape == shape:
            return OfferedLeaf(leaf, space)
        case _:
            return OfferedLeaf(leaf, spaces.MultiBinary(list(shape or (1,))))


@dataclass(frozen=True)
class Columns:
    """The columns of one leaf of an action in Stable-Baselines3's actions.

    A choice `c` becomes `low + step * c`; a continuous number stays as it is.
    """

    leaf: Leaf
    begin: int
    counts: Array | None  # choices of each number; None for continuous ones
    low: Array | float = 0.0
    step: Array | float = 1.0

    def put(self, numbers: Array, rows: Array) -> None:
        """Write them into flat rows."""
        out = leaf_of(self.leaf, rows).reshape(len(rows), -1)
        chosen = numbers[:, self.begin : self.begin + out.shape[1]]
        values = chosen if self.counts is None else self.low + self.step * chosen
        out[...] = np.rint(values) if self.leaf.dtype.kind in "iub" else values


class ActionForm:
    """Actions in the form that Stable-Baselines3 returns.

    Spaces that Stable-Baselines3 knows stay as they are, their choices counted from 0. A tree of
    choices becomes one MultiDiscrete, a tree of continuous numbers one Box. It knows no action with
    both; `bins` makes choices of the continuous ones, that many evenly spaced values each.

    >>> tree = spaces.Dict(turn=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,)))
    >>> ActionForm(Layout.of(tree), bins=5).space
    MultiDiscrete([3 5 5])
    """

    def __init__(self, layout: Layout, bins: int | None = None) -> None:
        _refuse_variable(layout.space, "")
        if bins is not None and (isinstance(bins, bool) or not isinstance(bins, int) or bins < 2):
            raise UsageError(
                f"action_bins: given {bins!r}; allowed: an integer from 2 on, or None."
            )
        self._layout = layout
        self._columns: list[Columns] = []
        end = 0
        for leaf in layout.leaves:
            self._columns.append(_columns_of(leaf, end, bins))
            end += int(np.prod(leaf.shape))
        self._width = end
        _refuse_mixed(self._columns)
        self.space: Space[Any] = self._offer()

    def rows(self, actions: Any, count: int) -> Array:
        """Return the actions of `count` environments as flat rows."""
        given = np.asarray(actions)
        shape = (count, *(self.space.shape or ()))
        if given.shape != shape or given.dtype.kind not in "iufb":
            raise PackError("", f"as actions, {describe(given)}", f"numbers of shape {shape}")
        if not np.isfinite(given).all():
            raise PackError("", "actions that are not numbers", f"numbers of {self.space}")
        rows = self._layout.zeros(count)
        for columns in self._columns:
            columns.put(given.reshape(count, self._width), rows)
        return rows

    def _offer(self) -> Space[Any]:
        space = self._layout.space
        counts = [columns.counts for columns in self._columns]
        if counts[0] is None:
            if isinstance(space, spaces.Box):
                return space
            boxes: list[Any] = [columns.leaf.space for columns in self._columns]
            low = np.concatenate([box.low.reshape(-1) for box in boxes])
            high = np.concatenate([box.high.reshape(-1) for box in boxes])
            return spaces.Box(low.astype(np.float32), high.astype(np.float32))
        if isinstance(space, spaces.Discrete):
            return spaces.Discrete(int(space.n))
        if isinstance(space, spaces.MultiBinary):
            return spaces.MultiBinary(self._width)
        return spaces.MultiDiscrete(np.concatenate(counts))  # type: ignore[arg-type]


def _columns_of(leaf: Leaf, begin: int, bins: int | None) -> Columns:
    space = leaf.space
    match space:
        case spaces.Box():
            return Columns(leaf, begin, None) if bins is None else _bins(leaf, space, begin, bins)
        case spaces.Discrete() | spaces.MultiDiscrete():
            counts = np.array(mask_heads(Layout.of(space)))
            return Columns(leaf, begin, counts, np.asarray(space.start).reshape(-1))
        case _:
            return Columns(leaf, begin, np.full(int(np.prod(leaf.shape)), 2))


def _bins(leaf: Leaf, space: spaces.Box, begin: int, bins: int) -> Columns:
    low = space.low.reshape(-1).astype(np.float64)
    high = space.high.reshape(-1).astype(np.float64)
    if not np.isfinite([low, high]).all():
        raise UsageError(
            f"action leaf '{leaf.path}': given {space}, which is unbounded; allowed with "
            "action_bins: finite bounds. Bound it in a wrapper (RescaleAction)."
        )
    return Columns(leaf, begin, np.full(len(low), bins), low, (high - low) / (bins - 1))


def _refuse_variable(space: Space[Any], path: str) -> None:
    """Raise, with its name, if a part of an action is none of the arrays that SB3 can give."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, item in items:
            _refuse_variable(item, join(path, key))
    elif not isinstance(space, _ARRAYS):
        raise UsageError(
            f"action leaf '{path}': given {space}; allowed: Box, Discrete, MultiDiscrete and "
            "MultiBinary, alone or in dicts and tuples, since Stable-Baselines3 gives no other "
            "actions. Convert it in a wrapper."
        )


def _refuse_mixed(columns: list[Columns]) -> None:
    if not columns:
        raise UsageError("action: given a space with no leaf; allowed: at least one.")
    continuous = [one.leaf.path for one in columns if one.counts is None]
    if continuous and len(continuous) < len(columns):
        raise UsageError(
            f"action leaf '{continuous[0]}': given continuous numbers beside choices; allowed: one "
            "kind, since Stable-Baselines3 gives no mixed actions. Make choices of them, for "
            "example 5 values each: to_sb3(..., action_bins=5)."
        )
