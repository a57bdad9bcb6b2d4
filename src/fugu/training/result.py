"""What a training session returns."""

from __future__ import annotations

from dataclasses import dataclass

from fugu.policies.policy import Policy
from fugu.store.run import Run


@dataclass(frozen=True)
class Result:
    """What came of a session.

    Attributes:
        run: Its folder; None if nothing was kept, and at all ranks but the first.
        policies: As they are now, one for each group of agents.
        steps: Agent steps so far.
        seconds: Of this session.
        score: Mean return of the last episodes; None if none ended.
        status: "finished", or "stopped" by a signal or a callback.
        signals: That came, to whatever rank.
        stop_reason: Why a callback stopped it, if it said so.
    """

    run: Run | None
    policies: list[Policy]
    steps: int
    seconds: float
    score: float | None
    status: str
    signals: tuple[int, ...] = ()
    stop_reason: str = ""
