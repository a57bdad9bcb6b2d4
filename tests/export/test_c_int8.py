"""int8 weights: what is written is what was rounded, and policies still do what they did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_tools import check_against_reference
from gymnasium import spaces
from policy_kinds import KINDS, observations_of

import fugu
from fugu import Layout
from fugu.core.errors import UsageError
from fugu.export.c_engine import CEngine
from fugu.export.c_quantize import Samples, gather, measure, quantize, quantize_weight, split
from fugu.export.c_writer import write_c
from fugu.export.loading import find, observe
from fugu.nets import net as ops
from fugu.nets.net import Linear, Net
from fugu.nets.reading import read_policy
from fugu.nets.reference import run_reference
from fugu.spaces.action_sampler import ActionSampler

ROUNDED = ("mlp", "own-critic", "tree", "sequences", "nature", "impala", "set", "transformer")
# What is trained, for how many steps, and with what settings.
SUITE = [
    pytest.param("cartpole", 30_000, {}, id="cartpole"),
    pytest.param("breakout", 60_000, {}, id="breakout"),
    pytest.param("pendulum", 30_000, {}, id="pendulum"),
    *(
        pytest.param(name, steps, settings, id=name, marks=pytest.mark.slow)
        for name, steps, settings in [
            ("acrobot", 100_000, {}),
            ("pong", 200_000, {}),
            ("snake", 200_000, {}),
            ("memory", 50_000, {"core": "lstm"}),
            ("squared", 50_000, {"core": "gru"}),
            ("tetris", 100_000, {}),
            ("minesweeper", 100_000, {}),
        ]
    ),
]


def net_of(name: str) -> Net:
    return read_policy(*next(kind for kind in KINDS if kind.name == name).make())


@pytest.mark.parametrize("name", ROUNDED)
def test_written_c_means_what_the_rounded_network_does(name: str, tmp_path: Path) -> None:
    net = net_of(name)
    rows = observations_of(net.observation, 40)
    report = write_c(net, tmp_path, int8=True, observations=rows)
    text = report.source.read_text()
    assert "typedef int8_t Weight;" in text
    meant = quantize(net, gather(net, split(rows[None])[0])).net
    check_against_reference(tmp_path, meant, rows[:25])
    assert report.weight_bytes < report.float_bytes


def test_a_weight_is_half_a_step_off_at_most() -> None:
    weight = np.random.default_rng(0).normal(size=(16, 3, 4)).astype(np.float32)
    weight[3] = 0.0
    rounded = quantize_weight(weight)
    step = np.abs(weight).max((1, 2)) / 127
    error = np.abs(rounded.weight - weight).max((1, 2))
    assert (error <= step * 0.5001).all()
    assert np.abs(rounded.integers).max() == 127


def test_outlying_inputs_are_kept_as_they_are() -> None:
    weight = np.random.default_rng(0).uniform(-1, 1, (8, 40)).astype(np.float32)
    weight[:, [5, 31]] *= 20
    rounded = quantize_weight(weight, keep_outliers=True)
    assert rounded.inputs.tolist() == [5, 31]
    np.testing.assert_array_equal(rounded.weight[:, [5, 31]], weight[:, [5, 31]])
    plain = quantize_weight(weight)
    others = np.delete(np.arange(40), [5, 31])
    lost = [np.abs(each.weight - weight)[:, others].max() for each in (rounded, plain)]
    assert lost[0] < lost[1] / 5


def linear_net(weight: Any) -> Net:
    observation = Layout.of(spaces.Box(-np.inf, np.inf, (weight.shape[1],)))
    net = Net(observation, Layout.of(spaces.Discrete(len(weight))), False, 0)
    seen = net.add(ops.Read, 1, weight.shape[1], place=ops.Place(0, np.dtype(np.float32)))
    bias = np.zeros(len(weight), np.float32)
    net.params = net.add(ops.Linear, 1, len(weight), seen, weight=weight, bias=bias)
    return net


def test_biases_make_up_for_what_is_lost_on_average() -> None:
    random = np.random.default_rng(0)
    net = linear_net(random.normal(size=(6, 200)).astype(np.float32))
    # As bricks are: most are there.
    rows = (random.random((500, 200)) < 0.99).astype(np.float32)
    samples = Samples(rows[:250], np.zeros((250, 0), np.float32))
    with_data, without = (quantize(net, given).net for given in (samples, None))
    errors = [measure(net, each, rows[None, 250:]).largest_error for each in (with_data, without)]
    assert errors[0] < errors[1] / 2
    # The mean error is gone, of those that were looked at.
    means = [run_reference(each, *_given(rows[:250]))[0].mean(0) for each in (net, with_data)]
    np.testing.assert_allclose(*means, rtol=1e-5)


def _given(rows: Any) -> tuple[Any, Any]:
    return rows, np.zeros((len(rows), 0), np.float32)


def test_the_report_says_what_is_lost(tmp_path: Path) -> None:
    net = net_of("mlp")
    rows = observations_of(net.observation, 200)
    report = write_c(net, tmp_path, int8=True, observations=rows)
    assert report.loss is not None
    assert report.loss.observations == 100
    assert 0 < report.loss.largest_error < 0.05
    assert "equal greedy actions on 100 observations" in str(report)
    assert write_c(net, tmp_path, int8=True).loss is None
    assert write_c(net, tmp_path, observations=rows).loss is None


def test_a_policy_that_is_spoilt_does_not_agree() -> None:
    net = net_of("mlp")
    rows = observations_of(net.observation, 200)
    last = net.operations[3]
    assert isinstance(last, Linear)
    spoilt = replace(net, operations=list(net.operations))
    spoilt.operations[3] = replace(last, weight=-last.weight)
    assert measure(net, net, rows[None]).agreement == 1.0
    assert measure(net, spoilt, rows[None]).agreement < 0.9


@pytest.mark.parametrize(
    "shape", [(3,), (0, 5), (4, 6), (2, 2, 2, 5)], ids=lambda shape: "x".join(map(str, shape))
)
def test_observations_of_another_shape_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"observations: given an array of shape"):
        write_c(net_of("mlp"), tmp_path, int8=True, observations=np.zeros(shape, np.float32))


def test_observations_of_another_dtype_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="observations: given float64; allowed: float32"):
        write_c(net_of("mlp"), tmp_path, int8=True, observations=np.zeros((4, 5)))


@pytest.mark.parametrize(("env", "steps", "policy"), SUITE)
def test_trained_policies_still_act_alike(
    env: str, steps: int, policy: dict[str, Any], tmp_path: Path
) -> None:
    run = {"folder": tmp_path, "name": env}
    fugu.train(env, show=False, train={"total_steps": steps}, policy=policy, run=run, seed=1)
    trained = find(tmp_path / env)
    rows = observe(trained, 250, 16)
    net = trained.net()
    report = write_c(net, tmp_path / "c", int8=True, observations=rows)
    assert report.loss is not None
    print(f"\n{env}: {report}")
    assert report.loss.agreement >= 0.99
    assert same_actions(net, CEngine(tmp_path / "c"), split(rows)[1]) >= 0.99


def same_actions(net: Net, engine: CEngine, steps: Any) -> float:
    """The share of choices that the compiled policy makes as the network does."""
    sampler, equal, count = ActionSampler(net.action, net.continuous), 0, 0
    states = [np.zeros((steps.shape[1], net.state_size), np.float32)] * 2
    for seen in steps:
        one, _, after = run_reference(net, seen, states[0])
        other, _, then = engine.forward(seen, states[1])
        states = [after, then]
        if sampler.num_heads:
            rows = [
                sampler.sample(params, None, np.random.default_rng(0), greedy=True)[0]
                for params in (np.ascontiguousarray(one), other)
            ]
            equal += int((rows[0] == rows[1]).all(1).sum())
        else:
            equal += int((np.abs(one - other) < 0.02).all(1).sum())
        count += len(seen)
    return equal / count
