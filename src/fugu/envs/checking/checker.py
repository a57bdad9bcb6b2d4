"""`fugu.check`: the checks, in order."""

from __future__ import annotations

from statistics import median
from typing import Any

import gymnasium
from gymnasium import Space

from fugu.core.errors import UsageError
from fugu.envs.checking.actions import Player
from fugu.envs.checking.agents import (
    Spaces,
    action_limits,
    describe_group,
    find_unstable_spaces,
    name_of,
    read_groups,
    read_spaces,
)
from fugu.envs.checking.findings import Broken, Ledger
from fugu.envs.checking.guard import Watchdog, last_lines, untouched_generators
from fugu.envs.checking.log import Log
from fugu.envs.checking.report import Report
from fugu.envs.checking.runs import Run, run_bare, run_emulated
from fugu.envs.checking.source import Source
from fugu.envs.checking.values import Inspector
from fugu.envs.checking.witness import witness_of
from fugu.envs.contract import AgentGroup, Env
from fugu.envs.emulation import emulate
from fugu.spaces.compile import Limits

_NETHACK = ("nle", "minihack")
CALL_SECONDS = 60.0  # after which a single call of the environment counts as hung
TIMED_STEPS = 300
CHECKS = (
    "make",
    "layout",
    "reset",
    "step",
    "agents",
    "observations",
    "bounds",
    "finite",
    "rewards",
    "flags",
    "infos",
    "action masks",
    "same seed",
    "other seed",
    "autoreset",
    "kept observations",
    "actions",
    "time",
    "close",
)


def check(
    env_or_factory: Any,
    *,
    steps: int = 1000,
    seed: int = 0,
    limits: Limits = None,
    show: bool = True,
) -> Report:
    """Check that an environment does what it declares, and that fugu can run it.

    It plays random legal actions on the bare environment, the same ones again through `emulate`,
    and once more with another seed until something differs. A broken environment never raises
    here: its exceptions are rows of the report, and so is a call that hangs for 60 seconds, where
    the system can interrupt it. The global random generators are left as they were.

    Args:
        env_or_factory: A Gymnasium `Env`, a PettingZoo `ParallelEnv` or `AECEnv`, or, better,
            something to call for fresh ones. An environment given is reset, but not closed.
        steps: Steps of a run; a slow environment gets as many as fit into 20 seconds.
        seed: Of every run but the one with another seed.
        limits: Most items of each Sequence and Graph in the observation; see `Layout.of`. A number
            goes for the action too.
        show: Print the report.

    Returns:
        A `Report`: `report.ok`, `report.failures`, `report.warnings`, `report["bounds"]`.

    >>> import gymnasium
    >>> report = check(lambda: gymnasium.make("CartPole-v1"), steps=100, show=False)
    >>> report.ok, report["same seed"].detail
    (True, 'seed 0 twice: 100 steps, byte for byte the same')
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise UsageError(f"steps: given {steps!r}; allowed: an int >= 1.")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed: given {seed!r}; allowed: an int.")
    with untouched_generators(), Watchdog(CALL_SECONDS) as watchdog:
        checker = Checker(Source(env_or_factory, watchdog), watchdog, steps, seed, limits)
        report = checker.run()
    if show:
        report.show()
    return report


class Checker:
    """The checks of one environment."""

    def __init__(
        self, source: Source, watchdog: Watchdog, steps: int, seed: int, limits: Limits
    ) -> None:
        self._source, self._watchdog = source, watchdog
        self._steps, self._seed, self._limits = steps, seed, limits
        self._ledger = Ledger()
        self._subject = "environment"
        self._groups: tuple[AgentGroup, ...] = ()
        self._reason = "not reached"  # why the rest was skipped
        self._shown = set(CHECKS) - {"agents", "action masks"}  # those that apply
        if not source.is_factory:
            self._shown.discard("close")

    def run(self) -> Report:
        """Run all checks."""
        try:
            self._run()
        except Broken as broken:
            self._fail(broken)
        finally:
            self._source.close(self._ledger)
        checks = tuple(name for name in CHECKS if name in self._shown)
        return Report(tuple(self._ledger.rows(checks, self._reason)), self._subject)

    def _run(self) -> None:
        first = self._make()
        spaces = self._check_layout(first)
        if not spaces or not all(isinstance(known.action, Space) for known in spaces.values()):
            self._reason = "not run: see 'layout'"
            return
        bare = self._check_bare(first, spaces)
        if bare.broken:
            self._fail(bare.broken)
            return
        second = self._source.make()
        emulated = self._check_autoreset(second, spaces, bare)
        again = emulated
        if emulated is None or emulated.refused or emulated.mismatch:
            again = self._replay(second, spaces, bare, self._seed)
        assert again is not None
        self._check_same_seed(second, again)
        if again.broken or again.log.difference:
            self._ledger.skipped("other seed", "means nothing while the same seed differs")
        else:
            self._check_other_seed(first, spaces, bare)
        works = emulated is not None and emulated is again and not emulated.broken
        self._check_time(second, spaces, bare, works)

    def _fail(self, broken: Broken) -> None:
        self._ledger.fail(broken.check, broken.text, broken.advice)
        self._shown.add(broken.check)
        self._reason = f"not run: see '{broken.check}'"

    # ------------------------------------------------------------------ before the first step

    def _make(self) -> Any:
        env = self._source.make()
        self._subject = self._source.attempt("make", name_of, env)
        if not isinstance(env, gymnasium.Env):
            self._shown.add("agents")
        kind = type(getattr(env, "unwrapped", env))
        how = "made by the factory" if self._source.is_factory else "given: reset, not closed"
        self._ledger.passed("make", f"{kind.__module__}.{kind.__qualname__}, {how}")
        return env

    def _check_layout(self, env: Any) -> Spaces:
        spaces = self._source.attempt("layout", read_spaces, env, self._limits, self._ledger)
        if "layout" not in self._ledger.failed():
            self._groups = self._source.attempt("layout", read_groups, env, spaces, self._limits)
            self._ledger.passed("layout", "\n".join(map(describe_group, self._groups)))
        return spaces

    # ------------------------------------------------------------------ the bare environment

    def _check_bare(self, env: Any, spaces: Spaces) -> Run:
        """Run the environment itself; the inspector looks at every moment of it."""
        log = Log(spaces, self._watchdog, inspector=Inspector(spaces, self._ledger))
        witness = self._source.attempt("reset", witness_of, env, log)
        player = self._source.attempt("layout", Player, spaces, self._seed)
        run = run_bare(witness, player, self._seed, self._steps)
        self._pass_calls(run)
        self._pass_values(run, spaces)
        if run.masks:
            self._shown.add("action masks")
            forbade = f"{run.masks:,} given, {run.forbidding:,} of them forbid something"
            self._ledger.passed("action masks", forbade)
        if "agents" in self._shown and log.sights:
            self._source.attempt("agents", find_unstable_spaces, env, spaces, self._ledger)
            groups = ", ".join(f"{group.name} ({group.num_agents})" for group in self._groups)
            self._ledger.passed("agents", f"{witness.population}; groups: {groups or 'unknown'}")
        return run

    def _pass_calls(self, run: Run) -> None:
        log = run.log
        if log.sights:
            resets = count(len(log.reset_seconds), "reset")
            self._ledger.passed("reset", f"{resets}, with seed= and options=")
        if log.outcomes:
            steps = count(run.steps, "step")
            slow = run.steps < self._steps and not run.broken
            cut = f" of {self._steps:,}, as many as the time allowed" if slow else ""
            self._ledger.passed("step", f"{steps}{cut}; {count(run.ended, 'episode')} ended")
            self._ledger.passed("actions", f"{steps}: none wrote into its action")

    def _pass_values(self, run: Run, spaces: Spaces) -> None:
        """Say what was looked at, for the checks in which the inspector found nothing."""
        sights, outcomes = run.log.sights, run.log.outcomes
        if sights:
            seen = count(sights, "observation")
            compiled = all(known.bounded_layout is not None for known in spaces.values())
            for name, detail in (
                ("observations", "keys, shapes and dtypes as declared"),
                ("bounds", "within the declared bounds"),
            ):
                if compiled:
                    self._ledger.passed(name, f"{seen}: {detail}")
                else:
                    self._ledger.skipped(name, "not run: see 'layout'")
            self._ledger.passed("finite", f"{seen}: all numbers finite")
            self._ledger.passed("infos", f"{count(sights, 'info')}, all dicts")
            self._ledger.passed("kept observations", f"{seen}: none changed later")
        if outcomes:
            low, high = run.log.reward_range
            rewards = count(outcomes, "reward")
            self._ledger.passed("rewards", f"{rewards} from {low:g} to {high:g}")
            self._ledger.passed("flags", f"{count(outcomes, 'step')}, all bools")

    # ------------------------------------------------------------------ runs beside the first

    def _check_autoreset(self, env: Any, spaces: Spaces, bare: Run) -> Run | None:
        """Run it through emulation: every row must be what the environment said."""
        failed = self._ledger.failed()
        if "layout" in failed:
            self._ledger.skipped("autoreset", "not run: see 'layout'")
            return None
        log = Log(spaces, self._watchdog, reference=bare.log.entries)
        run = self._emulate(env, spaces, log, bare.steps, bare)
        report = "Please report it with this table: emulation changed what the environment said."
        if run.broken:
            self._ledger.skipped("autoreset", "not run: see 'same seed'")
        elif run.refused and failed:
            names = ", ".join(f"'{name}'" for name in failed)
            self._ledger.skipped("autoreset", f"emulation refused it: see {names}")
        elif run.refused:
            text = f"emulation refused it: {last_lines(run.refused)}"
            self._ledger.fail("autoreset", text, "Do what the error says.")
        elif run.mismatch:
            self._ledger.fail("autoreset", run.mismatch, report)
        elif not run.ended:
            text = f"no episode ended within {count(run.steps, 'step')}"
            advice = "Pass more steps=, or cut episodes off with gymnasium.wrappers.TimeLimit."
            self._ledger.warn("autoreset", text, advice)
        else:
            self._ledger.passed(
                "autoreset",
                f"{count(run.ended, 'episode')} ended in {count(run.steps, 'emulated step')}: last "
                "and first observations, rewards and flags as the bare environment gave them",
            )
        return run

    def _emulate(
        self, env: Any, spaces: Spaces, log: Log, steps: int, replayed: Run | None = None
    ) -> Run:
        witness, limits = witness_of(env, log), self._limits

        def make() -> Env:
            return emulate(witness, limits=limits, action_limits=action_limits(limits))

        player = Player(spaces, self._seed)
        return run_emulated(make, log, player, self._seed, steps, replayed=replayed)

    def _replay(self, env: Any, spaces: Spaces, bare: Run, seed: int) -> Run:
        """Do on the bare environment what the first run did, until something differs."""
        witness = witness_of(env, Log(spaces, self._watchdog, reference=bare.log.entries))
        player = Player(spaces, self._seed)
        return run_bare(witness, player, seed, bare.steps, replayed=bare)

    def _check_same_seed(self, env: Any, again: Run) -> None:
        if again.broken:
            text = f"the second run broke off: {again.broken.text}"
            self._ledger.fail("same seed", text, again.broken.advice)
        elif again.log.difference:
            advice = "Call super().reset(seed=seed) and draw from self.np_random only."
            if type(getattr(env, "unwrapped", env)).__module__.split(".")[0] in _NETHACK:
                advice = (
                    "NetHack ignores reset(seed=): wrap it in fugu.envs.wrappers.SeededNetHack."
                )
            text = f"seed {self._seed} twice, not the same: {again.log.difference}"
            self._ledger.fail("same seed", text, advice)
        else:
            steps = count(again.steps, "step")
            same = f"seed {self._seed} twice: {steps}, byte for byte the same"
            self._ledger.passed("same seed", same)

    def _check_other_seed(self, env: Any, spaces: Spaces, bare: Run) -> None:
        seed = self._seed + 1
        run = self._replay(env, spaces, bare, seed)
        if run.broken:
            text = f"the run with seed {seed} broke off: {run.broken.text}"
            self._ledger.fail("other seed", text, run.broken.advice)
        elif run.log.difference:
            self._ledger.passed("other seed", f"seed {seed} differs: {run.log.difference}")
        else:
            text = f"seeds {self._seed} and {seed} give the same {count(run.steps, 'step')}"
            advice = "Nothing to do if there is no chance in it; else it ignores its seed."
            self._ledger.warn("other seed", text, advice)

    def _check_time(self, env: Any, spaces: Spaces, bare: Run, emulation_works: bool) -> None:
        """Take times in a run of their own, if emulation works: looking closely slows things."""
        log, added = bare.log, "not measured"
        share = sum(log.reset_seconds) / (sum(log.reset_seconds) + sum(log.step_seconds))
        if emulation_works:
            quiet = Log(spaces, self._watchdog, quiet=True)
            run = self._emulate(env, spaces, quiet, min(bare.steps, TIMED_STEPS))
            if run.broken:
                self._ledger.fail("time", run.broken.text, run.broken.advice)
            if run.added_seconds:
                log, added = quiet, f"{median(run.added_seconds) * 1e6:.1f} us a step"
        step, reset = (median(times) * 1e6 for times in (log.step_seconds, log.reset_seconds))
        self._ledger.passed(
            "time",
            f"step {step:.1f} us, reset {reset:.1f} us (medians); {share:.1%} of the time in "
            f"resets; emulation adds {added}",
        )


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "step"), count(1000, "step")
    ('1 step', '1,000 steps')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"
