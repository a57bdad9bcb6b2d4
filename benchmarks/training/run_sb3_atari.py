"""Stable-Baselines3's PPO on Pong, timed. Settings: vec, steps, warm, seconds, seed.

The game, its wrappers and the settings are those of RL Baselines3 Zoo. `vec` is its vector: "dummy"
steps one copy after the other and is the Zoo's; "subproc" has a process for each.
"""

from __future__ import annotations

from typing import Any

import ale_py  # registers its ids
import gymnasium
import torch
from run_sb3 import Watching
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack
from watching import Watch, read_settings

VECTORS: dict[str, Any] = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}
COPIES, HORIZON, EPOCHS, MINIBATCH, THREADS = 8, 128, 4, 256, 2


def main() -> None:
    """Train until the watch has seen enough."""
    settings = read_settings()
    seed = settings.get("seed", 0)
    gymnasium.register_envs(ale_py)
    torch.set_num_threads(THREADS)
    copies = make_atari_env(  # four frames a step, by its own wrapper
        "PongNoFrameskip-v4", COPIES, seed, vec_env_cls=VECTORS[settings["vec"]]
    )
    model = PPO(
        "CnnPolicy",
        VecFrameStack(copies, 4),
        n_steps=HORIZON,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=lambda left: 0.1 * left,
        vf_coef=0.5,
        ent_coef=0.01,
        seed=seed,
        device="cpu",
    )
    watch = Watch(settings)
    model.learn(10_000_000, callback=Watching(watch))
    watch.answer(
        parameters=sum(p.numel() for p in model.policy.parameters()),
        copies=COPIES,
        horizon=HORIZON,
        epochs=EPOCHS,
        minibatch=MINIBATCH,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
