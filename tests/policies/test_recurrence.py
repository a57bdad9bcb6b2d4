"""Recurrent kernels: outputs and gradients against torch, step by step, in float64 and float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fugu import native
from fugu.policies import cores
from fugu.policies.cores import Core, make_core
from fugu.policies.recurrence import has_kernels, scan_mingru

pytestmark = pytest.mark.skipif(not native.available, reason="the extension is not built")

NAMES = ["lstm", "gru", "mingru"]
Results = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def core_of(name: str, inputs: int, hidden: int) -> Core:
    torch.manual_seed(0)
    core = make_core(name, inputs, hidden)
    with torch.no_grad():  # no parameter may be idle for being zero
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def tensors(core: Core, rows: int, times: int, inputs: int, share: float) -> tuple[Tensor, ...]:
    """Inputs, states, resets and the weights of the outputs in a loss."""
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(rows, times, inputs, generator=generator),
        torch.randn(rows, core.state_size, generator=generator),
        torch.rand(rows, times, generator=generator) < share,
        torch.randn(rows, times, core.output_size, generator=generator),
    )


def results(core: Core, hidden: Tensor, state: Tensor, resets: Tensor, loss: Tensor) -> Results:
    """Outputs, and the loss's gradients by all there is."""
    hidden, state = hidden.clone().requires_grad_(), state.clone().requires_grad_()
    outputs = core.forward_segments(hidden, state, resets)
    names, parameters = zip(*core.named_parameters(), strict=True)
    wanted = (hidden, state, *parameters)
    grads = torch.autograd.grad((outputs * loss).sum(), wanted, materialize_grads=True)
    found = dict(zip(("inputs", "state", *names), grads, strict=True))
    return {"outputs": outputs.detach(), **found}


def stepped(core: Core, hidden: Tensor, state: Tensor, resets: Tensor, loss: Tensor) -> Results:
    """The same, in torch and step by step, in float64: the core's own code without kernels."""
    doubled = make_core(type(core).__name__.removesuffix("Core").lower(), hidden.shape[2],
                        core.output_size).double()  # fmt: skip
    doubled.load_state_dict(core.state_dict())
    assert not has_kernels(hidden.double(), state.double(), *doubled.parameters())
    return results(doubled, hidden.double(), state.double(), resets, loss.double())


def assert_near(ours: Results, theirs: Results, tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, wanted in theirs.items():
        scale = float(wanted.abs().max().clamp_min(1.0))
        message = f"{name} of scale {scale:.3g}"
        torch.testing.assert_close(
            ours[name].double(), wanted.double(), atol=tolerance * scale, rtol=0,
            msg=lambda text, message=message: f"{message}: {text}",
        )  # fmt: skip


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(
    ("rows", "times", "inputs", "hidden"),
    [(1, 1, 3, 5), (1, 9, 4, 16), (7, 1, 4, 19), (6, 40, 5, 33), (40, 30, 12, 20), (3, 4, 6, 1)],
)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_equal_float64_steps(
    name: str, rows: int, times: int, inputs: int, hidden: int, share: float
) -> None:
    core = core_of(name, inputs, hidden)
    given = tensors(core, rows, times, inputs, share)
    assert has_kernels(given[0], given[1], *core.parameters())
    assert_near(results(core, *given), stepped(core, *given), 3e-6)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_equal_float32_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_of(name, 24, 32)
    given = tensors(core, 9, 32, 24, 0.1)
    ours = results(core, *given)
    monkeypatch.setattr(cores, "has_kernels", lambda *_: False)
    assert_near(ours, results(core, *given), 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_lost_reset_shows(name: str) -> None:
    """The negative control: one reset more or less is far outside of the tolerance."""
    core = core_of(name, 5, 20)
    hidden, state, resets, loss = tensors(core, 6, 12, 5, 0.2)
    ours = results(core, hidden, state, resets, loss)
    other = resets.clone()
    other[2, 7] ^= True
    with pytest.raises(AssertionError):
        assert_near(ours, stepped(core, hidden, state, other, loss), 1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_single_steps_reach_the_same_state(name: str) -> None:
    """With gradients or without, one by one or at once, by kernel or by torch."""
    core, doubled = core_of(name, 5, 21), core_of(name, 5, 21).double()
    hidden, start, _, _ = tensors(core, 6, 10, 5, 0.0)
    graded, plain, exact = start, start, start.double()
    outputs = core.forward_segments(hidden, start, torch.zeros(6, 10, dtype=torch.bool))
    for t in range(10):
        output, graded = core(hidden[:, t], graded)
        with torch.no_grad():
            same, plain = core(hidden[:, t], plain)
            _, exact = doubled(hidden[:, t].double(), exact)
        torch.testing.assert_close(output, same, atol=2e-6, rtol=0)
        torch.testing.assert_close(output, outputs[:, t], atol=2e-6, rtol=0)
        torch.testing.assert_close(plain.double(), exact, atol=1e-5, rtol=0)
    grads = torch.autograd.grad(graded.square().sum(), list(core.parameters()))
    weights = list(doubled.parameters())
    state = start.double()
    for t in range(10):
        _, state = doubled(hidden[:, t].double(), state)
    for ours, theirs in zip(grads, torch.autograd.grad(state.square().sum(), weights), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_runs_and_threads_agree_of_what_kernels_write(name: str) -> None:
    """Rows enough for threads; products themselves may add in another order with more of them."""
    core = core_of(name, 24, 64)
    given = tensors(core, 600, 5, 24, 0.1)
    torch.set_num_threads(1)
    first, second = results(core, *given), results(core, *given)
    torch.set_num_threads(3)
    third, fourth = results(core, *given), results(core, *given)
    for key in first:
        assert torch.equal(first[key], second[key])
        assert torch.equal(third[key], fourth[key])
        torch.testing.assert_close(first[key], third[key], atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_in_its_row(name: str) -> None:
    core = core_of(name, 6, 20)
    hidden, state, resets, loss = tensors(core, 5, 8, 6, 0.2)
    clean = results(core, hidden, state, resets, loss)
    hidden[2], state[2], loss[2] = torch.nan, torch.nan, 0.0
    broken = results(core, hidden, state, resets, loss)
    others = [0, 1, 3, 4]
    for key in ("outputs", "inputs", "state"):
        assert torch.equal(clean[key][others], broken[key][others])
    assert broken["outputs"][2].isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_parts_what_is_no_number_from_the_rest(name: str) -> None:
    core = core_of(name, 6, 20)
    hidden, state, resets, loss = tensors(core, 3, 8, 6, 0.0)
    state[1], resets[1, 0] = torch.nan, True
    hidden[2, 3], resets[2, 4] = torch.nan, True
    found = results(core, hidden, state, resets, loss)
    assert found["outputs"][:2].isfinite().all()
    assert found["outputs"][2, 4:].isfinite().all()
    assert (found["state"][1] == 0).all()
    assert found["inputs"][2, 4:].isfinite().all()


@pytest.mark.parametrize("name", NAMES[:2])
def test_bfloat16_products_are_near(name: str) -> None:
    core = core_of(name, 24, 32)
    hidden, state, resets, loss = tensors(core, 9, 16, 24, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        assert has_kernels(hidden, state, *core.parameters())
        ours = results(core, hidden, state, resets, loss)
        short = results(core, hidden.bfloat16(), state, resets, loss)
        with torch.no_grad():
            output, _ = core(hidden[:, 0], state)
    assert ours["outputs"].dtype == output.dtype == torch.float32
    assert short["inputs"].dtype == torch.bfloat16
    assert_near(ours, stepped(core, hidden, state, resets, loss), 0.03)
    assert_near(short, stepped(core, hidden, state, resets, loss), 0.03)
    assert not torch.equal(ours["outputs"], results(core, hidden, state, resets, loss)["outputs"])


def test_a_scan_takes_bfloat16_gates() -> None:
    """Compared on the same gates: rounding those moves candidates across 0, where g has a kink."""
    generator = torch.Generator().manual_seed(0)
    gates = torch.randn(5, 9, 2 * 21, generator=generator).bfloat16()
    state, resets = torch.randn(5, 21), torch.rand(5, 9) < 0.2
    outputs, grads = [], []
    for given in (gates, gates.float()):
        given = given.clone().requires_grad_()
        outputs.append(scan_mingru(given, state, resets))
        outputs[-1].sum().backward()
        assert given.grad is not None
        grads.append(given.grad)
    assert torch.equal(*outputs)
    assert torch.equal(grads[0], grads[1].bfloat16())


def test_what_kernels_do_not_serve() -> None:
    core = core_of("lstm", 4, 8)
    hidden, state, *_ = tensors(core, 2, 3, 4, 0.0)
    parameters = list(core.parameters())
    assert has_kernels(hidden, state, *parameters)
    assert not has_kernels(hidden.double(), state, *parameters)
    assert not has_kernels(hidden, state.to("meta"), *parameters)
    assert not has_kernels(hidden.bfloat16(), state, *parameters)
    with torch.autocast("cpu", torch.float16):
        assert not has_kernels(hidden, state, *parameters)
