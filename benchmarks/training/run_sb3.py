"""Stable-Baselines3's PPO on CartPole, timed. Settings: variant, copies, goal, seconds, seed."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn
from watching import Watch, read_settings

SHORT = 8192  # steps of a rollout where only the rate counts
CHECK = 16  # calls between looks at the returns


class Shared(BaseFeaturesExtractor):
    """Two layers of 64 that actor and critic share, which its `net_arch` does not offer."""

    def __init__(self, space: gymnasium.Space) -> None:
        super().__init__(space, 64)
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def forward(self, observations: Tensor) -> Tensor:
        """`[batch, 4]` to `[batch, 64]`."""
        hidden: Tensor = self.layers(observations)
        return hidden


def arguments(variant: str, copies: int, solves: bool) -> dict[str, Any]:
    """What PPO is made with.

    With defaults and only the rate in question, rollouts are short: 2,048 steps of 1,024 copies
    take minutes, and its work for each step is the same.
    """
    if variant == "same":
        network = {"features_extractor_class": Shared, "net_arch": []}
        size = copies * 128 // 4
        return {"n_steps": 128, "batch_size": size, "n_epochs": 4, "policy_kwargs": network}
    if variant == "zoo":  # RL Baselines3 Zoo's tuning of CartPole-v1, for 8 copies
        return {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": lambda left: 0.001 * left,
            "clip_range": lambda left: 0.2 * left,
        }
    if variant == "tuned":  # the same as CleanRL's that solved it fastest, for 64 copies
        return {
            "n_steps": 32,
            "batch_size": 512,
            "n_epochs": 4,
            "ent_coef": 0.01,
            "learning_rate": lambda left: 0.001 * left,
        }
    return {} if solves else {"n_steps": max(1, SHORT // copies)}


class Watching(BaseCallback):
    """Asks the watch after each update; for returns, more often."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch, self._stops = watch, False

    def _on_rollout_start(self) -> None:
        if not self._watch.solves and self.num_timesteps:
            self._stops = self._watch.done(self.num_timesteps)

    def _on_step(self) -> bool:
        if self._watch.solves:
            for info in self.locals["infos"]:
                if "episode" in info:
                    self._watch.note(float(info["episode"]["r"]))
            if self.n_calls % CHECK == 0:
                self._stops = self._watch.done(self.num_timesteps)
        return not self._stops


def main() -> None:
    """Train until the watch has seen enough."""
    settings = read_settings()
    copies, variant, seed = settings["copies"], settings["variant"], settings.get("seed", 0)
    watch = Watch(settings)
    vec = make_vec_env("CartPole-v1", n_envs=copies, seed=seed)
    given = arguments(variant, copies, watch.solves)
    model = PPO("MlpPolicy", vec, device=torch.device("cpu"), seed=seed, **given)
    total = {"zoo": 100_000, "tuned": 500_000}.get(variant, 1_000_000) if watch.solves else 10**9
    model.learn(total, callback=Watching(watch))
    watch.answer(parameters=sum(p.numel() for p in model.policy.parameters()))


if __name__ == "__main__":
    main()
