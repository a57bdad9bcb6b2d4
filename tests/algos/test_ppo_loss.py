"""The fused loss against float64 autograd of its definition: gradients first, ties on purpose."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fugu import native
from fugu.algos import ppo_loss
from fugu.algos.ppo_loss import ValueLoss, _evaluate, fused_ppo_loss, ppo_loss_reference
from fugu.core.errors import UsageError

VALUE_LOSSES = get_args(ValueLoss)
needs_native = pytest.mark.skipif(not native.available, reason="the reference serves")
ROWS = ("samples", "old_log_probs", "advantages", "old_values", "returns", "weights")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the loss, as `PPOConfig` has them."""

    clip: float = 0.2
    value_loss: ValueLoss = "clipped"
    value_clip: float = 0.2
    huber_delta: float = 1.0
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01


@dataclasses.dataclass
class Case:
    """Rows of a batch, as keywords of the loss."""

    params: Tensor
    values: Tensor
    rest: dict[str, Any]

    def run(self, loss: Any = fused_ppo_loss, scale: float = 1.0, **changes: Any) -> Any:
        """Loss, ratios, metrics, and the gradients of params and values."""
        params, values = self.params.clone().requires_grad_(), self.values.clone().requires_grad_()
        result = loss(params, values, **{**self.rest, **changes})
        (result.loss * scale).backward()
        return *result, params.grad, values.grad

    def exactly(self) -> Any:
        """What float64 autograd of the reference gives."""
        wide = Case(self.params.double(), self.values.double(), dict(self.rest))
        for name in ROWS:
            wide.rest[name] = wide.rest[name].double()
        return wide.run(ppo_loss_reference)

    def part(self, begin: int, end: int) -> Case:
        rest = dict(self.rest)
        for name in (*ROWS, "masks"):
            rest[name] = None if rest[name] is None else rest[name][begin:end]
        return Case(self.params[begin:end], self.values[begin:end], rest)


def make(
    seed: int, rows: int, choices: list[int], continuous: int = 0, *, scale: float = 1.0,
    masked: bool = False, dead: float = 0.0, critics: int = 0, **settings: Any,
) -> Case:  # fmt: skip
    """Random rows whose samples are allowed and whose ratios are not far from 1."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    width = sum(choices)
    params = torch.cat([scale * normal(rows, width), normal(rows, 2 * continuous)], 1)
    masks = torch.rand((rows, width), generator=random) < 0.5 if masked else None
    columns, offset = [], 0
    for count in choices:
        index = torch.randint(count, (rows,), generator=random)
        columns.append(index.float())
        if masks is not None:
            masks[torch.arange(rows), offset + index] = True
        offset += count
    samples = torch.stack([*columns, *normal(continuous, rows)], 1)
    shape = (rows, critics) if critics else (rows,)
    values = normal(*shape)
    weights = 0.5 + torch.rand(rows, generator=random)
    weights[torch.rand(rows, generator=random) < dead] = 0.0
    rest = {
        "choices": choices, "continuous": continuous, "samples": samples, "masks": masks,
        "advantages": normal(rows), "old_values": values + 0.3 * normal(*shape),
        "returns": normal(*shape), "weights": weights, "normaliser": 0.7 * rows + 1.0,
        "old_log_probs": torch.zeros(rows), "cfg": Settings(**settings),
    }  # fmt: skip
    case = Case(params, values, rest)
    rest["old_log_probs"] = (_log_probs(case) + 0.3 * normal(rows)).float()
    return case


def _log_probs(case: Case) -> Tensor:
    rest, masks = case.rest, case.rest["masks"]
    samples = rest["samples"].double()
    return _evaluate(case.params.double(), samples, masks, rest["choices"], rest["continuous"])[0]


def compare(case: Case) -> None:
    """Gradients within 1e-5 of float64 autograd: of each number, or of the row's largest."""
    loss, ratios, metrics, params_grad, values_grad = case.run()
    exact_loss, exact_ratios, exact_metrics, exact_params, exact_values = case.exactly()
    counts = case.rest["weights"] != 0.0
    for grad, exact in ((params_grad, exact_params), (values_grad, exact_values)):
        assert grad.dtype == torch.float32
        assert not grad[~counts].any()
        error, size = (grad.double() - exact).abs(), exact.abs()
        if grad.ndim == 2 and grad.shape[1] > 0:
            size = torch.maximum(size, size.amax(1, keepdim=True))
        assert (error <= 1e-5 * size + 1e-12).all(), float((error / (size + 1e-12)).max())
    torch.testing.assert_close(ratios.double(), exact_ratios, rtol=1e-5, atol=0)
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-5, atol=1e-6)
    assert metrics.keys() == exact_metrics.keys()
    for name, metric in metrics.items():
        assert metric.dtype == torch.float64
        size = {"rtol": 1e-5, "atol": 1e-6 * len(ratios)}
        torch.testing.assert_close(metric, exact_metrics[name], **size)


cases = st.builds(
    make,
    seed=st.integers(0, 1 << 30),
    rows=st.integers(0, 70),
    choices=st.lists(st.integers(1, 300) | st.integers(1, 5), min_size=1, max_size=4),
    continuous=st.integers(0, 4),
    scale=st.sampled_from([0.0, 1.0, 5.0, 1e4]),
    masked=st.booleans(),
    dead=st.sampled_from([0.0, 0.3, 1.0]),
    critics=st.integers(0, 3),
    clip=st.sampled_from([0.0, 0.1, 0.2]),
    value_loss=st.sampled_from(VALUE_LOSSES),
    value_clip=st.sampled_from([0.0, 0.2, 0.5]),
    huber_delta=st.sampled_from([0.3, 1.0]),
    value_coefficient=st.sampled_from([0.0, 0.5, 2.0]),
    entropy_coefficient=st.sampled_from([0.0, 0.01, 1.0]),
)


@needs_native
@settings(max_examples=80, deadline=None)
@given(cases)
def test_gradients_are_those_of_float64_autograd(case: Case) -> None:
    compare(case)


@needs_native
@pytest.mark.parametrize("continuous", [1, 6])
@pytest.mark.parametrize("value_loss", VALUE_LOSSES)
def test_continuous_alone(continuous: int, value_loss: str) -> None:
    compare(make(3, 77, [], continuous, value_loss=value_loss))


@needs_native
@settings(max_examples=25, deadline=None)
@given(cases, st.sampled_from(["params", "values", *ROWS[:-1]]))
def test_rows_of_weight_0_may_hold_anything(case: Case, name: str) -> None:
    dead = case.rest["weights"] == 0.0
    clean = case.run()
    array = getattr(case, name, case.rest.get(name))
    assert array is not None
    array[dead] = math.nan
    if case.rest["masks"] is not None:
        case.rest["masks"][dead] = False
    for loss in (fused_ppo_loss, ppo_loss_reference):
        result = case.run(loss)
        before = clean if loss is fused_ppo_loss else result
        for found, expected in zip(
            (result[0], *result[2].values(), *result[3:]),
            (before[0], *before[2].values(), *before[3:]),
            strict=True,
        ):
            assert torch.equal(found, expected)
        assert all(tensor.isfinite().all() for tensor in (result[0], *result[3:]))
        assert (result[1][dead] == 1.0).all()


@needs_native
def test_a_ratio_of_exactly_1() -> None:
    case = make(1, 64, [3, 5], 2)
    case.rest["old_log_probs"] = _log_probs(case).float()
    assert ((case.run()[1] - 1.0).abs() < 1e-5).all()  # the old ones are rounded
    compare(case)
    certain = make(2, 64, [1], clip=0.0)  # the bounds are 1 too
    certain.rest["old_log_probs"] = torch.zeros(64)
    _, ratios, metrics, *_ = certain.run()
    assert (ratios == 1.0).all()
    assert (metrics["clip_fraction"], metrics["approx_kl"]) == (0.0, 0.0)
    compare(certain)


@needs_native
@pytest.mark.parametrize("change", [-0.25, 0.25])
@pytest.mark.parametrize("seed", range(10))
def test_a_ratio_exactly_at_a_bound_still_has_a_gradient(change: float, seed: int) -> None:
    """A clamp lets the gradient through at its bounds, so both of the equal terms have one."""
    case = make(seed, 4, [3], 1)
    case.params[:], case.rest["samples"][:] = (
        case.params[0].clone(),
        case.rest["samples"][0].clone(),
    )
    case.rest["advantages"] = torch.tensor([1.0, -1.0, 0.0, 2.0])
    case.rest["old_log_probs"] = (_log_probs(case) - change).float()
    ratio = float((_log_probs(case) - case.rest["old_log_probs"].double()).exp()[0])
    cfg = case.rest["cfg"] = Settings(clip=abs(ratio - 1.0), entropy_coefficient=0.0)
    assert ratio in (1.0 - cfg.clip, 1.0 + cfg.clip)
    compare(case)
    assert case.run()[3].any(1).tolist() == [True, True, False, True]
    assert case.run()[2]["clip_fraction"] == 0.0


@needs_native
def test_beyond_the_bounds_only_the_way_back_has_a_gradient() -> None:
    for old, moves in ((0.5, [True, False]), (-0.5, [False, True])):
        case = make(6, 2, [], 1, clip=0.2, entropy_coefficient=0.0)
        case.rest["advantages"] = torch.tensor([1.0, -1.0])
        case.rest["old_log_probs"] = (_log_probs(case) + old).float()
        compare(case)
        assert case.run()[3].any(1).tolist() == moves
        assert case.run()[2]["clip_fraction"] == 2.0


@needs_native
def test_ties_of_the_clipped_value_loss() -> None:
    case = make(7, 6, [2], value_clip=0.25, value_coefficient=1.0)
    #                            old itself, bounds, halfway between the value and the bound
    case.values = torch.tensor([0.5, 0.25, -0.25, 0.75, -0.75, 0.75])
    case.rest["old_values"] = torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
    case.rest["returns"] = torch.tensor([1.0, 1.0, 1.0, 0.5, -0.5, 1.0])
    case.rest |= {"weights": torch.ones(6), "normaliser": 1.0}
    compare(case)
    assert case.run()[4].tolist() == [-0.5, -0.75, -1.25, 0.125, -0.125, 0.0]


@needs_native
def test_the_clipped_huber_loss_is_the_larger_of_two() -> None:
    case = make(7, 6, [2], value_loss="huber_clipped", value_clip=0.25, huber_delta=0.125)
    case.values = torch.tensor([0.5, 0.25, -0.25, 0.75, -0.75, 0.75])
    case.rest["old_values"] = torch.tensor([0.5, 0.0, 0.0, 0.0, 0.0, 0.0])
    case.rest["returns"] = torch.tensor([1.0, 1.0, 1.0, 0.5, -0.5, 1.0])
    case.rest |= {"weights": torch.ones(6), "normaliser": 1.0}
    case.rest["cfg"] = dataclasses.replace(case.rest["cfg"], value_coefficient=1.0)
    compare(case)
    errors = [0.5, 0.75, 1.25, 0.25, 0.25, 0.75]  # the larger ones, all beyond delta
    expected = sum(0.125 * (error - 0.0625) for error in errors)
    for loss in (fused_ppo_loss, ppo_loss_reference):
        found = case.run(loss)
        assert found[2]["value_loss"].item() == pytest.approx(expected)
        assert found[4].tolist() == [-0.125, -0.125, -0.125, 0.0625, -0.0625, 0.0]


@needs_native
def test_values_at_the_old_ones_and_advantages_of_0() -> None:
    case = make(8, 50, [3, 2], 2)
    case.rest["old_values"] = case.values.clone()
    case.rest["advantages"][::2] = 0.0
    compare(case)
    case.rest["returns"] = case.values.clone()
    compare(case)


@needs_native
@pytest.mark.parametrize("shape", [(5000, [3], 0), (3000, [7, 2], 3), (2100, [300], 0)])
def test_threads_change_no_bit(shape: tuple[int, list[int], int]) -> None:
    case = make(9, *shape, masked=True, dead=0.1)
    alone = case.run(threads=1)
    for threads in (2, 5):
        found = case.run(threads=threads)
        assert torch.equal(found[0], alone[0])
        assert all(torch.equal(found[2][name], alone[2][name]) for name in alone[2])
        for array, expected in zip(found[3:], alone[3:], strict=True):
            assert torch.equal(array, expected)
        assert torch.equal(found[1], alone[1])


@needs_native
def test_microbatches_equal_the_batch() -> None:
    case = make(10, 1000, [5, 3], 2, masked=True)
    whole = case.run()
    parts = [case.part(begin, begin + 333).run() for begin in range(0, 1000, 333)]
    for place in (1, 3, 4):
        assert torch.equal(torch.cat([part[place] for part in parts]), whole[place])
    total = sum(part[0].double() for part in parts)
    torch.testing.assert_close(total, whole[0].double(), rtol=1e-6, atol=0)
    for name, metric in whole[2].items():
        torch.testing.assert_close(sum(part[2][name] for part in parts), metric)


@needs_native
def test_masked_choices_have_no_gradient() -> None:
    case = make(11, 40, [6, 3], masked=True, entropy_coefficient=1.0)
    masks = case.rest["masks"]
    grad = case.run()[3]
    assert not grad[~masks].any()
    assert grad[masks].any()
    case.params[~masks] = -math.inf
    assert torch.equal(case.run(masks=None)[3], grad)
    case.params[~masks] = math.nan
    assert torch.equal(case.run()[3], grad)


@needs_native
def test_what_is_no_number_shows() -> None:
    for name in ("params", "values", "advantages", "old_log_probs"):
        case = make(12, 40, [3], 1)
        (case.rest.get(name) if name in case.rest else getattr(case, name))[7] = math.nan
        assert case.run()[0].isnan(), name
    case = make(12, 40, [3], masked=True)
    case.rest["masks"][7] = False
    assert case.run()[0].isnan()


def test_the_gradient_follows_what_comes_after() -> None:
    case = make(13, 20, [3], 1)
    once, thrice = case.run(), case.run(scale=3.0)
    torch.testing.assert_close(thrice[3], 3.0 * once[3])
    torch.testing.assert_close(thrice[4], 3.0 * once[4])
    with torch.no_grad():
        result = fused_ppo_loss(case.params, case.values, **case.rest)
    assert torch.equal(result.loss, once[0])
    assert not result.loss.requires_grad
    assert not result.ratios.requires_grad


def test_shorter_types_are_converted_at_the_boundary() -> None:
    case = make(14, 30, [4])
    case.params, case.values = case.params.bfloat16(), case.values.bfloat16()
    loss, _, _, params_grad, values_grad = case.run()
    assert (loss.dtype, params_grad.dtype) == (torch.float32, torch.bfloat16)
    expected = Case(case.params.float(), case.values.float(), case.rest).run()
    assert torch.equal(loss, expected[0])
    assert torch.equal(params_grad, expected[3].bfloat16())
    assert torch.equal(values_grad, expected[4].bfloat16())


def test_rows_need_not_stand_side_by_side() -> None:
    case = make(15, 30, [4], critics=2)
    expected = case.run()
    for name in ("samples", "returns", "old_values"):
        case.rest[name] = case.rest[name].T.contiguous().T
    case.params = case.params.T.contiguous().T
    assert torch.equal(case.run()[3].contiguous(), expected[3])


def test_without_the_extension_the_reference_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(16, 30, [4], 1, masked=True, dead=0.2)
    monkeypatch.setattr(ppo_loss.native, "available", False)
    found, expected = case.run(), case.run(ppo_loss_reference)
    assert torch.equal(found[3], expected[3])
    assert torch.equal(found[0], expected[0])


def test_errors_say_what_is_wrong() -> None:
    case = make(17, 8, [4], 1)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"advantages": torch.zeros(7)}, r"advantages: given shape \(7,\); allowed: \(8,\)"),
        ({"choices": [5]}, r"params: given shape \(8, 6\); allowed: \(8, 7\)"),
        ({"choices": [0, 4]}, "choices, continuous: given"),
        ({"masks": torch.ones(8, 3, dtype=torch.bool)}, "masks: given"),
        ({"returns": torch.zeros(8, 2)}, "returns: given"),
    ]
    for change, message in changes:
        with pytest.raises(UsageError, match=message):
            case.run(**change)


@needs_native
@pytest.mark.parametrize("bad", [4.0, -1.0, 1.5, math.nan])
def test_a_sample_that_is_no_choice_is_named(bad: float) -> None:
    case = make(18, 50, [2, 4])
    case.rest["samples"][41, 1] = bad
    with pytest.raises(UsageError, match=r"samples\[41, 1\]: given"):
        case.run()
    case.rest["weights"][41] = 0.0
    case.run()
