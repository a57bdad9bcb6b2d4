"""What a run is given besides settings: objects that a file of settings cannot hold."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fugu.algos.algorithm import PolicyFactory
from fugu.core.errors import UsageError
from fugu.core.ranks import SINGLE_PROCESS, Ranks
from fugu.envs.contract import AgentGroup
from fugu.envs.untrusted import CALLED
from fugu.inference.player import LoadedPolicy
from fugu.inference.torch_engine import TorchEngine
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.policies.recalling import recalling
from fugu.store.run import Run


@dataclass(frozen=True)
class RunInputs:
    """Objects that the caller hands to a run.

    Attributes:
        env: Makes an environment; None if the settings name it.
        policy: Makes the policy of a group of agents, called with the group and the policy's
            settings (and the number of critics, where there are several).
        ranks: The processes that train together.
        trust: Whether the user trusts the run, whoever wrote it (see `fugu.training.untrusted`).
        loss: Replaces the loss of the algorithm, or that of the settings; None: neither.
    """

    env: Callable[..., Any] | None = None
    policy: PolicyFactory = make_policy
    ranks: Ranks = SINGLE_PROCESS
    trust: bool = False
    loss: Callable[..., Any] | None = None

    def factory(self, cfg: Any) -> PolicyFactory:
        """Return what makes the policies of a run with these settings of its policy."""
        make = self.policy if self.policy is make_policy else partial(_make_checked, self.policy)
        if not isinstance(cfg, PolicyConfig) or not cfg.recall:
            return make
        if self.ranks.size > 1:
            raise UsageError(
                f"policy.recall: given {cfg.recall} with {self.ranks.size} ranks, each of which "
                "would remember something else; allowed: with one."
            )
        return partial(recalling, make)

    def env_of(self, name: str) -> str | Callable[..., Any]:
        """Return what `fugu.make` is given, for a run whose settings name `name`."""
        if self.env is None and name == CALLED:
            raise UsageError(
                "env: given a run that was trained on something to call, which no file can hold; "
                "allowed: the same once more, as in fugu.resume(run, env=...)."
            )
        return self.env or name


def _make_checked(factory: PolicyFactory, *args: Any) -> Policy:
    """Call a factory of the user's; raise `UsageError` if it returns no policy."""
    found = factory(*args)
    if not isinstance(found, Policy):
        raise UsageError(
            f"policy_factory: expected a fugu.policies.Policy; got {type(found).__qualname__!r}. "
            "Give a torch.nn.Module that reads observations as an encoder: "
            "make_policy(group, cfg, critics, encoder=module). See docs/write_your_own/policy.md."
        )
    return found


def name_of(env: str | Callable[..., Any]) -> str:
    """Return the name of an environment, or of a function, for settings.

    It is `package.module:name` where it can be imported, else a mark that the caller has it.

    >>> name_of("cartpole"), name_of(dict), name_of(lambda: None)
    ('cartpole', 'builtins:dict', '<called>')
    """
    if isinstance(env, str):
        return env
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    if not module or module == "__main__" or "." in name:
        return CALLED
    found = getattr(importlib.import_module(module), name, None)
    return f"{module}:{name}" if found is env else CALLED


@dataclass(frozen=True)
class Result:
    """The result of a training session.

    Attributes:
        run: The run's folder; None if nothing was kept, and at all ranks but the first.
        policies: The trained policies, one for each group of agents.
        groups: The groups of agents, in the same order.
        steps: Agent steps so far.
        seconds: Duration of this session.
        score: Mean return of the last episodes; None if none ended.
        status: "finished", or "stopped" by a signal or a callback.
        signals: Signals that came, to any rank.
        stop_reason: Why a callback stopped the run, if it gave a reason.
    """

    run: Run | None
    policies: list[Policy]
    groups: Sequence[AgentGroup]
    steps: int
    seconds: float
    score: float | None
    status: str
    signals: tuple[int, ...] = ()
    stop_reason: str = ""

    @cached_property
    def policy(self) -> LoadedPolicy:
        """The trained policy, ready to act: `action, value, state = result.policy.act(obs)`.

        If there are several groups of agents, load the policy of one:
        `fugu.load(result.run, group=...)`.
        """
        if len(self.policies) != 1:
            names = ", ".join(repr(group.name) for group in self.groups) or "none"
            raise UsageError(
                f"policy: expected a result with one group of agents; got {names}. Load one of "
                "several: fugu.load(result.run, group=...)."
            )
        policy = self.policies[0]
        if next(policy.parameters()).device.type != "cpu":
            policy = copy.deepcopy(policy)
        return LoadedPolicy(TorchEngine(policy, self.groups[0].observation_layout), "torch")
