"""Two of a part side by side, so that a critic has a network of its own: the actor's comes first.

Each twin reads what its fellow before it gave; between the parts their numbers stand in one row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fugu.policies.core import Core


class TwinEncoder(nn.Module):
    """Both read the observation."""

    def __init__(self, actor: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.actor, self.critic = actor, critic

    def forward(self, observations: Tensor) -> Tensor:
        """`[batch, size]` to what both give, `[batch, 2 * hidden]`."""
        return torch.cat([self.actor(observations), self.critic(observations)], -1)


class TwinCore(Core):
    """Each remembers on its own; an agent's state is its actor's, then its critic's."""

    def __init__(self, actor: Core, critic: Core) -> None:
        super().__init__(
            actor.state_size + critic.state_size, actor.output_size + critic.output_size
        )
        self.actor, self.critic = actor, critic

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step, `[batch, 2 * hidden]`."""
        (mine, its), (my_state, its_state) = halves(hidden), halves(state)
        mine, my_state = self.actor(mine, my_state)
        its, its_state = self.critic(its, its_state)
        return torch.cat([mine, its], -1), torch.cat([my_state, its_state], -1)

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Whole segments, `[rows, time, 2 * hidden]`."""
        (mine, its), (my_state, its_state) = halves(hidden), halves(state)
        found = [
            self.actor.forward_segments(mine, my_state, resets),
            self.critic.forward_segments(its, its_state, resets),
        ]
        return torch.cat(found, -1)


class TwinHead(nn.Module):
    """The actor's hidden vector gives action outputs, the critic's gives values."""

    def __init__(self, actor: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.actor, self.critic = actor, critic

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., 2 * hidden]` to `[..., outputs + critics]`."""
        mine, its = halves(hidden)
        return torch.cat([self.actor(mine), self.critic(its)], -1)


def halves(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """What belongs to the actor and what to the critic, each without gaps, as kernels read it."""
    mine, its = numbers.chunk(2, -1) if numbers.shape[-1] else (numbers, numbers)
    return mine.contiguous(), its.contiguous()
