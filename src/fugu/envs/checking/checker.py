"""`fugu.check`: the runs of an environment, and the checks that compare them."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import replace
from statistics import median
from typing import Any

import gymnasium
from gymnasium import Space

from fugu.core.errors import SpaceError, UsageError
from fugu.core.seeding import derive
from fugu.envs.checking.inspection import Inspector
from fugu.envs.checking.recording import (
    Guard,
    Layouts,
    RecordedEnv,
    RecordedParallelEnv,
    RecordedTurnEnv,
    Rows,
    Turn,
    shortened,
)
from fugu.envs.checking.report import Finding, Findings, Report
from fugu.envs.emulation import emulate, is_environment, refusal
from fugu.envs.gymnasium_env import AGENT
from fugu.envs.masks import sample_mask
from fugu.spaces import Layout
from fugu.spaces.compile import Limits

CALL_SECONDS = 60.0  # after this time a call of the environment counts as hung
CHECKS = (
    "make", "layout", "reset", "step", "agents", "observations", "bounds", "finite", "rewards",
    "flags", "infos", "action masks", "same seed", "other seed", "autoreset",
    "kept observations", "actions", "time", "close",
)  # fmt: skip
_OPTIONAL = ("agents", "action masks", "close")  # shown only where they apply
_OF_TRANSITIONS = ("observations", "bounds", "finite", "infos", "kept observations")
_OF_STEPS = ("rewards", "flags", "actions")
_SPACES = ("observation_space", "action_space")
_NETHACK = ("nle", "minihack")


def check(
    env_or_factory: Any,
    *,
    steps: int = 1000,
    seed: int = 0,
    limits: Limits = None,
    show: bool = True,
) -> Report:
    """Check that an environment does what it declares, and that fugu can run it.

    It plays random legal actions, then the same actions again: with the same seed, through
    `emulate`, and with another seed until something differs. A broken environment never raises
    here: its exceptions are findings of the report, and so is a call that hangs for 60 seconds,
    where the system can interrupt it. The global random generators are restored.

    Args:
        env_or_factory: A Gymnasium `Env`, a PettingZoo `ParallelEnv` or `AECEnv`, or, better, a
            function that makes one. An environment that is given is reset, but not closed.
        steps: Steps of a run; a slow environment gets as many as fit into 20 seconds.
        seed: Seed of all runs but the one with another seed.
        limits: Maximum length of each Sequence and Graph in the observation; see `Layout.of`. A
            single number applies to actions too.
        show: Print the report.

    Returns:
        A `Report`: `report.ok`, `report.failures`, `report.warnings`, `report["bounds"]`.

    >>> import gymnasium
    >>> report = check(lambda: gymnasium.make("CartPole-v1"), steps=100, show=False)
    >>> report.ok, report["same seed"].detail
    (True, 'seed 0 twice: 100 steps, all bytes equal')
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UsageError(f"steps: expected an int >= 1; got {steps!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed: expected an int; got {seed!r}.")
    if not is_environment(env_or_factory) and not callable(env_or_factory):
        raise UsageError(refusal(env_or_factory))
    with Guard(CALL_SECONDS) as guard:
        report = Checker(env_or_factory, guard, steps, seed, limits).run()
    if show:
        report.show()
    return report


class Checker:
    """Runs all checks of one environment.

    One run of the bare environment is recorded while each transition is inspected. The runs after
    it repeat its actions, and compare what the environment gives with the record.
    """

    def __init__(self, given: Any, guard: Guard, steps: int, seed: int, limits: Limits) -> None:
        self._given, self._guard = given, guard
        self._steps, self._seed, self._limits = steps, seed, limits
        self._action_limits = limits if isinstance(limits, int) else None
        self._findings, self._subject = Findings(), "environment"
        self._made: dict[int, Any] = {}
        self._spaces: dict[Hashable, tuple[Any, Any]] = {}
        self._layouts: Layouts = {}
        self._record: list[Turn] = []

    def run(self) -> Report:
        """Run all checks."""
        reason = "not run"
        try:
            self._run()
        except Finding as fatal:
            self._findings.add_finding(fatal)
            reason = f"not run: see '{fatal.check}'"
        finally:
            self._close()
        results = (self._findings.result(check, reason) for check in CHECKS)
        shown = (x for x in results if x.status != "skip" or x.name not in _OPTIONAL)
        return Report(tuple(shown), self._subject)

    def _run(self) -> None:
        env = self._make()
        self._guard.call("make", self._describe, env)
        self._guard.call("layout", self._check_layout, env)
        self._check_bare(env)
        repeatable = self._guard.call("same seed", self._check_same_seed, self._make())
        self._check_autoreset(self._make(), repeatable)
        if repeatable:
            self._guard.call("other seed", self._check_other_seed, env)

    def _make(self) -> Any:
        """Return an environment: a fresh one if there is a factory."""
        if is_environment(self._given):
            return self._given
        env = self._guard.call("make", self._given)
        if not is_environment(env):
            raise UsageError(refusal(env))
        self._made[id(env)] = env
        return env

    def _close(self) -> None:
        for env in self._made.values():
            try:
                self._guard.call("close", env.close)
                self._findings.note("close", f"closed the {len(self._made)} made here")
            except Finding as fatal:
                self._findings.add_finding(fatal)

    def _describe(self, env: Any) -> None:
        spec, metadata = getattr(env, "spec", None), getattr(env, "metadata", None) or {}
        kind = type(getattr(env, "unwrapped", env))
        self._subject = str(getattr(spec, "id", None) or metadata.get("name") or kind.__name__)
        how = "made by the factory" if self._made else "given: reset, not closed"
        self._findings.note("make", f"{kind.__module__}.{kind.__qualname__}, {how}")

    def _check_layout(self, env: Any) -> None:
        agents = [AGENT] if isinstance(env, gymnasium.Env) else list(env.possible_agents)
        if not agents:
            text, advice = "expected possible_agents; got none", "List all agents that may appear."
            raise Finding("layout", "fail", text, advice)
        names: dict[str, list[str]] = {}
        for agent in agents:
            self._spaces[agent] = declared(env, agent)
            observation = self._compile(agent, 0, self._limits)
            action = self._compile(agent, 1, self._action_limits)
            self._layouts[agent] = observation, action
            names.setdefault(f"observations {observation}, actions {action}", []).append(str(agent))
        if not all(isinstance(action, Space) for _, action in self._spaces.values()):
            raise Finding("layout", "fail", "no actions can be drawn", "Declare action_space.")
        lines = (f"{shortened(agents)}: {layouts}" for layouts, agents in names.items())
        self._findings.note("layout", "\n".join(lines))

    def _compile(self, agent: Hashable, kind: int, limits: Limits) -> Layout | None:
        """Return the layout of one of an agent's spaces, or None if it does not compile."""
        try:
            return Layout.of(self._spaces[agent][kind], limits=limits, strict=True)
        except SpaceError as error:
            text = f"{_SPACES[kind]} of {agent!r}: {error}"
            advice = "Do what it says; limits= by path is for observations, a number for both."
            self._findings.add("layout", "fail", text, advice, _SPACES[kind])
            return None

    def _recorded(self, env: Any, findings: Findings, *inspect: Any) -> RecordedEnv:
        """Return the recording wrapper for this kind of environment."""
        kind = RecordedTurnEnv if hasattr(env, "agent_iter") else RecordedParallelEnv
        wrapper = RecordedEnv if isinstance(env, gymnasium.Env) else kind
        return wrapper(env, self._layouts, self._guard, findings, *inspect)

    def _check_bare(self, env: Any) -> None:
        """Record a run of the environment itself, and inspect every transition of it."""
        inspector = Inspector(self._layouts, self._findings)
        bare = self._recorded(env, self._findings, inspector.inspect)
        try:
            self._guard.call("step", self._play_randomly, bare, inspector)
        finally:
            self._describe_record(bare)
        self._bare = bare
        self._describe_time([])
        if not isinstance(env, gymnasium.Env):
            self._guard.call("agents", self._check_agents, env)

    def _play_randomly(self, bare: RecordedEnv, inspector: Inspector) -> None:
        samplers = {}
        for i, (agent, (_, space)) in enumerate(self._spaces.items()):
            samplers[agent] = copy.deepcopy(space)  # the environment's keeps its generator
            samplers[agent].seed(derive(self._seed, i) >> 33)
        for turn in bare.turns(self._seed, self._steps):
            inspector.check_kept(turn.given)
            turn.given = [replace(given, observation=None, info=None) for given in turn.given]
            self._record.append(turn)
            for agent, mask in turn.masks.items():
                masks = () if mask.all() else (sample_mask(samplers[agent], iter(mask)),)
                turn.actions[agent] = samplers[agent].sample(*masks)

    def _describe_record(self, bare: RecordedEnv) -> None:
        """Say what was looked at, for the checks that found nothing."""
        given = [transition for turn in self._record for transition in turn.given]
        if not given:
            return
        outcomes = sum(not transition.first for transition in given)
        details = dict.fromkeys(_OF_TRANSITIONS, count(len(given), "transition"))
        details |= dict.fromkeys(_OF_STEPS, count(outcomes, "transition")) if outcomes else {}
        details["reset"] = f"{count(bare.episode + 1, 'reset')}, with seed= and options="
        episodes = count(bare.episode, "episode")
        details["step"] = f"{self._num_steps} of {self._steps:,}; {episodes} ended"
        masks = [mask for turn in self._record[:-1] for mask in turn.masks.values()]
        if forbidding := sum(not mask.all() for mask in masks):
            details["action masks"] = f"{forbidding:,} of {len(masks):,} forbid something"
        for name, detail in details.items():
            self._findings.note(name, detail)
        if "layout" in self._findings.failed():
            for name in ("observations", "bounds"):
                self._findings.note(name, "not run: see 'layout'", "skip")

    @property
    def _num_steps(self) -> str:
        return count(max(len(self._record) - 1, 0), "step")

    def _check_agents(self, env: Any) -> None:
        """Ask for the spaces of every agent again: they must be what they were."""
        for agent, before in self._spaces.items():
            for name, old, new in zip(_SPACES, before, declared(env, agent), strict=True):
                expected = f"{name}({agent!r}): expected the same on each call; got "
                if new != old:
                    text = f"{expected}{new} after {old}"
                    advice = "Fix the spaces of each agent when the environment is made."
                    self._findings.add("agents", "fail", text, advice, name)
                elif new is not old:
                    text = f"{expected}another object, equal to the first"
                    advice = "Return the same object each time, or seeding it has no effect."
                    self._findings.add("agents", "warn", text, advice, name)
        acting = max(len(turn.masks) for turn in self._record)
        detail = f"{len(self._spaces)} possible; up to {acting} act at once"
        self._findings.note("agents", detail)

    def _find_difference(self, env: Any, check: str, seed: int) -> str | None:
        """Repeat the recorded run; return where it first differs, in words."""
        turns = self._recorded(env, Findings()).turns(seed, len(self._record) - 1)
        try:
            for turn, before in zip(turns, self._record, strict=False):
                if difference := before.difference(turn):
                    return difference
                turn.actions = before.actions
        except Finding as fatal:
            fatal.check, fatal.text = check, f"a run with seed {seed} stopped: {fatal.text}"
            raise
        return None

    def _check_same_seed(self, env: Any) -> bool:
        """Return whether a second run with the same seed is the same."""
        difference = self._find_difference(env, "same seed", self._seed)
        detail = f"seed {self._seed} twice: {self._num_steps}, all bytes equal"
        self._findings.note("same seed", detail)
        if difference:
            text = f"seed {self._seed} twice: expected equal runs; they differ in {difference}"
            advice = "Call super().reset(seed=seed), and draw from self.np_random only."
            if type(getattr(env, "unwrapped", env)).__module__.split(".")[0] in _NETHACK:
                wrapper = "fugu.envs.wrappers.SeededNetHack"
                advice = f"NetHack ignores reset(seed=): wrap it in {wrapper}."
            self._findings.add("same seed", "fail", text, advice)
            self._findings.note("other seed", "not run: see 'same seed'", "skip")
        return difference is None

    def _check_other_seed(self, env: Any) -> None:
        difference = self._find_difference(env, "other seed", self._seed + 1)
        seeds = f"seeds {self._seed} and {self._seed + 1}"
        self._findings.note("other seed", f"{seeds} differ in {difference}")
        if difference is None:
            text = f"expected runs that differ; {seeds} give the same {self._num_steps}"
            advice = "Nothing to do if nothing in it is random; else it ignores its seed."
            self._findings.add("other seed", "warn", text, advice)

    def _check_autoreset(self, env: Any, repeatable: bool) -> None:
        """Repeat the run through emulation: every row must be what the environment gave."""
        failed = [name for name in self._findings.failed() if name != "same seed"]
        names = ", ".join(f"'{name}'" for name in failed or ["same seed"])
        self._findings.note("autoreset", f"not run: see {names}", "skip")
        if "layout" in failed:
            return
        try:
            # Without equal runs there is nothing to compare; emulation may still refuse it.
            record = self._record if repeatable else []
            self._guard.call("autoreset", self._emulate, env, record)
        except Finding as refusal:
            if not failed:
                self._findings.add_finding(refusal)
            return
        if repeatable:
            episodes = count(self._bare.episode, "episode")
            detail = f"{episodes} ended in {self._num_steps}; all rows as the environment gave them"
            self._findings.note("autoreset", detail)
        if not self._bare.episode:
            text = f"expected an episode that ends; none did in {self._num_steps}"
            advice = "Pass more steps=, or cut episodes off with gymnasium.wrappers.TimeLimit."
            self._findings.add("autoreset", "warn", text, advice)

    def _emulate(self, source: Any, record: list[Turn]) -> None:
        limits, action_limits, seconds = self._limits, self._action_limits, list[float]()
        env = emulate(source, limits=limits, action_limits=action_limits, seeding="episode")
        env.reset(self._seed)
        rows: Rows = {}
        packers: dict[Hashable, Layout] = {}
        for group, buffers in zip(env.groups, env.buffers, strict=True):
            rows |= {agent: (buffers, row) for row, agent in enumerate(group.agents)}
            packers |= dict.fromkeys(group.agents, group.action_layout)
        for number, turn in enumerate(record):
            if number:
                self._guard.call("autoreset", env.step)
                seconds.append(self._guard.seconds)
            if mismatch := turn.mismatch(rows):
                advice = "Please report it with this table: emulation changed what was given."
                self._findings.add("autoreset", "fail", mismatch, advice)
                return
            for agent, action in turn.actions.items():
                buffers, row = rows[agent]
                packers[agent].pack(action, buffers.actions[row])
        self._describe_time(seconds)

    def _describe_time(self, emulated_seconds: list[float]) -> None:
        """Say how long calls took; steps through emulation if there were any."""
        times, note = self._bare.seconds, "medians"
        if emulated_seconds:
            times, note = times | {"step": emulated_seconds}, "medians; steps through emulation"
        medians = (f"{name} {median(each) * 1e6:.1f} us" for name, each in times.items())
        self._findings.note("time", f"{', '.join(medians)} ({note})")


def declared(env: Any, agent: Hashable) -> tuple[Any, Any]:
    """Return the observation space and the action space that an environment declares."""
    if isinstance(env, gymnasium.Env):
        return env.observation_space, env.action_space
    return env.observation_space(agent), env.action_space(agent)


def count(number: int, noun: str) -> str:
    """Return a number of things in words.

    >>> count(1, "step"), count(1000, "step")
    ('1 step', '1,000 steps')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
