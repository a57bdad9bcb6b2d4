"""`push_to_hub`: a run, with all that shows what it is, for others to take."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fugu.algos.algorithm import PolicyFactory
from fugu.core.errors import FuguError, UsageError
from fugu.hub.card import Facts, write_card
from fugu.hub.contents import CARD, CHECKSUMS, CONFIG, EVALUATION, METRICS, RUN, dump_checksums
from fugu.hub.exhibits import Score, draw_curve, film, score_of_training
from fugu.hub.places import find_place
from fugu.hub.settings import shared_config
from fugu.store import values
from fugu.store.checkpoint import STATE, read_state, replaced, verify_checkpoint
from fugu.store.run import Run
from fugu.track.jsonl import read_metrics

if TYPE_CHECKING:
    from fugu.hub.agent import Agent

EPISODES = 20
SEED = 0  # of evaluation and film


@dataclass(frozen=True)
class Pushed:
    """What came of a push.

    Attributes:
        url: Where the run is now.
        score: What its card says of how well it plays; None if nobody knows.
        files: What there is now.
        notes: What could not be shown, and why.
    """

    url: str
    score: Score | None
    files: tuple[str, ...]
    notes: tuple[str, ...]


def push_to_hub(
    run: str | Path | Run,
    repo: str | Path,
    *,
    private: bool = False,
    revision: str | None = None,
    best: bool = False,
    episodes: int = EPISODES,
    video: bool = True,
    message: str = "",
    root: str | Path = "runs",
    env: Callable[..., Any] | None = None,
    policy_factory: PolicyFactory | None = None,
    token: str | None = None,
) -> Pushed:
    """Share a run: one checkpoint, its settings and metrics, a card, its curve and a film.

    What was shared there before is replaced. Uploads that break off are repeated, and a push that
    failed goes on where it was when it is made again.

    Args:
        run: Its name, its folder, or "latest".
        repo: `user/name` of the Hub, or a folder that starts with `./`, `../`, `~` or `/`.
        private: Make the repository private, if it is new.
        revision: The branch to push to, which is made if it is new; the main one if not given.
        best: Share the best checkpoint and not the last.
        episodes: Played for the card; 0: it says what training told.
        video: Whether to film the policy.
        message: Of the commit.
        root: Where runs are.
        env: What the run was trained on, if that was something to call.
        policy_factory: As of `fugu.train`, if it was given there.
        token: Of the Hub; by default that of `HF_TOKEN` or `hf auth login`.

    Raises:
        HubError: The Hub cannot be reached, or refuses.
    """
    if episodes < 0:
        raise UsageError(f"episodes: given {episodes}; allowed: 0 or more.")
    place = find_place(repo, revision, token, private=private)
    found = run if isinstance(run, Run) else Run.open(run, root)
    checkpoint = _checkpoint_of(found, best)
    with tempfile.TemporaryDirectory(prefix="fugu-hub-") as folder, place.session():
        place.prepare()
        try:
            bundle = Bundle(found, checkpoint, Path(folder))
            bundle.show(episodes, video, env, policy_factory)
            bundle.finish(place.name)
        except FileNotFoundError as error:
            raise UsageError(
                f"run: given {found.name!r}, whose checkpoint went away meanwhile ({error}); "
                "allowed: one that stays. Push it again."
            ) from error
        url = place.publish(bundle.files, message or f"{found.name} at {bundle.steps} steps")
    return Pushed(url, bundle.score, tuple(sorted(bundle.files)), tuple(bundle.notes))


class Bundle:
    """The files of a run that is to be shared: its own where they are, others in a folder.

    Attributes:
        files: By the names they get.
        steps: Of the checkpoint.
        score: How well it plays; None if nobody knows.
        notes: What could not be shown, and why.
    """

    def __init__(self, run: Run, checkpoint: Path, folder: Path) -> None:
        self._run, self._checkpoint, self._folder = run, checkpoint, folder
        self._config = shared_config(run.config)
        self.steps = int(read_state(checkpoint)["step"])
        self.files = _files_of(checkpoint, f"checkpoints/step_{self.steps:09d}")
        for member in sorted((run.folder / "league").glob("step_*")):  # its opponents
            self.files |= _files_of(member, f"league/{member.name}")
        if run.metrics_path.is_file():  # a copy: the run may go on
            lines = run.metrics_path.read_bytes()
            self._write(METRICS, lines[: lines.rfind(b"\n") + 1])
        self._write(CONFIG, values.dump(self._config))
        self._write(RUN, values.dump({"env": run.env, "created": run.created}))
        self.score = score_of_training(run, self.steps)
        self.notes: list[str] = []

    def show(
        self,
        episodes: int,
        video: bool,
        env: Callable[..., Any] | None,
        policy_factory: PolicyFactory | None,
    ) -> None:
        """Draw and play it, as far as that is possible here."""
        with self._noting("no curve"):
            self._add(draw_curve(self._run, self._folder))
        if not episodes and not video:
            return
        with self._noting("not played"):
            from fugu.hub.agent import load_agent
            from fugu.policies.policy import make_policy
            from fugu.training.inputs import RunInputs

            inputs = RunInputs(env, policy_factory or make_policy)
            agent = load_agent(self._run, self._checkpoint, inputs)
            self._perform(agent, episodes, video)

    def finish(self, place: str) -> None:
        """Add what is said of all other files: the card and the checksums."""
        seconds = 0.0
        for entry in read_metrics(self._run.metrics_path):
            if (entry["step"] or 0) <= self.steps:
                seconds = float(entry.get("seconds") or seconds)
        document = values.load((self._checkpoint / STATE).read_bytes())
        facts = Facts(
            place,
            self._run.name,
            self._config,
            self.steps,
            seconds,
            document.get("libraries", {}),
            self.score,
            frozenset(self.files),
        )
        self._write(CARD, write_card(facts).encode())
        self._write(CHECKSUMS, dump_checksums(self.files))

    def _perform(self, agent: Agent, episodes: int, video: bool) -> None:
        if episodes:
            with self._noting("no evaluation"):
                found = agent.evaluate(episodes, seed=SEED).to_dict()
                self._write(EVALUATION, values.dump({**found, "seed": SEED, "greedy": True}))
                source = "played for this card, without chance in the actions"
                numbers = found["mean_return"], found["deviation"], found["episodes"]
                self.score = Score(*numbers, source)
        if video:
            with self._noting("no film"):
                self._add(film(agent, self._folder, SEED))

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Go on without what cannot be shown, for whatever reason an environment has."""
        try:
            yield
        except FuguError as error:
            self.notes.append(f"{what}: {error}")
        except Exception as error:
            self.notes.append(f"{what}: {type(error).__name__}: {error}")

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        path.write_bytes(content)
        self._add(path)

    def _add(self, path: Path) -> None:
        self.files[path.name] = path


def _checkpoint_of(run: Run, best: bool) -> Path:
    """The folder of the checkpoint to share."""
    found = run.best() if best else run.latest()
    if found is None:
        missing = "no checkpoint with a score" if best else "no whole checkpoint"
        raise UsageError(f"run: given {run.name!r}, which has {missing}; allowed: one that has.")
    return found if found.is_dir() else replaced(found)


def _files_of(checkpoint: Path, name: str) -> dict[str, Path]:
    """A checkpoint's files, by the names they get."""
    verify_checkpoint(checkpoint)
    sums: Mapping[str, str] = values.load((checkpoint / CHECKSUMS).read_bytes())
    return {f"{name}/{file}": checkpoint / file for file in [*sums, CHECKSUMS]}
