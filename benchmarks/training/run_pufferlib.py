"""PufferLib 3.0's own trainer, timed. Settings: variant, copies, goal, seconds, seed.

CartPole runs in its serial vector, the fastest of its vectors on few cores; breakout is its C
environment in its native vector.
"""

from __future__ import annotations

import ast
import configparser
from pathlib import Path
from typing import Any

import gymnasium
import heavyball  # noqa: F401  imported late by the trainer; not to be timed
import pufferlib
import pufferlib.emulation
import pufferlib.models
import pufferlib.vector
import torch
from pufferlib import pufferl
from pufferlib.ocean.breakout import breakout
from torch import Tensor, nn
from watching import Watch, read_settings

VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "same": {"bptt_horizon": 128, "update_epochs": 4, "optimizer": "adam", "learning_rate": 2.5e-4},
    "tuned": {
        "bptt_horizon": 32,
        "update_epochs": 4,
        "minibatch_size": 512,
        "vf_coef": 0.5,
        "total_timesteps": 500_000,
    },
    "mlp": {},
    "lstm": {},
}


class Shared(nn.Module):
    """Two layers of 64 with tanh that actor and critic share."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, observations: Tensor, state: Any = None) -> tuple[Tensor, Tensor]:
        """Logits and values."""
        hidden = self.layers(observations)
        return self.actor(hidden), self.critic(hidden)

    forward_eval = forward


def cartpole(buf: Any = None, seed: int = 0) -> Any:
    """Gymnasium's CartPole in its emulation."""
    env = pufferlib.EpisodeStats(gymnasium.make("CartPole-v1"))
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf, seed=seed)


def config(name: str) -> dict[str, Any]:
    """The `[train]` section of one of its files."""
    parser = configparser.ConfigParser()
    parser.read(Path(pufferlib.__file__).parent / "config" / name)
    found = {}
    for key, text in parser["train"].items():
        try:
            found[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            found[key] = text
    return found


def make(settings: dict[str, Any]) -> tuple[Any, nn.Module, dict[str, Any]]:
    """Environments, policy and settings of a trainer."""
    copies, variant = settings["copies"], settings["variant"]
    given = {**config("default.ini"), "device": "cpu", "checkpoint_interval": 10**9}
    given |= {"total_timesteps": 10**9, "use_rnn": variant == "lstm", "env": "benchmark"}
    if variant in ("mlp", "lstm"):
        given |= {**config("ocean/breakout.ini"), "total_timesteps": 10**9}
        vec = breakout.Breakout(num_envs=copies)
        policy: nn.Module = pufferlib.models.Default(vec)
        if variant == "lstm":
            vec.agents_per_batch = copies  # the trainer asks; its native vector does not say
            policy = pufferlib.models.LSTMWrapper(vec, policy)
        return vec, policy, given
    vec = pufferlib.vector.make(cartpole, backend=pufferlib.vector.Serial, num_envs=copies)
    if settings["goal"] == "solve":
        given["total_timesteps"] = 1_000_000
    given |= VARIANTS[variant]
    batch = copies * given["bptt_horizon"]
    if variant == "same":
        given["minibatch_size"] = batch // 4
    given["minibatch_size"] = min(given["minibatch_size"], batch)
    policy = Shared() if variant == "same" else pufferlib.models.Default(vec.driver_env)
    return vec, policy, given


def main() -> None:
    """Train until the watch has seen enough."""
    settings = read_settings()
    torch.manual_seed(settings.get("seed", 0))
    pufferl.PuffeRL.print_dashboard = lambda *_, **__: None
    watch = Watch(settings)
    vec, policy, given = make(settings)
    trainer = pufferl.PuffeRL({**given, "seed": settings.get("seed", 0)}, vec, policy)
    while True:
        trainer.evaluate()
        for value in trainer.stats.pop("episode_return", []):
            watch.note(float(value))
        trainer.train()
        if watch.done(trainer.global_step):
            break
        if watch.solves and trainer.global_step >= given["total_timesteps"]:
            break
    watch.answer(parameters=sum(p.numel() for p in policy.parameters()))


if __name__ == "__main__":
    main()
