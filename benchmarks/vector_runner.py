"""Steps one workload with one library, whenever it is asked to. Runs in the library's own venv.

    python benchmarks/vector_runner.py LIBRARY WORKLOAD COPIES

Prints READY, then for each line of standard input, a number of seconds, steps for that long and
prints RATE and the steps a second.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def native(copies: int, rng: np.random.Generator, kind: str) -> Round:
    """Ours: the native CartPole through `vec.step`, on one thread or on two."""
    import fugu as library

    vec = library.make("cartpole", copies, num_workers=int(kind[-1]), step_timeout=3600)
    vec.reset(seed=0)
    return _stepping(vec.step, rng.integers(0, 2, (64, copies)), copies)


class Bare:
    """The bare C loop, compiled here, on one core or on each of them."""

    def __init__(self, copies: int, rng: np.random.Generator, kind: str) -> None:
        folder = Path(tempfile.mkdtemp())
        source = Path(__file__).with_name("bare_cartpole.c")
        flags = ["-std=c99", "-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, source, "-lm", "-o", folder / "bare.so"], check=True)
        self._loop = ctypes.CDLL(folder / "bare.so").bare_cartpole
        cores = len(os.sched_getaffinity(0)) if kind == "all" else 1
        self._parts = [self._part(copies // cores, rng) for _ in range(cores)]
        self._pool = ThreadPoolExecutor(cores)

    def _part(self, count: int, rng: np.random.Generator) -> list[Any]:
        carts = np.zeros((count, 6), np.float32)
        carts.view(np.uint32)[:, 5] = rng.integers(1, 2**32, count)
        actions = rng.integers(0, 2, (64, count))
        outputs = [np.zeros((count, 4), np.float32), np.zeros(count, np.float32)]
        return [carts, actions, *outputs, np.zeros(count, np.uint8), count]

    def measure(self, seconds: float) -> float:
        """Steps a second of all cores together."""
        return sum(self._pool.map(lambda part: self._run(part, seconds), self._parts))

    def _run(self, part: list[Any], seconds: float) -> float:
        *arrays, count = part
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
        rounds = max(1, 1_000_000 // count)

        def step() -> int:
            self._loop(*pointers, ctypes.c_int64(count), ctypes.c_int64(rounds))
            return int(count * rounds)

        return measure(step, seconds)


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
    elif name == "bare":
        timed = Bare(count, rng, kind).measure
    else:
        builders: dict[str, Callable[[], Round]] = {
            "raw": lambda: raw(make, count, rng),
            "gymnasium": lambda: gymnasium_vector(make, count, rng, kind),
            "sb3": lambda: sb3(make, count, rng, kind),
            "pufferlib": lambda: pufferlib(make, count, rng, kind),
            "envpool": lambda: envpool(count, rng, kind, ENVPOOL_TASKS[workload]),
            "fugu": lambda: fugu(make, count, rng, kind),
        }
        if kind.startswith("native"):
            builders["fugu"] = lambda: native(count, rng, kind)
        timed = partial(measure, builders[name]())
    timed(0.2)  # a warm-up
    print("READY", flush=True)
    for line in sys.stdin:
        print("RATE", timed(float(line)), flush=True)
    os._exit(0)  # some peers do not end by themselves


if __name__ == "__main__":
    main()
