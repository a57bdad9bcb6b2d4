"""Whether the native core learns a policy, or torch does."""

from __future__ import annotations

import torch

from fugu import native
from fugu.core.errors import UsageError
from fugu.nets.learning import NativeLearner
from fugu.policies.config import Precision
from fugu.policies.policy import Policy
from fugu.spaces import Layout
from fugu.training.config import Config


def make_native_learner(
    cfg: Config, policy: Policy, layout: Layout, precision: Precision, device: torch.device
) -> tuple[NativeLearner | None, str]:
    """The native core for a policy, as the settings say, or None and why torch learns it.

    Args:
        cfg: All settings.
        policy: On its device.
        layout: Of the rows that it is given.
        precision: Of its products.
        device: Where it learns.

    Raises:
        UsageError: If the core was asked for and cannot do it.
    """
    train = cfg.train
    if train.engine == "torch":
        return None, "train.engine says so"
    if train.engine == "auto" and cfg.policy.engine == "torch":
        return None, "policy.engine says so"
    obstacle = find_obstacle(policy, device, train.compile, train.microbatch)
    if obstacle is None:
        try:
            return NativeLearner(policy, layout, precision == "bfloat16", train.threads), ""
        except UsageError as error:
            obstacle = str(error)
    if train.engine == "native":
        raise UsageError(
            f"train.engine: given 'native', but {obstacle}; allowed: 'auto' or 'torch'."
        )
    return None, obstacle


def find_obstacle(
    policy: Policy, device: torch.device, compiled: bool, microbatch: int = 0
) -> str | None:
    """Return why the native core cannot learn a policy; None if it may try."""
    if not native.available:
        return f"the core is not built ({native.reason})"
    if device.type != "cpu":
        return f"the policy is on {device}, and the core on the CPU"
    if compiled:
        return "train.compile has torch compile it"
    if microbatch:
        return f"train.microbatch is {microbatch}, and the core has tiles of its own (microbatch 0)"
    if type(policy) is not Policy:
        return f"it is a {type(policy).__name__}, whose parts the core does not know"
    if policy.distribution.squashes:
        return "its actions are squashed by a tanh, whose entropy the core does not know"
    for module in policy.modules():
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            return f"somebody changed how its {type(module).__name__} is called"
    if any(not parameter.requires_grad for parameter in policy.parameters()):
        return "some of its weights are not learned"
    return None
