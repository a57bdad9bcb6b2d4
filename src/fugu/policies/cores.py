"""Cores: what a policy remembers of its episode, in one flat state per agent.

`forward` takes one step; `forward_segments` takes whole segments and returns what single steps
would. Where `resets[row, t]` is set an episode ended just before: the state is zeroed before step t
is seen. A state of zeros begins an episode.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.policies.recurrence import (
    Kind,
    Weights,
    clear,
    has_kernels,
    run_cell,
    scan_mingru,
    step_cell,
)


class Core(nn.Module):
    """The base class of cores. A user's own core has these two methods and two attributes.

    Attributes:
        state_size: Numbers of an agent's flat float32 state; 0 without memory.
        output_size: Numbers of its output.
    """

    def __init__(self, state_size: int, output_size: int) -> None:
        super().__init__()
        self.state_size, self.output_size = state_size, output_size

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step, `[batch, inputs]`; return `[batch, output_size]` and the new state."""
        raise NotImplementedError("forward(hidden, state) -> (outputs, state)")

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Take whole segments, `[rows, time, inputs]`, from their first states."""
        raise NotImplementedError("forward_segments(hidden, state, resets) -> outputs")


def reset_times(resets: Tensor) -> list[int]:
    """Return the times at which the state of any row is reset, in order.

    The host has to know them, so resets on the CPU avoid waiting for a device.

    >>> reset_times(torch.tensor([[False, False, True], [True, False, True]]))
    [0, 2]
    """
    return [time for time, any_row in enumerate(resets.bool().any(0).tolist()) if any_row]


class NoCore(Core):
    """A core without memory."""

    def __init__(self, input_size: int) -> None:
        super().__init__(0, input_size)

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step, `[batch, hidden]`."""
        return hidden, state

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Take whole segments, `[rows, time, hidden]`."""
        return hidden


class _RecurrentCore(Core):
    """A recurrent network of torch, run by a native kernel on the CPU.

    Elsewhere torch runs it from reset to reset, or step by step if there are many resets.
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
        """Take one step, `[batch, hidden]`."""
        weights = self._weights()
        if has_kernels(hidden, state, *weights):
            return step_cell(self.kind, hidden, state, weights)
        outputs, state = self._run(hidden.unsqueeze(0), state)
        return outputs[0], state

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Take whole segments, `[rows, time, hidden]`."""
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
        """Take one step at a time, after projecting the inputs of all steps at once."""
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
        take, forget, new, output = (inputs + self._recur(hidden)).chunk(4, -1)
        cell = forget.sigmoid() * cell + take.sigmoid() * new.tanh()
        hidden = output.sigmoid() * cell.tanh()
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
        reset, update, new = inputs.chunk(3, -1)
        old_reset, old_update, old_new = self._recur(state).chunk(3, -1)
        candidate = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
        state = torch.lerp(candidate, state, torch.sigmoid(update + old_update))
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
        """Take one step, `[batch, hidden]`."""
        if has_kernels(hidden, state, *self.gates.parameters()):
            state = scan_mingru(self.gates(hidden).unsqueeze(1), state, None)[:, 0]
            return state, state
        gate, candidate = self._gates(hidden)
        state = torch.lerp(state, candidate, gate)
        return state, state

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Take whole segments, `[rows, time, hidden]`."""
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


class TransformerCore(Core):
    """One pre-norm block of causal attention over the last `window` hidden vectors of the episode.

    A learned bias of each distance encodes positions. The state is the window, oldest first, and
    the number of vectors in it.
    """

    def __init__(self, input_size: int, hidden_size: int, window: int) -> None:
        super().__init__(window * hidden_size + 1, hidden_size)
        self.window, self.hidden_size = window, hidden_size
        self.heads = math.gcd(hidden_size, 4)
        same = input_size == hidden_size
        self.project = nn.Identity() if same else nn.Linear(input_size, hidden_size)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.queries = nn.Linear(hidden_size, hidden_size)
        self.keys_values = nn.Linear(hidden_size, 2 * hidden_size)
        self.merge = nn.Linear(hidden_size, hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 2 * hidden_size),
            nn.GELU(),
            nn.Linear(2 * hidden_size, hidden_size),
        )
        self.bias = nn.Parameter(torch.zeros(self.heads, window))  # by distance
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, 1.0)
                nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step, `[batch, inputs]`."""
        window, count = self._split(state)
        present = self.project(hidden).unsqueeze(1)
        window = torch.cat([window[:, 1:], present], 1)
        count = (count + 1).clamp_max(self.window)
        ages = torch.arange(self.window - 1, -1, -1, device=hidden.device)
        allowed = (ages < count.unsqueeze(-1)).unsqueeze(1)  # [batch, 1, window]
        bias = self.bias[:, ages].unsqueeze(1)  # [heads, 1, window]
        output = self._block(present, window, allowed, bias)[:, 0]
        return output, torch.cat([window.flatten(1), count.unsqueeze(-1)], -1)

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Take whole segments, `[rows, time, inputs]`."""
        window, count = self._split(state)
        present = self.project(hidden)
        device, size, steps = hidden.device, self.window, present.shape[1]
        context = torch.cat([window, present], 1)  # [rows, window + time, hidden]
        # Episode 0 is that of the state; empty places of the state have number -1, which no query
        # has.
        episodes = resets.to(device, torch.int64).cumsum(1)
        places = torch.arange(size, device=device)
        before = torch.where(places >= size - count.unsqueeze(-1), 0, -1)
        owners = torch.cat([before, episodes], 1)
        time = torch.arange(steps, device=device).unsqueeze(-1)
        ages = size + time - torch.arange(size + steps, device=device)  # [time, window + time]
        near = (ages >= 0) & (ages < size)
        allowed = near & (episodes.unsqueeze(-1) == owners.unsqueeze(1))
        bias = self.bias[:, ages.clamp(0, size - 1)]
        return self._block(present, context, allowed, bias)

    def _split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Split a flat state into the window [batch, window, hidden] and the count [batch]."""
        return state[:, :-1].reshape(-1, self.window, self.hidden_size), state[:, -1]

    def _block(self, present: Tensor, context: Tensor, allowed: Tensor, bias: Tensor) -> Tensor:
        """Attend from queries [rows, time, hidden] to a context [rows, places, hidden].

        `allowed` is [rows, time, places], `bias` [heads, time, places].
        """
        # A weight of 0 does not hide a NaN of an earlier episode.
        context = torch.where(context.isfinite(), context, 0.0)
        queries = self._heads(self.queries(self.attention_norm(present)))
        keys, values = self.keys_values(self.attention_norm(context)).chunk(2, -1)
        keys, values = self._heads(keys), self._heads(values)
        scores = torch.where(allowed.unsqueeze(1), bias, float("-inf"))
        seen = nn.functional.scaled_dot_product_attention(queries, keys, values, scores)
        present = present + self.merge(seen.transpose(1, 2).flatten(2))
        output: Tensor = present + self.mlp(self.mlp_norm(present))
        return output

    def _heads(self, tensor: Tensor) -> Tensor:
        """Reshape [rows, places, hidden] to [rows, heads, places, hidden / heads]."""
        rows, places, hidden = tensor.shape
        return tensor.view(rows, places, self.heads, hidden // self.heads).transpose(1, 2)


def make_core(name: str, input_size: int, hidden_size: int, window: int = 64) -> Core:
    """Make the core of that name, for inputs of `input_size` numbers.

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
