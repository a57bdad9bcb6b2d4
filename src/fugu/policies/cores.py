"""Cores: what a policy remembers of its episode, in one flat state an agent.

`forward` takes one step; `forward_segments` takes whole segments and gives what stepping one by
one gives. Where `resets[row, t]` is set an episode ended just before: the state is zeroed before
step t is seen. A state of zeros is the start of an episode.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.policies.attention import TransformerCore
from fugu.policies.core import Core, clear, reset_times
from fugu.policies.recurrence import (
    Kind,
    Weights,
    has_kernels,
    run_cell,
    scan_mingru,
    step_cell,
)


class NoCore(Core):
    """Remembers nothing."""

    def __init__(self, input_size: int) -> None:
        super().__init__(0, input_size)

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step, `[batch, hidden]`."""
        return hidden, state

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Whole segments, `[rows, time, hidden]`."""
        return hidden


class _RecurrentCore(Core):
    """A network of torch's own: by a kernel on the CPU.

    Elsewhere torch runs it from reset to reset, or step by step if those are many.
    """

    kind: Kind

    def __init__(self, network: nn.LSTM | nn.GRU, state_size: int) -> None:
        super().__init__(state_size, network.hidden_size)
        self.network = network
        for name, parameter in network.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter, 1.0)
            else:
                nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step, `[batch, hidden]`."""
        weights = self._weights()
        if has_kernels(hidden, state, *weights):
            return step_cell(self.kind, hidden, state, weights)
        outputs, state = self._run(hidden.unsqueeze(0), state)
        return outputs[0], state

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Whole segments, `[rows, time, hidden]`."""
        weights = self._weights()
        if has_kernels(hidden, state, *weights):
            return run_cell(self.kind, hidden, state, resets, weights)
        steps = hidden.shape[1]
        times = reset_times(resets)
        resets = resets.to(hidden.device, torch.bool)
        series = hidden.transpose(0, 1)  # [time, rows, hidden]
        if len(times) * 4 > steps:
            outputs = self._run_steps(series, state, resets, set(times))
        else:
            pieces, starts = [], sorted({0, *times})
            for begin, end in zip(starts, [*starts[1:], steps], strict=True):
                if begin in times:
                    state = clear(state, resets[:, begin])
                piece, state = self._run(series[begin:end], state)
                pieces.append(piece)
            outputs = torch.cat(pieces)
        return outputs.transpose(0, 1)

    def _run_steps(self, series: Tensor, state: Tensor, resets: Tensor, times: set[int]) -> Tensor:
        """One step at a time; what needs no state is computed for all of them at once."""
        weights = self._weights()
        projected = nn.functional.linear(series, weights.inputs, weights.input_bias)
        outputs = []
        for t, inputs in enumerate(projected.unbind()):
            if t in times:
                state = clear(state, resets[:, t])
            output, state = self._step(inputs, state)
            outputs.append(output)
        return torch.stack(outputs)

    def _weights(self) -> Weights:
        return Weights(*self.network.all_weights[0])

    def _recur(self, hidden: Tensor) -> Tensor:
        weights = self._weights()
        return nn.functional.linear(hidden, weights.recurrents, weights.recurrent_bias)

    def _run(self, series: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("_run(series [time, rows, hidden], state) -> outputs, state")

    def _step(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("_step(projected inputs [rows, gates], state) -> output, state")


class LstmCore(_RecurrentCore):
    """An LSTM; its state is the hidden vector, then the cell."""

    kind = "lstm"

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(nn.LSTM(input_size, hidden_size), 2 * hidden_size)

    def _run(self, series: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = (part.unsqueeze(0).contiguous() for part in state.chunk(2, -1))
        outputs, (hidden, cell) = self.network(series, (hidden, cell))
        return outputs, torch.cat([hidden[0], cell[0]], -1)

    def _step(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = state.chunk(2, -1)
        take, keep, new, give = (inputs + self._recur(hidden)).chunk(4, -1)
        cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
        hidden = give.sigmoid() * cell.tanh()
        return hidden, torch.cat([hidden, cell], -1)


class GruCore(_RecurrentCore):
    """A GRU; its state is the hidden vector."""

    kind = "gru"

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(nn.GRU(input_size, hidden_size), hidden_size)

    def _run(self, series: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        outputs, state = self.network(series, state.unsqueeze(0).contiguous())
        return outputs, state[0]

    def _step(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        forget, keep, new = inputs.chunk(3, -1)
        old_forget, old_keep, old_new = self._recur(state).chunk(3, -1)
        candidate = torch.tanh(new + torch.sigmoid(forget + old_forget) * old_new)
        state = torch.lerp(candidate, state, torch.sigmoid(keep + old_keep))
        return state, state


class MinGruCore(Core):
    """A GRU whose gates see only the present: h = (1 - z) h + z g(candidate) (Feng et al. 2024).

    `g(x)` is x + 1/2 above 0 and sigmoid(x) below, so that states are positive. Gates of all steps
    are one product; only the sum above runs along time.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(hidden_size, hidden_size)
        self.gates = nn.Linear(input_size, 2 * hidden_size)
        with torch.no_grad():
            for half in self.gates.weight.chunk(2):
                nn.init.orthogonal_(half, 1.0)
            self.gates.bias.zero_()

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step, `[batch, hidden]`."""
        if has_kernels(hidden, state, *self.gates.parameters()):
            state = scan_mingru(self.gates(hidden).unsqueeze(1), state, None)[:, 0]
            return state, state
        gate, candidate = self._gates(hidden)
        state = torch.lerp(state, candidate, gate)
        return state, state

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Whole segments, `[rows, time, hidden]`."""
        if has_kernels(hidden, state, *self.gates.parameters()):
            return scan_mingru(self.gates(hidden), state, resets)
        times = set(reset_times(resets))
        resets = resets.to(hidden.device, torch.bool)
        gates, candidates = self._gates(hidden.transpose(0, 1))
        outputs = []
        for t, (gate, candidate) in enumerate(
            zip(gates.unbind(), candidates.unbind(), strict=True)
        ):
            if t in times:
                state = clear(state, resets[:, t])
            state = torch.lerp(state, candidate, gate)
            outputs.append(state)
        return torch.stack(outputs, 1)

    def _gates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate = self.gates(hidden).chunk(2, -1)
        return gate.sigmoid(), torch.where(candidate >= 0, candidate + 0.5, candidate.sigmoid())


def make_core(name: str, input_size: int, hidden_size: int, window: int = 64) -> Core:
    """The core of that name, for inputs of `input_size` numbers.

    >>> make_core("lstm", 32, 64).state_size
    128
    """
    match name:
        case "none":
            return NoCore(input_size)
        case "lstm":
            return LstmCore(input_size, hidden_size)
        case "gru":
            return GruCore(input_size, hidden_size)
        case "mingru":
            return MinGruCore(input_size, hidden_size)
        case "transformer":
            return TransformerCore(input_size, hidden_size, window)
    raise UsageError(f"core: given {name!r}; allowed: none, lstm, gru, mingru, transformer.")
