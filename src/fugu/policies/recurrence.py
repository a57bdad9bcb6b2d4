"""LSTM, GRU and MinGRU by native kernels: torch multiplies matrices, kernels do all else.

They compute the same as the torch code of `fugu.policies.cores`, which serves where `has_kernels`
is false. Arrays are time-major. Inputs and gradients are processed in pieces of a few steps, so
that intermediate values stay in the cache.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native

if native.available:
    from fugu import _native

Kind: TypeAlias = Literal["lstm", "gru"]
Arrays: TypeAlias = list[NDArray[Any] | None]

PIECE = 1024  # rows of a piece: enough for a product, few enough for a cache


class Weights(NamedTuple):
    """The weights of a torch network of one layer."""

    inputs: Tensor  # [gates, inputs]
    recurrents: Tensor  # [gates, hidden]
    input_bias: Tensor  # [gates]
    recurrent_bias: Tensor  # [gates]


class _Settings(NamedTuple):
    kind: Kind
    dtype: torch.dtype  # of products
    keeps: bool  # whether the gradient is needed


def has_kernels(hidden: Tensor, state: Tensor, *weights: Tensor) -> bool:
    """Return whether kernels support these: float32 on the CPU, products maybe in bfloat16."""
    tensors = (hidden, state, *weights)
    if not native.available or any(tensor.device.type != "cpu" for tensor in tensors):
        return False
    dtype = _product_type()
    return (
        dtype in (torch.float32, torch.bfloat16)
        and hidden.dtype in (torch.float32, dtype)
        and all(tensor.dtype == torch.float32 for tensor in tensors[1:])
    )


def clear(state: Tensor, resets: Tensor) -> Tensor:
    """Return the state, zeroed where reset; selected, not multiplied, as NaN times 0 is NaN."""
    return torch.where(resets.unsqueeze(-1), 0.0, state)


def step_cell(kind: Kind, hidden: Tensor, state: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """Take one step of an LSTM or a GRU, as a core's `forward`."""
    if torch.is_grad_enabled():
        resets = torch.zeros(len(hidden), 1, dtype=torch.bool)
        outputs, cells = _run(kind, hidden.unsqueeze(1), state, resets, weights)
        output = outputs[:, 0]
        return output, output if cells is None else torch.cat([output, cells], -1)
    dtype, size = _product_type(), weights.recurrents.shape[1]
    with torch.autocast("cpu", enabled=False):
        by_input = torch.mm(hidden.to(dtype), weights.inputs.to(dtype).t())
        by_recurrent = torch.mm(state[:, :size].to(dtype), weights.recurrents.to(dtype).t())
    after = torch.empty(state.shape)
    output = after[:, :size]
    arrays = [_array(tensor) for tensor in (by_input, by_recurrent, *weights[2:])]
    memories = _array(state[:, -size:]), None, None, _array(after[:, -size:])
    call: Any = _native.lstm_step if kind == "lstm" else _native.gru_step
    call(*arrays, *memories, _array(output), None, None, torch.get_num_threads())
    return output, after


def run_cell(kind: Kind, hidden: Tensor, state: Tensor, resets: Tensor, weights: Weights) -> Tensor:
    """Take whole segments of an LSTM or a GRU, as a core's `forward_segments`."""
    return _run(kind, hidden, state, resets, weights)[0]


def scan_mingru(gates: Tensor, state: Tensor, resets: Tensor | None) -> Tensor:
    """Return the states `[rows, time, hidden]` of a MinGRU, of gates and candidates in a row."""
    flags = None if resets is None else resets.to("cpu", torch.bool).contiguous()
    apply: Any = _Scan.apply
    outputs: Tensor = apply(gates, state, flags)
    return outputs


def _run(
    kind: Kind, hidden: Tensor, state: Tensor, resets: Tensor, weights: Weights
) -> tuple[Tensor, Tensor | None]:
    size = weights.recurrents.shape[1]
    start, cells = state[:, :size], state[:, size:] if kind == "lstm" else None
    flags = resets.to("cpu", torch.bool).t().contiguous()  # [time, rows]
    settings = _Settings(kind, _product_type(), torch.is_grad_enabled())
    apply: Any = _Cell.apply
    with torch.autocast("cpu", enabled=False):
        outputs, last_cells = apply(settings, hidden, start, cells, flags, *weights)
    return outputs, last_cells


class _Cell(torch.autograd.Function):
    """All steps of an LSTM or a GRU: outputs, and an LSTM's last cells."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: _Settings,
        inputs: Tensor,
        start: Tensor,
        cells: Tensor | None,
        resets: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        kind, dtype, keeps = settings
        (rows, times, width), (gates, size) = inputs.shape, weights[1].shape
        pieces = _pieces(times, rows)
        outputs = torch.empty(rows, times, size)
        memories = torch.empty(times, rows, size) if cells is not None else outputs.transpose(0, 1)
        kept = torch.empty(times, rows, 4 * size) if keeps else None
        fed = torch.empty(times, rows, size, dtype=dtype)
        fed[0] = clear(start, resets[0])
        taken = torch.empty(len(pieces[0]), rows, width, dtype=dtype)
        by_input = torch.empty(len(pieces[0]), rows, gates, dtype=dtype)
        by_recurrent = torch.empty(rows, gates, dtype=dtype)
        columns = [weight.to(dtype).t().contiguous() for weight in weights[:2]]
        afters, flags = _each(memories, times), _each(resets, times)
        arrays = list(zip(
            [_array(start if cells is None else cells), *afters[:-1]], flags, [*flags[1:], None],
            afters, _each(outputs.transpose(0, 1), times), _each(kept, times),
            [*_each(fed, times)[1:], None], strict=True,
        ))  # fmt: skip
        products, product, feds = _array(by_input), _array(by_recurrent), fed.unbind()
        biases = [_array(weight) for weight in weights[2:]]
        call: Any = _native.lstm_step if kind == "lstm" else _native.gru_step
        threads = torch.get_num_threads()
        for piece in pieces:
            _take(inputs, piece, taken)
            torch.mm(_flat(taken, piece), columns[0], out=_flat(by_input, piece))
            for place, t in enumerate(piece):
                torch.mm(feds[t], columns[1], out=by_recurrent)
                call(products[place], product, *biases, *arrays[t], threads)
        ctx.settings = settings
        saved = outputs if cells is None else memories  # a view of an output would leak
        ctx.save_for_backward(inputs, start, cells, resets, saved, kept, fed, *weights)
        return outputs, None if cells is None else memories[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kind, dtype, _ = ctx.settings
        inputs, start, cells, resets, memories, kept, fed, *weights = ctx.saved_tensors
        (rows, times, width), (gates, size) = inputs.shape, weights[1].shape
        pieces = _pieces(times, rows)
        lstm = kind == "lstm"
        if not lstm:
            memories = memories.transpose(0, 1)  # [time, rows, hidden]
        output_grads = _each(grads[0].contiguous().transpose(0, 1), times)
        memory_grad = grads[1].clone() if lstm else torch.zeros(rows, size)
        fed_grad = torch.zeros(rows, size, dtype=dtype)
        inputs_grad = torch.empty(inputs.shape, dtype=inputs.dtype)
        taken = torch.empty(len(pieces[0]), rows, width, dtype=dtype)
        by_input = torch.empty(len(pieces[0]), rows, gates, dtype=dtype)
        by_recurrent = by_input if lstm else torch.empty_like(by_input)
        sums = _Sums(weights, dtype)
        rows_of = [weight.to(dtype) for weight in weights[:2]]
        afters, flags = _each(memories, times), _each(resets, times)
        arrays = list(zip(
            _each(kept, times), [_array(start if cells is None else cells), *afters[:-1]],
            afters, flags, [*flags[1:], None], output_grads, strict=True,
        ))  # fmt: skip
        carried = _array(fed_grad), _array(memory_grad)
        outs = _array(by_input), _array(by_recurrent)
        places = by_recurrent.unbind()
        call: Any = _native.lstm_step_back if lstm else _native.gru_step_back
        threads = torch.get_num_threads()
        for piece in reversed(pieces):
            for place, t in reversed(list(enumerate(piece))):
                call(*arrays[t], *carried, outs[0][place], outs[1][place], threads)
                torch.mm(places[place], rows_of[1], out=fed_grad)
            _take(inputs, piece, taken)
            fed_here = fed[piece.start : piece.stop].flatten(0, 1)
            sums.add(0, _flat(taken, piece), _flat(by_input, piece))
            sums.add(1, fed_here, _flat(by_recurrent, piece), bias=not lstm)
            torch.mm(_flat(by_input, piece), rows_of[0], out=_flat(taken, piece))
            inputs_grad[:, piece.start : piece.stop].copy_(taken[: len(piece)].transpose(0, 1))
        start_grad = clear(fed_grad.float(), resets[0])
        cells_grad = memory_grad if lstm else None
        if lstm:  # its two biases are one sum
            sums.biases[1].copy_(sums.biases[0])
        else:
            start_grad += memory_grad
        return None, inputs_grad, start_grad, cells_grad, None, *sums.weights(), *sums.biases


class _Sums:
    """Gradients of weights and biases, summed piece by piece in float32."""

    def __init__(self, weights: list[Tensor], dtype: torch.dtype) -> None:
        # Transposed, since that product is faster.
        self._parts = [torch.empty(weight.shape[::-1], dtype=dtype) for weight in weights[:2]]
        self._totals = [torch.zeros(part.shape) for part in self._parts]
        self.biases = [torch.zeros(bias.shape) for bias in weights[2:]]

    def add(self, which: int, taken: Tensor, grads: Tensor, bias: bool = True) -> None:
        """Add the gradients of weights that made `[rows, gates]` of `[rows, ...]`."""
        torch.mm(taken.t(), grads, out=self._parts[which])
        self._totals[which] += self._parts[which]
        if bias:
            self.biases[which] += grads.sum(0, dtype=torch.float32)

    def weights(self) -> list[Tensor]:
        """Return the gradients of the weights."""
        return [total.t() for total in self._totals]


class _Scan(torch.autograd.Function):
    """All steps of a MinGRU."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, start: Tensor, resets: Tensor | None) -> Tensor:
        gates = gates.contiguous()
        outputs = torch.empty(*gates.shape[:2], start.shape[1])
        flags = None if resets is None else _array(resets)
        arrays = _array(gates), _array(start), flags, _array(outputs)
        _native.mingru_scan(*arrays, torch.get_num_threads())
        ctx.save_for_backward(gates, start, resets, outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        gates, start, resets, outputs = ctx.saved_tensors
        gates_grad, start_grad = torch.empty_like(gates), torch.empty(start.shape)
        flags = None if resets is None else _array(resets)
        given = _array(gates), _array(start), flags, _array(outputs), _array(grads[0].contiguous())
        threads = torch.get_num_threads()
        _native.mingru_scan_back(*given, _array(gates_grad), _array(start_grad), threads)
        return gates_grad, start_grad, None


def _product_type() -> torch.dtype:
    short = torch.is_autocast_enabled("cpu")
    return torch.get_autocast_dtype("cpu") if short else torch.float32


def _array(tensor: Tensor) -> NDArray[Any]:
    """Return the tensor's memory; bfloat16 as its bits."""
    tensor = tensor.detach()
    short = tensor.dtype == torch.bfloat16
    array: NDArray[Any] = (tensor.view(torch.int16) if short else tensor).numpy()
    return array


def _each(tensor: Tensor | None, times: int) -> Arrays:
    """Return the memory of every time of `[time, ...]`."""
    return [None] * times if tensor is None else list(_array(tensor))


def _pieces(times: int, rows: int) -> list[range]:
    """Split the times into pieces of about `PIECE` rows.

    >>> _pieces(5, 512)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    length = min(max(1, PIECE // max(rows, 1)), times)
    return [range(begin, min(begin + length, times)) for begin in range(0, times, length)]


def _take(inputs: Tensor, piece: range, out: Tensor) -> None:
    """Copy a piece of `[rows, time, inputs]` into `[time, rows, inputs]`."""
    out[: len(piece)].copy_(inputs[:, piece.start : piece.stop].transpose(0, 1))


def _flat(tensor: Tensor, piece: range) -> Tensor:
    """Return a view of the rows of a piece, `[time * rows, ...]`."""
    return tensor[: len(piece)].flatten(0, 1)
