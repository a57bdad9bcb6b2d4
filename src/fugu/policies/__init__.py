"""Policies, and the tensors that they see."""

from fugu.policies.unpack import unpack

__all__ = ["unpack"]
