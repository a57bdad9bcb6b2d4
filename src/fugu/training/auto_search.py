"""Successive halving over the members of a search, in one process, member after member.

Every member trains with the schedules of the whole run, stops at each rung, and continues from its
checkpoint if it is kept; so a search that is killed resumes exactly. The defaults are always kept
to the end: what is chosen has beaten them after the same number of steps.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fugu.algos.settings import Config, read_config
from fugu.core.config import Tree, merge, plain_tree
from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.core.writing import tells_full_disk
from fugu.envs.untrusted import UntrustedError
from fugu.store.checkpoint import read_state
from fugu.store.run import SIGNATURE, Run
from fugu.track.sinks import read_metrics
from fugu.training.auto_record import (
    DEFAULTS,
    Rung,
    SearchRecord,
    base_settings,
    check_searchable,
    make_curious_members,
    make_members,
    members_folder,
    read_record,
    show_progress,
    write_curves,
    write_settings,
)
from fugu.training.auto_resume import newest_alike
from fugu.training.callbacks import AnyCallback
from fugu.training.distributed import AGENTS
from fugu.training.evaluate import COPIES, engine_of, load_groups, load_policies, play
from fugu.training.inputs import Result, RunInputs
from fugu.training.trainer import DivergedError, Progress, RecentMean, Trainer, find_device
from fugu.vector import make

RUNGS = ((8, 4), (4, 2), (2, 2), (1, 2))  # each: the share 1/n of the steps, members kept after it
EPISODES = 32  # greedy episodes that both finalists play
EVALUATION_SHARE = 5  # a finalist's evaluation takes at most 1/5 of the steps
UPDATES = 4  # of the first rung, at least: so members overshoot it by a quarter at most
FINAL = 0x6175  # the branch of the seed tree for the episodes of the finalists
# Files that a promotion does not copy.
OWN_FILES = ("run.json", "status.json", "config.json", SIGNATURE)

# Trains a member by its settings, from its run if it has a checkpoint, with more callbacks, and
# from the policies of another run if it is new.
TrainMember: TypeAlias = Callable[[Config, Run | None, tuple[AnyCallback, ...], str | None], Result]


class SearchStoppedError(Exception):
    """A search was stopped before it chose, by these signals or by a callback."""

    def __init__(self, signals: tuple[int, ...]) -> None:
        super().__init__(signals)
        self.signals = signals


class Search:
    """Chooses settings for a run among a few members; see the module.

    The run is the folder of the whole search, and of the winner in the end. `report` is called with
    the record after every rung and at the end.
    """

    def __init__(
        self,
        run: Run,
        record: SearchRecord,
        inputs: RunInputs,
        train_member: TrainMember,
        report: Callable[[SearchRecord], None] = lambda record: None,
    ) -> None:
        self._run, self._record, self._inputs = run, record, inputs
        self._train_member, self._report = train_member, report
        self._cfg = read_config(record.config)

    def run(self) -> None:
        """Train, compare and choose; raise SearchStoppedError if the search is stopped before."""
        if self._record.winner is not None:
            return
        self._record.write(self._run)
        self._run.mark("running")
        try:
            for number in range(len(self._record.rungs), len(RUNGS)):
                self._climb(number)
        except SearchStoppedError:
            self._run.mark("stopped")
            raise
        winner, why = self._choose(self._record.rungs[-1].kept)
        self._record = replace(self._record, winner=winner, why=why)
        self._promote()
        self._report(self._record)

    # ------------------------------------------------------------------ rungs

    def _climb(self, number: int) -> None:
        """Train all members that are left to the next rung and keep the better ones."""
        part, keep = RUNGS[number]
        steps = self._cfg.train.total_steps // part
        alive = [member.name for member in self._record.members]
        if self._record.rungs:
            alive = list(self._record.rungs[-1].kept)
        self._train(alive, steps)
        sparse = number == 0 and not returns_vary(self._member(name).metrics_path for name in alive)
        if sparse:
            known = {member.name for member in self._record.members}
            curious = make_curious_members(self._cfg.train)
            added = [member for member in curious if member.name not in known]
            members = (*self._record.members, *added)
            self._record = replace(self._record, members=members)
            alive += [member.name for member in added]
            self._train(alive, steps)
        estimates = {name: self._estimate(name, steps) for name in alive}
        returns = {name: found.mean if found else None for name, found in estimates.items()}
        trained = {name: trained_steps(self._member(name).metrics_path) for name in alive}
        rung = Rung(steps, trained, returns, self._keep(returns, keep))
        self._record = replace(self._record, rungs=(*self._record.rungs, rung))
        self._record.write(self._run)
        for member in self._record.members:
            if member.name not in rung.kept:
                shutil.rmtree(self._member(member.name).checkpoints_folder, ignore_errors=True)
        self._report(self._record)

    def _train(self, names: Sequence[str], steps: int) -> None:
        """Train members one after the other until each has so many steps."""
        for name in names:
            run = self._member(name)
            newest = run.latest()
            if run.status == "failed" or (newest and read_state(newest)["steps"] >= steps):
                continue
            if newest is None:  # killed before its first checkpoint
                shutil.rmtree(run.folder, ignore_errors=True)
            own = {"folder": str(members_folder(self._run)), "name": name}
            base = read_config(merge(self._record.config, {"run": own}))
            cfg = self._record.member(name).apply(base)
            try:
                result = self._train_member(
                    cfg, run if newest else None, (_stop_at(steps),), self._record.init_from
                )
            except DivergedError:
                continue  # the session has marked it as failed
            if result.signals or result.steps < steps:
                raise SearchStoppedError(result.signals)

    def _keep(self, returns: dict[str, float | None], count: int) -> tuple[str, ...]:
        """Return the members to keep, best first; the defaults are among them unless they fail."""
        curious = [name for name in returns if self._record.member(name).changes.get("intrinsic")]
        ranked = [name for name in rank(returns, curious) if self._member(name).status != "failed"]
        if not ranked:
            raise DivergedError(
                "auto: every member diverged. Check the rewards and observations of the "
                "environment: fugu check ENV"
            )
        others = [name for name in ranked if name != DEFAULTS]
        kept = {*others[: count - (DEFAULTS in ranked)], DEFAULTS}
        return tuple(name for name in ranked if name in kept)

    def _estimate(self, name: str, steps: int) -> ReturnEstimate | None:
        return recent_return(self._member(name).metrics_path, steps)

    # ------------------------------------------------------------------ the choice

    def _choose(self, finalists: Sequence[str]) -> tuple[str, str]:
        """Return the better finalist and the reason; a tie goes to the earlier member."""
        names = [member.name for member in self._record.members if member.name in finalists]
        if len(names) == 1:
            return names[0], "every other finalist diverged"
        reference, challenger = names
        first, second = (self._play(name) for name in names)
        if first and second and len(first) == len(second):
            lead = lead_of_pairs(second, first)
            source = f"over the same {lead.episodes} greedy episodes"
        else:
            steps = self._cfg.train.total_steps
            lead = lead_of_estimates(*(self._estimate(name, steps) for name in reversed(names)))
            source = "over the last training episodes"
        figures = f"{lead.mean:+.4g} ± {lead.error:.2g} {source}"
        if is_better(lead):
            return challenger, f"its mean return exceeds that of {reference}: {figures}"
        return reference, f"{challenger} is not better by more than a standard error: {figures}"

    def _play(self, name: str) -> tuple[float, ...] | None:
        """Return the returns of a finalist's greedy episodes; None if one takes too long."""
        cfg, policies = load_policies(self._member(name), None, self._inputs)
        with make(self._inputs.env_of(cfg.env), COPIES, **cfg.env_options) as vec:
            steps = cfg.train.total_steps // EVALUATION_SHARE // vec.num_agents
            found = play(
                policies,
                vec,
                EPISODES,
                seed=derive(cfg.seed, FINAL),
                engine=engine_of(cfg),
                max_episode_steps=max(1, steps * COPIES // EPISODES),
            )
        return None if found.cut_off else found.returns

    def _promote(self) -> None:
        """Make the run folder that of the winner; safe to repeat after a kill."""
        assert self._record.winner is not None
        member, folder = self._member(self._record.winner), self._run.folder
        for path in member.folder.iterdir():
            target = folder / path.name
            if path.is_dir():
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(path, target)
            elif path.name not in OWN_FILES:
                shutil.copy2(path, target)
        chosen = self._record.member(self._record.winner).apply(self._cfg)
        if not self._run.config:
            self._run.write_config(plain_tree(chosen))
        self._run.note(member.facts)
        write_settings(self._record, chosen, folder / "auto.toml")
        write_curves(self._record, members_folder(self._run), folder / "auto.png")
        self._record.write(self._run)  # from now on the run is finished
        self._run.mark("finished")
        shutil.rmtree(member.checkpoints_folder, ignore_errors=True)

    def _member(self, name: str) -> Run:
        return Run(members_folder(self._run) / name)


def _stop_at(steps: int) -> AnyCallback:
    """Return a callback that ends a session after so many steps of its run."""

    def stop(trainer: Trainer, progress: Progress) -> None:
        if progress.steps >= steps:
            trainer.stopping = True

    return stop


def new_record(cfg: Config, inputs: RunInputs, init_from: str | None = None) -> SearchRecord:
    """Return the record of a search that has not begun, if its first rung has enough updates."""
    env, updates = inputs.env_of(cfg.env), RUNGS[0][0] * UPDATES
    with make(env, 1, backend="serial", **cfg.env_options) as one:
        agents = one.num_agents
    copies = cfg.vec.num_envs or max(1, AGENTS // agents)
    batch = (cfg.train.rows or copies * agents) * cfg.train.horizon
    if cfg.train.total_steps < updates * batch:
        raise UsageError(
            f"auto: expected train.total_steps of {updates * batch:,} or more, {updates} updates "
            f"of {batch:,} steps; got {cfg.train.total_steps:,}. Train longer, or without --auto."
        )
    return SearchRecord(plain_tree(cfg), tuple(make_members(cfg.train)), init_from=init_from)


def train_auto(
    cfg: Config,
    inputs: RunInputs,
    train_member: TrainMember,
    keep: bool,
    show: bool,
    auto_resume: bool,
    init_from: str | Path | None,
) -> Result:
    """Search for settings and train with them; see `fugu.train` for the arguments."""
    check_searchable(cfg, inputs.ranks.size)
    with ExitStack() as stack:
        folder = cfg.run.folder
        if not keep:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fugu-auto-")))
        cfg = replace(cfg, run=replace(cfg.run, folder=folder))
        found = newest_alike(cfg, base_settings) if auto_resume and keep else None
        record = None if found is None else read_record(found)
        if found is None or record is None:
            source = None if init_from is None else str(Run.open(init_from, folder).folder)
            record = new_record(cfg, inputs, source)
            found = Run.create(folder, cfg.run.name, cfg.env)
            found.sign(record.config)
        result = _search(found, record, inputs, train_member, show)
        return result if keep else replace(result, run=None)


def resume_auto(
    run: Run, inputs: RunInputs, train_member: TrainMember, overrides: Tree, show: bool = True
) -> Result:
    """Resume a search that was stopped or killed before it chose."""
    record = read_record(run)
    assert record is not None
    if not inputs.trust and not run.is_own(record.config):
        raise UntrustedError(
            f"resume: expected a search that was started here; got {str(run.folder)!r}, which "
            "somebody else may have written. If you know who did, use --trust (in Python "
            "trust=True)."
        )
    run.sign(record.config)
    if overrides:
        raise UsageError(
            f"resume: {run.name} is a search that has not chosen yet, and its settings are fixed; "
            f"got {', '.join(overrides)}. Resume it without settings."
        )
    return _search(run, record, inputs, train_member, show)


def _search(
    run: Run, record: SearchRecord, inputs: RunInputs, train_member: TrainMember, show: bool
) -> Result:
    began = time.perf_counter()
    report = show_progress if show else lambda record: None
    with tells_full_disk(lambda: f"Free some space, then: fugu resume {run.folder}"):
        try:
            Search(run, record, inputs, train_member, report).run()
        except SearchStoppedError as found:
            seconds = time.perf_counter() - began
            return Result(run, [], [], 0, seconds, None, "stopped", found.signals)
    seconds = time.perf_counter() - began
    cfg, pairs = load_groups(run, None, inputs)
    newest = run.latest()
    assert newest is not None
    state = read_state(newest)
    score, device = RecentMean(state["recent"]).mean, find_device(cfg.device)
    groups = [group for group, _ in pairs]
    policies = [policy.to(device) for _, policy in pairs]
    return Result(run, policies, groups, int(state["steps"]), seconds, score, "finished")


# ------------------------------------------------------------------ comparisons


@dataclass(frozen=True)
class ReturnEstimate:
    """The mean return of some episodes, and the standard error of that mean."""

    mean: float
    error: float
    episodes: int


def recent_return(metrics: Path, steps: int) -> ReturnEstimate | None:
    """Return the mean return of the training episodes that ended in the second half of `steps`.

    The standard error is that of the means of single updates. None if no episode has ended.
    """
    updates = list(_episodes(metrics, steps))
    late = [update for update in updates if update[0] > steps / 2] or updates[-1:]
    if not late:
        return None
    _, means, counts = zip(*late, strict=True)
    mean = float(np.average(means, weights=counts))
    return ReturnEstimate(mean, _standard_error(means), int(sum(counts)))


def _standard_error(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the standard error of the mean of values; 0 of a single one."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def returns_vary(metrics: Iterable[Path]) -> bool:
    """Return whether any two updates of these runs have different mean returns.

    True too if no episode has ended: then nothing is known of the rewards.
    """
    found = {round(mean, 9) for path in metrics for _, mean, _ in _episodes(path)}
    return len(found) != 1


def trained_steps(metrics: Path) -> int:
    """Return the environment steps that a run has trained for."""
    return max((int(entry["step"] or 0) for entry in read_metrics(metrics)), default=0)


def _episodes(metrics: Path, steps: float = math.inf) -> Iterable[tuple[float, float, float]]:
    """Yield the step, mean return and number of episodes of updates, to the one at `steps`."""
    for entry in read_metrics(metrics):
        step, mean, count = (entry.get(name) for name in ("step", "episode_return", "episodes"))
        if mean is not None and count:
            yield float(step or 0), float(mean), float(count)
        if (step or 0) >= steps:
            return


def rank(scores: Mapping[str, float | None], first: Sequence[str] = ()) -> list[str]:
    """Return names by score, highest first; those without a score or with NaN are last.

    Ties keep their order, but names in `first` come first among equals.

    >>> rank({"defaults": 1.0, "a": 2.0, "b": None, "c": 2.0, "rnd": 1.0}, first=["rnd"])
    ['a', 'c', 'rnd', 'defaults', 'b']
    """

    def key(name: str) -> tuple[float, bool]:
        score = scores[name]
        unknown = score is None or math.isnan(score)
        return math.inf if unknown or score is None else -score, name not in first

    return sorted(scores, key=key)


def lead_of_pairs(challenger: Sequence[float], reference: Sequence[float]) -> ReturnEstimate:
    """Return by how much a challenger's returns exceed those of a reference on the same episodes.

    >>> lead_of_pairs([2.0, 4.0], [1.0, 3.0])
    ReturnEstimate(mean=1.0, error=0.0, episodes=2)
    """
    leads = np.subtract(challenger, reference)
    return ReturnEstimate(float(leads.mean()), _standard_error(leads), len(leads))


def lead_of_estimates(
    challenger: ReturnEstimate | None, reference: ReturnEstimate | None
) -> ReturnEstimate:
    """Return by how much one estimate exceeds another; nothing beats a member without episodes."""
    if challenger is None or reference is None:
        lead = 0.0 if challenger is None else math.inf
        return ReturnEstimate(lead, 0.0, 0)
    error = math.hypot(challenger.error, reference.error)
    episodes = min(challenger.episodes, reference.episodes)
    return ReturnEstimate(challenger.mean - reference.mean, error, episodes)


def is_better(lead: ReturnEstimate) -> bool:
    """Return whether a lead is more than its standard error; anything less is a tie.

    >>> is_better(ReturnEstimate(1.0, 0.5, 10)), is_better(ReturnEstimate(0.0, 0.0, 10))
    (True, False)
    """
    return lead.mean > lead.error
