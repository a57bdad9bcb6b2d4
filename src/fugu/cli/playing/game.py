"""Games: a native environment whose agents people move, and chance moves the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.cli.playing.loop import cell_name
from fugu.core.errors import UsageError
from fugu.core.seeding import derive, fresh_seed
from fugu.envs.contract import Buffers
from fugu.envs.native_env import BOX, TYPES, Key, NativeEnv, NativeSpec, as_bytes
from fugu.envs.picture import Picture
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
        """These keys are held, the one pressed last at the end."""
        values = [self._keys[name] for name in held if name in self._keys]
        if values:
            self._value = values[-1]
        elif self._idle is not None:
            self._value = self._idle

    def allowed(self, rows: Buffers) -> bool:
        """Whether the mask lets the agent do it."""
        column = self._column + int(self._value)
        return not self._choices or bool(rows.action_masks[self.agent, column])

    def write(self, rows: Buffers) -> None:
        """Into the agent's action."""
        row: NDArray[Any] = as_bytes(rows.actions)[self.agent]
        row[self._start : self._start + self._dtype.itemsize].view(self._dtype)[0] = self._value


class Game:
    """One copy of an environment, and what a person wants to know of it.

    Attributes:
        env: The environment.
        names: Of the keys that do something, and of cells to point at.
        steps: That were made.
        score: The return of this episode so far, of the first agent that a person plays.
        last_score: The return of the episode before, if there was one.
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

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of its picture, in its own units."""
        return self.env.spec.size

    @property
    def rate(self) -> float:
        """Steps a second; 0 if the environment does not say."""
        return self.env.spec.frames

    def picture(self, size: tuple[int, int]) -> Picture:
        """A picture of now, of this width and height."""
        return self.env.render(size)

    def cell_at(self, x: float, y: float) -> str | None:
        """The name of the cell at a place of the picture, in its own units; None if there is none.

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
        """Whether it stands still until a person presses a key."""
        live = any(self.env.buffers[group].live[agent] for group, agent in self._played)
        return self.env.spec.waits_for_a_key and live

    def reset(self) -> None:
        """Begin the next episode."""
        self.env.reset()
        self.score = 0.0

    def step(self, held: Iterable[str]) -> bool:
        """Make a step while keys are held; False if what they ask for is not allowed now.

        What is asked for by nobody but the idle hand gives way to chance where it is not allowed.
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
        """The score in a line."""
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
    """Each cell as a key of the agent that may point at it."""
    return [
        Key(cell_name(value), 0, cells.agent, 0, 0, value)
        for cells in spec.cells
        for value in range(cells.columns * cells.rows)
    ]


def _choices(leaf: dict[str, Any]) -> int:
    """Entries that a leaf has in a mask."""
    return 0 if leaf["kind"] == BOX else int(leaf["choices"] * np.prod(leaf["shape"], dtype=int))
