"""A training session: a run's folder, its trainer, and everybody who wants to know."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fugu.algos.algorithm import PolicyFactory, State, Tensors
from fugu.algos.settings import Config, LearningConfig
from fugu.core.config import Tree, merge, plain_tree
from fugu.core.errors import UsageError
from fugu.core.writing import tells_full_disk
from fugu.data.recording import Recorder
from fugu.policies.policy import make_policy
from fugu.store.checkpoint import (
    POLICY_ONLY,
    STATES,
    Checkpoint,
    is_own,
    load_checkpoint,
    refuses_misfits,
)
from fugu.store.run import Run
from fugu.track.dashboard import Dashboard, Snapshot
from fugu.track.sinks import CombinedSink, JsonlSink, Sink, TensorboardSink, WandbSink
from fugu.training.auto.record import is_unfinished
from fugu.training.auto.search import TrainMember, resume_auto, train_auto
from fugu.training.auto_resume import newest_alike
from fugu.training.callbacks import AnyCallback, Callbacks, Status
from fugu.training.config import given_settings, resolve_config
from fugu.training.distributed import joined
from fugu.training.evaluate import Evaluator
from fugu.training.inputs import Result as Result
from fugu.training.inputs import RunInputs, name_of
from fugu.training.trainer import (
    ATTRIBUTES,
    DivergedError,
    Progress,
    Trainer,
    stops_on_signals,
)
from fugu.training.trajectories import TrajectoryRecorder
from fugu.training.untrusted import settings_of

log = logging.getLogger("fugu")
DEFAULT = RunInputs()
RECENT = 100  # episodes that a score is the mean of


def train(
    env: str | Callable[..., Any],
    settings: LearningConfig | None = None,
    *,
    preset: str | None = None,
    config: str | Path | None = None,
    keep: bool = True,
    show: bool = True,
    callbacks: Iterable[AnyCallback] = (),
    init_from: str | Path | None = None,
    policy_factory: PolicyFactory | None = None,
    loss: Callable[..., Any] | None = None,
    auto_resume: bool = False,
    auto: bool = False,
    **sections: Any,
) -> Result:
    """Train policies on an environment.

    Args:
        env: Any name that `fugu.make` takes, or something to call for an environment.
        settings: Settings of an algorithm, such as `fugu.PPOConfig(gamma=0.98)`, which choose the
            algorithm too. Those with their default value count as not given.
        preset: A named set of settings, such as "classic".
        config: A TOML file of settings.
        keep: Whether to keep the run: its metrics and checkpoints, in `runs/`.
        show: Show the dashboard.
        callbacks: Objects of `fugu.Callback`, or functions that are called with the trainer and its
            progress after every update, at every rank; `trainer.stop()` ends the session.
        init_from: A run whose policies to begin with.
        policy_factory: Called with a group of agents and the policy's settings for its `Policy`,
            such as `fugu.policies.make_policy` with an encoder of your own.
        loss: A loss function in place of PPO's; see `fugu.algos.ppo_loss` for what it is given and
            returns.
        auto_resume: Go on with the newest run of the same settings, if there is one.
        auto: Search for better settings than those given, by successive halving over eight
            members (see `fugu.training.auto`). The policy returned has trained for
            `train.total_steps`, all members together for at most four times as many.
        **sections: Settings by section: `train={"learning_rate": 0.01}`, `seed=1`, `vec={...}`,
            `policy={"core": "lstm"}`, `env_kwargs={...}`.

    >>> result = train("bandit", train={"total_steps": 2000}, keep=False, show=False)
    >>> result.status, result.steps >= 2000
    ('finished', True)
    """
    files = () if config is None else (config,)
    if settings is not None:
        sections = merge(given_settings(settings), sections)
    cfg = resolve_config(
        name_of(env),
        preset=preset,
        files=files,
        overrides=sections,
        factory=env if callable(env) else None,
    )
    with joined() as ranks:
        factory = policy_factory or make_policy
        inputs = RunInputs(env if callable(env) else None, factory, ranks, loss=loss)
        first = ranks.rank == 0
        if auto:
            return train_auto(
                cfg,
                inputs,
                _member_trainer(inputs, show, tuple(callbacks)),
                keep=keep,
                show=show,
                auto_resume=auto_resume,
                init_from=init_from,
            )
        run = newest_alike(cfg) if auto_resume and keep and first else None
        resumes = ranks.share(run is not None and run.latest() is not None)
        session = Session(
            cfg, run, show and first, tuple(callbacks), inputs, resumes=resumes, keeps=keep
        )
        if init_from is not None and first:
            session.init_from = Run.open(init_from, cfg.run.folder)
        return session.run()


def resume(
    run: str | Path | Run,
    *,
    root: str | Path = "runs",
    show: bool = True,
    callbacks: Iterable[AnyCallback] = (),
    env: Callable[..., Any] | None = None,
    policy_factory: PolicyFactory | None = None,
    loss: Callable[..., Any] | None = None,
    overrides: Tree | None = None,
    trust: bool = False,
) -> Result:
    """Go on with a run from its last checkpoint, exactly as it would have gone on.

    Args:
        run: Its name, its folder, or "latest".
        root: Where runs are.
        show: Show the dashboard.
        callbacks: As of `train`.
        env: What the run was trained on, if that was something to call.
        policy_factory: As of `train`, if it was given there.
        loss: As of `train`, if it was given there.
        overrides: Settings to change, such as a larger `train.total_steps`.
        trust: Trust the run from now on, whoever trained it: its settings may name code to run.
    """
    with joined() as ranks:
        found = None
        if not ranks.rank:
            found = run if isinstance(run, Run) else Run.open(run, root)
        inputs = RunInputs(env, policy_factory or make_policy, ranks, trust, loss)
        shown = show and not ranks.rank
        if found is not None and ranks.size == 1 and is_unfinished(found):
            trainer = _member_trainer(inputs, shown, tuple(callbacks))
            return resume_auto(found, inputs, trainer, overrides or {}, shown)
        own = None if found is None else settings_of(found, inputs, overrides)
        cfg = ranks.share(own)
        assert cfg is not None
        return Session(cfg, found, shown, tuple(callbacks), inputs, resumes=True).run()


def _member_trainer(
    inputs: RunInputs, show: bool, callbacks: tuple[AnyCallback, ...]
) -> TrainMember:
    """Return what trains one member of a search, in a session of its own."""

    def train_member(
        cfg: Config, run: Run | None, more: tuple[AnyCallback, ...], init_from: str | None
    ) -> Result:
        resumes = run is not None
        session = Session(
            cfg, run, show, callbacks + more, inputs, resumes=resumes, keeps=not resumes
        )
        if init_from is not None and not resumes:
            session.init_from = Run.open(init_from, cfg.run.folder)
        return session.run()

    return train_member


class Session:
    """Runs a trainer and keeps what comes of it.

    Attributes:
        init_from: A run whose policies to begin with.
    """

    init_from: Run | None = None

    def __init__(
        self,
        cfg: Config,
        run: Run | None,
        show: bool,
        callbacks: tuple[AnyCallback, ...],
        inputs: RunInputs = DEFAULT,
        *,
        resumes: bool = False,
        keeps: bool = False,
    ) -> None:
        self.cfg, self._run, self._show = cfg, run, show
        self._callbacks = Callbacks(callbacks)
        self._resumes, self._keeps, self._inputs = resumes, keeps, inputs
        self._ranks = inputs.ranks
        self._recent: list[tuple[float, float]] = []  # episodes, and the sum of their returns
        self._saved_at = time.monotonic()
        self._episodes: dict[str, float] = {}
        self._logged: dict[str, float] = {}  # the last values of what callbacks log
        self._evaluator = Evaluator(cfg.run.evaluate_every, cfg.run.evaluation_episodes)
        self._recorder: Recorder | None = None
        self._programs: TrajectoryRecorder | None = None

    def run(self) -> Result:
        """To the end, or until it is stopped; the run's folder then says how it ended."""
        with tells_full_disk(self._advise):
            return self._train()

    def _train(self) -> Result:
        began = time.perf_counter()
        trainer = Trainer(self.cfg, self._inputs)
        with ExitStack() as stack:
            stack.callback(trainer.close)
            stack.callback(self._evaluator.close)
            trainer.callbacks = self._callbacks
            if self.init_from is not None:
                trainer.load_policies(load_checkpoint(_last(self.init_from)))
            trainer.broadcast_policies()
            if self._keeps and self._run is None and not self._ranks.rank:
                # Now that nothing is wrong with the settings.
                folder, name = self.cfg.run.folder, self.cfg.run.name
                self._run = Run.create(folder, name, self.cfg.env, plain_tree(self.cfg))
            trainer.context.run = self._run
            self._begin_recording(trainer, stack)
            first = self._restore(trainer) if self._resumes else 0
            sink = stack.enter_context(closing(self._sinks(first)))
            self._mark("running")
            name = self._run.name if self._run else self.cfg.env
            dashboard = None
            if self._show:
                dashboard = stack.enter_context(Dashboard(self.cfg.train.total_steps, name))
            self._note_engines(trainer)
            self._say_what_to_know(trainer)
            signals = stack.enter_context(stops_on_signals(trainer))
            status = self._run_trainer(trainer, sink, dashboard)
            return Result(
                self._run,
                trainer.policies,
                trainer.steps,
                time.perf_counter() - began,
                self.score,
                status,
                tuple(number for each in self._ranks.gather(signals) for number in each),
                trainer.stop_reason,
            )

    def _run_trainer(self, trainer: Trainer, sink: Sink, dashboard: Dashboard | None) -> Status:
        try:
            self._callbacks.on_start(trainer)
            trainer.run(lambda progress: self._after(trainer, progress, sink, dashboard))
            if self._evaluator.steps != trainer.steps or not self.cfg.run.evaluate_every:
                self._save(trainer)
        except BaseException as error:
            if isinstance(error, DivergedError):
                self._mark("failed")
            self._callbacks.on_stop(trainer, "failed")
            raise
        finished = trainer.steps >= self.cfg.train.total_steps
        status: Status = "finished" if finished else "stopped"
        self._mark(status)
        self._callbacks.on_stop(trainer, status)
        self._write(trainer, sink, {})
        return status

    def _advise(self) -> str:
        """What is safe when the disk is full."""
        if self._run is None:
            return "Nothing was begun: free some space and train anew."
        folder, newest = self._run.folder, self._run.latest()
        if newest is None:
            return f"No checkpoint was due yet: free some space, delete {folder} and train anew."
        with suppress(OSError):
            self._mark("stopped")
        return f"All up to {newest} is safe. Free some space and go on: fugu resume {folder}"

    def _begin_recording(self, trainer: Trainer, stack: ExitStack) -> None:
        """Let all episodes be written, if the settings say so; of a resumed run, those to come."""
        cfg, folder = self.cfg, self.cfg.run.record_data
        wanted = {"record_data": folder is not None, "trajectories": cfg.run.trajectories}
        if not any(wanted.values()):
            return
        collector = trainer.algorithm.collector
        if collector is None:
            names = ", ".join(f"run.{name}" for name, is_wanted in wanted.items() if is_wanted)
            raise UsageError(
                f"{names}: given with {cfg.algo}, which plays no episodes of its own; "
                "allowed: with algorithms that do."
            )
        if folder is not None:
            begun = not self._resumes
            recorder = Recorder(trainer.vec, folder, cfg.env, cfg.env_kwargs, begun=begun)
            stack.callback(recorder.close)
            collector.on_batch = self._recorder = recorder
        if cfg.run.trajectories:
            if self._ranks.size > 1:
                raise UsageError(
                    f"run.trajectories: given with {self._ranks.size} ranks; allowed: with one."
                )
            if self._run is None:
                raise UsageError(
                    "run.trajectories: given for a run that is not kept; allowed: with keep=True."
                )
            programs = TrajectoryRecorder(self._run.folder, self._run.name, cfg.vec.group_size)
            stack.callback(programs.close)
            collector.episodes.listener = self._programs = programs

    def _note_engines(self, trainer: Trainer) -> None:
        """Keep the algorithm's facts with those of the run."""
        facts = trainer.algorithm.facts()
        if self._run is not None and facts:
            self._run.note(facts)

    def _say_what_to_know(self, trainer: Trainer) -> None:
        """What somebody who starts a run would want to have known before."""
        if self._ranks.rank:
            return
        if self._keeps and trainer.vec.why_stateless is not None:
            log.warning("resume will begin new episodes: %s", trainer.vec.why_stateless)
        for notice in trainer.algorithm.notices():
            log.warning("%s", notice)

    @property
    def _scored(self) -> int:
        """Episodes that the score is the mean of."""
        return int(sum(episodes for episodes, _ in self._recent))

    @property
    def score(self) -> float | None:
        """Mean return of about the last hundred episodes; None before the first ended."""
        count = self._scored
        return sum(total for _, total in self._recent) / count if count else None

    def _after(
        self, trainer: Trainer, progress: Progress, sink: Sink, dashboard: Dashboard | None
    ) -> None:
        self._note(progress.episodes)
        trainer.score, trainer.scored_episodes = self.score, self._scored
        exam = self._evaluator.evaluate(trainer)
        cluster = progress.cluster
        metrics = {
            "updates": float(progress.updates),
            "steps_per_second": progress.steps_per_second,
            **{f"loss/{name}": value for name, value in progress.losses.items()},
            **{f"seconds/{name}": value for name, value in progress.phases.items()},
            **progress.episodes,
            **{f"evaluation/{name}": value for name, value in exam.items()},
            **({} if cluster is None else cluster.metrics()),
        }
        trainer.metric_names |= metrics.keys()
        try:
            if exam:
                self._callbacks.on_evaluation(trainer, exam)
            self._callbacks.on_update(trainer, progress)
        finally:
            self._write(trainer, sink, metrics)
        if dashboard is not None:
            dashboard.update(
                Snapshot(
                    progress.steps,
                    progress.steps_per_second,
                    progress.phases,
                    progress.losses,
                    self._episodes,
                    () if cluster is None else cluster.lines(),
                    self._logged,
                )
            )
        due = time.monotonic() - self._saved_at > self.cfg.run.checkpoint_seconds
        if self._ranks.share(due) or exam:
            self._write_histograms(trainer, sink)
            self._save(trainer, exam.get("mean_return"))
            self._write(trainer, sink, {})  # what callbacks logged after the checkpoint

    def _write(self, trainer: Trainer, sink: Sink, metrics: Mapping[str, float]) -> None:
        """Write metrics and those that callbacks logged."""
        logged, trainer.logged = trainer.logged, {}
        self._logged = {**self._logged, **logged}
        if metrics or logged:
            sink.write(trainer.steps, {**metrics, **logged})

    def _write_histograms(self, trainer: Trainer, sink: Sink) -> None:
        """All weights, as often as a checkpoint is written."""
        for i, policy in enumerate(trainer.policies):
            prefix = "weights" if len(trainer.policies) == 1 else f"weights_{i}"
            for name, weight in policy.named_parameters():
                values = weight.detach().float().cpu().numpy()
                sink.histogram(trainer.steps, f"{prefix}/{name}", values)

    def _note(self, episodes: Mapping[str, float]) -> None:
        if not episodes:
            return
        self._episodes |= episodes
        count = episodes["episodes"]
        self._recent.append((count, count * episodes["episode_return"]))
        while len(self._recent) > 1 and sum(n for n, _ in self._recent[1:]) >= RECENT:
            del self._recent[0]

    def _save(self, trainer: Trainer, score: float | None = None) -> None:
        """A checkpoint; where evaluations say what is best, only they give one a score."""
        self._saved_at = time.monotonic()
        if not (self._keeps or self._resumes):
            return
        tensors, state = trainer.checkpoint()
        path = None if self._run is None else self._write_checkpoint(tensors, state, score)
        path = self._ranks.share(path)
        assert path is not None
        self._callbacks.on_checkpoint(trainer, path)

    def _write_checkpoint(self, tensors: Tensors, state: State, score: float | None) -> Path:
        """Write the checkpoint of all ranks, at the first one."""
        assert self._run is not None
        state["recent"] = [list(pair) for pair in self._recent]
        state["examined"] = self._evaluator.steps
        if self._recorder is not None:
            state["recorded"] = self._recorder.commit()
        if self._programs is not None:
            state["trajectories"] = self._programs.state()
        if not self.cfg.run.evaluate_every:
            score = self.score
        path = self._run.save(int(state["steps"]), tensors=tensors, state=state, score=score)
        self._run.prune(self.cfg.run.keep)
        return path

    def _restore(self, trainer: Trainer) -> int:
        trust = self._inputs.trust
        state = trainer.restore(None if self._run is None else _resumable(self._run, trust))
        with refuses_misfits("this run"):
            self._recent = [(float(n), float(total)) for n, total in state["recent"]]
            self._evaluator.steps = int(state.get("examined", 0))
            trainer.score, trainer.scored_episodes = self.score, self._scored
        if self._recorder is not None and "recorded" in state:
            for writer, episodes in zip(self._recorder.writers, state["recorded"], strict=True):
                writer.keep(int(episodes))  # what came after the checkpoint comes once more
        if self._programs is not None and "trajectories" in state:
            self._programs.restore(state["trajectories"])
        return trainer.steps

    def _sinks(self, first: int | None) -> CombinedSink:
        if self._run is None:
            return CombinedSink([])
        sinks: list[Sink] = [JsonlSink(self._run.metrics_path, first)]
        if self.cfg.run.tensorboard:
            sinks.append(TensorboardSink(self._run.folder / "tensorboard", first))
        if self.cfg.run.wandb:
            sinks.append(WandbSink(self._run.folder, name=self._run.name, config=self._run.config))
        return CombinedSink(sinks)

    def _mark(self, status: str) -> None:
        if self._run is not None:
            self._run.mark(status)


def _resumable(run: Run, trust: bool) -> Checkpoint:
    """Return the last checkpoint of a run; UsageError if it cannot be resumed.

    Without states of environments if somebody else wrote them: native ones go into memory as they
    are.
    """
    path = _last(run)
    found = load_checkpoint(path)
    states = {name for name in found.tensors if STATES.fullmatch(name)}
    if (states or found.state.get(ATTRIBUTES)) and not trust and not is_own(path):
        log.warning(
            "new episodes begin: the states of environments in %s were not written here. If you "
            "know who wrote them, use --trust (in Python trust=True).",
            path,
        )
        tensors = {name: found.tensors[name] for name in found.tensors if name not in states}
        found = replace(found, tensors=tensors, state={**found.state, ATTRIBUTES: {}})
    if found.state.get(POLICY_ONLY):
        raise UsageError(
            f"resume: {run.name!r} holds a policy only, without the optimizer and the experience "
            "that resuming needs. Start a new run from it: "
            f"fugu train {shlex.quote(run.env)} --init-from {shlex.quote(str(run.folder))}"
        )
    return found


def _last(run: Run) -> Path:
    path = run.latest()
    if path is None:
        raise UsageError(
            f"run: given {run.name!r}, which has no checkpoint yet; allowed: a run that has one. "
            "Train it anew."
        )
    return path
