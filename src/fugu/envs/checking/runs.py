"""Runs: the same actions through the bare environment and through emulation."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import EnvError
from fugu.core.seeding import episode_seed
from fugu.envs.checking.actions import Player
from fugu.envs.checking.findings import Broken
from fugu.envs.checking.guard import FAULTS, last_lines
from fugu.envs.checking.log import Log
from fugu.envs.checking.moments import Moment, is_set
from fugu.envs.checking.witness import Actions, Witness
from fugu.envs.contract import AgentGroup, Buffers, Env

RUN_SECONDS = 20.0  # after which a run of a slow environment is cut short


@dataclass
class Run:
    """One run and how it went.

    Attributes:
        log: What the environment said.
        turns: What was done, turn by turn.
        masks: Action masks that were given.
        forbidding: Those of them that forbade something.
        ended: Episodes that ended.
        broken: What the environment broke it off with, if it did.
        refused: What emulation refused to go on with, if it did.
        mismatch: Where the rows of emulation were not what the environment said.
        added_seconds: What emulation added to each step.
    """

    log: Log
    turns: list[Actions] = field(default_factory=list)
    masks: int = 0
    forbidding: int = 0
    ended: int = 0
    broken: Broken | None = None
    refused: BaseException | None = None
    mismatch: str | None = None
    added_seconds: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Turns that were played."""
        return len(self.turns)


def run_bare(
    witness: Witness,
    player: Player,
    seed: int,
    steps: int,
    *,
    replayed: Run | None = None,
) -> Run:
    """Play the environment itself; `replayed` gives the actions, up to the first difference."""
    run = Run(witness.log)

    def play() -> None:
        for _ in turns(steps):
            if not run.log.awaiting:
                begin_episode(witness, seed)
            masks = {moment.agent: _mask(witness, player, moment) for moment in run.log.awaiting}
            if run.log.difference:
                return
            run.masks += sum(mask is not None for mask in masks.values())
            run.forbidding += sum(mask is not None and not mask.all() for mask in masks.values())
            actions = repeated(replayed, run, set(masks)) or {
                agent: player.choose(agent, mask) for agent, mask in masks.items()
            }
            run.turns.append(copy.deepcopy(actions))
            witness.play(actions)
            run.ended += not run.log.awaiting

    try:
        play()
    except Broken as broken:
        run.broken = broken
    except FAULTS as error:
        advice = "Mend the environment: the error is its own."
        run.broken = Broken("step", f"{run.log.place}: {last_lines(error)}", advice)
    return run


def begin_episode(witness: Witness, seed: int) -> None:
    """Reset with the seed that emulation would give this episode."""
    witness.begin(episode_seed(seed, witness.log.episode + 1))
    if not witness.log.awaiting:
        text = f"{witness.log.place}: nobody can act"
        raise Broken("reset", text, "Begin an episode with an agent that is not over.")


def run_emulated(
    make: Callable[[], Env],
    log: Log,
    player: Player,
    seed: int,
    steps: int,
    *,
    replayed: Run | None = None,
) -> Run:
    """Play through emulation, and compare every row with what the environment said.

    A quiet log knows no observations to compare with: such a run is for its times.
    """
    run = Run(log)

    def play() -> None:
        env = make()
        rows = RowReader(env)
        env.reset(seed)
        for _ in turns(steps):
            run.mismatch = None if log.quiet else rows.mismatch(log)
            if run.mismatch:
                return
            actions = repeated(replayed, run, set(rows.live())) or {
                agent: player.choose(agent, rows.get(agent, "action_masks"))
                for agent in rows.live()
            }
            rows.act(actions)
            run.turns.append(actions)
            log.turn.clear()
            run.added_seconds.append(timed_step(env, log))
        run.mismatch = None if log.quiet else rows.mismatch(log)

    try:
        play()
    except Broken as broken:
        run.broken = broken
    except FAULTS as error:  # the environment's own come as Broken: this one is emulation's
        run.refused = error
    run.ended = max(log.episode, 0)
    return run


def timed_step(env: Env, log: Log) -> float:
    """Step through emulation; the seconds that were not spent in the environment below it."""
    watched, began = log.clock.seconds, time.perf_counter()
    env.step()
    return time.perf_counter() - began - (log.clock.seconds - watched)


def repeated(earlier: Run | None, run: Run, agents: set[Hashable]) -> Actions | None:
    """What was done at this turn of an earlier run, if it still makes sense."""
    if earlier is None or run.log.difference or run.steps >= earlier.steps:
        return None
    actions = earlier.turns[run.steps]
    return copy.deepcopy(actions) if set(actions) == agents else None


def turns(steps: int) -> Iterator[int]:
    """Up to `steps` turns, fewer if they take long."""
    began = time.monotonic()
    for turn in range(steps):
        if time.monotonic() - began > RUN_SECONDS:
            return
        yield turn


class RowReader:
    """The rows of each agent, whatever group it is in."""

    def __init__(self, env: Env) -> None:
        self._places: dict[Hashable, tuple[AgentGroup, Buffers, int]] = {
            agent: (group, buffers, row)
            for group, buffers in zip(env.groups, env.buffers, strict=True)
            for row, agent in enumerate(group.agents)
        }

    def get(self, agent: Hashable, name: str) -> Any:
        """One agent's row of an array."""
        _, buffers, row = self._places[agent]
        return getattr(buffers, name)[row]

    def act(self, actions: Actions) -> None:
        """Write the actions of these agents."""
        for agent, action in actions.items():
            group, buffers, row = self._places[agent]
            group.action_layout.pack(action, buffers.actions[row])

    def live(self) -> list[Hashable]:
        """The agents that await an action."""
        return [agent for agent in self._places if self.get(agent, "live")]

    def mismatch(self, log: Log) -> str | None:
        """Where the rows differ from what the environment said last, in words."""
        expected = {moment.agent for moment in log.awaiting}
        if set(self.live()) != expected:
            return f"{log.place}: live rows are {self.live()}; allowed: {sorted(expected, key=str)}"
        for moment in log.turn:
            name = self._mismatched_outcome(moment)
            if name:
                return f"{moment.place}: {name} of {moment.agent!r} is not what the bare one gave"
        for moment in log.awaiting:
            if not _same(self.get(moment.agent, "observations"), moment.packed):
                return f"{moment.place}: the row of {moment.agent!r} is not what the bare one gave"
        return None

    def _mismatched_outcome(self, moment: Moment) -> str | None:
        if moment.first:
            return None
        agent = moment.agent
        with np.errstate(over="ignore"):  # a reward too large is told of as such
            reward = np.float32(moment.reward)
        if not np.array_equal(self.get(agent, "rewards"), reward, equal_nan=True):
            return "the reward"
        if self.get(agent, "terminations") != is_set(moment.terminated):
            return "the termination"
        if self.get(agent, "truncations") != is_set(moment.truncated):
            return "the truncation"
        sees = moment.ended and moment.observation is not None
        if sees and not _same(self.get(agent, "final"), moment.packed):
            return "the final observation"
        return None


def _mask(witness: Witness, player: Player, moment: Moment) -> NDArray[np.bool_] | None:
    try:
        return player.mask(moment, witness.ask_masks())
    except EnvError as error:
        text = f"{moment.place}: {error}"
        advice = "Give one entry for each choice, at least one of each head allowed."
        raise Broken("action masks", text, advice) from error


def _same(row: NDArray[Any], packed: NDArray[Any] | None) -> bool:
    return packed is not None and row.tobytes() == packed.tobytes()
