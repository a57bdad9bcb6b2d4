"""Choose between the native learner and torch."""

from __future__ import annotations

import torch

from fugu import native
from fugu.algos.settings import Config
from fugu.core.errors import UsageError
from fugu.nets.learning import NativeLearner
from fugu.policies.config import Precision
from fugu.policies.policy import Policy
from fugu.spaces import Layout


def make_native_learner(
    cfg: Config,
    policy: Policy,
    layout: Layout,
    precision: Precision,
    device: torch.device,
    *,
    custom_loss: bool = False,
) -> tuple[NativeLearner | None, str]:
    """Return the native learner of a policy, or None and the reason why torch learns it.

    Args:
        cfg: All settings.
        policy: The policy, on its device.
        layout: The layout of the observations that it is given.
        precision: The precision of its matrix products.
        device: The device that it learns on.
        custom_loss: Whether its loss is a Python function, which only torch can differentiate.

    Raises:
        UsageError: If the settings ask for the native learner and it cannot learn this policy.
    """
    train = cfg.train
    if train.engine == "torch":
        return None, "train.engine says so"
    if train.engine == "auto" and cfg.policy.engine == "torch":
        return None, "policy.engine says so"
    obstacle = find_obstacle(policy, device, train.compile, train.microbatch)
    if custom_loss:
        obstacle = "the loss is a function of your own, which torch differentiates"
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
    """Return why the native learner cannot learn a policy; None if it may try."""
    if not native.available:
        return f"the native learner is not built ({native.reason})"
    if device.type != "cpu":
        return f"the policy is on {device}, and the native learner works on the CPU"
    if compiled:
        return "train.compile has torch compile it"
    if microbatch:
        return (
            f"train.microbatch is {microbatch}, and the native learner has tiles of its own "
            "(microbatch 0)"
        )
    if type(policy) is not Policy:
        return f"it is a {type(policy).__name__}, whose parts the native learner does not know"
    if policy.distribution.squashes:
        return "its actions are squashed by a tanh, whose entropy the native learner does not know"
    for module in policy.modules():
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            return f"somebody changed how its {type(module).__name__} is called"
    if any(not parameter.requires_grad for parameter in policy.parameters()):
        return "some of its weights are not learned"
    return None
