"""The errors that fugu raises on purpose.

Each message says what was given, what is allowed, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable


class FuguError(Exception):
    """Base of every error that fugu raises on purpose."""


class SpaceError(FuguError, ValueError):
    """A space cannot become a layout as it is declared."""


class PackError(FuguError, ValueError):
    """A value does not fit the layout it is packed into, or flat data is no value of its space.

    Attributes:
        path: The leaf at fault, as in `Leaf.path`; empty for the top of the tree.
        given: What was given.
        allowed: What is allowed there.
    """

    def __init__(self, path: str, given: str, allowed: str, advice: str = "") -> None:
        self.path, self.given, self.allowed, self.advice = path, given, allowed, advice
        where = f"leaf '{path}'" if path else "the value (a single leaf, at the top)"
        message = f"{where}: given {given}; allowed: {allowed}."
        super().__init__(f"{message} {advice}" if advice else message)

    def __reduce__(self) -> tuple[type[PackError], tuple[str, str, str, str]]:
        return type(self), (self.path, self.given, self.allowed, self.advice)


class ActionError(PackError):
    """An action that is no value of its action space."""


class EnvError(FuguError, RuntimeError):
    """An environment broke its own contract."""


class AgentError(FuguError, KeyError):
    """An agent name that the environment did not declare."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UsageError(FuguError, RuntimeError):
    """A call that is out of order, such as `step` before `reset`."""


class DiskFullError(FuguError, OSError):
    """There is no room for what was to be written.

    Attributes:
        reason: What the system says.
        advice: What is safe, and how to go on.
    """

    def __init__(self, reason: str, advice: str) -> None:
        self.reason, self.advice = reason, advice
        super().__init__(f"the disk is full: {reason}. {advice}")

    def __reduce__(self) -> tuple[type[DiskFullError], tuple[str, str]]:
        return type(self), (self.reason, self.advice)


class MissingExtraError(FuguError, ImportError):
    """A feature needs a package that is not installed.

    Attributes:
        package: What is missing.
        extra: Of fugu-rl, that brings it.
        also: A command that must follow, where the extra alone does not.
    """

    def __init__(self, package: str, extra: str, also: str = "") -> None:
        self.package, self.extra, self.also = package, extra, also
        then = f", then {also}" if also else ""
        super().__init__(
            f"this needs the package '{package}', which is not installed: "
            f'pip install "fugu-rl[{extra}]"{then}'
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return type(self), (self.package, self.extra, self.also)


def nearest_names(
    given: object, names: Iterable[str], n: int = 1, cutoff: float = 0.0
) -> list[str]:
    """Return the `n` names most similar to a given one, best first, whatever their case.

    The cutoff is the smallest similarity, up to 1; with 0, there is always a nearest name.

    >>> nearest_names("CartPol", ["Pendulum", "cartpole"])
    ['cartpole']
    """
    import difflib  # used by errors only

    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(given).lower(), by_lower, n, cutoff)
    return [by_lower[name] for name in close]
