"""`push_to_hub`: share a run, with a model card that shows how well it plays."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fugu.core.errors import FuguError, UsageError
from fugu.hub.repositories import (
    CARD,
    CHECKSUMS,
    CONFIG,
    CURVE,
    EVALUATION,
    GIF,
    METRICS,
    RUN,
    VIDEO,
    check_names,
    dump_checksums,
    open_repository,
    shared_config,
)
from fugu.store import values
from fugu.store.checkpoint import STATE, read_state, replaced, verify_checkpoint
from fugu.store.run import Run
from fugu.track.curves import draw_curves, read_curve
from fugu.track.sinks import read_metrics
from fugu.track.text import duration

if TYPE_CHECKING:
    from fugu.algos.algorithm import PolicyFactory

EPISODES = 20
SEED = 0  # of the evaluation and the video
VIDEO_STEPS, VIDEO_HEIGHT = 400, 360
METRIC = "episode_return"
TASK = "reinforcement-learning"


@dataclass(frozen=True)
class Score:
    """Mean return of episodes.

    Attributes:
        mean: Their mean return.
        deviation: The standard deviation, of episodes or of the means of updates.
        episodes: The number of episodes.
        source: How they were played, in words.
    """

    mean: float
    deviation: float
    episodes: int
    source: str

    def __str__(self) -> str:
        return f"{self.mean:.2f} +/- {self.deviation:.2f}"


@dataclass(frozen=True)
class Pushed:
    """Result of a push.

    Attributes:
        url: The address of the shared run.
        score: The mean return that its card reports; None if it is unknown.
        files: The names of all files.
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
    """Share a run: one checkpoint, settings, metrics, a model card, the curve and a video.

    The run that was shared there before is replaced. Interrupted uploads are retried, and a push
    that is repeated after a failure sends only what is missing.

    Args:
        run: The name or folder of a run, or "latest".
        repo: `user/name` on the Hub, or a folder that starts with `./`, `../`, `~` or `/`.
        private: Make the repository private if it is new.
        revision: The branch to push to, which is created if it is new; the main one if not given.
        best: Share the best checkpoint instead of the last one.
        episodes: Episodes to play for the card; with 0 it reports the returns of the training.
        video: Whether to record a video of the policy.
        message: The commit message.
        root: The folder of all runs.
        env: The environment that the run was trained on, if `fugu.train` was given a callable.
        policy_factory: The `policy_factory` that `fugu.train` was given, if any.
        token: A token of the Hub; that of `HF_TOKEN` or `hf auth login` if not given.

    Raises:
        RefusedError: The repository holds something other than a run.
        HubError: The Hub cannot be reached, or denies a request.
    """
    if episodes < 0:
        raise UsageError(f"episodes: expected 0 or more; got {episodes}.")
    found = run if isinstance(run, Run) else Run.open(run, root)
    checkpoint = _find_checkpoint(found, best)
    with (
        open_repository(repo, revision, token, private=private) as repository,
        tempfile.TemporaryDirectory(prefix="fugu-hub-") as folder,
    ):
        repository.prepare()
        check_names(repository.name, repository.sizes())  # a push deletes nothing but a run
        try:
            bundle = _Bundle(found, checkpoint, Path(folder))
            bundle.draw_curve()
            if episodes or video:
                bundle.play(episodes, video, env, policy_factory)
            bundle.describe(repository.name)
        except FileNotFoundError as error:
            raise UsageError(
                f"run: the checkpoint of {found.name!r} was deleted meanwhile ({error}). "
                "Push it again."
            ) from error
        url = repository.publish(bundle.files, message or f"{found.name} at {bundle.steps} steps")
    return Pushed(url, bundle.score, tuple(sorted(bundle.files)), tuple(bundle.notes))


class _Bundle:
    """The files of a run to share: its own, and generated ones in a temporary folder.

    Attributes:
        files: The files by their names in the repository.
        steps: Agent steps of the checkpoint.
        score: Its mean return; None if it is unknown.
        notes: What could not be shown, and why.
    """

    def __init__(self, run: Run, checkpoint: Path, folder: Path) -> None:
        self._run, self._checkpoint, self._folder = run, checkpoint, folder
        self._config = shared_config(run.config)
        state = read_state(checkpoint)
        self.steps = int(state["step"])
        self.notes: list[str] = []
        self.files = _checkpoint_files(checkpoint, f"checkpoints/step_{self.steps:09d}")
        for opponent in sorted((run.folder / "league").glob("step_*")):
            self.files |= _checkpoint_files(opponent, f"league/{opponent.name}")
        if run.metrics_path.is_file():  # a copy, since the run may continue
            lines = run.metrics_path.read_bytes()
            self._write(METRICS, lines[: lines.rfind(b"\n") + 1])
        self._write(CONFIG, values.dump(self._config))
        self._write(RUN, values.dump({"env": run.env, "created": run.created}))
        self.score: Score | None = None
        with self._attempting("no score"):
            self.score = training_score(state)

    def draw_curve(self) -> None:
        """Draw the learning curve."""
        with self._attempting("no curve"):
            self.files[CURVE] = draw_curve(self._run, self._folder / CURVE)

    def play(
        self,
        episodes: int,
        video: bool,
        env: Callable[..., Any] | None,
        policy_factory: PolicyFactory | None,
    ) -> None:
        """Evaluate the policies and record a video, as far as that is possible here."""
        with self._attempting("not played"):
            from fugu.hub.agent import load_agent
            from fugu.policies.policy import make_policy
            from fugu.training.inputs import RunInputs
            from fugu.vector.recording import record

            inputs = RunInputs(env, policy_factory or make_policy)
            agent = load_agent(self._run, self._checkpoint, inputs)
            with self._attempting("no evaluation"):
                if episodes:
                    found = agent.evaluate(episodes, seed=SEED).to_dict()
                    self._write(EVALUATION, values.dump({**found, "seed": SEED, "greedy": True}))
                    source = "played for this card with the most probable actions"
                    numbers = found["mean_return"], found["deviation"], found["episodes"]
                    self.score = Score(*numbers, source)
            with self._attempting("no video"):
                if video:
                    encoder = all(map(importlib.util.find_spec, ("imageio", "imageio_ffmpeg")))
                    name = VIDEO if encoder else GIF
                    with agent.make(1, backend="serial") as vec:
                        players = agent.players(vec, seed=SEED)
                    self.files[name] = record(
                        inputs.env_of(agent.config.env),
                        self._folder / name,
                        policy=players,
                        steps=VIDEO_STEPS,
                        height=VIDEO_HEIGHT,
                        seed=SEED,
                        env_kwargs=agent.config.env_kwargs,
                    )

    def describe(self, repository: str) -> None:
        """Write the card and the checksums."""
        document = values.load((self._checkpoint / STATE).read_bytes())
        entries = read_metrics(self._run.metrics_path)
        until = (entry.get("seconds") for entry in entries if (entry["step"] or 0) <= self.steps)
        card = write_card(
            repository,
            self._run.name,
            self._config,
            steps=self.steps,
            seconds=max(filter(None, until), default=0.0),
            libraries=document.get("libraries", {}),
            score=self.score,
            files=self.files,
        )
        self._write(CARD, card.encode())
        self._write(CHECKSUMS, dump_checksums(self.files))

    @contextmanager
    def _attempting(self, problem: str) -> Iterator[None]:
        """Note an error and continue: an environment may fail in any way."""
        try:
            yield
        except FuguError as error:
            self.notes.append(f"{problem}: {error}")
        except Exception as error:
            self.notes.append(f"{problem}: {type(error).__name__}: {error}")

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        path.write_bytes(content)
        self.files[name] = path


def draw_curve(run: Run, path: Path) -> Path:
    """Draw the learning curve of a run."""
    draw_curves([read_curve(run.metrics_path, METRIC, run.name)], METRIC, path)
    return path


def _find_checkpoint(run: Run, best: bool) -> Path:
    """Return the folder of the checkpoint to share."""
    found = run.best() if best else run.latest()
    if found is None:
        missing = "checkpoint with a score" if best else "complete checkpoint"
        raise UsageError(f"run: {run.name!r} has no {missing}. Train it further, or share another.")
    return found if found.is_dir() else replaced(found)


def _checkpoint_files(checkpoint: Path, name: str) -> dict[str, Path]:
    """Return the files of a checkpoint by their names in the repository."""
    verify_checkpoint(checkpoint)
    sums: Mapping[str, str] = values.load((checkpoint / CHECKSUMS).read_bytes())
    return {f"{name}/{file}": checkpoint / file for file in [*sums, CHECKSUMS]}


# ---------------------------------------------------------------------- the model card


def training_score(state: Mapping[str, Any]) -> Score | None:
    """Return the score of the last episodes before a checkpoint; None if no episode ended."""
    if not state.get("recent"):
        return None
    counts, totals = np.array(state["recent"], np.float64).T  # episodes, and the sum of returns
    means = totals / counts
    mean = float(np.average(means, weights=counts))
    deviation = float(np.sqrt(np.average((means - mean) ** 2, weights=counts)))
    source = "the last episodes of training; the deviation is that of the means of updates"
    return Score(mean, deviation, int(counts.sum()), source)


def write_card(
    repository: str,
    run: str,
    config: Mapping[str, Any],
    *,
    steps: int,
    seconds: float,
    libraries: Mapping[str, str],
    score: Score | None,
    files: Collection[str],
) -> str:
    """Return the card of a run as Markdown that begins with metadata."""
    env, algo = str(config.get("env") or "a custom environment"), str(config.get("algo", "ppo"))
    name = repository.rstrip("/").rpartition("/")[2]
    result, media = "", ""
    if score is not None:
        result = f"\n**Mean return {score}** over {score.episodes} episodes ({score.source}).\n"
    if VIDEO in files:
        link = f'<a href="{VIDEO}">{VIDEO}</a>'  # for readers that show no videos
        media += f'\n<video src="{VIDEO}" controls autoplay loop muted>{link}</video>\n'
    for picture, caption in ((GIF, "the policy at play"), (CURVE, "learning curve")):
        media += f"\n![{caption}]({picture})\n" if picture in files else ""
    versions = "\n".join(f"| {library} | {version} |" for library, version in libraries.items())
    return f"""\
---
{_metadata(env, algo, score)}
---

# {algo} on {env}

A policy for `{env}`, trained with {algo} by fugu.
{result}{media}
## Use it

```python
import fugu

agent = fugu.from_hub({json.dumps(repository, ensure_ascii=False)})
print(agent.evaluate(episodes=10).to_dict())
```

```sh
pip install "fugu-rl[train,hub]"
fugu hub pull {repository}                     # creates runs/{name}
fugu eval {name}; fugu play {name}
fugu train {env} --init-from {name}   # start from its policy
fugu resume {name} --train.total-steps {2 * steps}   # continue the training
```

## Training

| | |
|---|---|
| run | `{run}` |
| agent steps | {steps:,} |
| time | {duration(seconds)} |
| seed | {config.get("seed", 0)} |
{versions}

<details><summary>Settings</summary>

```json
{values.dump(config).decode().rstrip()}
```

</details>

Weights are safetensors, and `checksums.json` has the SHA-256 of every file of the run;
`fugu hub pull` verifies them and runs no code.
"""


def _metadata(env: str, algo: str, score: Score | None) -> str:
    """Return what the Hub shows and searches, as JSON, which is YAML too."""
    results = []
    if score is not None:
        metric = {"type": "mean_reward", "name": "mean_reward", "value": str(score)}
        results = [
            {
                "task": {"type": TASK, "name": TASK},
                "dataset": {"type": env, "name": env},
                "metrics": [{**metric, "verified": False}],
            }
        ]
    metadata = {
        "library_name": "fugu",
        "pipeline_tag": TASK,
        "tags": list(dict.fromkeys([TASK, "deep-reinforcement-learning", "fugu", algo, env])),
        "model-index": [{"name": algo, "results": results}],
    }
    return json.dumps(metadata, indent=2, ensure_ascii=False)
