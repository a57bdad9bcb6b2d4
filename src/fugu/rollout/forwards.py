"""Forward passes of policies that act: by torch, or natively where batches are small."""

from __future__ import annotations

import logging
from typing import Protocol

import torch
from torch import Tensor

from fugu import native
from fugu.core.errors import UsageError
from fugu.nets.learning import NativeLearner
from fugu.nets.native import NativeNet, targets, work_of
from fugu.nets.reading import read_policy
from fugu.policies.config import PolicyEngine
from fugu.policies.policy import Policy
from fugu.spaces import Layout

log = logging.getLogger("fugu")

# Multiplications of a batch up to which the native core is chosen, for each number that it computes
# at once; measured by benchmarks/nets.py. A rule and no timing, so that equal runs choose alike.
SMALL = 1 << 20


class Forward(Protocol):
    """Computes a policy's `forward` on the policy's device, without a gradient."""

    @property
    def engine(self) -> str:
        """What computes it: "torch" or "native"."""

    def __call__(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Params, values and the new state of a batch; see `Policy.forward`."""

    def refresh(self) -> None:
        """Copy the policy's weights, which may have changed."""


class TorchForward:
    """The policy itself."""

    engine = "torch"

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __call__(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `Policy.forward`."""
        found: tuple[Tensor, Tensor, Tensor] = self._policy(observations, state)
        return found

    def refresh(self) -> None:
        """Nothing: it is the policy."""


class NativeForward:
    """The policy's network, computed natively, with the weights of the last refresh."""

    engine = "native"

    def __init__(self, policy: Policy, layout: Layout) -> None:
        self._policy, self._layout = policy, layout
        self._net = NativeNet(read_policy(policy, layout))

    def __call__(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `Policy.forward`, of tensors on the CPU."""
        params, values, after = self._net.forward(observations.numpy(), state.numpy())
        return torch.from_numpy(params), torch.from_numpy(values), torch.from_numpy(after)

    def refresh(self) -> None:
        """Read the policy again."""
        self._net.update(read_policy(self._policy, self._layout))


class LearnerForward:
    """The network of the native learner, with the weights that it has now."""

    engine = "native"

    def __init__(self, learner: NativeLearner) -> None:
        self._learner = learner

    def __call__(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `Policy.forward`, of tensors on the CPU."""
        params, values, after = self._learner.forward(observations.numpy(), state.numpy())
        return torch.from_numpy(params), torch.from_numpy(values), torch.from_numpy(after)

    def refresh(self) -> None:
        """Copy the policy's statistics of observations."""
        self._learner.refresh()


def make_forward(policy: Policy, layout: Layout, engine: PolicyEngine, batch: int) -> Forward:
    """Return what computes a policy's forward passes: as the settings say, or the faster one.

    Args:
        policy: The policy, on its device.
        layout: The layout of the observations that it is given.
        engine: The setting.
        batch: Observations that it is given at once.

    Raises:
        UsageError: If the settings ask for the native one and it cannot compute this policy.
    """
    if engine == "torch":
        return TorchForward(policy)
    obstacle = _obstacle(policy)
    if engine == "native":
        if obstacle is not None:
            raise UsageError(f"policy.engine: given 'native' {obstacle}; allowed: auto or torch.")
        return NativeForward(policy, layout)
    if obstacle is None and _is_small(policy, layout, batch):
        return NativeForward(policy, layout)
    return TorchForward(policy)


def load_forward(recorded: str, policy: Policy, layout: Layout, batch: int) -> Forward:
    """Return the kind of forward pass that a run was saved with, so that it resumes exactly."""
    obstacle = _obstacle(policy)
    if recorded == "native" and obstacle is not None:
        log.warning(
            "this run was collected by the native forward pass and continues %s: its numbers "
            "will differ in the last digits",
            obstacle,
        )
        recorded = "torch"
    return make_forward(policy, layout, "native" if recorded == "native" else "torch", batch)


def _obstacle(policy: Policy) -> str | None:
    """Return why a policy cannot be computed natively; None if it can."""
    device = next(policy.parameters()).device
    if not native.available:
        return f"without the core, which is not built ({native.reason})"
    if device.type != "cpu":
        return f"with a policy on {device}"
    if type(policy) is not Policy:
        return f"with a {type(policy).__name__}"
    return None


def _is_small(policy: Policy, layout: Layout, batch: int) -> bool:
    """Return whether native is faster, and the policy's modules are called as they were made."""
    for module in policy.modules():
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            return False
    try:
        net = read_policy(policy, layout)
    except UsageError:  # it has parts of its own
        return False
    *_, lanes = targets().values()
    return batch * work_of(net) <= SMALL * lanes
