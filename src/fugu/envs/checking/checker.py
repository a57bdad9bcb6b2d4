"""`fugu.check`: the runs of an environment, and the checks that compare them."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from statistics import median
from typing import Any

import gymnasium
from gymnasium import Space

from fugu.core.errors import SpaceError, UsageError
from fugu.core.seeding import derive
from fugu.envs.checking import recording
from fugu.envs.checking.guard import Guard
from fugu.envs.checking.inspection import Inspector
from fugu.envs.checking.recording import Layouts, RecordedEnv, Rows, Turn, shortened
from fugu.envs.checking.report import FatalFinding, Finding, Findings, Report
from fugu.envs.emulation import emulate, is_environment, refusal
from fugu.envs.gymnasium_env import AGENT
from fugu.envs.masks import sample_mask
from fugu.spaces import Layout
from fugu.spaces.compile import Limits

CALL_SECONDS = 60.0  # after this time a call of the environment counts as hung
CHECKS = {  # and what it means that a check of every transition found nothing
    "make": "",
    "layout": "",
    "reset": "called with seed= and options=",
    "step": "",
    "agents": "",
    "observations": "keys, shapes and dtypes as declared",
    "bounds": "within the declared bounds",
    "finite": "all numbers finite",
    "rewards": "",
    "flags": "all bools",
    "infos": "all dicts",
    "action masks": "",
    "same seed": "",
    "other seed": "",
    "autoreset": "",
    "kept observations": "none changed later",
    "actions": "none changed by a step",
    "time": "",
    "close": "",
}
_OPTIONAL = ("agents", "action masks", "close")  # shown only where they apply
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

    One run of the bare environment is recorded, while the checks of single transitions look on.
    The runs after it repeat its actions, and compare what the environment gives with the record.
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
        self._emulated_seconds: list[float] = []

    def run(self) -> Report:
        """Run all checks."""
        reason = "not run"
        try:
            self._run()
        except FatalFinding as fatal:
            self._findings.add(fatal.finding)
            reason = f"not run: see '{fatal.finding.check}'"
        finally:
            self._close()
        shown = [name for name in CHECKS if name not in _OPTIONAL or name in self._findings]
        return Report(self._findings.results(shown, reason), self._subject)

    def _run(self) -> None:
        env = self._make()
        self._guard.call("make", self._describe, env)
        self._guard.call("layout", self._check_layout, env)
        bare = self._check_bare(env)
        repeatable = self._check_same_seed(self._make())
        self._check_autoreset(self._make(), bare, repeatable)
        if repeatable:
            self._check_other_seed(env)

    # ------------------------------------------------------------------ make, layout, close

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
            except FatalFinding as fatal:
                self._findings.add(fatal.finding)
        if self._made:
            self._findings.passed("close", f"closed the {len(self._made)} made here")

    def _describe(self, env: Any) -> None:
        spec, metadata = getattr(env, "spec", None), getattr(env, "metadata", None) or {}
        kind = type(getattr(env, "unwrapped", env))
        self._subject = str(getattr(spec, "id", None) or metadata.get("name") or kind.__name__)
        how = "made by the factory" if self._made else "given: reset, not closed"
        self._findings.passed("make", f"{kind.__module__}.{kind.__qualname__}, {how}")

    def _check_layout(self, env: Any) -> None:
        agents = [AGENT] if isinstance(env, gymnasium.Env) else list(env.possible_agents)
        if not agents:
            text, advice = "expected possible_agents; got none", "List all agents that may appear."
            raise FatalFinding("layout", text, advice)
        lines: dict[str, list[str]] = {}
        for agent in agents:
            self._spaces[agent] = declared(env, agent)
            observation, action = self._layouts[agent] = self._compile(agent)
            lines.setdefault(f"observations {observation}, actions {action}", []).append(str(agent))
        if not all(isinstance(action, Space) for _, action in self._spaces.values()):
            raise FatalFinding("layout", "no actions can be drawn", "Declare action_space.")
        several = len(agents) > 1
        details = [f"{shortened(who)}: {line}" if several else line for line, who in lines.items()]
        self._findings.passed("layout", "\n".join(details))

    def _compile(self, agent: Hashable) -> tuple[Layout | None, Layout | None]:
        """Return the layouts of an agent's observation and action; None if one does not compile."""
        found: list[Layout | None] = []
        limits = self._limits, self._action_limits
        for name, space, limit in zip(_SPACES, self._spaces[agent], limits, strict=True):
            try:
                found.append(Layout.of(space, limits=limit, strict=True))
            except SpaceError as error:
                advice = (
                    "Do what the error says; limits= by path applies to observations only, a "
                    "number to both."
                )
                text = f"{name} of {agent!r}: {error}"
                self._findings.add(Finding("layout", "fail", text, advice, name))
                found.append(None)
        return found[0], found[1]

    # ------------------------------------------------------------------ the recorded run

    def _check_bare(self, env: Any) -> RecordedEnv:
        """Record a run of the environment itself, and inspect every transition of it."""
        inspector = Inspector(self._layouts, self._findings)
        bare = recording.record(env, self._layouts, self._guard, self._findings, inspector.inspect)
        try:
            self._guard.call("step", self._play_randomly, bare)
            if not isinstance(env, gymnasium.Env):
                self._guard.call("agents", self._check_agents, env)
        finally:
            self._describe_record(bare)
        self._describe_time(bare)
        return bare

    def _play_randomly(self, bare: RecordedEnv) -> None:
        samplers = {}
        for i, (agent, (_, space)) in enumerate(self._spaces.items()):
            samplers[agent] = copy.deepcopy(space)  # the environment's keeps its generator
            samplers[agent].seed(derive(self._seed, i) >> 33)
        for turn in bare.turns(self._seed, self._steps):
            self._record.append(turn)
            for agent, mask in turn.masks.items():
                allowed = None if mask.all() else sample_mask(samplers[agent], iter(mask))
                turn.actions[agent] = samplers[agent].sample(allowed)

    def _check_agents(self, env: Any) -> None:
        """Ask for the spaces of every agent again: they must be what they were."""
        for agent, before in self._spaces.items():
            for name, old, new in zip(_SPACES, before, declared(env, agent), strict=True):
                if new is old:
                    continue
                text = f"{name}({agent!r}): expected the same on each call; got "
                if new == old:
                    text += "another object, equal to the first"
                    advice = "Return the same object each time, or seeding it has no effect."
                    self._findings.add(Finding("agents", "warn", text, advice, name))
                else:
                    text += f"{new} after {old}"
                    advice = "Fix the spaces of each agent when the environment is made."
                    self._findings.add(Finding("agents", "fail", text, advice, name))
        acting = [len(turn.masks) for turn in self._record]
        detail = f"{len(self._spaces)} possible, {min(acting)} to {max(acting)} act at once"
        self._findings.passed("agents", detail)

    def _describe_record(self, bare: RecordedEnv) -> None:
        """Say what was looked at, for the checks that found nothing."""
        given = [transition for turn in self._record for transition in turn.given]
        if not given:
            return
        for name, detail in CHECKS.items():
            if detail:
                self._findings.passed(name, f"{count(len(given), 'transition')}: {detail}")
        steps, episodes = len(self._record) - 1, count(bare.episode, "episode")
        cut = ", as many as the time allowed" if bare.cut_short else ""
        self._findings.passed("step", f"{steps:,} of {self._steps:,} steps{cut}; {episodes} ended")
        rewards = [x.reward for x in given if not x.first and isinstance(x.reward, int | float)]
        if rewards:
            span = f"from {min(rewards):g} to {max(rewards):g}"
            self._findings.passed("rewards", f"{count(len(rewards), 'reward')} {span}")
        masks = [mask for turn in self._record[:-1] for mask in turn.masks.values()]
        if forbid := sum(not mask.all() for mask in masks):
            self._findings.passed("action masks", f"{forbid:,} of {len(masks):,} forbid something")
        if "layout" in self._findings.failed():
            for name in ("observations", "bounds"):
                self._findings.skipped(name, "not run: see 'layout'")

    def _describe_time(self, bare: RecordedEnv) -> None:
        step, reset = (median(x) * 1e6 for x in (bare.step_seconds, bare.reset_seconds))
        # A step through emulation that ends an episode resets it too: not to be compared.
        both = zip(self._emulated_seconds, bare.step_seconds, self._record[1:], strict=False)
        added = [e - b for e, b, turn in both if not any(x.first for x in turn.given)]
        adds = f"{max(median(added), 0.0) * 1e6:.1f} us a step" if added else "not measured"
        detail = f"step {step:.1f} us, reset {reset:.1f} us (medians); emulation adds {adds}"
        self._findings.passed("time", detail)

    # ------------------------------------------------------------------ runs that repeat it

    def _find_difference(self, env: Any, check: str, seed: int) -> str | None:
        """Repeat the recorded run; return where it first differs, in words."""
        replay = recording.record(env, self._layouts, self._guard, Findings())
        try:
            turns = replay.turns(seed, len(self._record) - 1)
            for turn, before in zip(turns, self._record, strict=False):
                if difference := before.difference(turn):
                    return difference
                turn.actions = before.actions
        except FatalFinding as fatal:
            text = f"a run with seed {seed} stopped: {fatal.finding.text}"
            raise FatalFinding(check, text, fatal.finding.advice) from fatal
        return None

    def _check_same_seed(self, env: Any) -> bool:
        """Return whether a second run with the same seed is the same."""
        arguments = env, "same seed", self._seed
        difference = self._guard.call("same seed", self._find_difference, *arguments)
        if difference is None:
            steps = count(len(self._record) - 1, "step")
            self._findings.passed("same seed", f"seed {self._seed} twice: {steps}, all bytes equal")
            return True
        text = f"seed {self._seed} twice: expected equal runs; they differ in {difference}"
        advice = "Call super().reset(seed=seed), and draw from self.np_random only."
        if type(getattr(env, "unwrapped", env)).__module__.split(".")[0] in _NETHACK:
            advice = "NetHack ignores reset(seed=): wrap it in fugu.envs.wrappers.SeededNetHack."
        self._findings.add(Finding("same seed", "fail", text, advice))
        self._findings.skipped("other seed", "not run: see 'same seed'")
        return False

    def _check_other_seed(self, env: Any) -> None:
        arguments = env, "other seed", self._seed + 1
        difference = self._guard.call("other seed", self._find_difference, *arguments)
        seeds, steps = f"{self._seed} and {self._seed + 1}", count(len(self._record) - 1, "step")
        self._findings.passed("other seed", f"seeds {seeds} differ in {difference}")
        if difference is None:
            text = f"expected runs that differ; seeds {seeds} give the same {steps}"
            advice = "Nothing to do if nothing in it is random; else it ignores its seed."
            self._findings.add(Finding("other seed", "warn", text, advice))

    def _check_autoreset(self, env: Any, bare: RecordedEnv, repeatable: bool) -> None:
        """Repeat the run through emulation: every row must be what the environment gave."""
        failed, steps = self._findings.failed(), count(len(self._record) - 1, "step")
        if "layout" in failed:
            self._findings.skipped("autoreset", "not run: see 'layout'")
            return
        try:
            # Without equal runs nothing can be compared; emulation may still refuse it.
            record = self._record if repeatable else []
            mismatch = self._guard.call("autoreset", self._emulate, env, record)
        except FatalFinding as fatal:
            names = ", ".join(f"'{name}'" for name in failed)
            self._findings.skipped("autoreset", f"emulation refused it: see {names}")
            if not failed:
                self._findings.add(fatal.finding)
            return
        self._describe_time(bare)
        self._findings.passed(
            "autoreset",
            f"{count(bare.episode, 'episode')} ended in {steps}: last and first observations, "
            "rewards and flags as the bare environment gave them",
        )
        if mismatch:
            advice = "Please report it with this table: emulation changed what was given."
            self._findings.add(Finding("autoreset", "fail", mismatch, advice))
        elif not repeatable:
            self._findings.skipped("autoreset", "not run: see 'same seed'")
        elif not bare.episode:
            text = f"expected an episode that ends; none did in {steps}"
            advice = "Pass more steps=, or cut episodes off with gymnasium.wrappers.TimeLimit."
            self._findings.add(Finding("autoreset", "warn", text, advice))

    def _emulate(self, source: Any, record: list[Turn]) -> str | None:
        """Repeat the run through emulation; return where its rows differ, in words."""
        limits, action_limits = self._limits, self._action_limits
        env = emulate(source, limits=limits, action_limits=action_limits, seeding="episode")
        env.reset(self._seed)
        rows: Rows = {}
        for group, buffers in zip(env.groups, env.buffers, strict=True):
            rows |= {agent: (group, buffers, row) for row, agent in enumerate(group.agents)}
        for number, turn in enumerate(record):
            if number:
                self._guard.call("autoreset", env.step)
                self._emulated_seconds.append(self._guard.seconds)
            if mismatch := turn.mismatch(rows):
                return mismatch
            for agent, action in turn.actions.items():
                group, buffers, row = rows[agent]
                group.action_layout.pack(action, buffers.actions[row])
        return None


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
