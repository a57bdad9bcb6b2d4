"""Recalling policies: answers that a memory finds are put before observations."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.core.npz import read_npz
from fugu.envs.contract import AgentGroup, Buffers
from fugu.memory import AnyMemory, Recall, RecallView
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, Viewer
from fugu.spaces import Layout


class RecallingPolicy(Policy):
    """A policy of any kind with wider observations than its agents have.

    `viewer()` makes its rows, and queries the memory once a batch. The memory is saved with the
    weights.
    """

    def __init__(self, inner: Policy, recall: Recall, layout: Layout) -> None:
        nn.Module.__init__(self)  # its parts are the inner one's
        self.inner, self.recall, self.layout = inner, recall, layout
        self.distribution, self.log_std = inner.distribution, None
        self.num_params, self.num_critics = inner.num_params, inner.num_critics
        self.state_size, self._short = inner.state_size, inner._short

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take one step of its rows; see `Policy.forward`."""
        found: tuple[Tensor, Tensor, Tensor] = self.inner(observations, state)
        return found

    def forward_segments(
        self, observations: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute segments of its rows; see `Policy.forward_segments`."""
        return self.inner.forward_segments(observations, state, resets)

    def stored(self, group: AgentGroup) -> AgentGroup:
        """Return the group with its rows."""
        return replace(group, observation_layout=self.layout)

    def viewer(self) -> Viewer:
        """Return what makes the rows of one vector's agents."""
        view = RecallView(self.recall)

        def look(agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
            begins = rows.terminations | rows.truncations | ~rows.valid
            return view.observe(agents, rows.observations, begins)

        return look

    def acted(self, state: Tensor, samples: NDArray[np.float32]) -> Tensor:
        """See `Policy.acted`."""
        return self.inner.acted(state, samples)

    def earned(self, state: Tensor, rewards: NDArray[np.float32]) -> Tensor:
        """See `Policy.earned`."""
        return self.inner.earned(state, rewards)

    @torch.no_grad()
    def note(self, observations: Tensor) -> None:
        """See `Policy.note`."""
        self.inner.note(observations)

    def get_extra_state(self) -> Tensor:
        """Return the memory, for checkpoints."""
        file = io.BytesIO()
        np.savez(file, **self.recall.state_dict())  # type: ignore[arg-type]
        return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Load the memory."""
        file = io.BytesIO(np.asarray(state.cpu(), np.uint8).tobytes())
        self.recall.load_state_dict(read_npz(file))


def recalling(
    factory: Callable[..., Policy],
    group: AgentGroup,
    cfg: PolicyConfig,
    *rest: Any,
    memory: AnyMemory | None = None,
) -> RecallingPolicy:
    """Make a recalling policy around one of `factory`.

    Args:
        factory: Makes a policy, as `make_policy` does.
        group: The agents, whose observations must be sequences of tokens.
        cfg: The settings; `recall` is the number of answers.
        rest: Further arguments of the factory.
        memory: Stores answers, such as a `TurbopufferMemory`; if not given, a new one that is
            saved in checkpoints.
    """
    space = group.observation_layout.space
    if not isinstance(space, spaces.MultiDiscrete) or len(space.shape) != 1:
        raise UsageError(
            f"policy.recall: given {cfg.recall} for {space}; allowed: for a MultiDiscrete of one "
            "axis, in which 0 means that no token stands there yet."
        )
    filler = int(space.nvec.max())
    recall = Recall(filler, cfg.recall, cfg.recall_length, memory)
    places = recall.width + int(space.shape[0])
    layout = Layout.of(spaces.MultiDiscrete([filler + 1] * places))
    wide = replace(group, observation_layout=layout)
    return RecallingPolicy(factory(wide, replace(cfg, recall=0), *rest), recall, layout)
