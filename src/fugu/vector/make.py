"""`fugu.make`: many copies of an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from fugu import native
from fugu.core.closing import close_within
from fugu.core.errors import FuguError, UsageError
from fugu.core.machine import usable_cores
from fugu.envs import suite
from fugu.envs.batch_env import BatchEnv
from fugu.envs.native_env import NativeEnv, native_library
from fugu.envs.recipes import all_recipes, find_recipe
from fugu.envs.resolve import resolve
from fugu.vector.backends import WorkerBackend
from fugu.vector.backends.batch import BatchBackend
from fugu.vector.backends.local import SerialBackend, ThreadBackend
from fugu.vector.backends.native import NativeBackend
from fugu.vector.backends.process import CLOSE_SECONDS, ProcessBackend, check_guard
from fugu.vector.measuring import pick_backend
from fugu.vector.shared_buffers import SharedBuffers
from fugu.vector.snapshots import why_stateless
from fugu.vector.tuner import find_configuration
from fugu.vector.vector import Vector, VectorSettings
from fugu.vector.worker import Setup

if native.available:
    from fugu._native import Exchange

Backend = Literal["auto", "serial", "threads", "process", "native", "batch", "ray"]
StartMethod = Literal["forkserver", "spawn", "fork"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
START_METHODS: tuple[StartMethod, ...] = get_args(StartMethod)


def make(
    env: str | Callable[..., Any],
    num_envs: int = 1,
    *,
    backend: Backend = "auto",
    num_workers: int | Literal["auto"] | None = None,
    batch_size: int | None = None,
    ordered: bool = False,
    group_size: int = 1,
    seed: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    start_method: StartMethod = "forkserver",
    step_timeout: float = 60.0,
    start_timeout: float = 120.0,
    max_restarts: int = 10,
    check_finite: bool = True,
    poison: bool = False,
    resumable: bool = False,
    ray_address: str = "auto",
    ray_cpus: float = 1.0,
    ray_resources: Mapping[str, float] | None = None,
    ray_timeout: float = 60.0,
    **emulation: Any,
) -> Vector:
    """Make `num_envs` copies of an environment and the workers that step them.

    Args:
        env: A native name (`cartpole`) or the path of a native environment that was built, a
            Gymnasium id, `pettingzoo:family/name`, `package.module:factory`, or something to call
            for an environment.
        num_envs: Copies.
        backend: "serial" steps them in the caller, "threads" in threads (for environments that
            release the GIL), "process" in processes, "native" in threads of the native pool (for
            native environments alone), "batch" by what their package steps many copies at once
            with (for recipes that have it: ALE's own vector, EnvPool, JAX), "ray" in actors of a
            Ray cluster. "auto" takes the pool for native ones; for others it times one copy for a
            moment and takes processes where they save more than they cost.
        num_workers: Threads, processes or actors; as many as there are cores (with Ray, as its
            cluster has room for) if not given. "auto" tries for some seconds which number, and
            which backend if that is "auto" too, steps fastest here; `Vector.tuning` tells what it
            found.
        batch_size: Environments in a batch; all if not given. With fewer, `recv` gives the first
            that are ready.
        ordered: Give batches in a fixed order instead, each of the same environments.
        group_size: Copies that share a seed, so that they begin each episode alike.
        seed: The root of all seeds, for `reset()` without one.
        env_kwargs: Arguments of the environment.
        start_method: How processes begin.
        step_timeout: Seconds after which a worker that has something to do and gives no sign of
            life counts as stalled: it is killed and restarted.
        start_timeout: The same for a new worker process that has not reported yet.
        max_restarts: Faults an hour that are mended by a restart; one more is an error.
        check_finite: Treat a NaN or infinite reward, cost or observation as a fault of its
            environment. False hands it on. Environments in C are not checked.
        poison: Spoil rows as soon as they are no longer valid, to find who still reads them.
        resumable: Let environments that are not native remember the episode under way, so that
            `Vector.snapshot` and `restore` work; see `fugu.emulate`.
        ray_address: Of the cluster: "auto" is the one that this machine is part of, "local" begins
            one here, HOST:PORT names one that this machine is part of.
        ray_cpus: That each worker asks its node for.
        ray_resources: What else it asks for, such as {"GPU": 0.1} or a resource of your own.
        ray_timeout: Seconds to wait until the cluster has a place for a worker.
        **emulation: Settings of `fugu.emulate`.

    >>> import numpy as np
    >>> with make("CartPole-v1", 4, backend="serial") as vec:
    ...     observations, infos = vec.reset(seed=1)
    ...     observations, rewards, terminations, truncations, infos = vec.step(np.ones(4, int))
    >>> observations.shape, rewards.tolist()
    ((4, 4), [1.0, 1.0, 1.0, 1.0])
    """
    if not native.available:
        raise FuguError(f"fugu.make needs the native extension: {native.reason}")
    check_guard()
    factory = resolve(env, **dict(env_kwargs or {}))
    size = num_envs if batch_size is None else batch_size
    library = native_library(factory)
    make_batch = None
    if library is None or backend == "batch":
        make_batch = find_batch(env, backend, dict(env_kwargs or {}))
    cfg = VectorSettings(
        size,
        group_size,
        ordered or make_batch is not None,
        seed,
        step_timeout,
        max_restarts,
        poison,
        start_timeout,
    )
    if make_batch is not None:
        workers = _workers(backend, num_envs, None if num_workers == "auto" else num_workers)
        _check(num_envs, workers, cfg, start_method)
        return _make_in_batches(make_batch, num_envs, workers, cfg, emulation, check_finite)
    emulation["resumable"] = resumable
    tuning = None
    if num_workers == "auto":
        _check(num_envs, 1, cfg, start_method)
        tuning = find_configuration(
            make,
            env,
            int(num_envs),
            backend=backend,
            batch_size=int(size),
            ordered=ordered,
            group_size=group_size,
            env_kwargs=env_kwargs,
            start_method=start_method,
            step_timeout=step_timeout,
            start_timeout=start_timeout,
            max_restarts=max_restarts,
            check_finite=check_finite,
            **emulation,
        )
        backend, num_workers = tuning.choice.backend, tuning.choice.num_workers
    workers = _workers(backend, num_envs, num_workers)
    _check(num_envs, workers, cfg, start_method)
    if not start_timeout > 0:
        raise UsageError(f"start_timeout: expected seconds above 0; got {start_timeout}.")
    setup = Setup(factory, emulation, step_timeout, check_finite)
    if backend == "native" and library is None:
        raise UsageError(
            f"backend: given 'native' for {env!r}; allowed: a native environment, such as "
            f"{', '.join(suite.names()[:3])}, or the path of one that was built."
        )
    chosen = backend
    if backend == "auto":
        if library is not None:
            chosen = "native"
        elif num_workers is None:
            chosen = pick_backend(setup, num_envs, workers, start_method)
        else:
            chosen = "process" if workers > 1 else "serial"
        workers = 1 if chosen == "serial" else workers
    first = setup.make()
    groups, stateless = first.groups, why_stateless(first)
    close_within(first, CLOSE_SECONDS)
    worker_backend: WorkerBackend
    if chosen == "ray":
        from fugu.vector.backends.ray import start_on_ray
        from fugu.vector.backends.ray_cluster import RaySettings

        asked = RaySettings(ray_address, ray_cpus, dict(ray_resources or {}), ray_timeout)
        buffers, worker_backend = start_on_ray(setup, groups, num_envs, num_workers, asked)
    else:
        buffers = SharedBuffers(groups, num_envs, Exchange.bytes(workers, num_envs))
        crowded = chosen == "process" and workers >= usable_cores()
        make_queue = partial(_make_queue, workers, num_envs, 0.0 if crowded else 2e-5)
        if chosen == "native":
            assert isinstance(first, NativeEnv)
            helps = size == num_envs
            worker_backend = NativeBackend(first, buffers, workers, step_timeout, helps=helps)
        elif chosen == "serial":
            worker_backend = SerialBackend(setup, buffers, make_queue)
        elif chosen == "threads":
            worker_backend = ThreadBackend(setup, buffers, make_queue, workers)
        else:
            worker_backend = ProcessBackend(setup, buffers, make_queue, workers, start_method)
    vector = Vector(buffers, worker_backend, cfg)
    vector.tuning, vector.why_stateless = tuning, stateless
    vector.attributes = setup.attributes
    return vector


def find_batch(
    env: str | Callable[..., Any], backend: str, kwargs: dict[str, Any]
) -> Callable[[int, int], BatchEnv] | None:
    """Return a function that makes copies which step at once, given their number and threads.

    None for another backend; for "auto", unless the environment can only be made so.
    """
    recipe = find_recipe(env) if isinstance(env, str) else None
    has_batch = recipe is not None and recipe.batch is not None
    if backend == "batch" and not has_batch:
        known = [recipe.prefix for recipe in all_recipes() if recipe.batch is not None]
        raise UsageError(
            f"backend: given 'batch' for {env!r}; allowed: names that begin with "
            f"{', '.join(known)}."
        )
    if recipe is None or recipe.batch is None or backend not in ("batch", "auto"):
        return None
    if backend == "auto" and recipe.make is not None:
        return None
    assert isinstance(env, str)
    make_copies, name = recipe.batch, recipe.find(env)
    return lambda copies, threads: make_copies(name, copies, threads, **kwargs)


def _make_in_batches(
    make_batch: Callable[[int, int], BatchEnv],
    num_envs: int,
    workers: int,
    cfg: VectorSettings,
    emulation: Mapping[str, Any],
    check_finite: bool,
) -> Vector:
    """Make a vector each of whose batches is one batch of copies, stepped by a thread of ours."""
    given = sorted(name for name, value in emulation.items() if value)
    if given:
        raise UsageError(
            f"{given[0]}: given with copies that step at once; allowed: with other backends, such "
            "as 'process'."
        )
    batches = num_envs // cfg.batch_size
    threads = max(1, workers // batches)
    made = [make_batch(cfg.batch_size, threads) for _ in range(batches)]
    buffers = SharedBuffers(made[0].groups, num_envs, 0)
    vector = Vector(buffers, BatchBackend(made, buffers, check_finite), cfg)
    vector.why_stateless = "copies that step at once have no state() and set_state()."
    return vector


def _make_queue(workers: int, num_envs: int, spin: float, buffers: SharedBuffers) -> Exchange:
    return Exchange(buffers.queue_memory, workers, num_envs, spin)


def _workers(backend: str, num_envs: int, num_workers: int | None) -> int:
    """Return how many workers there are to be, the caller included."""
    if backend not in BACKENDS:
        raise UsageError(f"backend: given {backend!r}; allowed: {', '.join(BACKENDS)}.")
    if backend == "serial" or (backend == "ray" and num_workers is None):
        return 1  # with Ray, its cluster says how many
    return min(num_envs, usable_cores()) if num_workers is None else num_workers


def _check(num_envs: int, workers: int, cfg: VectorSettings, start_method: str) -> None:
    """Raise if an argument cannot be."""
    for name, value, most in [
        ("num_envs", num_envs, None),
        ("num_workers", workers, num_envs),
        ("batch_size", cfg.batch_size, num_envs),
        ("group_size", cfg.group_size, num_envs),
    ]:
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_integer or value < 1 or (most is not None and value > most):
            upper = f" to {most} (num_envs)" if most is not None else " or more"
            upper += ', or "auto"' if name == "num_workers" else ""
            raise UsageError(f"{name}: given {value!r}; allowed: an integer from 1{upper}.")
    if num_envs % cfg.group_size:
        raise UsageError(
            f"group_size: given {cfg.group_size}; allowed: a divisor of num_envs={num_envs}."
        )
    if cfg.ordered and num_envs % cfg.batch_size:
        raise UsageError(
            f"batch_size: given {cfg.batch_size} with ordered=True; allowed: a divisor of "
            f"num_envs={num_envs}."
        )
    if not cfg.step_timeout > 0 or cfg.max_restarts < 0:  # NaN is refused too
        raise UsageError(
            f"given step_timeout={cfg.step_timeout}, max_restarts={cfg.max_restarts}; allowed: a "
            "time above 0, and 0 or more restarts."
        )
    if start_method not in START_METHODS:
        raise UsageError(
            f"start_method: given {start_method!r}; allowed: {', '.join(START_METHODS)}."
        )
