"""Source: where the environments to check come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fugu.core.errors import UsageError
from fugu.envs.checking.findings import Broken, Ledger
from fugu.envs.checking.guard import FAULTS, Watchdog, last_lines
from fugu.envs.emulation import is_environment, refusal

T = TypeVar("T")


class Source:
    """The environment given, or fresh ones of the factory given."""

    def __init__(self, given: Any, watchdog: Watchdog) -> None:
        self.is_factory = not is_environment(given)
        if self.is_factory and not callable(given):
            raise UsageError(refusal(given))
        self._given, self._watchdog = given, watchdog
        self._made: list[Any] = []

    def make(self) -> Any:
        """An environment: a fresh one if there is a factory."""
        if not self.is_factory:
            return self._given
        env = self.attempt("make", self._given)
        if not is_environment(env):
            raise UsageError(refusal(env))
        self._made.append(env)
        return env

    def attempt(self, check: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call something of the environment; what it throws is a failure of `check`."""
        self._watchdog.begin()
        try:
            return function(*arguments)
        except Broken:
            raise
        except UsageError as error:
            raise Broken(check, str(error), "") from error
        except FAULTS as error:
            advice = "Mend the environment: the error is its own."
            raise Broken(check, last_lines(error), advice) from error
        finally:
            self._watchdog.end()

    def close(self, ledger: Ledger) -> None:
        """Close what the factory made, and nothing else."""
        distinct = {id(env): env for env in self._made}.values()
        for env in distinct:
            try:
                self.attempt("close", env.close)
            except Broken as broken:
                ledger.fail(broken.check, broken.text, broken.advice)
        if self.is_factory:
            ledger.passed("close", f"closed the {len(distinct)} made here")
        self._made.clear()
