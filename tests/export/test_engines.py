"""One table: every kind of policy, run by every engine, gives what torch gives.

1,000 observations each: ten agents for a hundred steps, in which episodes end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from policy_kinds import KINDS, Kind, observations_of

from fugu.core.errors import UsageError
from fugu.export.engines import NAMES, make_engine
from fugu.export.player import LoadedPolicy
from fugu.policies import Policy
from fugu.policies.layers import RunningScale
from fugu.spaces import Layout
from fugu.spaces.action_sampler import ActionSampler

STEPS, AGENTS = 100, 10
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
# Cells that compile or run for many seconds.
SLOW = {
    "compile": {kind.name for kind in KINDS} - {"mlp"},
    "jax": {"own-critic", "sequences", "nature", "impala", "lstm", "transformer"},
    "wasm": {"nature", "impala"},
    "c": {"impala"},
}
TABLE = [
    pytest.param(
        kind,
        engine,
        id=f"{kind}-{engine}",
        marks=[pytest.mark.slow] if kind.name in SLOW.get(engine, ()) else [],
    )
    for kind in KINDS
    for engine in NAMES
]


@dataclass(frozen=True)
class Trace:
    """What torch made of observations, step by step.

    Attributes:
        rows: `[steps, agents, size]`
        masks: `[steps, agents, choices]`
        begins: Whose episode begins, `[steps, agents]`.
        outputs: Params, values and states of each step.
        samples: Greedy and drawn, of each step.
    """

    layout: Layout
    sampler: ActionSampler
    rows: NDArray[Any]
    masks: NDArray[np.bool_]
    begins: NDArray[np.bool_]
    outputs: list[tuple[NDArray[np.float32], ...]]
    samples: list[tuple[NDArray[np.float32], ...]]


def kind_of(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)


@cache
def made(name: str) -> tuple[Policy, Layout]:
    return kind_of(name).make()


@cache
def trace_of(name: str) -> Trace:
    policy, layout = made(name)
    sampler, random = policy.distribution.sampler, np.random.default_rng(1)
    rows = observations_of(layout, STEPS * AGENTS).reshape(STEPS, AGENTS, -1)
    masks = random.random((STEPS, AGENTS, sampler.num_choices)) < 0.6
    first = 0
    for count in sampler.choices:
        masks[..., first + int(random.integers(count))] = True
        first += count
    begins = random.random((STEPS, AGENTS)) < 0.1
    state = torch.zeros(AGENTS, policy.state_size)
    outputs, samples = [], []
    for step in range(STEPS):
        state[torch.from_numpy(begins[step])] = 0.0
        with torch.no_grad():
            params, values, state = policy(torch.from_numpy(rows[step]), state)
        outputs.append(tuple(part.numpy().copy() for part in (params, values, state)))
        drawn = tuple(
            sampler.sample(outputs[-1][0], masks[step], np.random.default_rng(step), greedy)[0]
            for greedy in (True, False)
        )
        samples.append(drawn)
    return Trace(layout, sampler, rows, masks, begins, outputs, samples)


@pytest.mark.parametrize(("kind", "engine"), TABLE)
def test_every_engine_gives_what_torch_gives(kind: Kind, engine: str) -> None:
    trace = trace_of(kind.name)
    player = LoadedPolicy(make_engine(engine, *made(kind.name)))
    state = player.initial_state(AGENTS)
    for step, seen in enumerate(trace.rows):
        state[trace.begins[step]] = 0.0
        before = state.copy()
        params, values, state = player.engine.forward(seen, state.copy())
        for got, expected in zip((params, values, state), trace.outputs[step], strict=True):
            np.testing.assert_allclose(got, expected, **CLOSE)
        if step % 10 == 0:
            check_actions(player, trace, step, before)


@pytest.mark.parametrize("engine", NAMES)
def test_large_numbers_pass_through_normalization_that_has_seen_nothing(engine: str) -> None:
    policy, layout = kind_of("mlp-relu-normalised").make()
    for scale in policy.scales:
        scale.load_state_dict(RunningScale(scale.mean.numel()).state_dict())
    rows, state = observations_of(layout, 5) * 100, torch.zeros(5, 0)
    with torch.no_grad():
        expected, *_ = policy(torch.from_numpy(rows), state)
    found, *_ = make_engine(engine, policy, layout).forward(rows, state.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def check_actions(player: LoadedPolicy, trace: Trace, step: int, state: Any) -> None:
    heads = trace.sampler.num_heads
    for greedy, expected in zip((True, False), trace.samples[step], strict=True):
        rows, _, _ = player.act_rows(
            trace.rows[step],
            state,
            trace.masks[step],
            greedy=greedy,
            random=np.random.default_rng(step),
        )
        rows_expected = trace.sampler.to_rows(expected)
        if heads == trace.sampler.num_samples:
            assert rows.tobytes() == rows_expected.tobytes()
        found = trace.sampler.to_samples(rows)
        wanted = trace.sampler.to_samples(rows_expected)
        np.testing.assert_array_equal(found[:, :heads], wanted[:, :heads])
        np.testing.assert_allclose(found[:, heads:], wanted[:, heads:], rtol=1e-4, atol=1e-4)


def test_the_kinds_reach_masks_states_critics_and_numbers() -> None:
    traces = [trace_of(kind.name) for kind in KINDS]
    assert any(not trace.masks.all() for trace in traces)
    assert any(trace.sampler.squashes for trace in traces)
    assert any(0 < trace.sampler.num_heads < trace.sampler.num_samples for trace in traces)
    assert {trace.outputs[0][1].shape[1] for trace in traces} >= {0, 1, 2}
    assert any(trace.outputs[0][2].shape[1] for trace in traces)
    # Drawn actions are others than the most probable ones, unless a policy is quite sure.
    drawn = [any((a != b).any() for a, b in trace.samples) for trace in traces]
    assert sum(drawn) > len(drawn) / 2


@pytest.mark.parametrize("engine", [name for name in NAMES if name != "compile"])
@pytest.mark.parametrize("name", ["tree", "lstm"])
def test_a_batch_of_any_size_is_the_same_rows(engine: str, name: str) -> None:
    ready = make_engine(engine, *made(name))
    rows = np.concatenate(trace_of(name).rows)[:33]
    state = np.random.default_rng(0).normal(size=(33, ready.facts.state_size)).astype(np.float32)
    whole = ready.forward(rows, state)
    kept = state.copy()
    for begin, end in ((0, 1), (1, 8), (8, 33)):
        parts = ready.forward(rows[begin:end], state[begin:end])
        for part, all_of_it in zip(parts, whole, strict=True):
            np.testing.assert_allclose(part, all_of_it[begin:end], **CLOSE)
    assert (state == kept).all()


EVERY_TYPE = spaces.Dict(
    {
        name: spaces.Box(-100 if name[0] in "if" else 0, 1 if name == "bool" else 100, (2,), name)
        for name in (
            "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
            "float16", "float32", "float64",
        )
    },
    small=spaces.MultiDiscrete([3, 4], np.int8, start=[-2, 5]),
)  # fmt: skip


@pytest.mark.parametrize("engine", [name for name in NAMES if name != "compile"])
def test_numbers_of_every_type_are_read(engine: str) -> None:
    policy, layout = Kind("types", EVERY_TYPE).make()
    rows, state = observations_of(layout, 30), np.zeros((30, 0), np.float32)
    params, _, _ = make_engine(engine, policy, layout).forward(rows, state)
    with torch.no_grad():
        expected, _, _ = policy(torch.from_numpy(rows), torch.from_numpy(state))
    np.testing.assert_allclose(params, expected, **CLOSE)


@pytest.mark.slow
def test_a_compiler_that_is_missing_is_named(tmp_path: Path) -> None:
    program = """
import numpy as np
from policy_kinds import KINDS, observations_of
from fugu.core.errors import UsageError
from fugu.export.engines import make_engine
policy, layout = KINDS[0].make()
engine = make_engine("compile", policy, layout)
try:
    engine.forward(observations_of(layout, 2), np.zeros((2, 0), np.float32))
except UsageError as error:
    print(error)
"""
    places = {"CXX": str(tmp_path / "nothing"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **places, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "given 'compile', but torch could not" in done.stdout, done.stderr
    assert "torch.compile needs a C++ compiler" in done.stdout


def test_an_unknown_engine_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="given 'onyx'; nearest: 'onnx'; allowed: torch, compile"):
        make_engine("onyx", *made("mlp"))
