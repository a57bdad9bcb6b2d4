"""Gradients of PPO's loss by the native core: weights are shared with torch, nothing else is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.arrays import count_threads, refuse
from fugu.nets import net as ops
from fugu.nets.native import Teller, code_of, targets
from fugu.nets.net import Floats, Net
from fugu.nets.reading import Reader, read_policy
from fugu.policies.cores import GruCore, LstmCore, MinGruCore
from fugu.policies.policy import Policy
from fugu.spaces import Layout

if TYPE_CHECKING or native.available:
    from fugu import _native


# Where numbers of an action stand in its row: from a byte on, so many; choices, or floats between
# two bounds.
ActionPart: TypeAlias = tuple[int, int, Floats | None, Floats | None]


class Tables(Protocol):
    """Where experience is written; `fugu.data.segments.Segments` is one."""

    samples: NDArray[np.float32]
    masks: NDArray[np.bool_]
    states: NDArray[np.float32]
    log_probabilities: NDArray[np.float32]
    rewards: NDArray[np.float32]
    values: NDArray[np.float32]
    final_values: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    valid: NDArray[np.bool_]

    @property
    def observation_bytes(self) -> NDArray[np.uint8]:
        """What was seen, `[rows, horizon, bytes]`."""


class Drawn(Protocol):
    """Drawn segments or steps, as `fugu.algos.segment_view.Places`."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Of the tables."""

    @property
    def own(self) -> NDArray[np.int64]:
        """The same rows, among those of the update."""

    @property
    def times(self) -> NDArray[np.int64] | None:
        """Of the steps, if each is drawn for itself."""


class FlatParameters:
    """All learned numbers of a module in one block of memory, and their gradients in another.

    The module's parameters become views of it: who changes the one changes the other.

    Attributes:
        weights: The block.
        grads: Theirs.

    >>> layer = nn.Linear(2, 1)
    >>> block = FlatParameters(layer)
    >>> block.weights[:] = 3.0
    >>> layer.bias.item()
    3.0
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = list(module.parameters())
        size = sum(parameter.numel() for parameter in self._parameters)
        self.weights, self.grads = np.zeros(size, np.float32), np.zeros(size, np.float32)
        self._grads = self.parts(self.grads)
        with torch.no_grad():
            for parameter, part in zip(self._parameters, self.parts(self.weights), strict=True):
                part.copy_(parameter)
                parameter.data = part

    @property
    def learns_all(self) -> bool:
        """Whether every parameter wants a gradient."""
        return all(parameter.requires_grad for parameter in self._parameters)

    def parts(self, block: Floats) -> list[Tensor]:
        """A block of numbers as views that have the parameters' shapes."""
        sizes = [parameter.numel() for parameter in self._parameters]
        split = torch.split(torch.from_numpy(block), sizes)
        return [part.view_as(own) for part, own in zip(split, self._parameters, strict=True)]

    def show_grads(self) -> None:
        """Make the gradients those of the module."""
        for parameter, grad in zip(self._parameters, self._grads, strict=True):
            if parameter.requires_grad:
                parameter.grad = grad

    def clip_grads(self, most: float) -> float:
        """Scale the gradients down to a norm, and say which they had."""
        norm = math.sqrt(self.grads.dot(self.grads))
        if norm > most:  # as torch does it
            self.grads *= np.float32(most / (norm + 1e-6))
        return norm

    def holds(self, numbers: NDArray[Any]) -> bool:
        """Whether an array stands in the block."""
        begin, place = self.weights.ctypes.data, numbers.ctypes.data
        return bool(begin <= place < begin + self.weights.nbytes)


class LearningReader(Reader):
    """Reads weights where they stand, and memory as operations that know the way back."""

    def floats(self, tensor: Tensor) -> Floats:
        """Numbers of a tensor, and not a copy."""
        found: Floats = tensor.detach().numpy()
        return found

    def _recur(self, cell: str, gates: int, begin: int, weight: Floats, bias: Floats) -> int:
        size = weight.shape[1]
        parts: dict[str, Any] = {"cell": cell, "begin": begin, "weight": weight, "bias": bias}
        return self.net.add(ops.Recur, 1, size, gates, **parts)

    def _cell(self, core: LstmCore | GruCore, hidden: int, begin: int) -> tuple[int, None]:
        inputs, recurrents, input_bias, bias = map(self.floats, core.network.all_weights[0])
        gates = self._product(hidden, inputs, input_bias)
        return self._recur(core.kind, gates, begin, recurrents, bias), None

    def _lstm(self, core: LstmCore, hidden: int, begin: int) -> tuple[int, None]:
        return self._cell(core, hidden, begin)

    def _gru(self, core: GruCore, hidden: int, begin: int) -> tuple[int, None]:
        return self._cell(core, hidden, begin)

    def _mingru(self, core: MinGruCore, hidden: int, begin: int) -> tuple[int, None]:
        none = np.zeros((0, core.output_size), np.float32), np.zeros(0, np.float32)
        return self._recur("mingru", self.linear(core.gates, hidden), begin, *none), None


class NativeLearner:
    """A policy's network in the native core, which learns.

    Args:
        policy: Whose; its parameters become views of one block.
        layout: Of the rows that it is given.
        pairs: Whether products are of bfloat16 numbers, summed up in float32.
        threads: That share the work; 0: as many as cores.
        target: The kind of processor that it runs for; the best, if not given.

    Raises:
        UsageError: If the policy has parts that the core cannot learn.

    Attributes:
        block: The policy's weights, and their gradients.
        target: The kind of processor.
        most_agents: Of an environment that it collects.
    """

    def __init__(
        self,
        policy: Policy,
        layout: Layout,
        pairs: bool = False,
        threads: int = 0,
        target: str | None = None,
    ) -> None:
        known = list(targets())
        if not known:
            raise UsageError(f"native networks: the core is not built ({native.reason}).")
        self.target = known[-1] if target is None else target
        if self.target not in known:
            raise refuse("target", repr(target), f"{', '.join(known)} on this processor")
        self.block, self.pairs, self.threads = FlatParameters(policy), pairs, count_threads(threads)
        self._policy, self._layout = policy, layout
        self._paged: tuple[Tables, _native.Pages] | None = None
        net = self._read()
        _check_learnable(net, self.block)
        weights, grads = self.block.weights, self.block.grads
        self._core = _native.NetLearner(
            code_of(layout.dtype), layout.size, policy.state_size, self.target, weights, grads
        )
        self.most_agents = self._core.most_agents
        self._tell(net)

    def _read(self) -> Net:
        return read_policy(self._policy, self._layout, LearningReader)

    def _tell(self, net: Net) -> None:
        try:
            Teller(net, self._core, learns=True).tell()
        except ValueError as error:
            raise UsageError(
                f"policy: given one that the native core cannot learn ({error}); allowed: linear "
                "layers, their activations and norms, embeddings, LSTM, GRU and MinGRU."
            ) from None
        self.reload()

    def refresh(self) -> None:
        """Take over all of the policy's numbers, those too that are noted and not learned."""
        if self._policy.scales:
            self._tell(self._read())
        else:
            self.reload()

    def reload(self) -> None:
        """Take over the weights, which were learned."""
        self._core.reload(self.pairs)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Params, values and new states of rows `[batch, size]`, as `Policy.forward` gives them."""
        batch, policy = len(rows), self._policy
        params = np.empty((batch, policy.num_params), np.float32)
        values = np.empty((batch, policy.num_critics), np.float32)
        after = np.empty((batch, policy.state_size), np.float32)
        self._core.forward(rows, state, params, values, after, self.threads)
        return params, values, after

    def pages(self, tables: Tables) -> _native.Pages:
        """Tables as the core takes them; they stay where they are."""
        if self._paged is None or self._paged[0] is not tables:
            self._paged = tables, _pages(tables)
        return self._paged[1]

    def collect(
        self,
        pool: _native.Pool,
        tables: Tables,
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

        Args:
            pool: Of copies whose agents all act in every step; all of them the caller's.
            tables: Where to write.
            begin: Steps of the open segments.
            first_segment: Of the first agent; the others' follow.
            next_segment: The same, of the segments that come next.
            states: Recurrent states, `[agents, state]`; written.
            choices: Of each discrete head.
            dims: Continuous ones.
            random: Uniform and normal numbers, `[actions, agents, heads]` and `[..., dims]`.
            parts: Of an action.
            episodes: Sums over those that end; added to.

        Raises:
            FloatingPointError: If the policy gave what is no finite number.
            UsageError: If an agent does not act.
        """
        hindrance = self._core.collect(
            pool.core(),
            self.pages(tables),
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
        if hindrance == "no number":
            raise FloatingPointError("collect: what the policy gave is no finite number")
        if hindrance:
            raise UsageError(
                "collect: given a native environment with an agent that does not act in every "
                "step; allowed: one agent that does, or several and spec->all_act in the C code. "
                "Leave all_act out if they do not all act; --train.engine torch takes any."
            )

    def learn(
        self,
        tables: Tables,
        drawn: Drawn,
        weights: Floats,
        merits: Floats,
        advantages: Floats,
        choices: Sequence[int],
        settings: _native.LossSettings,
        ratios: Floats,
    ) -> list[float]:
        """Write the gradients of PPO's loss, and the new ratios of what was drawn.

        Args:
            tables: Where rows stand.
            drawn: Which; none twice.
            weights: Of each that was drawn.
            merits: How good its actions were, `[length, drawn]`.
            advantages: Of all rows of the update, `[critics, horizon, count]`.
            choices: Of each discrete head.
            settings: Of the loss.
            ratios: Of all rows of the update, `[horizon, count]`.

        Returns:
            Sums of the losses, the entropy, the divergence, and of how many ratios were clipped.
        """
        good, *sums = self._core.learn(
            self.pages(tables),
            drawn.rows,
            drawn.own,
            drawn.times,
            weights,
            np.ascontiguousarray(merits, np.float32),
            advantages,
            np.asarray(choices, np.int64),
            ratios,
            settings,
            self.threads,
        )
        if not good:
            raise refuse("samples", "a number that is none of its head's choices", "their indices")
        return sums


def _pages(tables: Tables) -> _native.Pages:
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


def _check_learnable(net: Net, block: FlatParameters) -> None:
    """All numbers of the block are among the network's, and no operation lacks a gradient."""
    found: dict[int, int] = {}
    for operation in net.operations:
        if isinstance(operation, ops.Convolve | ops.Pool | ops.Attend | ops.Permute):
            raise UsageError(
                f"policy: given a part of the kind {type(operation).__name__.lower()}, which the "
                "native core cannot learn; allowed: layers without images or attention."
            )
        for part in vars(operation).values():
            if isinstance(part, np.ndarray) and part.size and block.holds(part):
                found[part.ctypes.data] = part.size
    if sum(found.values()) != block.weights.size:
        raise UsageError(
            "policy: given learned numbers that the native core does not see, such as the places "
            "of items in a sequence; allowed: weights and biases of layers, and tables."
        )
