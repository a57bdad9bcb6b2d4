"""PufferLib's errors, as fugu has them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fugu.core.errors import AgentError, UsageError

APIUsageError = UsageError


class InvalidAgentError(AgentError, ValueError):
    """An agent that the environment does not have."""

    def __init__(self, agent: Hashable, agents: Sequence[Hashable]) -> None:
        super().__init__(f"agent: given {agent!r}; allowed: {list(agents)}.")

    def __reduce__(self) -> tuple[type[AgentError], tuple[str]]:
        return AgentError, (str(self),)
