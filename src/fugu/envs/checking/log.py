"""Log: every call of one environment, watched, timed and recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fugu.envs.checking.agents import Spaces
from fugu.envs.checking.findings import Broken, Finding
from fugu.envs.checking.guard import FAULTS, Watchdog, last_lines
from fugu.envs.checking.moments import Moment, place
from fugu.envs.checking.trees import (
    Fingerprint,
    fingerprint,
    name_leaf,
    packed_fingerprint,
    try_pack,
)
from fugu.envs.checking.values import Inspector


@dataclass(frozen=True)
class Entry:
    """What a seed must repeat of one moment."""

    agent: Hashable
    place: str
    fingerprint: Fingerprint


class Clock:
    """Sums up the time spent inside its `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


class Log:
    """What one environment was asked and what it said, in order.

    Attributes:
        quiet: Only times are taken, so that nothing disturbs them.
        entries: All that a seed must repeat.
        difference: Where the entries first differ from those of `reference`, in words.
        latest: The moments of the last call.
        turn: The moments since the caller last cleared it.
        episode: Number of the episode under way.
        step: Number of its last step.
        reset_seconds: Time of each reset.
        step_seconds: Time of each step; turn by turn, with what an agent then sees of it.
        sights: Observations so far.
        outcomes: Those of them that an action led to.
        reward_range: Smallest and largest reward so far.
        clock: All time spent in the watched calls, the watching included.
    """

    def __init__(
        self,
        spaces: Spaces,
        watchdog: Watchdog,
        *,
        inspector: Inspector | None = None,
        reference: Sequence[Entry] = (),
        quiet: bool = False,
    ) -> None:
        self._spaces, self._watchdog = spaces, watchdog
        self._inspector, self._reference = inspector, reference
        self.quiet = quiet
        self.entries: list[Entry] = []
        self.difference: str | None = None
        self.latest: list[Moment] = []
        self.turn: list[Moment] = []
        self.episode, self.step = -1, 0
        self.reset_seconds: list[float] = []
        self.step_seconds: list[float] = []
        self.sights, self.outcomes = 0, 0
        self.reward_range = (float("inf"), -float("inf"))
        self.clock = Clock()

    @property
    def place(self) -> str:
        """Where the run is, in words."""
        return place(self.episode, self.step)

    @property
    def awaiting(self) -> list[Moment]:
        """The moments that await an action."""
        return [moment for moment in self.latest if not moment.ended]

    def reset(self, function: Callable[..., Any], seed: Any, options: Any) -> Any:
        """Call the environment's reset."""
        self.episode, self.step = self.episode + 1, 0
        result, seconds = self._call("reset", function, seed=seed, options=options)
        self.reset_seconds.append(seconds)
        return result

    def act(self, function: Callable[..., Any], action: Any) -> Any:
        """Call the environment's step, and see that it leaves the action alone."""
        self.step += 1
        before = fingerprint(action) if self._inspector else None
        result, seconds = self._call("step", function, action)
        self.step_seconds.append(seconds)
        if self._inspector and fingerprint(action) != before:
            text = "step wrote into the action that it was given"
            advice = "Copy the action before changing it: it belongs to the caller."
            self.note(Finding("actions", "fail", "", text, advice))
        return result

    def look(self, function: Callable[..., Any]) -> Any:
        """Call what shows the outcome of a step or a reset, and count its time to that."""
        result, seconds = self._call("step", function)
        times = self.step_seconds if self.step else self.reset_seconds
        times[-1] += seconds
        return result

    def ask(self, function: Callable[..., Any]) -> Any:
        """Call what says which actions are legal."""
        result, _ = self._call("action masks", function)
        if not self.quiet:
            self.enter("", _named("action mask", result))
        return result

    def tell(self, moments: list[Moment]) -> None:
        """Record what a call said."""
        if self.quiet:
            self.latest = moments
            return
        self.latest = [self._finish(moment) for moment in moments]
        self.turn += self.latest
        for moment in self.latest:
            self.enter(moment.agent, moment.fingerprint)
            self._count(moment)
        if self._inspector:
            self._inspector.see(self.latest)

    def enter(self, agent: Hashable, prints: Fingerprint) -> None:
        """Record something that a seed must repeat."""
        entry = Entry(agent, self.place, prints)
        if self.difference is None and len(self.entries) < len(self._reference):
            self.difference = _difference(self._reference[len(self.entries)], entry)
        self.entries.append(entry)

    def note(self, finding: Finding) -> None:
        """Note a finding, if this run is inspected."""
        if self._inspector:
            self._inspector.ledger.add(finding, self.place)

    def _count(self, moment: Moment) -> None:
        self.sights += 1
        if moment.first:
            return
        self.outcomes += 1
        if isinstance(moment.reward, int | float | np.number):
            low, high = self.reward_range
            reward = float(moment.reward)
            self.reward_range = (min(low, reward), max(high, reward))

    def _call(
        self, check: str, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> tuple[Any, float]:
        self._watchdog.begin()
        began = time.perf_counter()
        try:
            result = function(*arguments, **named)
        except FAULTS as error:
            text = f"{self.place}: {type(error).__name__} in {check}\n{last_lines(error)}"
            raise Broken(check, text, _advice(error, check)) from error
        finally:
            seconds = time.perf_counter() - began
            self._watchdog.end()
        return result, seconds

    def _finish(self, moment: Moment) -> Moment:
        layout = self._spaces[moment.agent].observation_layout
        packed = try_pack(layout, moment.observation)
        if layout is None or packed is None:
            leaves = fingerprint(moment.observation)
        else:
            leaves = packed_fingerprint(layout, packed)
        prints = {name_leaf(path): value for path, value in leaves.items()}
        if not moment.first:
            for name in ("reward", "terminated", "truncated"):
                prints |= _named(name, getattr(moment, name))
        if isinstance(moment.info, dict) and "action_mask" in moment.info:
            prints |= _named("action mask", moment.info["action_mask"])
        return replace(moment, packed=packed, fingerprint=prints)


def _named(name: str, value: Any) -> Fingerprint:
    return {f"{name} {path}".strip(): print_ for path, print_ in fingerprint(value).items()}


def _advice(error: BaseException, check: str) -> str:
    if check == "reset" and isinstance(error, TypeError) and "argument" in str(error):
        return "Declare it as reset(self, *, seed=None, options=None): fugu passes both."
    return f"Mend the {check} of the environment: the error is its own."


def _difference(before: Entry, now: Entry) -> str | None:
    if before.agent != now.agent or before.place != now.place:
        return f"{now.agent!r} at {now.place} instead of {before.agent!r} at {before.place}"
    if before.fingerprint == now.fingerprint:
        return None
    names = sorted(before.fingerprint.keys() | now.fingerprint.keys())
    other = [n for n in names if before.fingerprint.get(n) != now.fingerprint.get(n)]
    shown = ", ".join(other[:4]) + (f" and {len(other) - 4} more" if len(other) > 4 else "")
    return f"{shown} at {now.place}"
