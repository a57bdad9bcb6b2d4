"""Gradients of PPO's loss by the native core, which shares weights with torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.native import available as native_available
from fugu.native.arrays import count_threads, refuse
from fugu.nets import net as ops
from fugu.nets.native import NetworkBuilder, check_target, code_of
from fugu.nets.net import Floats, Net
from fugu.nets.reading import Reader, read_policy
from fugu.policies.cores import GruCore, LstmCore, MinGruCore
from fugu.policies.policy import Policy
from fugu.spaces import Layout

if TYPE_CHECKING or native_available:
    from fugu import _native
if TYPE_CHECKING:
    from fugu.algos.segment_view import Places
    from fugu.data.segments import Segments


# Numbers of an action in its row: the first byte, their count, and the bounds of floats; choices
# have none.
ActionPart: TypeAlias = tuple[int, int, Floats | None, Floats | None]


class FlatParameters:
    """All parameters of a module in one array, and their gradients in another.

    The module's parameters become views of the array.

    >>> layer = nn.Linear(2, 1)
    >>> flat = FlatParameters(layer)
    >>> flat.weights[:] = 3.0
    >>> layer.bias.item()
    3.0
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = list(module.parameters())
        size = sum(parameter.numel() for parameter in self._parameters)
        self.weights, self.grads = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._grads = self.views(self.grads)
        with torch.no_grad():
            for parameter, part in zip(self._parameters, self.views(self.weights), strict=True):
                part.copy_(parameter)
                parameter.data = part

    @property
    def learns_all(self) -> bool:
        """Whether every parameter requires a gradient."""
        return all(parameter.requires_grad for parameter in self._parameters)

    def views(self, flat: Floats) -> list[Tensor]:
        """Return views of a flat array with the parameters' shapes."""
        sizes = [parameter.numel() for parameter in self._parameters]
        split = torch.split(torch.from_numpy(flat), sizes)
        return [part.view_as(own) for part, own in zip(split, self._parameters, strict=True)]

    def show_grads(self) -> None:
        """Assign the gradients to the module's parameters."""
        for parameter, grad in zip(self._parameters, self._grads, strict=True):
            if parameter.requires_grad:
                parameter.grad = grad

    def clip_grads(self, most: float) -> float:
        """Scale the gradients down to a norm; return the norm that they had."""
        norm = math.sqrt(self.grads.dot(self.grads))
        if norm > most:  # as torch does it
            self.grads *= np.float32(most / (norm + 1e-6))
        return norm

    def holds(self, numbers: NDArray[Any]) -> bool:
        """Return whether an array is a view of the weights."""
        begin, place = self.weights.ctypes.data, numbers.ctypes.data
        return bool(begin <= place < begin + self.weights.nbytes)


class LearningReader(Reader):
    """Reads weights without copying, and cores as operations that have gradients."""

    def floats(self, tensor: Tensor) -> Floats:
        """Return the numbers of a tensor without a copy."""
        found: Floats = tensor.detach().numpy()
        return found

    def _add_cell(self, cell: str, gates: int, begin: int, weight: Floats, bias: Floats) -> int:
        size = weight.shape[1]
        parts: dict[str, Any] = {"cell": cell, "begin": begin, "weight": weight, "bias": bias}
        return self.net.add(ops.Recur, 1, size, gates, **parts)

    def _cell(self, core: LstmCore | GruCore, hidden: int, begin: int) -> tuple[int, None]:
        inputs, recurrents, input_bias, bias = map(self.floats, core.network.all_weights[0])
        gates = self._product(hidden, inputs, input_bias)
        return self._add_cell(core.kind, gates, begin, recurrents, bias), None

    def _lstm(self, core: LstmCore, hidden: int, begin: int) -> tuple[int, None]:
        return self._cell(core, hidden, begin)

    def _gru(self, core: GruCore, hidden: int, begin: int) -> tuple[int, None]:
        return self._cell(core, hidden, begin)

    def _mingru(self, core: MinGruCore, hidden: int, begin: int) -> tuple[int, None]:
        none = np.zeros((0, core.output_size), np.float32), np.zeros(0, np.float32)
        return self._add_cell("mingru", self.linear(core.gates, hidden), begin, *none), None


class NativeLearner:
    """A policy's network in the native core, which computes gradients.

    Args:
        policy: The policy; its parameters become views of one array.
        layout: The layout of its rows.
        bfloat16: Whether products are of bfloat16 numbers, summed in float32.
        threads: Number of threads; 0: all cores.
        target: The kind of processor; by default the best one.

    Raises:
        UsageError: If the policy has parts that the core cannot learn.

    Attributes:
        flat: The policy's weights and their gradients.
        most_agents: The maximum of agents of an environment that it collects.
    """

    def __init__(
        self,
        policy: Policy,
        layout: Layout,
        bfloat16: bool = False,
        threads: int = 0,
        target: str | None = None,
    ) -> None:
        self.target = check_target(target)
        self.flat, self.bfloat16 = FlatParameters(policy), bfloat16
        self.threads = count_threads(threads)
        self._policy, self._layout = policy, layout
        self._bound: tuple[Segments, _native.Pages] | None = None
        net = self._read()
        _check_learnable(net, self.flat)
        weights, grads = self.flat.weights, self.flat.grads
        self._core = _native.NetLearner(
            code_of(layout.dtype), layout.size, policy.state_size, self.target, weights, grads
        )
        self.most_agents = self._core.most_agents
        self._build(net)

    def _read(self) -> Net:
        return read_policy(self._policy, self._layout, LearningReader)

    def _build(self, net: Net) -> None:
        try:
            NetworkBuilder(net, self._core, learns=True).build()
        except ValueError as error:
            raise UsageError(
                f"policy: given one that the native core cannot learn ({error}); allowed: linear "
                "layers, their activations and norms, embeddings, LSTM, GRU and MinGRU."
            ) from None
        self.reload()

    def refresh(self) -> None:
        """Take all of the policy's numbers, including running moments, which are not learned."""
        if self._policy.scales:
            self._build(self._read())
        else:
            self.reload()

    def reload(self) -> None:
        """Take the weights after an update."""
        self._core.reload(self.bfloat16)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Return what `Policy.forward` returns, of rows `[batch, size]`."""
        batch, policy = len(rows), self._policy
        params = np.empty((batch, policy.num_params), np.float32)
        values = np.empty((batch, policy.num_critics), np.float32)
        after = np.empty((batch, policy.state_size), np.float32)
        self._core.forward(rows, state, params, values, after, self.threads)
        return params, values, after

    def bind(self, tables: Segments) -> _native.Pages:
        """Return tables as the core takes them, without copying."""
        if self._bound is None or self._bound[0] is not tables:
            self._bound = tables, _bind(tables)
        return self._bound[1]

    def collect(
        self,
        pool: _native.Pool,
        tables: _native.Pages,
        begin: int,
        first_segment: int,
        next_segment: int,
        states: Floats,
        choices: Sequence[int],
        dims: int,
        random: tuple[Floats, Floats],
        parts: list[ActionPart],
        episodes: NDArray[np.float64],
    ) -> None:
        """Step all copies of a pool until the open segments are full, and begin the next ones.

        The actions that follow the last step are left in place.

        Args:
            pool: Copies whose agents all act in every step; none is stepping.
            tables: Where to write; see `bind`.
            begin: Steps of the open segments; agents wait for the rewards of the last of them.
            first_segment: The open segment of the first agent; the others' follow.
            next_segment: The same, of the segments that come next.
            states: The agents' states, `[agents, state]`; written.
            choices: Choices of each discrete head.
            dims: Continuous dimensions.
            random: Uniform and normal numbers, `[actions, agents, heads]` and `[..., dims]`.
            parts: The parts of an action.
            episodes: Sums over ended episodes; added to.

        Raises:
            FloatingPointError: If an output of the policy is not finite.
            UsageError: If an agent does not act.
        """
        problem = self._core.collect(
            pool.core(),
            tables,
            begin,
            first_segment,
            next_segment,
            states,
            np.asarray(choices, np.int64),
            dims,
            *random,
            parts,
            episodes,
            self.threads,
        )
        if problem == "no number":
            raise FloatingPointError("collect: what the policy gave is no finite number")
        if problem:
            raise UsageError(
                "collect: given a native environment with an agent that does not act in every "
                "step; allowed: one agent that does, or several and spec->all_act in the C code. "
                "Leave all_act out if they do not all act; --train.engine torch takes any."
            )

    def learn(
        self,
        tables: Segments,
        drawn: Places,
        weights: Floats,
        normalized: Floats,
        advantages: Floats,
        choices: Sequence[int],
        settings: _native.LossSettings,
        ratios: Floats,
    ) -> list[float]:
        """Write the gradients of PPO's loss, and the new ratios of what was drawn.

        Args:
            tables: The experience.
            drawn: The drawn segments or steps, without duplicates.
            weights: Their weights.
            normalized: Their normalized advantages, `[length, drawn]`.
            advantages: Advantages of all rows of the update, `[critics, horizon, count]`.
            choices: Choices of each discrete head.
            settings: Settings of the loss.
            ratios: Ratios of all rows of the update, `[horizon, count]`.

        Returns:
            Sums of the losses, the entropy, the divergence, and the clipped ratios.
        """
        good, *sums = self._core.learn(
            self.bind(tables),
            drawn.rows,
            drawn.own,
            drawn.times,
            weights,
            np.ascontiguousarray(normalized, np.float32),
            advantages,
            np.asarray(choices, np.int64),
            ratios,
            settings,
            self.threads,
        )
        if not good:
            raise refuse("samples", "a number that is none of its head's choices", "their indices")
        return sums


def _bind(tables: Segments) -> _native.Pages:
    return _native.Pages(
        tables.observation_bytes,
        tables.samples,
        tables.masks,
        tables.states,
        tables.log_probabilities,
        tables.rewards,
        tables.values,
        tables.final_values,
        tables.terminations,
        tables.truncations,
        tables.valid,
    )


def _check_learnable(net: Net, flat: FlatParameters) -> None:
    """Raise unless all parameters are part of the network, and all operations have gradients."""
    found: dict[int, int] = {}
    for operation in net.operations:
        if isinstance(operation, ops.Convolve | ops.Pool | ops.Attend | ops.Permute):
            raise UsageError(
                f"policy: given a part of the kind {type(operation).__name__.lower()}, which the "
                "native core cannot learn; allowed: layers without images or attention."
            )
        for part in vars(operation).values():
            if isinstance(part, np.ndarray) and part.size and flat.holds(part):
                found[part.ctypes.data] = part.size
    if sum(found.values()) != flat.weights.size:
        raise UsageError(
            "policy: given learned numbers that the native core does not see, such as the places "
            "of items in a sequence; allowed: weights and biases of layers, and tables."
        )
