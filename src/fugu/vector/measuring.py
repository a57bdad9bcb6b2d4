"""Measure an environment or a vector in a process of its own, which may hang or crash."""

from __future__ import annotations

import hashlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from multiprocessing.connection import wait
from typing import Any, Literal, TypeVar

import cloudpickle
import numpy as np

from fugu.core.closing import close_within
from fugu.core.errors import FuguError, UsageError
from fugu.core.machine import own_memory
from fugu.core.seeding import derive
from fugu.envs.contract import Buffers, Env
from fugu.vector.backends.process import CLOSE_SECONDS, context_of, end_with_learner, start
from fugu.vector.random_actions import RandomActions, random_policy
from fugu.vector.vector import Vector
from fugu.vector.worker import POLLING, Setup

T = TypeVar("T")
ENV_LIMIT = 60.0  # seconds after which an environment that is profiled counts as hung
EXIT_SECONDS = 6.0  # for a process to close its environments before it is killed
PICK_SECONDS = 0.02  # to time one environment before its backend is chosen
EXCHANGE_SECONDS = 200e-6  # that exchanging a batch with processes costs, cache misses included
BLOCK = bytes(4096)


class MeasurementError(FuguError, RuntimeError):
    """A measurement raised an exception, or its process died."""


class StalledError(MeasurementError):
    """A measurement exceeded its time limit."""


def run_isolated(start_method: str, limit: float, function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function returns in a new process, which is ended after `limit` seconds.

    Raises:
        MeasurementError: The function raised an exception, or the process died.
        StalledError: The function did not return in time.
        UsageError: The function raised one, or cloudpickle cannot send it to another process.
    """
    try:
        task = cloudpickle.dumps((function, arguments))
    except Exception as error:
        raise UsageError(
            "expected an environment and options that cloudpickle can send to another process, to "
            f"be measured there; got: {error}. Or choose by hand: backend=..., num_workers=..."
        ) from error
    context = context_of(start_method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_task, args=(task, sender), name="fugu-measurement")
    start(process)
    sender.close()
    try:
        if not wait([receiver, process.sentinel], limit):
            raise StalledError(f"no end after {limit:.0f} s")
        failure, result = receiver.recv()
    except EOFError:
        process.join(EXIT_SECONDS)
        code = process.exitcode or 0
        if code < 0:
            why = f"its process was killed by {signal.Signals(-code).name}"
            raise MeasurementError(why) from None
        raise MeasurementError(
            f"its process exited with status {code}. If this is at the top level of a script, put "
            'it below: if __name__ == "__main__":'
        ) from None
    except BaseException:
        process.terminate()
        raise
    finally:
        receiver.close()
        process.join(EXIT_SECONDS)
        process.kill()
        process.join()
        process.close()
    if failure is not None:
        raise failure(result)
    return result  # type: ignore[no-any-return]


def _run_task(task: bytes, connection: Any) -> None:
    """Run a task in the new process and send (None, its result) or (an error class, a message)."""
    threading.Thread(target=end_with_learner, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # closes environments on the way out
    logging.getLogger("fugu.vector").setLevel(logging.CRITICAL)  # faults are part of the result
    answer: tuple[type[FuguError] | None, Any]
    try:
        function, arguments = cloudpickle.loads(task)
        answer = None, function(*arguments)
    except UsageError as error:
        answer = UsageError, str(error)
    except (Exception, SystemExit) as error:
        answer = MeasurementError, f"{type(error).__name__}: {error}"
    with suppress(ConnectionError):  # the caller may have given up
        connection.send(answer)


@dataclass(frozen=True)
class EnvProfile:
    """One environment, measured alone.

    Attributes:
        step_seconds: Median time of a step.
        start_seconds: Time to make and reset an environment.
        env_bytes: Memory of another environment; None if a process can have only one.
        polled: Whether it waits for something outside and is polled, see `Env.poll`.
        policy_seconds: Time of the policy for the largest batch.
    """

    step_seconds: float
    start_seconds: float
    env_bytes: int | None
    polled: bool
    policy_seconds: float = 0.0


class TimedEnv:
    """One environment that takes random legal actions."""

    def __init__(self, setup: Setup, seed: int) -> None:
        began = time.perf_counter()
        self.env = setup.make()
        self.env.bind(*(Buffers.allocate(group) for group in self.env.groups))
        self.env.reset(derive(seed))
        self.start_seconds = time.perf_counter() - began
        self.polled = type(self.env).poll is not Env.poll
        self._samplers = [
            RandomActions(group, group.num_agents, derive(seed, i))
            for i, group in enumerate(self.env.groups)
        ]

    def median_step(self, seconds: float) -> float:
        """Step for some time, at least once, and return the median time of a step."""
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            for sampler, rows in zip(self._samplers, self.env.buffers, strict=True):
                rows.actions[:] = sampler.sample(rows)
            began = time.perf_counter()
            if self.polled:
                self.env.begin_step()
                while not self.env.poll():
                    time.sleep(POLLING)
            else:
                self.env.step()
            times.append(time.perf_counter() - began)
        return float(np.median(times))


def profile_env(
    setup: Setup, seconds: float, seed: int
) -> tuple[EnvProfile, list[tuple[int, int, str]]]:
    """Measure one environment; also return (agents, size, dtype) of each group's observations."""
    first = TimedEnv(setup, seed)
    step_seconds = first.median_step(seconds)
    start_seconds, env_bytes, before = first.start_seconds, None, own_memory()
    try:
        second = TimedEnv(setup, seed)
    except Exception:  # some simulators refuse a second environment in a process
        pass
    else:
        second.median_step(0.0)
        start_seconds = second.start_seconds  # without imports
        specs = [spec for group in first.env.groups for spec in Buffers.specs(group).values()]
        row_bytes = sum(prod(shape) * dtype.itemsize for shape, dtype in specs)
        env_bytes = max(own_memory() - before, row_bytes)
        second.env.close()
    first.env.close()
    layouts = [(group.num_agents, group.observation_layout) for group in first.env.groups]
    shapes = [(agents, layout.size, layout.dtype.str) for agents, layout in layouts]
    return EnvProfile(step_seconds, start_seconds, env_bytes, first.polled), shapes


def pick_backend(
    setup: Setup, num_envs: int, num_workers: int, start_method: str
) -> Literal["serial", "process"]:
    """Choose worker processes if they save more time than exchanging batches with them costs.

    One environment is timed for a moment. One that fails or hangs gets worker processes, which
    report what happened to it.
    """
    if num_workers == 1:
        return "serial"
    try:
        step_seconds = run_isolated(start_method, ENV_LIMIT, _median_step, setup)
    except MeasurementError:
        return "process"
    except UsageError:
        return "serial"  # it cannot be sent to a worker process either
    saved = step_seconds * num_envs * (1 - 1 / num_workers)
    return "process" if saved > EXCHANGE_SECONDS else "serial"


def _median_step(setup: Setup) -> float:
    timed = TimedEnv(setup, 0)
    seconds = timed.median_step(PICK_SECONDS)
    close_within(timed.env, CLOSE_SECONDS)
    return seconds


def measure_vector(
    make_vector: Callable[..., Vector],
    factory: Callable[[], Any],
    options: Mapping[str, Any],
    policy_seconds: float,
    seconds: float,
    seed: int,
) -> tuple[float, int]:
    """Step a vector with random actions; return steps per second and the number of faults.

    The policy, for which the measurement is busy between `recv` and `send`, takes
    `policy_seconds`. The first step of all environments is not measured.
    """
    with make_vector(factory, **options) as vec:
        act = random_policy(vec, seed)

        def step_batch() -> int:
            batch = vec.recv()
            end = time.perf_counter() + policy_seconds
            while time.perf_counter() < end:
                hashlib.sha256(BLOCK)  # busy without the GIL, as a policy is most of the time
            vec.send(act(batch))
            return len(batch.env_ids)

        vec.async_reset(seed)
        for _ in range(2 * -(-vec.num_envs // vec.batch_size)):
            step_batch()  # the first half takes the observations of the reset
        steps, began = 0, time.perf_counter()
        while not steps or time.perf_counter() - began < seconds:
            steps += step_batch()
        return steps / (time.perf_counter() - began), len(vec.faults)
