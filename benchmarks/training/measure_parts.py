"""Parts of fugu's training, each alone. Settings as of `run_fugu`, and `goal`: parts or products.

parts: seconds a step of the environments with random actions, of the policy with sampling, and of
updates. products: the share of updates spent in torch's matrix products, by its profiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from run_fugu import sections
from torch.profiler import ProfilerActivity, profile
from watching import answer, read_settings

from fugu.rollout.forwards import make_forward
from fugu.training.config import resolve_config
from fugu.training.trainer import Trainer

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear")
FUSED = ("mkldnn", "lstm")  # products with what stands between them
QUIET = 0.02  # seconds in which environments end the step under way


def make_trainer(settings: dict[str, Any]) -> Trainer:
    """A trainer that has made one update."""
    trainer = Trainer(resolve_config(settings["env"], overrides=sections(settings)))
    trainer.algorithm.start(0)
    trainer.update()
    return trainer


def seconds_per_call(call: Callable[[], object], seconds: float) -> float:
    """The mean of calls over a while, after some that warm up."""
    for _ in range(5):
        call()
    began, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        call()
        calls += 1
    return elapsed / calls


@torch.no_grad()
def policy_seconds(trainer: Trainer, seconds: float) -> float:
    """Of one forward pass with sampling for all copies."""
    (policy,), (group,) = trainer.policies, trainer.vec.groups
    copies, random = trainer.vec.num_envs, np.random.default_rng(0)
    layout = group.observation_layout
    rows = torch.from_numpy(np.zeros((copies, layout.size), layout.dtype))
    state = policy.initial_state(copies)
    forward = make_forward(policy, layout, trainer.cfg.policy.engine, copies)

    def act() -> None:
        params, _, _ = forward(rows, state)
        policy.distribution.sample(params.float(), None, random)

    return seconds_per_call(act, seconds)


def update_seconds(trainer: Trainer, updates: int) -> tuple[float, float]:
    """The median of updates, and the steps that one learns from."""
    times, steps = [], []
    for _ in range(updates):
        before = trainer.algorithm.steps
        trainer.algorithm.collect()
        steps.append(trainer.algorithm.steps - before)
        time.sleep(QUIET)
        began = time.perf_counter()
        trainer.algorithm.update(0.0)
        times.append(time.perf_counter() - began)
    return median(times), median(steps)


def parts(settings: dict[str, Any]) -> None:
    """Seconds a step of each part."""
    seconds, trainer = settings["seconds"], make_trainer(settings)
    copies = trainer.vec.num_envs
    learn, steps = update_seconds(trainer, 3 if seconds < 5 else 15)
    act = policy_seconds(trainer, seconds / 2)
    trainer.close()
    fresh = Trainer(trainer.cfg)
    vec = fresh.vec
    vec.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, vec.action_layout.space.n, (64, copies))
    turn = iter(range(10**9))
    step = seconds_per_call(lambda: vec.step(actions[next(turn) % 64]), seconds)
    answer(environments=step / copies, policy=act / copies, update=learn / steps)


def products(settings: dict[str, Any]) -> None:
    """The share of an update, and the operations that take the most of it."""
    trainer = make_trainer(settings)
    shares, others = [], {}
    for _ in range(2 if settings["seconds"] < 5 else 5):
        trainer.algorithm.collect()
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            began = time.perf_counter()
            trainer.algorithm.update(0.0)
            wall = 1e6 * (time.perf_counter() - began)
        spent = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
        found = [key for key in spent if key in PRODUCTS or any(word in key for word in FUSED)]
        shares.append(sum(spent[key] for key in found) / wall if found else None)
        rest = sorted((key for key in spent if key not in found), key=lambda key: -spent[key])
        others = {key: spent[key] / wall for key in rest[:4]}
    known = [share for share in shares if share is not None]
    answer(share=median(known) if known else None, others=others)


if __name__ == "__main__":
    given = read_settings()
    parts(given) if given["goal"] == "parts" else products(given)
