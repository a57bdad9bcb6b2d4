"""Environments that show every form that values can have, and what compares them."""

from __future__ import annotations

import functools
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from strategies import value_of

NUM_ENVS = 3


def registered(name: str, **arguments: Any) -> Callable[[], Any]:
    return functools.partial(gymnasium.make, name, **arguments)


def run_example(name: str, *arguments: str) -> str:
    """What a script of examples prints, trained for a moment."""
    command = [sys.executable, f"examples/{name}.py", *arguments, "--total-steps", "2000"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def equal(a: Any, b: Any) -> bool:
    """Equal trees and arrays; whether a lone integer is Python's or NumPy's does not matter."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, np.ndarray) and a.ndim:
        if not isinstance(b, np.ndarray) or (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        return all(map(equal, a, b)) if a.dtype == object else a.tobytes() == b.tobytes()
    return bool(np.array_equal(a, b))


def digest(value: Any) -> int:
    """A number that tells values apart, whatever the width of their numbers."""
    match value:
        case dict():
            return digest(tuple(value[key] for key in sorted(value)))
        case tuple() | list():
            text = ",".join(str(digest(item)) for item in value)
        case str():
            text = value
        case _:
            text = str(np.asarray(value, np.float64).tolist())
    return zlib.crc32(text.encode())


def tamed(value: Any) -> Any:
    """The value with all its floats set to one half."""
    if isinstance(value, spaces.GraphInstance):
        return spaces.GraphInstance(*map(tamed, value))
    if isinstance(value, dict):
        return {key: tamed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(tamed, value))
    is_float = isinstance(value, np.ndarray | np.floating) and value.dtype.kind == "f"
    return np.full_like(value, 0.5) if is_float else value


class Talker(gymnasium.Env):  # type: ignore[type-arg]
    """Episodes of random lengths, ended in both ways, with infos of every kind now and then."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
    observation_space = spaces.Dict(
        place=spaces.Box(-np.inf, np.inf, (2,), np.float64),
        count=spaces.Discrete(1000),
        switches=spaces.MultiBinary(3),
    )
    action_space = spaces.Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.note: Any = "unset"
        self.greeting = "hello"

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.options = options
        self.count, self.place = 0, self.np_random.normal(size=2)
        self.length = int(self.np_random.integers(2, 9))
        return self.observe(), {"born": float(self.place[1]), "nested": {"length": self.length}}

    def observe(self) -> Any:
        switches = np.array([self.count & 1, self.count & 2, self.count & 4], bool)
        return {"place": self.place, "count": self.count, "switches": switches.astype(np.int8)}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.place = self.place + self.np_random.normal(size=2) * int(action)
        cut = bool(self.place.sum() > 5)
        over = self.count >= self.length
        return self.observe(), float(action) / 4, over, cut, self.infos()

    def infos(self) -> dict[str, Any]:
        every = {
            "speed": float(self.place[0]),
            "count": self.count,
            "flag": self.count % 2 == 0,
            "small": np.float32(self.place[0]),
            "word": "word" * self.count,
            "array": self.place.copy(),
            "nested": {"deep": {"x": self.place[1], "name": f"n{self.count}"}, "length": 3},
            "nothing": None,
            "list": [1, self.count],
        }
        return {key: every[key] for i, key in enumerate(every) if (self.count + i) % 3}

    def render(self) -> Any:
        return np.full((4, 5, 3), self.count, np.uint8)

    def greet(self, name: str, mark: str = ".") -> str:
        return f"{self.greeting} {name} {self.count}{mark}"

    def has_torch(self) -> bool:
        return "torch" in sys.modules

    def fail(self) -> None:
        raise ValueError("as it was told")


class Everything(gymnasium.Env):  # type: ignore[type-arg]
    """An observation with every kind of space, and an action with most.

    A tame one shows no wild numbers, and no choice of 2**32, which nobody can learn from.
    """

    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (2, 3), np.uint8),
        number=spaces.Box(-1, 1, ()),
        choice=spaces.Discrete(5, start=-2),
        choices=spaces.MultiDiscrete([[3, 4], [5, 6]]),
        bits=spaces.MultiBinary([2, 2]),
        echo=spaces.Discrete(2**32),
        text=spaces.Text(5, charset="abc"),
        pair=spaces.Tuple(
            (
                spaces.Sequence(spaces.Discrete(4, start=1)),
                spaces.Dict(deep=spaces.Box(-np.inf, np.inf, (3,), np.float64)),
            )
        ),
        stacked=spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
        either=spaces.OneOf((spaces.Discrete(3, start=2), spaces.Box(0, 1, (2,)))),
        graph=spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    )
    action_space = spaces.Dict(
        choice=spaces.Discrete(5, start=-2),
        pair=spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.Dict(bits=spaces.MultiBinary(3)))),
        push=spaces.Box(-1, 1, (2, 2)),
        text=spaces.Text(5, charset="abc"),
        either=spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))),
        sequence=spaces.Sequence(spaces.Box(0, 1, (2,))),
    )
    LIMITS = {"limits": 4, "action_limits": 64}

    def __init__(self, tame: bool = False) -> None:
        self.tame = tame
        if tame:
            parts = dict(self.observation_space.spaces)
            del parts["echo"]
            self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(0), {}

    def observe(self, echo: int) -> Any:
        value = value_of(self.observation_space, self.np_random)
        return tamed(value) if self.tame else {**value, "echo": echo, "number": np.float32(0.5)}

    def step(self, action: Any) -> Any:
        over = bool(self.np_random.random() < 0.2)
        return self.observe(digest(action)), 1.0, over, False, {}


class Choices(Everything):
    """As many spaces, but an action that is one tree of choices."""

    action_space = spaces.Tuple(
        (
            spaces.Discrete(5, start=-2),
            spaces.Dict(bits=spaces.MultiBinary(3), more=spaces.MultiDiscrete([[3, 4]])),
        )
    )


class Pushes(Everything):
    """An action that is a tree of continuous numbers."""

    action_space = spaces.Dict(a=spaces.Box(-1, 1, (2, 2)), b=spaces.Box(0, 5, (), np.float64))


class Remembers(gymnasium.Env):  # type: ignore[type-arg]
    """Shows what it was reset with and told to do."""

    observation_space = spaces.Box(-9, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(5)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        level = -1 if options is None else options.get("level", -2)
        self.seen = np.array([-1 if seed is None else seed, level, 0], np.float64)
        if options and options.get("fail"):
            raise ValueError("as it was told")
        return self.seen.copy(), {"level": level}

    def step(self, action: Any) -> Any:
        if action == 4:
            raise ValueError("as it was told")
        self.seen[2] += 1
        return self.seen.copy(), float(action), False, False, {}
