"""Games: one copy of an environment that people play, or that a run's policies play."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.cli.screens import cell_name
from fugu.core.errors import UsageError
from fugu.core.seeding import derive, fresh_seed
from fugu.envs.contract import Buffers, Env
from fugu.envs.native_env import (
    BOX,
    TYPES,
    Key,
    NativeEnv,
    NativeSpec,
    as_bytes,
    native_library,
)
from fugu.envs.picture import Picture, check_picture, resize
from fugu.envs.recipes import find_recipe
from fugu.envs.resolve import resolve
from fugu.vector import Batch, Vector, make
from fugu.vector.random_actions import RandomActions


class Control:
    """One number of one agent's action, and the keys that set it."""

    def __init__(self, env: NativeEnv, keys: Sequence[Key]) -> None:
        first = keys[0]
        self.group, self.agent = first.group, first.agent
        self._keys = {key.name: key.value for key in keys}
        leaves = env.spec.leaves[first.group][1]
        leaf = leaves[first.leaf]
        dtype = TYPES[leaf["type"]]
        self._dtype, self._start = dtype, leaf["offset"] + first.index * dtype.itemsize
        self._choices = 0 if leaf["kind"] == BOX else int(leaf["choices"])
        self._column = sum(map(_choices, leaves[: first.leaf])) + first.index * self._choices
        free = set(range(self._choices)) - {int(value) for value in self._keys.values()}
        only = free.pop() if len(free) == 1 else None
        # What is done while no key is held; None: what was done last.
        self._idle: float | None = 0.0 if 0 in free or not self._choices else only
        self._value = 0.0 if self._idle is None else self._idle

    def hold(self, held: Iterable[str]) -> None:
        """Take the keys that are held, the one pressed last at the end."""
        values = [self._keys[name] for name in held if name in self._keys]
        if values:
            self._value = values[-1]
        elif self._idle is not None:
            self._value = self._idle

    def allowed(self, rows: Buffers) -> bool:
        """Return whether the mask allows the action."""
        column = self._column + int(self._value)
        return not self._choices or bool(rows.action_masks[self.agent, column])

    def write(self, rows: Buffers) -> None:
        """Write the number into the agent's action."""
        row: NDArray[Any] = as_bytes(rows.actions)[self.agent]
        row[self._start : self._start + self._dtype.itemsize].view(self._dtype)[0] = self._value


class Game:
    """One copy of a native environment; people move some agents, the others act at random.

    Attributes:
        env: The environment.
        names: Names of the keys that do something, and of cells to point at.
        steps: Number of steps so far.
        score: Return of this episode so far, of the first agent that a person plays.
        last_score: Return of the episode before, if there was one.
        best_score: The highest return of an episode.
    """

    def __init__(self, env: NativeEnv, seed: int | None = None, players: int | None = None) -> None:
        keys = [*env.spec.keys, *_keys_of_cells(env.spec)]
        agents = list(dict.fromkeys((key.group, key.agent) for key in keys))
        if not agents:
            name = env.library.name
            raise UsageError(
                f"play: given {name!r}, which has no keys; allowed: an environment that names some "
                f"with fugu_key or fugu_cells. fugu record {name} shows it played by chance."
            )
        if players is not None and not 1 <= players <= len(agents):
            raise UsageError(
                f"players: given {players}; allowed: from 1 to {len(agents)}, the agents of "
                f"{env.library.name!r} that have keys."
            )
        played = agents[:players]
        places: dict[tuple[int, int, int, int], list[Key]] = {}
        for key in keys:
            if (key.group, key.agent) in played:
                places.setdefault((key.group, key.agent, key.leaf, key.index), []).append(key)
        self.env, self._first, self._played = env, played[0], played
        self.size, self.rate = env.spec.size, env.spec.frames
        self._controls = [Control(env, own) for own in places.values()]
        self.names = tuple(dict.fromkeys(k.name for own in places.values() for k in own))
        self.steps, self.score = 0, 0.0
        self.last_score: float | None = None
        self.best_score: float | None = None
        root = fresh_seed() if seed is None else seed
        self._players = [
            RandomActions(group, group.num_agents, derive(root, i))
            for i, group in enumerate(env.groups)
        ]
        env.bind(*(Buffers.allocate(group) for group in env.groups))
        env.reset(root)

    def picture(self, size: tuple[int, int]) -> Picture:
        """Return a picture of this width and height."""
        return self.env.render(size)

    def cell_at(self, x: float, y: float) -> str | None:
        """Return the name of the cell at a place of the picture, in its own units, if there is one.

        Where several agents may point at one, it is the first of them whose turn it is.
        """
        for cells in self.env.spec.cells:
            live = (0, cells.agent) in self._played and self.env.buffers[0].live[cells.agent]
            column = int((x - cells.x) / cells.width * cells.columns // 1)
            row = int((y - cells.y) / cells.height * cells.rows // 1)
            if live and 0 <= column < cells.columns and 0 <= row < cells.rows:
                return cell_name(row * cells.columns + column)
        return None

    @property
    def waits(self) -> bool:
        """Whether the game stands still until a person presses a key."""
        live = any(self.env.buffers[group].live[agent] for group, agent in self._played)
        return self.env.spec.waits_for_a_key and live

    def reset(self) -> None:
        """Start the next episode."""
        self.env.reset()
        self.score = 0.0

    def step(self, held: Iterable[str]) -> bool:
        """Make a step while keys are held; False if what they ask for is not allowed now.

        Where no key is held and the idle action is not allowed, a random one is taken.
        """
        held = list(held)
        buffers = self.env.buffers
        for rows, player in zip(buffers, self._players, strict=True):
            rows.actions[:] = player.sample(rows)
        for control in self._controls:
            rows = buffers[control.group]
            control.hold(held)
            if not rows.live[control.agent]:
                continue
            if control.allowed(rows):
                control.write(rows)
            elif self.waits:
                return False
        self.env.step()
        self._count()
        return True

    def status(self) -> str:
        """Return the score in a line."""
        parts = [self.env.library.name, f"return {self.score:g}"]
        if self.last_score is not None and self.best_score is not None:
            parts += [f"last {self.last_score:g}", f"best {self.best_score:g}"]
        return "   ".join(parts)

    def _count(self) -> None:
        group, agent = self._first
        rows = self.env.buffers[group]
        self.steps += 1
        self.score += float(np.round(rows.rewards[agent], 6))
        if rows.terminations[agent] or rows.truncations[agent]:
            best = self.score if self.best_score is None else max(self.best_score, self.score)
            self.last_score, self.best_score, self.score = self.score, best, 0.0


def _keys_of_cells(spec: NativeSpec) -> list[Key]:
    """Return each cell as a key of the agent that may point at it."""
    return [
        Key(cell_name(value), 0, cells.agent, 0, 0, value)
        for cells in spec.cells
        for value in range(cells.columns * cells.rows)
    ]


def _choices(leaf: dict[str, Any]) -> int:
    """Return the number of entries that a leaf has in a mask."""
    return 0 if leaf["kind"] == BOX else int(leaf["choices"] * np.prod(leaf["shape"], dtype=int))


class WatchedGame:
    """One copy of any environment, whose agents act by a run's policies; no key moves them."""

    names: tuple[str, ...] = ()
    waits = False
    _batch: Batch
    _score: float  # of this episode
    _length: int

    def __init__(
        self, name: str, vec: Vector, players: Callable[[Vector], Callable[[Batch], Any]], seed: int
    ) -> None:
        self.name, self._vec, self._make_players = name, vec, players
        self.steps, self._seed = 0, seed
        self._returns: list[float] = []
        self._start()
        (first,) = vec.apply(_picture, None)
        (rate,) = vec.apply(_rate)
        self.size: tuple[float, float] = (first.shape[1], first.shape[0])
        self.rate = float(rate or 0)

    def cell_at(self, x: float, y: float) -> None:
        """Return None: there are no cells."""

    def reset(self) -> None:
        """Start again with another seed."""
        self._seed += 1
        self._start()

    def step(self, held: Iterable[str]) -> bool:
        """Make a step."""
        self._vec.send(self._players(self._batch))
        self._batch = self._vec.recv()
        self.steps += 1
        self._length += 1
        rows = self._batch.groups[0].rows
        self._score += float(np.round(rows.rewards[0], 6))
        for info in self._batch.infos.get(0, ()):
            if "episode_return" in info:
                self._returns.append(float(info["episode_return"]))
        if rows.terminations[0] or rows.truncations[0]:  # other agents may end before or after
            self._score, self._length = 0.0, 0
        return True

    def status(self) -> str:
        """Return the scores in a line."""
        parts = [self.name, f"step {self._length}", f"return {self._score:g}"]
        if self._returns:
            mean = sum(self._returns) / len(self._returns)
            parts.append(f"mean of {len(self._returns)} episodes {mean:.4g}")
        return "   ".join(parts)

    def picture(self, size: tuple[int, int]) -> Picture:
        """Return a picture of this width and height."""
        (found,) = self._vec.apply(_picture, size)
        return fit(check_picture(found), size)

    def _start(self) -> None:
        self._players = self._make_players(self._vec)
        self._vec.async_reset(self._seed)
        self._batch = self._vec.recv()
        self._score, self._length = 0.0, 0


def watched_vector(env: str, kwargs: Mapping[str, Any]) -> Vector:
    """Return one copy of an environment that gives pictures."""
    if native_library(resolve(env, **kwargs)):
        return make(env, 1, backend="native", env_kwargs=kwargs)
    recipe = find_recipe(env)
    draws = recipe.draws if recipe else ":" not in env  # a factory has arguments of its own
    options = {"render_mode": "rgb_array", **kwargs} if draws else kwargs
    return make(env, 1, backend="serial", env_kwargs=options)


def fit(picture: Picture, size: tuple[int, int]) -> Picture:
    """Return the picture as large as it can be inside a size, on black.

    >>> fit(np.full((2, 2, 3), 255, np.uint8), (4, 2))[0, :, 0].tolist()
    [0, 255, 255, 0]
    """
    height, width, _ = picture.shape
    if (width, height) == size:
        return picture
    scale = min(size[0] / width, size[1] / height)
    wide, high = max(1, round(width * scale)), max(1, round(height * scale))
    out = np.zeros((size[1], size[0], 3), np.uint8)
    left, top = (size[0] - wide) // 2, (size[1] - high) // 2
    out[top : top + high, left : left + wide] = resize(picture, wide, high)
    return out


def _picture(env: Env, size: tuple[int, int] | None) -> Any:
    return env.render(size) if isinstance(env, NativeEnv) else env.render()


def _rate(env: Env) -> float | None:
    if isinstance(env, NativeEnv):
        return env.spec.frames
    found: dict[str, Any] = getattr(getattr(env, "source", env), "metadata", None) or {}
    return found.get("render_fps")
