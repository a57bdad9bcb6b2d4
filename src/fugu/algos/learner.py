"""What algorithms that learn from segments have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from fugu.data.segments import Segments
from fugu.nets.learning import NativeLearner
from fugu.policies.policy import Policy


class Learner(Protocol):
    """Improves one group's policy from its segments.

    Attributes:
        core: What computes gradients in place of torch, if anything does.
    """

    policy: Policy
    optimiser: torch.optim.Optimizer
    core: NativeLearner | None

    def update(
        self, segments: Segments, progress: float, reward_divisor: float = 1.0
    ) -> dict[str, float]:
        """Learn from complete rows and give them back; what there is to say of it.

        Args:
            segments: That are full.
            progress: Of the whole training, from 0 to 1.
            reward_divisor: What rewards are divided by.
        """

    def state_dict(self) -> dict[str, Any]:
        """Arrays that it needs to go on exactly, beside the policy's and the optimiser's."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
