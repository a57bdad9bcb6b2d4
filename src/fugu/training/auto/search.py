"""Successive halving over the members of a search, in one process, member after member.

Every member trains with the schedules of the whole run, stops at each rung, and continues from its
checkpoint if it is kept; so a search that is killed resumes exactly. The defaults are always kept
to the end: what is chosen has beaten them after the same number of steps.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from fugu.algos.settings import Config, read_config
from fugu.core.config import Tree, plain_tree
from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.core.writing import tells_full_disk
from fugu.envs.untrusted import UntrustedError
from fugu.store.checkpoint import read_state
from fugu.store.run import SIGNATURE, Run
from fugu.training.auto.members import (
    DEFAULTS,
    Candidate,
    check_searchable,
    make_curious_members,
    make_members,
    member_config,
)
from fugu.training.auto.ranking import (
    ReturnEstimate,
    is_better,
    lead_of_estimates,
    lead_of_pairs,
    rank,
    recent_return,
    returns_vary,
    trained_steps,
)
from fugu.training.auto.record import (
    Rung,
    SearchRecord,
    base_settings,
    members_folder,
    read_record,
    show_progress,
    write_curves,
    write_settings,
)
from fugu.training.auto_resume import newest_alike
from fugu.training.callbacks import AnyCallback
from fugu.training.evaluate import COPIES, engine_of, load_policies, play
from fugu.training.inputs import Result, RunInputs
from fugu.training.sharding import AGENTS
from fugu.training.trainer import DivergedError, Progress, Trainer, find_device
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


@dataclass(frozen=True)
class Interruption:
    """A search that was stopped before it chose, by these signals or by a callback."""

    signals: tuple[int, ...]


class Search:
    """Chooses settings for a run among a few members; see the module.

    Args:
        run: The folder of the whole search, and of the winner in the end.
        record: What is known so far.
        inputs: The callables of the run.
        train_member: Trains one member.
        report: Called with the record after every rung and at the end.
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

    def run(self) -> SearchRecord | Interruption:
        """Train, compare and choose; the record says what was chosen and why."""
        if self._record.winner is not None:
            return self._record
        self._record.write(self._run)
        self._run.mark("running")
        for number in range(len(self._record.rungs), len(RUNGS)):
            if interruption := self._climb(number):
                self._run.mark("stopped")
                return interruption
        winner, why = self._choose(self._record.rungs[-1].kept)
        self._record = replace(self._record, winner=winner, why=why)
        self._promote()
        self._report(self._record)
        return self._record

    # ------------------------------------------------------------------ rungs

    def _climb(self, number: int) -> Interruption | None:
        """Train all members that are left to the next rung and keep the better ones."""
        part, keep = RUNGS[number]
        steps = self._cfg.train.total_steps // part
        alive = self._alive()
        if interruption := self._train(alive, steps):
            return interruption
        sparse = number == 0 and not returns_vary(self._member(name).metrics_path for name in alive)
        if sparse:
            known = {member.name for member in self._record.members}
            curious = make_curious_members(self._cfg.train)
            added = [member for member in curious if member.name not in known]
            members = (*self._record.members, *added)
            self._record = replace(self._record, members=members)
            alive += [member.name for member in added]
            if interruption := self._train(alive, steps):
                return interruption
        returns = {name: self._return(name, steps) for name in alive}
        trained = {name: trained_steps(self._member(name).metrics_path) for name in alive}
        rung = Rung(steps, trained, returns, self._keep(returns, keep))
        self._record = self._record.with_rung(rung)
        self._record.write(self._run)
        self._drop_checkpoints(rung.kept)
        self._report(self._record)
        return None

    def _alive(self) -> list[str]:
        if self._record.rungs:
            return list(self._record.rungs[-1].kept)
        return [member.name for member in self._record.members]

    def _train(self, names: Sequence[str], steps: int) -> Interruption | None:
        """Train members one after the other until each has so many steps."""
        for name in names:
            run = self._member(name)
            newest = run.latest()
            if run.status == "failed" or (newest and read_state(newest)["steps"] >= steps):
                continue
            if newest is None:  # killed before its first checkpoint
                shutil.rmtree(run.folder, ignore_errors=True)
            cfg = self._config(self._record.member(name))
            try:
                result = self._train_member(
                    cfg, run if newest else None, (_stop_at(steps),), self._record.init_from
                )
            except DivergedError:
                continue  # the session has marked it as failed
            if result.signals or result.steps < steps:
                return Interruption(result.signals)
        return None

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

    def _return(self, name: str, steps: int) -> float | None:
        found = self._estimate(name, steps)
        return None if found is None else found.mean

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

    # ------------------------------------------------------------------ members

    def _member(self, name: str) -> Run:
        return Run(members_folder(self._run) / name)

    def _config(self, member: Candidate) -> Config:
        own = {"folder": str(members_folder(self._run)), "name": member.name}
        return member_config(self._record.config, member, own)

    def _drop_checkpoints(self, kept: Sequence[str]) -> None:
        for member in self._record.members:
            if member.name not in kept:
                shutil.rmtree(self._member(member.name).checkpoints_folder, ignore_errors=True)


def _stop_at(steps: int) -> AnyCallback:
    """Return a callback that ends a session after so many steps of its run."""

    def stop(trainer: Trainer, progress: Progress) -> None:
        if progress.steps >= steps:
            trainer.stopping = True

    return stop


def new_record(cfg: Config, inputs: RunInputs, init_from: str | None = None) -> SearchRecord:
    """Return the record of a search that has not begun.

    Raises:
        UsageError: The first rung would have too few updates to compare members by.
    """
    batch, updates = _steps_per_update(cfg, inputs), RUNGS[0][0] * UPDATES
    if cfg.train.total_steps < updates * batch:
        raise UsageError(
            f"auto: expected train.total_steps of {updates * batch:,} or more, {updates} updates "
            f"of {batch:,} steps; got {cfg.train.total_steps:,}. Train longer, or without --auto."
        )
    return SearchRecord(plain_tree(cfg), tuple(make_members(cfg.train)), init_from=init_from)


def _steps_per_update(cfg: Config, inputs: RunInputs) -> int:
    env = inputs.env_of(cfg.env)
    with make(env, 1, backend="serial", **cfg.env_options) as one:
        agents = one.num_agents
    copies = cfg.vec.num_envs or max(1, AGENTS // agents)
    steps: int = (cfg.train.rows or copies * agents) * cfg.train.horizon
    return steps


def train_auto(
    cfg: Config,
    inputs: RunInputs,
    train_member: TrainMember,
    *,
    keep: bool = True,
    show: bool = True,
    auto_resume: bool = False,
    init_from: str | Path | None = None,
) -> Result:
    """Search for settings and train with them; see `fugu.train` for the arguments."""
    check_searchable(cfg, inputs.ranks.size)
    with _folder(cfg.run.folder, keep) as folder:
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
        found = Search(run, record, inputs, train_member, report).run()
    seconds = time.perf_counter() - began
    if isinstance(found, Interruption):
        return Result(run, [], 0, seconds, None, "stopped", found.signals)
    cfg, policies = load_policies(run, None, inputs)
    newest = run.latest()
    assert newest is not None
    state = read_state(newest)
    episodes = sum(count for count, _ in state["recent"])
    score = sum(total for _, total in state["recent"]) / episodes if episodes else None
    device = find_device(cfg.device)
    on_device = [policy.to(device) for policy in policies]
    return Result(run, on_device, int(state["steps"]), seconds, score, "finished")


@contextmanager
def _folder(root: Path, keep: bool) -> Iterator[Path]:
    """Yield the folder of runs; a temporary one if the run is not kept."""
    if keep:
        yield root
        return
    with tempfile.TemporaryDirectory(prefix="fugu-auto-") as folder:
        yield Path(folder)
