"""`fugu eval`: how well does a trained policy play?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.cli.parsing import ActingOptions, RunName
from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Evaluate(ActingOptions):
    """Play episodes with a run's policy and say what they came to."""

    name: RunName
    """The run: its name, the beginning of it, its folder, or latest."""
    episodes: int = 100
    """Episodes of single agents to play, the same number of each agent of each copy."""
    max_episode_steps: int = 100_000
    """Environment steps after which an episode that does not end is counted as truncated."""
    seed: int = 0
    """Of the environments and of the actions."""
    video: Path | None = None
    """Write a video of it too: FILE.mp4 or FILE.gif."""
    target: tuple[float, ...] = ()
    """Ask for these returns, one after the other, if the policy can be asked (a Decision
    Transformer); it says itself what to aim at if none is given."""
    plot: Path | None = None
    """Draw what was asked for and what was achieved: FILE.png, .svg or .pdf."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> int:
        """Evaluate; 0 if it went well."""
        if self.plot is not None and not self.target:
            raise UsageError("plot: given without targets; allowed: with --target R ...")
        if self.target:
            self._ask()
            return 0
        from fugu.training.evaluate import evaluate

        found = evaluate(self.name, **self._options()).to_dict()
        if self.video is not None:
            self._record(self.video)
        if self.json:
            print(json.dumps(found))
        else:
            print(_sentence(found))
        return 0

    def _options(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes,
            "root": self.runs,
            "best": self.best,
            "greedy": not self.sample,
            "seed": self.seed,
            "max_episode_steps": self.max_episode_steps,
            "trust": self.trust,
        }

    def _ask(self) -> None:
        from fugu.track.curves import check_picture
        from fugu.training.target_returns import draw_targets, evaluate_targets, rank_correlation

        if self.video is not None:
            raise UsageError("video: given with targets; allowed: without them.")
        if self.plot is not None:
            check_picture(self.plot)
        achieved = evaluate_targets(self.name, self.target, **self._options())
        told = [each.to_dict() for each in achieved]
        correlation = rank_correlation(self.target, [each["mean_return"] for each in told])
        if self.plot is not None:
            draw_targets(achieved, self.plot)
        if self.json:
            print(json.dumps({"targets": told, "rank_correlation": correlation}))
            return
        for each in told:
            print(f"asked for {each['target']:.4g}: {_sentence(each)}")
        if len(told) > 1:
            print(f"rank correlation of asked and achieved: {correlation:.3f}")

    def _record(self, out: Path) -> None:
        from fugu.cli.subjects import load_agent
        from fugu.store.run import Run
        from fugu.vector.recording import record

        agent = load_agent(Run.open(self.name, self.runs), self)
        with agent.make(1, backend="serial") as vec:
            policy = agent.players(vec, greedy=not self.sample, seed=self.seed)
        cfg, seed = agent.config, self.seed
        record(cfg.env, out, policy=policy, steps=600, seed=seed, env_kwargs=cfg.env_kwargs)


def _sentence(found: dict[str, Any]) -> str:
    more = "".join(f", {name} {found[name]:.4g}" for name in found if "mean_cost" in name)
    if "is_success" in found:
        whose = " of the episodes that ended" if found["cut_off"] else ""
        more += f", success rate {found['is_success']:.1%}{whose}"
    if found["cut_off"]:
        more += f"; {found['cut_off']} did not end and were cut off (--max-episode-steps)"
    return (
        f"{found['episodes']} episodes: return {found['mean_return']:.4g} "
        f"(deviation {found['deviation']:.3g}, {found['lowest']:.4g} to "
        f"{found['highest']:.4g}), length {found['mean_length']:.4g}{more}"
    )
