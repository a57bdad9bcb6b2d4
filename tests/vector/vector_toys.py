"""Environments for vectors: structured, of many agents, slow, polled, and ill-behaved ones."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from fugu.envs.contract import AgentGroup, Buffers, Env
from fugu.spaces import Layout


class Walk(gymnasium.Env):  # type: ignore[type-arg]
    """A random walk whose episodes have random lengths, with a nested observation and an info."""

    def __init__(self, most: int = 12) -> None:
        self.observation_space = spaces.Dict(
            place=spaces.Box(-np.inf, np.inf, (2,), np.float64),
            count=spaces.Discrete(1000),
            word=spaces.Text(4, charset="ab"),
        )
        self.action_space = spaces.Dict(turn=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,)))
        self.most = most
        self.note = "unset"

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.place = 0, self.np_random.normal(size=2)
        self.length = int(self.np_random.integers(2, self.most))
        return self.observe(), {}

    def observe(self) -> Any:
        word = "a" * (1 + self.count % 4)
        return {"place": self.place, "count": self.count, "word": word}

    def step(self, action: Any) -> Any:
        self.count += 1
        noise = self.np_random.normal(size=2)
        self.place = self.place + action["push"] * (int(action["turn"]) - 1) + noise
        over = self.count >= self.length
        cut = bool(self.place.sum() > 4)
        info = {"where": float(self.place[0])} if self.count % 3 == 0 else {}
        return self.observe(), float(self.place[0]), over, cut and not over, info

    def describe(self, greeting: str, mark: str = ".") -> str:
        return f"{greeting} {self.count}{mark}"


class Herd:
    """A PettingZoo parallel environment: agents of two kinds that leave and join by chance."""

    metadata: dict[str, Any] = {"name": "herd"}

    def __init__(self) -> None:
        self.possible_agents = [f"sheep_{i}" for i in range(3)] + ["dog_0"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-99, 99, (3,)) if agent[0] == "s" else spaces.MultiDiscrete([50, 2])

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4) if agent[0] == "s" else spaces.Box(-1, 1, (1,))

    def see(self, agent: str) -> Any:
        if agent[0] == "s":
            return self.random.normal(size=3).astype(np.float32)
        return np.array([self.time, len(self.agents) % 2])

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.random = np.random.default_rng(seed)
        self.time = 0
        self.agents = [a for a in self.possible_agents if a != "sheep_2"]
        return {a: self.see(a) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.time += 1
        acted = list(actions)
        ends = {a: bool(self.random.random() < 0.1) for a in acted}
        cut = {a: self.time >= 20 and not ends[a] for a in acted}
        if self.time == 4 and "sheep_2" not in acted:
            self.agents.append("sheep_2")
        self.agents = [a for a in self.agents if not (ends.get(a) or cut.get(a))]
        everyone = list(dict.fromkeys(acted + self.agents))
        return (
            {a: self.see(a) for a in everyone},
            {a: float(np.sum(actions[a])) if a in actions else 0.0 for a in everyone},
            {a: ends.get(a, False) for a in everyone},
            {a: cut.get(a, False) for a in everyone},
            {a: {"time": self.time} for a in everyone},
        )

    def close(self) -> None:
        pass


class Small(gymnasium.Env):  # type: ignore[type-arg]
    """Counts; the least there is to step."""

    observation_space = spaces.Box(-1, 1e9, (2,))
    action_space = spaces.Discrete(5)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count = 0
        self.seed = float(seed % 1000) if seed is not None else -1.0
        self.options = options
        return self.observe(), {}

    def observe(self) -> Any:
        return np.array([self.count, self.seed], np.float32)

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.observe(), float(action), False, False, {}


class Sleepy(Small):
    """Sleeps as long as its action says, in units of 10 ms."""

    def step(self, action: Any) -> Any:
        time.sleep(0.01 * int(action))
        return super().step(action)


class Mortal(Small):
    """Sleeps for two seconds on actions 1 and 3. After actions 2 and 3, kills its process when its
    state is asked for, once: a file says that it did.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.last = file, 0

    def step(self, action: Any) -> Any:
        self.last = int(action)
        time.sleep(2.0 * (self.last % 2))
        return super().step(action)

    def get_state(self) -> bytes:
        if self.last >= 2 and not self.file.exists():
            self.file.touch()
            misbehave("kill")
        return bytes([self.count])

    def set_state(self, state: bytes) -> None:
        self.count = state[0]


def process_of(env: Any) -> int:
    return os.getpid()


class Chatty(Small):
    """Says much after every episode, and every step ends one."""

    def step(self, action: Any) -> Any:
        observation, reward, _, _, _ = super().step(action)
        return observation, reward, True, False, {"text": "x" * 20_000}


class Naughty(Small):
    """Does something bad on action 4: what, and in which call, it is told when it is made.

    `where` is "always" for any step.
    """

    def __init__(self, deed: str, where: str = "step", in_copy: bool = False) -> None:
        self.deed, self.where = deed, where
        if where == "init" and os.environ.get("FUGU_TEST_WORKER"):
            misbehave(deed)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.where == "reset" and options:
            misbehave(self.deed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self.where == "always" or (self.where == "step" and action == 4):
            misbehave(self.deed)
        return super().step(action)


def misbehave(deed: str) -> None:
    match deed:
        case "raise":
            raise ZeroDivisionError("a deed of its own")
        case "exit":
            sys.exit(3)
        case "hard-exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            import ctypes

            ctypes.string_at(0)
        case "stall":
            time.sleep(3600)
        case "spin":
            while True:
                pass


class Waiting(Env):
    """Waits for something outside: begins a step, and is polled until its time has come."""

    def __init__(self, seconds: float = 0.05) -> None:
        layout = Layout.of(spaces.Discrete(1000))
        self.groups = (AgentGroup("agent", ("agent_0",), layout, Layout.of(spaces.Discrete(5))),)
        self.seconds = seconds

    def bind(self, *buffers: Buffers) -> None:
        self.buffers = buffers
        buffers[0].valid[:] = True

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.count = 0
        self.write()

    def write(self) -> None:
        rows = self.buffers[0]
        rows.observations[:] = self.count
        rows.live[:] = True

    def step(self) -> None:
        raise AssertionError("it is polled")

    def begin_step(self) -> None:
        self.until = time.monotonic() + self.seconds * float(self.buffers[0].actions[0, 0])

    def poll(self) -> bool:
        if time.monotonic() < self.until:
            return False
        self.count += 1
        self.write()
        return True

    def close(self) -> None:
        pass


class Slow(Small):
    """Sleeps a little in every step."""

    def __init__(self, seconds: float = 0.002) -> None:
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


class Chance(gymnasium.Env):  # type: ignore[type-arg]
    """What comes next is chance: of its seed, or of nobody's if it `cheats`."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,))
    action_space = spaces.Box(-1, 1, (2,))

    def __init__(self, cheats: bool = False, seconds: float = 0.0) -> None:
        self.cheats, self.seconds = cheats, seconds

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {"luck": float(self.np_random.random())}

    def observe(self) -> Any:
        dice = np.random.default_rng() if self.cheats else self.np_random
        return dice.normal(size=3).astype(np.float32)

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        over = bool(self.np_random.random() < 0.04)
        reward = 0.1 * float(action.sum()) + float(self.np_random.normal())
        return self.observe(), reward, over, False, {}


class Keeper(Chance):
    """Gives and takes its state itself, and counts how often; with `kind`, something else."""

    calls: dict[str, int]

    def __init__(self, kind: str = "bytes") -> None:
        super().__init__()
        self.kind, self.calls = kind, {"get": 0, "set": 0, "step": 0}

    def step(self, action: Any) -> Any:
        self.calls["step"] += 1
        observation, reward, over, cut, _ = super().step(action)
        return observation, reward, over, cut, {"sum": float(action.sum())}

    def get_state(self) -> Any:
        self.calls["get"] += 1
        if self.kind != "bytes":
            return np.zeros(3)
        state = self.np_random.bit_generator.state["state"]
        return b"".join(state[name].to_bytes(16, "little") for name in ("state", "inc"))

    def set_state(self, state: bytes) -> None:
        self.calls["set"] += 1
        words = (int.from_bytes(state[at : at + 16], "little") for at in (0, 16))
        before = self.np_random.bit_generator.state
        before["state"] = dict(zip(("state", "inc"), words, strict=True))
        self.np_random.bit_generator.state = before
