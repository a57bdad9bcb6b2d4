"""The contract of a core, and what all of them share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Core(nn.Module):
    """What a policy remembers. A user's own core has these two methods and two attributes.

    Attributes:
        state_size: Numbers of an agent's flat float32 state; 0 if it remembers nothing.
        output_size: Numbers of its output.
    """

    def __init__(self, state_size: int, output_size: int) -> None:
        super().__init__()
        self.state_size, self.output_size = state_size, output_size

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of `[batch, inputs]`: outputs `[batch, output_size]`, and the new state."""
        raise NotImplementedError("forward(hidden, state) -> (outputs, state)")

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Segments `[rows, time, inputs]` from their first states to `[rows, time, outputs]`."""
        raise NotImplementedError("forward_segments(hidden, state, resets) -> outputs")


def reset_times(resets: Tensor) -> list[int]:
    """The times at which the state of any row is reset, in order.

    The host has to know them; resets that stand on the CPU already cost no wait for a device.

    >>> reset_times(torch.tensor([[False, False, True], [True, False, True]]))
    [0, 2]
    """
    return [time for time, any_row in enumerate(resets.bool().any(0).tolist()) if any_row]


def clear(state: Tensor, resets: Tensor) -> Tensor:
    """The state, zeroed where reset: chosen, not multiplied, for a NaN times 0 would stay."""
    return torch.where(resets.unsqueeze(-1), 0.0, state)
