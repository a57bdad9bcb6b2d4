"""Recording: play an environment of any kind, guarded, and record what it gives to its agents."""

from __future__ import annotations

import copy
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from types import FrameType
from typing import Any, NoReturn, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import FuguError
from fugu.core.seeding import episode_seed
from fugu.envs.checking.report import Finding, Findings, Status
from fugu.envs.contract import Buffers
from fugu.envs.gymnasium_env import AGENT, find_mask_method
from fugu.envs.masks import MaskWriter, find_mask
from fugu.native.nodes import join
from fugu.native.packing import describe
from fugu.spaces import Layout

T = TypeVar("T")
Layouts = dict[Hashable, tuple[Layout | None, Layout | None]]  # observation and action, by agent
Rows = dict[Hashable, tuple[Buffers, int]]  # where emulation keeps the row of each agent

RUN_SECONDS = 20.0  # a run of a slow environment is cut short after this time
_REPEAT_SECONDS = 1.0  # the alarm repeats, in case the environment swallowed the exception
_STEP = ("observation", "reward", "terminated", "truncated", "info")
_PARALLEL_STEP = ("observations", "rewards", "terminations", "truncations", "infos")
_NOTHING: tuple[Any, ...] = (None, 0.0, False, False, {})  # for values that a step leaves out


class CallTimeoutError(BaseException):
    """A call did not return in time.

    Not an `Exception`, so that an environment which catches every `Exception` does not catch it.
    """


class Guard:
    """Calls an environment, limits the time of each call, and turns exceptions into findings.

    As a context manager it restores the global random generators, and a timer of the caller. Time
    limits need SIGALRM, so they work in the main thread of a POSIX system, for anything but C code
    that never returns; elsewhere calls have none.

    Attributes:
        seconds: Duration of the last call.
    """

    def __init__(self, call_seconds: float) -> None:
        self._limit, self._armed, self.seconds = call_seconds, False, 0.0

    def __enter__(self) -> Guard:
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        self._torch: Any = sys.modules.get("torch")
        self._torch_state = self._torch.get_rng_state() if self._torch else None
        main = threading.current_thread() is threading.main_thread()
        # A handler of None was installed outside of Python and could not be restored.
        if main and hasattr(signal, "SIGALRM") and signal.getsignal(signal.SIGALRM) is not None:
            self._entered = time.monotonic()
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)
            self._handler = signal.signal(signal.SIGALRM, self._interrupt)
            self._armed = True
        return self

    def __exit__(self, *_: object) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        if self._torch:
            self._torch.set_rng_state(self._torch_state)
        if self._armed:
            signal.signal(signal.SIGALRM, self._handler)
            remaining, interval = self._timer
            if remaining:
                elapsed = time.monotonic() - self._entered
                signal.setitimer(signal.ITIMER_REAL, max(remaining - elapsed, 0.001), interval)

    def call(self, check: str, function: Callable[..., T], *args: Any, place: str = "") -> T:
        """Call `function(*args)`; whatever it raises becomes a failure of `check` at `place`."""
        self._set_alarm(self._limit)
        began = time.perf_counter()
        try:
            return function(*args)
        except Finding:
            raise
        except (Exception, SystemExit, CallTimeoutError) as error:
            text = _last_lines(error)
            advice = f"Fix the environment, which raised this error in {check}."
            if isinstance(error, FuguError):
                text, advice = str(error), "Do what the error says."
            elif check == "reset" and isinstance(error, TypeError) and "argument" in str(error):
                advice = "Declare it as reset(self, *, seed=None, options=None): fugu passes both."
            raise Finding(check, "fail", text, advice, place=place) from error
        finally:
            self.seconds = time.perf_counter() - began
            self._set_alarm(0)

    def _set_alarm(self, seconds: float) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS if seconds else 0)

    def _interrupt(self, _signal: int, _frame: FrameType | None) -> None:
        raise CallTimeoutError(f"did not return within {self._limit:g} seconds")


def _last_lines(error: BaseException) -> str:
    """Return where an error was raised, below the guard, and its message, in at most 8 lines."""
    below = error.__traceback__ and error.__traceback__.tb_next
    text = traceback.format_exception(type(error), error, below, limit=-2, chain=False)
    lines = "".join(text).removeprefix("Traceback (most recent call last):\n").splitlines()
    lines = [line for line in lines if set(line.strip()) - set("^~")]
    return "\n".join(lines if len(lines) <= 8 else [*lines[:4], "  ...", *lines[-3:]])


@dataclass
class Transition:
    """What the environment gave to one agent at once; values as they were given."""

    agent: Hashable
    place: str  # where in the run, such as "episode 0, step 3"
    observation: Any
    info: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    first: bool = False  # the agent has not acted yet, so reward and flags mean nothing
    fingerprint: dict[str, int] = field(default_factory=dict)  # what equal seeds must repeat
    row: int | None = None  # hash of the observation as a flat row, if it fits its layout

    @property
    def ended(self) -> bool:
        """Whether the agent's episode is over."""
        return is_set(self.terminated) or is_set(self.truncated)


@dataclass
class Turn:
    """What an environment gave since the last actions, and the actions that follow."""

    given: list[Transition]
    masks: dict[Hashable, NDArray[np.bool_]]  # of each agent that acts next
    actions: dict[Hashable, Any] = field(default_factory=dict)  # filled in by the player

    def difference(self, now: Turn) -> str | None:
        """Return where another run of the same actions differs, in words."""
        for old, new in zip_longest(self.given, now.given):
            before, after = (x.fingerprint if x else {} for x in (old, new))
            names = [n for n in sorted(before | after) if before.get(n) != after.get(n)]
            if names:
                return f"{shortened(names)} at {(new or old).place}"
        masks = [{k: v.tobytes() for k, v in turn.masks.items()} for turn in (self, now)]
        return None if masks[0] == masks[1] else f"the action mask at {now.given[-1].place}"

    def mismatch(self, rows: Rows) -> str | None:
        """Return where the rows of emulation differ from what was given, in words."""
        live = {agent for agent, (buffers, row) in rows.items() if buffers.live[row]}
        if live != set(self.masks):
            return f"{self.given[-1].place}: expected live rows of {set(self.masks)}; got {live}"
        for given in self.given:
            buffers, row = rows[given.agent]
            seen = buffers.final if given.ended else buffers.observations
            if given.row not in (None, hash(seen[row].tobytes())):
                name = "final observation" if given.ended else "observation"
                return f"{given.place}: the {name} of {given.agent!r} is not what was given"
            with np.errstate(over="ignore"):  # the check of rewards reports what is too large
                reward = float(np.float32(np.ravel(given.reward)[0]))
            outcome = [reward, is_set(given.terminated), is_set(given.truncated)]
            arrays = buffers.rewards, buffers.terminations, buffers.truncations
            got = [array[row].item() for array in arrays]
            if not given.first and not np.array_equal(outcome, got, equal_nan=True):
                who = f"{given.place}: reward and flags of {given.agent!r}"
                return f"{who} are {got}, not {outcome}"
        return None


class RecordedEnv:
    """Plays a Gymnasium environment and records the transitions of its agent."""

    def __init__(
        self,
        env: Any,
        layouts: Layouts,
        guard: Guard,
        findings: Findings,
        inspect: Callable[[Transition], int | None] = lambda _: None,
    ) -> None:
        self.episode, self._step = -1, 0  # the current episode, and steps of it
        self.seconds: dict[str, list[float]] = {}  # duration of each call, by method
        self._env, self._layouts, self._guard = env, layouts, guard
        self._findings, self._inspect = findings, inspect
        self._given: list[Transition] = []
        self._action_masks = find_mask_method(env) if isinstance(env, gymnasium.Env) else None

    def turns(self, seed: int, steps: int) -> Iterator[Turn]:
        """Play up to `steps` steps, fewer if they take long; yield a turn before each, and a last.

        The player fills in `turn.actions` before it asks for the next turn. Every episode is reset
        with the seed that emulation gives it.
        """
        began = time.monotonic()
        for number in range(steps + 1):
            if not self._waiting:
                self.episode, self._step = self.episode + 1, 0
                self._begin_episode(episode_seed(seed, self.episode))
                if not self._waiting:
                    text = "reset: expected at least one agent that can act; got none"
                    self._fail("reset", text, "Start each episode with an agent that is not over.")
            turn = Turn(self._given, {given.agent: self._mask(given) for given in self._waiting})
            yield turn
            if number == steps or time.monotonic() - began > RUN_SECONDS:
                return
            self._given, self._step = [], self._step + 1
            self._advance(copy.deepcopy(turn.actions))

    @property
    def _waiting(self) -> list[Transition]:
        """The transitions of the agents that act next."""
        return [transition for transition in self._given if not transition.ended]

    @property
    def _place(self) -> str:
        """Where in the run this is, in words."""
        if self._step:
            return f"episode {self.episode}, step {self._step}"
        return f"reset of episode {self.episode}"

    # ------------------------------------------------------------------ by kind of environment

    def _begin_episode(self, seed: int) -> None:
        observation, info = self._call("reset", ("observation", "info"), seed=seed, options=None)
        self._add(AGENT, observation, info, first=True)

    def _advance(self, actions: dict[Hashable, Any]) -> None:
        observation, *outcome, info = self._call("step", _STEP, actions[AGENT])
        self._add(AGENT, observation, info, *outcome)

    # ------------------------------------------------------------------ calls and transitions

    def _note(
        self, check: str, text: str, advice: str, where: str = "", status: Status = "warn"
    ) -> None:
        self._findings.add(check, status, text, advice, where, self._place)

    def _fail(self, check: str, text: str, advice: str) -> NoReturn:
        raise Finding(check, "fail", text, advice, place=self._place)

    def _call(self, name: str, returns: tuple[str, ...], *args: Any, **kwargs: Any) -> Any:
        """Call a method that returns a tuple of these values, or anything if none are named."""
        check, before = "reset" if name == "reset" else "step", fingerprint(args)
        function = partial(getattr(self._env, name), *args, **kwargs)
        result = self._guard.call(check, function, place=self._place)
        self.seconds.setdefault(name, []).append(self._guard.seconds)
        if fingerprint(args) != before:
            text = "expected step to leave the action unchanged; it wrote into the action"
            advice = "Copy the action before changing it: it belongs to the caller."
            self._note("actions", text, advice, status="fail")
        if returns and not (isinstance(result, tuple) and len(result) == len(returns)):
            text = f"{name}: expected a tuple ({', '.join(returns)}); got {describe(result)}"
            advice = "Return such a tuple; wrap an environment of the old Gym with shimmy."
            self._fail(check, text, advice)
        return result

    def _add(
        self, agent: Hashable, observation: Any, info: Any, *outcome: Any, first: bool = False
    ) -> Transition:
        """Record and return what an agent was given."""
        outcomes = dict(zip(_STEP[1:4], outcome, strict=False))
        prints = {name_leaf(path): value for path, value in fingerprint(observation).items()}
        prints |= {"the agent": hash(agent)} | ({} if first else fingerprint(outcomes))
        values = agent, self._place, observation, info
        given = Transition(*values, **outcomes, first=first, fingerprint=prints)
        given.row = self._inspect(given)
        self._given.append(given)
        return given

    def _mask(self, transition: Transition) -> NDArray[np.bool_]:
        """Return the action mask that emulation would find; without one, everything is allowed."""
        layout = self._layouts[transition.agent][1]
        if layout is None or not (writer := MaskWriter(layout)).width:
            return np.ones(0, np.bool_)
        row, mask = np.ones(writer.width, np.bool_), None
        if self._action_masks is not None:
            mask = self._guard.call("action masks", self._action_masks, place=self._place)
        if mask is None:
            info = transition.info if isinstance(transition.info, dict) else {}
            mask = find_mask(transition.observation, info, writer.width)
        if mask is not None:
            self._guard.call("action masks", writer.write, mask, row, place=self._place)
        return row


class RecordedParallelEnv(RecordedEnv):
    """Plays a PettingZoo ParallelEnv and records the transitions of its agents."""

    def _begin_episode(self, seed: int) -> None:
        result = self._call_for_dicts("reset", ("observations", "infos"), seed=seed, options=None)
        for agent in self._agents():
            self._join(agent, *result)

    def _advance(self, actions: dict[Hashable, Any]) -> None:
        acted = list(actions)
        result = self._call_for_dicts("step", _PARALLEL_STEP, actions)
        agents = self._agents()
        for agent in acted:
            self._outcome(agent, result, agent in agents)
        for agent in agents:
            if agent not in acted:
                self._join(agent, result[0], result[4])

    def _agents(self) -> list[Hashable]:
        """Return `env.agents`, all of which must be possible agents."""
        return [self._possible(agent) for agent in self._env.agents]

    def _possible(self, agent: Hashable) -> Hashable:
        if agent not in self._layouts:
            text = f"expected one of the possible_agents {list(self._layouts)}; got {agent!r}"
            advice = "List every agent that may ever appear in possible_agents."
            self._fail("agents", text, advice)
        return agent

    def _call_for_dicts(
        self, name: str, returns: tuple[str, ...], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method that returns a tuple of dicts by agent."""
        result = self._call(name, returns, *args, **kwargs)
        for part, values in zip(returns, result, strict=True):
            if not isinstance(values, Mapping):
                text = f"{name}: expected {part} as a dict by agent; got {describe(values)}"
                self._fail(name, text, f"Return {part} as {{agent: value}}.")
            for agent in set(values) - set(self._layouts):
                text = f"{name}: expected {part} of possible_agents only; got {part} of {agent!r}"
                advice = "Return values of possible_agents only: other agents have no row."
                self._note("agents", text, advice, part, "warn" if part == "infos" else "fail")
        return result

    def _join(self, agent: Hashable, observations: Any, infos: Any) -> None:
        """Record what is given to an agent that has not acted yet."""
        if agent not in observations:
            text = f"expected an observation of each agent in env.agents; got none of {agent!r}"
            self._fail("agents", text, "Return an observation of each agent in env.agents.")
        self._add(agent, observations[agent], infos.get(agent, {}), first=True)

    def _outcome(self, agent: Hashable, result: Any, present: bool) -> None:
        """Record what is given to an agent for its action."""
        for name, values in zip(_PARALLEL_STEP[1:], result[1:], strict=True):
            if agent not in values:
                text = f"step: expected {name} of each agent that acted; got none of {agent!r}"
                self._note("agents", text, "Return a value for each agent that acted.", name)
        values = (part.get(agent, default) for part, default in zip(result, _NOTHING, strict=True))
        observation, *outcome, info = values
        ended = self._add(agent, observation, info, *outcome).ended
        if ended and present:
            text = f"expected env.agents without agents that are over; got {agent!r}"
            advice = "Remove agents from env.agents when they are terminated or truncated."
            self._note("agents", text, advice)
        if not ended and not present:
            text = f"{agent!r} left env.agents neither terminated nor truncated"
            self._fail("agents", text, "Set one of the two when an agent leaves.")


class RecordedTurnEnv(RecordedParallelEnv):
    """Plays a PettingZoo AECEnv and records the transitions of its agents."""

    def _begin_episode(self, seed: int) -> None:
        self._call("reset", (), seed=seed, options=None)
        if self._agents():
            self._last(first=True)

    def _advance(self, actions: dict[Hashable, Any]) -> None:
        (action,) = actions.values()
        for _ in range(2 * len(self._layouts) + 1):
            self._call("step", (), action)
            if not self._env.agents:
                return
            self._last(first=False)
            if self._waiting:
                return
            action = None
        text = f"{self._env.agents} stay in env.agents after each of them is over"
        self._fail("agents", text, "Remove an agent from env.agents on its step(None).")

    def _last(self, first: bool) -> None:
        observation, *outcome, info = self._call("last", _STEP)
        agent = self._possible(self._env.agent_selection)
        self._add(agent, observation, info, *outcome, first=first)


# ---------------------------------------------------------------------- leaves and hashes


def is_set(flag: Any) -> bool:
    """Return whether a flag is set, whatever its type."""
    try:
        return bool(flag)
    except (TypeError, ValueError):  # such as an array of several: the check of flags reports it
        return False


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree of dicts, tuples and lists, with their paths.

    >>> list(leaves_of({"a": (1, 2), "b": "x"}))
    [('a/0', 1), ('a/1', 2), ('b', 'x')]
    """
    if isinstance(value, Mapping | tuple | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from leaves_of(item, join(path, key))
    else:
        yield path, value


def name_leaf(path: str) -> str:
    """Return what findings call a leaf of an observation."""
    return f"'{path}'" if path else "the observation"


def shortened(names: list[str]) -> str:
    """Return the first names of a list, separated by commas."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def fingerprint(value: Any) -> dict[str, int]:
    """Return a hash of each leaf by its path; equal values have equal ones within one process."""
    return {path: _hash(leaf) for path, leaf in leaves_of(value)}


def _hash(leaf: Any) -> int:
    array = np.asarray(leaf)
    if array.dtype != object:
        return hash((array.dtype.str, array.shape, array.tobytes()))
    # The text of an unknown object may hold its address, which differs from run to run.
    return hash((type(leaf).__qualname__, array.shape))
