"""The card of a shared run: what people and the Hub read about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fugu.hub.contents import CURVE, VIDEO
from fugu.hub.exhibits import Score
from fugu.store import values
from fugu.track.text import duration

TASK = "reinforcement-learning"


@dataclass(frozen=True)
class Facts:
    """What a card tells.

    Attributes:
        place: Where the run is shared: user/name, or a folder's path.
        run: Its name.
        config: Its settings.
        steps: Agent steps of the checkpoint.
        seconds: Of the training.
        libraries: The versions it was trained with.
        score: How well it plays; None if nobody knows.
        files: The names of all files.
    """

    place: str
    run: str
    config: Mapping[str, Any]
    steps: int
    seconds: float
    libraries: Mapping[str, str]
    score: Score | None
    files: frozenset[str]

    @property
    def env(self) -> str:
        """What it was trained on."""
        return str(self.config.get("env") or "an environment of its own")

    @property
    def algo(self) -> str:
        """What it was trained with."""
        return str(self.config.get("algo", "ppo"))


def write_card(facts: Facts) -> str:
    """The card as Markdown, with its metadata as YAML at the top."""
    return "\n".join(["---", *_metadata(facts), "---", "", *_body(facts), ""])


def _metadata(facts: Facts) -> Iterator[str]:
    """The metadata by hand: a text as JSON is the same text in YAML."""
    yield "library_name: fugu"
    yield f"pipeline_tag: {TASK}"
    yield "tags:"
    for tag in dict.fromkeys([TASK, "deep-reinforcement-learning", "fugu", facts.algo, facts.env]):
        yield f"- {_text(tag)}"
    yield "model-index:"
    yield f"- name: {_text(facts.algo)}"
    if facts.score is None:
        yield "  results: []"
        return
    yield "  results:"
    yield f"  - task: {{type: {TASK}, name: {TASK}}}"
    yield f"    dataset: {{name: {_text(facts.env)}, type: {_text(facts.env)}}}"
    yield "    metrics:"
    yield "    - type: mean_reward"
    yield "      name: mean_reward"
    yield f"      value: {_text(str(facts.score))}"
    yield "      verified: false"


def _body(facts: Facts) -> Iterator[str]:
    yield f"# {facts.algo} on {facts.env}"
    yield ""
    yield f"A policy for `{facts.env}`, trained with {facts.algo} by fugu."
    if facts.score is not None:
        yield ""
        yield f"**Mean return {facts.score}** over {facts.score.episodes} episodes"
        yield f"({facts.score.source})."
    replays = sorted(name for name in facts.files if name.startswith("replay."))
    for name in replays:
        yield ""
        if name == VIDEO:
            link = f'<a href="{name}">{name}</a>'  # for readers that show no videos
            yield f'<video src="{name}" controls autoplay loop muted>{link}</video>'
        else:
            yield f"![how it plays]({name})"
    if CURVE in facts.files:
        yield ""
        yield f"![learning curve]({CURVE})"
    yield from _usage(facts)
    yield from _training(facts)


def _usage(facts: Facts) -> Iterator[str]:
    place, name = facts.place, facts.place.rstrip("/").rpartition("/")[2]
    yield "\n## Use it\n"
    yield "```python"
    yield "import fugu"
    yield ""
    yield f"agent = fugu.from_hub({_text(place)})"
    yield "print(agent.evaluate(episodes=10).to_dict())"
    yield "```\n"
    yield "```sh"
    yield 'pip install "fugu-rl[train,hub]"'
    yield f"fugu hub pull {place}                     # becomes runs/{name}"
    yield f"fugu eval {name}; fugu play {name}"
    yield f"fugu train {facts.env} --init-from {name}   # begin with its policy"
    yield f"fugu resume {name} --train.total-steps {2 * facts.steps}   # train it further"
    yield "```"


def _training(facts: Facts) -> Iterator[str]:
    yield "\n## Training\n"
    yield "| | |"
    yield "|---|---|"
    yield f"| run | `{facts.run}` |"
    yield f"| agent steps | {facts.steps:,} |"
    yield f"| time | {duration(facts.seconds)} |"
    yield f"| seed | {facts.config.get('seed', 0)} |"
    for name, version in facts.libraries.items():
        yield f"| {name} | {version} |"
    yield ""
    yield "<details><summary>Settings</summary>\n"
    yield "```json"
    yield values.dump(facts.config).decode().rstrip()
    yield "```\n"
    yield "</details>\n"
    yield "Weights are safetensors, and `checksums.json` has the SHA-256 of every file of the run;"
    yield "`fugu hub pull` verifies them and runs no code."


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
