"""Cores: whole segments give what steps give, resets and gradients included."""

from __future__ import annotations

import pytest
import torch

from fugu.core.errors import UsageError
from fugu.policies.cores import Core, LstmCore, make_core

CORES = ["none", "lstm", "gru", "mingru", "transformer"]
REMEMBERING = CORES[1:]
ROWS, STEPS, INPUTS, HIDDEN, WINDOW = 5, 24, 6, 8, 7


def core_of(name: str, inputs: int = INPUTS) -> Core:
    torch.manual_seed(0)
    core = make_core(name, inputs, HIDDEN, WINDOW)
    with torch.no_grad():  # no parameter may be idle for being zero
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def by_steps(
    core: Core, hidden: torch.Tensor, state: torch.Tensor, resets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = []
    for t in range(hidden.shape[1]):
        state = torch.where(resets[:, t, None], torch.zeros(()), state)
        output, state = core(hidden[:, t], state)
        outputs.append(output)
    return torch.stack(outputs, 1), state


def resets_of(share: float) -> torch.Tensor:
    return torch.rand(ROWS, STEPS, generator=torch.Generator().manual_seed(3)) < share


def start_of(core: Core, steps: int) -> torch.Tensor:
    """States after so many steps, as a row in the middle of an episode begins with."""
    state = torch.zeros(ROWS, core.state_size)
    if not core.state_size:
        return state
    generator = torch.Generator().manual_seed(1)
    earlier = torch.randn(ROWS, max(steps, 1), INPUTS, generator=generator)
    with torch.no_grad():
        return by_steps(core, earlier, state, torch.zeros(ROWS, steps, dtype=torch.bool))[1]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("earlier", [3, 2 * WINDOW])
@pytest.mark.parametrize("name", CORES)
def test_segments_equal_steps(name: str, earlier: int, share: float) -> None:
    core = core_of(name)
    resets, start = resets_of(share), start_of(core, earlier)
    hidden = torch.randn(ROWS, STEPS, INPUTS, generator=torch.Generator().manual_seed(2))
    results = []
    for run in (
        lambda x, s: by_steps(core, x, s, resets)[0],
        lambda x, s: core.forward_segments(x, s, resets),
    ):
        inputs, state = hidden.clone().requires_grad_(), start.clone().requires_grad_()
        outputs = run(inputs, state)
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(4))
        wanted = [inputs, state, *core.parameters()]
        gradients = torch.autograd.grad((outputs * weights).sum(), wanted, allow_unused=True)
        results.append([outputs, *gradients])
    assert results[0][0].shape == (ROWS, STEPS, core.output_size)
    for stepped, whole in zip(*results, strict=True):
        if stepped is None or whole is None:
            assert core.state_size == 0 or share == 1.0
            continue
        scale = float(stepped.detach().abs().max().clamp_min(1.0))
        torch.testing.assert_close(whole, stepped, atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("name", REMEMBERING)
def test_states_matter_until_they_are_reset(name: str) -> None:
    """The negative control of the test above: without resets, the past shows."""
    core = core_of(name)
    hidden = torch.randn(ROWS, STEPS, INPUTS)
    resets = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    start = torch.zeros(ROWS, core.state_size)
    plain = core.forward_segments(hidden, start, resets)
    resets[1, 5] = True
    cut = core.forward_segments(hidden, start, resets)
    others = [0, 2, 3, 4]
    torch.testing.assert_close(plain[others], cut[others])
    torch.testing.assert_close(plain[1, :5], cut[1, :5])
    assert not torch.allclose(plain[1, 5], cut[1, 5], atol=1e-3)
    fresh = core.forward_segments(hidden[:, 5:], start, torch.zeros_like(resets[:, 5:]))
    torch.testing.assert_close(cut[1, 5:], fresh[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.6])
@pytest.mark.parametrize("name", REMEMBERING)
def test_a_reset_clears_what_is_not_a_number(name: str, share: float) -> None:
    core = core_of(name)
    hidden, start = torch.randn(ROWS, STEPS, INPUTS), torch.zeros(ROWS, core.state_size)
    resets = resets_of(share)
    start[0], resets[0, 0] = torch.nan, True
    hidden[1, 4], resets[1, 6] = torch.nan, True
    outputs = core.forward_segments(hidden, start, resets)
    assert outputs[0].isfinite().all()
    assert outputs[1, 4].isnan().any()
    assert outputs[1, 6:].isfinite().all()


@pytest.mark.parametrize("name", CORES)
def test_a_row_of_nan_stays_alone(name: str) -> None:
    core = core_of(name)
    hidden, start = torch.randn(ROWS, STEPS, INPUTS), torch.zeros(ROWS, core.state_size)
    poisoned = hidden.clone()
    poisoned[2] = torch.nan
    others = [0, 1, 3, 4]
    for share in (0.05, 0.6):
        clean = core.forward_segments(hidden, start, resets_of(share))
        found = core.forward_segments(poisoned, start, resets_of(share))
        torch.testing.assert_close(clean[others], found[others], atol=1e-6, rtol=0)
    torch.testing.assert_close(
        core(hidden[:, 0], start)[0][others], core(poisoned[:, 0], start)[0][others]
    )


def test_the_transformer_forgets_what_lies_behind_its_window() -> None:
    core = core_of("transformer")
    hidden = torch.randn(1, 20, INPUTS)
    other = hidden.clone()
    other[0, 3] += 1.0
    start, resets = torch.zeros(1, core.state_size), torch.zeros(1, 20, dtype=torch.bool)
    differs = (
        (core.forward_segments(hidden, start, resets)
         - core.forward_segments(other, start, resets)).abs().amax(-1)[0] > 1e-6
    )  # fmt: skip
    assert differs.tolist() == [3 <= t < 3 + WINDOW for t in range(20)]


def test_order_in_the_window_matters() -> None:
    core = core_of("transformer")
    hidden = torch.randn(1, 5, INPUTS)
    swapped = hidden[:, [1, 0, 2, 3, 4]]
    start, resets = torch.zeros(1, core.state_size), torch.zeros(1, 5, dtype=torch.bool)
    ours = core.forward_segments(hidden, start, resets)[0, -1]
    assert not torch.allclose(ours, core.forward_segments(swapped, start, resets)[0, -1])


def test_the_lstm_begins_orthogonal() -> None:
    core = LstmCore(HIDDEN, HIDDEN)
    weight, recurrent, bias, recurrent_bias = core.network.all_weights[0]
    for matrix in (weight, recurrent):
        torch.testing.assert_close(matrix.T @ matrix, torch.eye(HIDDEN))
    assert (bias == 0).all()
    assert (recurrent_bias == 0).all()


def test_unknown_cores_are_refused() -> None:
    with pytest.raises(UsageError, match="given 'rnn'; allowed: none, lstm"):
        make_core("rnn", 4, 4)
