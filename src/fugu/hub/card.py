"""The model card of a shared run, and the score that it reports."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fugu.hub.contents import CURVE, GIF, VIDEO
from fugu.store import values
from fugu.track.text import duration

_TASK = "reinforcement-learning"


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
                "task": {"type": _TASK, "name": _TASK},
                "dataset": {"type": env, "name": env},
                "metrics": [{**metric, "verified": False}],
            }
        ]
    metadata = {
        "library_name": "fugu",
        "pipeline_tag": _TASK,
        "tags": list(dict.fromkeys([_TASK, "deep-reinforcement-learning", "fugu", algo, env])),
        "model-index": [{"name": algo, "results": results}],
    }
    return json.dumps(metadata, indent=2, ensure_ascii=False)
