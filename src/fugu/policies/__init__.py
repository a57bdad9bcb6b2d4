"""Policies, and the tensors that they see."""

from fugu.policies.unpack import unpack  # isort: skip  # first: it says how to install torch

from fugu.policies.config import PolicyConfig
from fugu.policies.cores import Core
from fugu.policies.distribution import ActionDistribution
from fugu.policies.policy import Policy, make_policy

__all__ = ["ActionDistribution", "Core", "Policy", "PolicyConfig", "make_policy", "unpack"]
