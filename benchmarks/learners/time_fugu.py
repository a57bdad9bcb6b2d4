"""fugu's other algorithms, timed. Settings: row, seconds, data; see `training/watching.py`.

python benchmarks/learners/time_fugu.py '{"row": "dreamer", "seconds": 10}'
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import torch
from gymnasium.spaces import Discrete
from losses import ADVANTAGE_SEED, EPISODES, STEPS, TOKENS, measure_loss
from run_fugu import products
from watching import Watch, answer, read_settings

import fugu
from fugu.algos.grpo import GRPOConfig, Minibatch, objective
from fugu.policies.distribution import ActionDistribution
from fugu.spaces import Layout
from fugu.training.session import Progress, Trainer

ROWS: dict[str, dict[str, Any]] = {
    "decision_transformer": {
        "env": "CartPole-v1",
        "algo": "decision_transformer",
        "vec": {"num_envs": 1, "backend": "serial"},
        "train": {"batch_size": 64, "batches": 10, "total_steps": 10**9},
        "policy": {"hidden_size": 128, "blocks": 3, "heads": 1, "window": 20},
    },
    "dreamer": {
        "env": "CartPole-v1",
        "preset": "1m",
        "vec": {"num_envs": 4, "backend": "serial"},
        "train": {"train_ratio": 1024.0, "update_every": 4, "total_steps": 10**9},
    },
    "safe_ppo": {
        "env": "hazard_grid",
        "algo": "safe_ppo",
        "vec": {"num_envs": 1024},
        "train": {"total_steps": 10**9},
    },
    "mappo": {
        "env": "simple_spread",
        "algo": "mappo",
        "vec": {"num_envs": 128},
        "train": {"horizon": 25, "total_steps": 10**9},
    },
}


def grpo(seconds: float) -> None:
    """The loss of given logits and its gradient."""
    distribution = ActionDistribution(Layout(Discrete(TOKENS)))
    cfg = GRPOConfig(clip_high=0.28, length="group", entropy_coefficient=0.0)

    def loss(logits: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        samples = inputs["chosen"].flatten().float().unsqueeze(-1)
        log_probabilities, entropies = distribution.evaluate(logits.flatten(0, 1), samples, None)
        shape = EPISODES, STEPS
        batch = Minibatch(
            observations=logits,
            samples=samples,
            masks=None,
            old_log_probabilities=inputs["old"],
            reference_log_probabilities=None,
            advantages=inputs["advantages"].unsqueeze(1).expand(shape),
            weights=torch.full(shape, 1.0 / STEPS),
        )
        found, _ = objective(
            log_probabilities.view(shape), entropies.view(shape), batch, cfg, EPISODES
        )
        return found

    answer(**measure_loss(loss, seconds, ADVANTAGE_SEED))


def main() -> None:
    """Train until the watch has seen enough."""
    settings = read_settings()
    row, seconds = settings["row"], settings["seconds"]
    if row == "grpo":
        grpo(seconds)
    watch = Watch({"goal": "rate", "seconds": seconds})
    chosen = copy.deepcopy(ROWS[row])
    if row == "decision_transformer":
        chosen["train"]["data"] = Path(settings["data"])
    told: dict[str, Any] = {}

    def after_update(trainer: Trainer, progress: Progress) -> None:
        if not told and row in ("safe_ppo", "mappo"):
            told.update(products(trainer))
        told.setdefault("parameters", sum(p.numel() for p in trainer.policies[0].parameters()))
        steps = progress.steps
        if row == "decision_transformer":  # what counts is steps of the optimiser
            told["updates"] = steps = told.get("updates", 0) + trainer.cfg.train.batches
        trainer.stopping = watch.done(steps)

    fugu.train(chosen.pop("env"), keep=False, show=False, callbacks=[after_update], **chosen)
    watch.answer(**told)


if __name__ == "__main__":
    main()
