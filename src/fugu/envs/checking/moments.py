"""Moments: what an environment tells one agent at once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fugu.envs.checking.trees import Fingerprint


@dataclass(frozen=True)
class Moment:
    """What the environment told one agent at once.

    Attributes:
        agent: Whom it told.
        episode: Counted from 0.
        step: Of the episode, counted from 1; 0 is its reset.
        observation: As given, like `info`, `reward`, `terminated` and `truncated`.
        first: The agent has not acted yet, so that its reward and flags mean nothing.
        packed: The observation as a flat row, unless it does not fit its layout.
        fingerprint: Of everything that a seed must repeat.
    """

    agent: Hashable
    episode: int
    step: int
    observation: Any
    info: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    first: bool = False
    packed: NDArray[Any] | None = None
    fingerprint: Fingerprint = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the agent's episode is over."""
        return is_set(self.terminated) or is_set(self.truncated)

    @property
    def place(self) -> str:
        """Where in the run it was, in words."""
        return place(self.episode, self.step)


def place(episode: int, step: int) -> str:
    """A place in a run, in words.

    >>> place(2, 0), place(2, 7)
    ('reset of episode 2', 'episode 2, step 7')
    """
    return f"episode {episode}, step {step}" if step else f"reset of episode {max(episode, 0)}"


def is_set(flag: Any) -> bool:
    """Whether a flag is set, whatever it is made of."""
    try:
        return bool(flag)
    except (TypeError, ValueError):  # an array of several, for one; the flags check tells of it
        return False
