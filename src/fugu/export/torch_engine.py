"""Run any policy by torch, compiled or not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.export.engine import PolicyFacts
from fugu.nets.net import Floats
from fugu.policies.central import CentralPolicy
from fugu.policies.policy import Policy
from fugu.spaces import Layout

try:
    import torch
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "train") from error


class TorchEngine:
    """Runs a policy by torch on the CPU, without copying it.

    With `compiled`, torch compiles it at the first call, which takes a while.
    """

    def __init__(self, policy: Policy, layout: Layout, *, compiled: bool = False) -> None:
        self._policy = policy.cpu().eval()
        sampler = policy.distribution.sampler
        # A central policy without critics has no values.
        alone = isinstance(policy, CentralPolicy) and not len(policy.critics)
        critics = 0 if alone else policy.num_critics
        self.facts = PolicyFacts(
            layout, sampler.layout, sampler.continuous, policy.state_size, critics
        )
        self._run = torch.compile(policy.forward, dynamic=True) if compiled else policy.forward
        self._compiled, self._viewer = compiled, policy.viewer()
        self._group = AgentGroup("agent", ("agent",), layout, sampler.layout)

    @torch.no_grad()
    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Run one pass; see `Engine.forward`."""
        try:
            found = self._run(_tensor(rows), _tensor(state))
        except Exception as error:
            if not self._compiled or not type(error).__module__.startswith("torch._"):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"engine: given 'compile', but torch could not ({reason}); allowed: another "
                "engine, such as torch. torch.compile needs a C++ compiler."
            ) from error
        params, values, after = (_array(tensor) for tensor in found)
        return params, values[:, : self.facts.num_critics], after

    def look(self, rows: NDArray[Any], agents: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows that the policy reads; see `AttentiveEngine.look`."""
        if type(self._policy).viewer is Policy.viewer:
            return np.ascontiguousarray(self._policy.look(rows, agents))
        empty = Buffers.specs(self._group)
        others = {
            name: np.zeros((len(rows), *shape[1:]), dtype)
            for name, (shape, dtype) in empty.items()
            if name != "observations"
        }
        others["valid"][:] = True
        return np.ascontiguousarray(self._viewer(agents, Buffers(observations=rows, **others)))

    @torch.no_grad()
    def acted(self, state: Floats, samples: Floats) -> Floats:
        """Return the state after these samples were drawn."""
        return _array(self._policy.acted(_tensor(state), samples))

    @torch.no_grad()
    def earned(self, state: Floats, rewards: Floats) -> Floats:
        """Return the state after these rewards were received."""
        return _array(self._policy.earned(_tensor(state), rewards))


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    # torch warns of read-only memory.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _array(tensor: torch.Tensor) -> Floats:
    """Return a copy of its numbers."""
    return np.array(tensor.float().numpy())
