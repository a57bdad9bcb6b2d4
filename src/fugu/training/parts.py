"""What a run is made of that settings cannot say: things to call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from fugu.core.errors import UsageError
from fugu.core.ranks import ALONE, Ranks
from fugu.envs.untrusted import CALLED
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.policies.recalling import recalling

PolicyFactory: TypeAlias = Callable[..., Policy]


@dataclass(frozen=True)
class Parts:
    """The callables of a run.

    Attributes:
        env: Makes an environment; None if the settings name it.
        policy: Makes the policy of a group of agents, called with the group and the policy's
            settings (and the number of critics, where there are several).
        ranks: The processes that train together.
        trust: Whether the user trusts the run, whoever wrote it (see `fugu.training.untrusted`).
    """

    env: Callable[..., Any] | None = None
    policy: PolicyFactory = make_policy
    ranks: Ranks = ALONE
    trust: bool = False

    def factory(self, cfg: PolicyConfig) -> PolicyFactory:
        """What makes the policies of a run with these settings."""
        if not cfg.recall:
            return self.policy
        if self.ranks.size > 1:
            raise UsageError(
                f"policy.recall: given {cfg.recall} with {self.ranks.size} ranks, each of which "
                "would remember something else; allowed: with one."
            )
        return partial(recalling, self.policy)

    def env_of(self, name: str) -> str | Callable[..., Any]:
        """What to give to `fugu.make`, for a run whose settings say `name`."""
        if self.env is None and name == CALLED:
            raise UsageError(
                "env: given a run that was trained on something to call, which no file can hold; "
                "allowed: the same once more, as in fugu.resume(run, env=...)."
            )
        return self.env or name


def name_of(env: str | Callable[..., Any]) -> str:
    """What settings say of an environment: its name, `package.module:factory`, or that it is none.

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
