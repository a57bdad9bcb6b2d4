"""Steps one workload with one library, whenever it is asked to. Runs in the library's own venv.

    python benchmarks/vector_runner.py LIBRARY WORKLOAD COPIES

Prints READY, then for each line of standard input, a number of seconds, steps for that long and
prints RATE and the steps a second.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from workloads import WORKLOADS

ENVPOOL_TASKS = {"cartpole": "CartPole-v1", "breakout": "Breakout-v5"}
Round = Callable[[], int]  # steps some environments; how many


def raw(make: Any, copies: int, rng: np.random.Generator) -> Round:
    """A plain loop over the copies in one process: no library at all."""
    envs = [make() for _ in range(copies)]
    for i, env in enumerate(envs):
        env.reset(seed=i)
    choices = envs[0].action_space.n
    actions = rng.integers(0, choices, (64, copies))
    state = {"turn": 0}

    def step() -> int:
        state["turn"] = (state["turn"] + 1) % 64
        for env, action in zip(envs, actions[state["turn"]], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return copies

    return step


def gymnasium_vector(make: Any, copies: int, rng: np.random.Generator, kind: str) -> Round:
    """Gymnasium's own vectors."""
    import gymnasium

    cls = gymnasium.vector.SyncVectorEnv if kind == "sync" else gymnasium.vector.AsyncVectorEnv
    vec = cls([make] * copies)
    vec.reset(seed=0)
    actions = rng.integers(0, vec.single_action_space.n, (64, copies))
    return _stepping(vec.step, actions, copies)


def sb3(make: Any, copies: int, rng: np.random.Generator, kind: str) -> Round:
    """Stable-Baselines3's vectors."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if kind == "dummy":
        vec = DummyVecEnv([make] * copies)
    else:  # "fork", since each worker of its default imports torch anew: 128 never begin
        vec = SubprocVecEnv([make] * copies, start_method="fork")
    vec.reset()
    actions = rng.integers(0, vec.action_space.n, (64, copies))
    return _stepping(vec.step, actions, copies)


def pufferlib(make: Any, copies: int, rng: np.random.Generator, kind: str) -> Round:
    """PufferLib 3.0's vectors: serial, or 2 worker processes."""
    import pufferlib.emulation
    import pufferlib.vector

    def creator(buf: Any = None, seed: int = 0) -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(env_creator=make, buf=buf, seed=seed)

    if kind == "serial":
        vec = pufferlib.vector.make(creator, backend=pufferlib.vector.Serial, num_envs=copies)
    else:
        vec = pufferlib.vector.make(
            creator,
            backend=pufferlib.vector.Multiprocessing,
            num_envs=copies,
            num_workers=2,
            batch_size=copies if kind == "sync" else copies // 2,
            overwork=True,
        )
    vec.async_reset(0)
    batch = copies if kind != "async" else copies // 2
    actions = rng.integers(0, vec.single_action_space.n, (64, batch)).astype(np.int32)
    state = {"turn": 0}

    def step() -> int:
        vec.recv()
        state["turn"] = (state["turn"] + 1) % 64
        vec.send(actions[state["turn"]])
        return batch

    return step


def envpool(copies: int, rng: np.random.Generator, kind: str, task: str) -> Round:
    """EnvPool's native environments."""
    import envpool as library

    batch = copies if kind == "sync" else copies // 2
    vec = library.make(
        task, env_type="gymnasium", num_envs=copies, batch_size=batch, num_threads=2, seed=0
    )
    actions = rng.integers(0, vec.action_space.n, (64, batch)).astype(np.int32)
    state = {"turn": 0}
    if kind == "sync":
        vec.reset()
        return _stepping(lambda a: vec.step(a), actions, copies)
    vec.async_reset()

    def step() -> int:
        *_, info = vec.recv()
        state["turn"] = (state["turn"] + 1) % 64
        vec.send(actions[state["turn"]], info["env_id"])
        return batch

    return step


def fugu(make: Any, copies: int, rng: np.random.Generator, kind: str) -> Round:
    """Ours: what it picks, serial, processes, or processes in batches of a half or a quarter."""
    import fugu as library

    share = {"half": 2, "quarter": 4}.get(kind, 1)
    batch = copies // share
    backend = kind if kind in ("auto", "serial") else "process"
    vec = library.make(make, copies, backend=backend, batch_size=batch, step_timeout=3600)
    vec.async_reset(seed=0)
    actions = rng.integers(0, vec.action_layout.space.n, (64, batch))
    state = {"turn": 0}

    def step() -> int:
        received = vec.recv()
        state["turn"] = (state["turn"] + 1) % 64
        vec.send(actions[state["turn"]], received.agent_ids)
        return batch

    for _ in range(share):  # the first resets are no steps
        step()
    return step


def _stepping(step: Any, actions: np.ndarray, copies: int) -> Round:
    state = {"turn": 0}

    def one() -> int:
        state["turn"] = (state["turn"] + 1) % len(actions)
        step(actions[state["turn"]])
        return copies

    return one


def measure(step: Round, seconds: float) -> float:
    """Steps a second over about so many seconds."""
    start, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds:
        done += step()
    return done / elapsed


class Limit:
    """A raw loop on each core at once, each with its share of the copies."""

    def __init__(self, make: Any, copies: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._asks, self._answers = [], []
        for i, core in enumerate(cores):
            (their_ask, ask), (answer, their_answer) = os.pipe(), os.pipe()
            if os.fork() == 0:
                os.sched_setaffinity(0, {core})
                step = raw(make, max(1, copies // len(cores)), np.random.default_rng(i))
                while message := os.read(their_ask, 100):
                    os.write(their_answer, str(measure(step, float(message))).encode())
                os._exit(0)
            os.close(their_ask)
            os.close(their_answer)
            self._asks.append(ask)
            self._answers.append(answer)

    def measure(self, seconds: float) -> float:
        """Steps a second of all cores."""
        for ask in self._asks:
            os.write(ask, str(seconds).encode())
        return sum(float(os.read(answer, 100)) for answer in self._answers)


def main() -> None:
    """Serve what the command line says."""
    library, workload, copies = sys.argv[1:4]
    make, count, rng = WORKLOADS[workload], int(copies), np.random.default_rng(0)
    name, _, kind = library.partition("-")
    if name == "limit":
        timed = Limit(make, count).measure
    else:
        builders: dict[str, Callable[[], Round]] = {
            "raw": lambda: raw(make, count, rng),
            "gymnasium": lambda: gymnasium_vector(make, count, rng, kind),
            "sb3": lambda: sb3(make, count, rng, kind),
            "pufferlib": lambda: pufferlib(make, count, rng, kind),
            "envpool": lambda: envpool(count, rng, kind, ENVPOOL_TASKS[workload]),
            "fugu": lambda: fugu(make, count, rng, kind),
        }
        timed = partial(measure, builders[name]())
    timed(0.2)  # a warm-up
    print("READY", flush=True)
    for line in sys.stdin:
        print("RATE", timed(float(line)), flush=True)
    os._exit(0)  # some peers do not end by themselves


if __name__ == "__main__":
    main()
