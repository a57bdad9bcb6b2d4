"""Algorithms: losses, updates, and the kernels that they share on tensors."""
