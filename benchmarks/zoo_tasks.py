"""The tasks of `zoo.py`: environments, steps, and published scores to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fugu.envs import suite
from fugu.zoo.publish import name_of

Group = Literal["table", "heldout", "native"]
SOURCE = (
    "rl-baselines3-zoo, benchmark.md: tuned PPO of Stable-Baselines3, one training each "
    "(MuJoCo: version 3 of the environments; LunarLander: version 2)"
)


@dataclass(frozen=True)
class Task:
    """One environment to train on without flags.

    Attributes:
        env: As given to `fugu train`.
        group: Tasks with published scores, tasks that no default was tuned on, or native ones.
        steps: Number of steps; None: what the settings of the environment say.
        published: Published mean return of greedy episodes; None if there is none.
        published_steps: Steps of the published training, where they differ.
        evaluation: Arguments of the environment in evaluations only.
    """

    env: str
    group: Group
    steps: int | None = None
    published: float | None = None
    published_steps: int | None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its folder of results, of its picture and in the zoo."""
        return name_of(self.env)


def all_tasks() -> dict[str, Task]:
    """Return every task by the environment's name."""
    native = [Task(name, "native") for name in suite.names()]
    return {task.env: task for task in (*_TABLE, *_HELDOUT, *native)}


_TABLE = (
    Task("CartPole-v1", "table", 100_000, 500.0),
    Task("Acrobot-v1", "table", 1_000_000, -73.5),
    Task("MountainCar-v0", "table", 1_000_000, -110.4),
    Task("MountainCarContinuous-v0", "table", 100_000, 88.3, published_steps=20_000),
    Task("Pendulum-v1", "table", 100_000, -172.2),
    Task("LunarLander-v3", "table", 1_000_000, 242.1),
    Task("LunarLanderContinuous-v3", "table", 1_000_000, 270.9),
    Task("HalfCheetah-v5", "table", 1_000_000, 5819.1),
    Task("Walker2d-v5", "table", 1_000_000, 3478.8),
    Task("Hopper-v5", "table", 1_000_000, 2410.4),
    Task("Swimmer-v5", "table", 1_000_000, 281.6),
    Task("Ant-v5", "table", 1_000_000, 1327.2),
    Task("BipedalWalker-v3", "table", 1_000_000, 213.3, published_steps=5_000_000),
)
_HELDOUT = (
    Task("minigrid:DoorKey-5x5", "heldout"),
    Task("FrozenLake8x8-v1", "heldout"),
    Task("Taxi-v3", "heldout"),
    # Without a limit, a greedy policy that walks in circles would never end its episode.
    Task("CliffWalking-v1", "heldout", evaluation={"max_episode_steps": 1000}),
    Task("InvertedDoublePendulum-v5", "heldout", 1_000_000),
    Task("Reacher-v5", "heldout", 1_000_000),
    Task("Humanoid-v5", "heldout", 1_000_000),
    Task("ALE/Pong-v5", "heldout"),
)

# ---------------------------------------------------------------------- Stable-Baselines3


def _mujoco(**more: Any) -> dict[str, Any]:
    """Return tuned settings of a MuJoCo body with a wide network."""
    network = {"log_std_init": -2.0, "ortho_init": False, "activation_fn": "ReLU"}
    network["net_arch"] = {"pi": [256, 256], "vf": [256, 256]}
    return {"normalize": True, "n_envs": 1, "policy_kwargs": network, **more}


_LUNAR_LANDER = {
    "n_envs": 16,
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}
# Tuned settings of PPO, facts of rl-baselines3-zoo's hyperparams/ppo.yml. `normalize` stands for
# VecNormalize; "lin_X" falls linearly from X to 0. What is not named is SB3's default.
SB3: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "n_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "gae_lambda": 0.8,
        "gamma": 0.98,
        "n_epochs": 20,
        "ent_coef": 0.0,
        "learning_rate": "lin_0.001",
        "clip_range": "lin_0.2",
    },
    "Acrobot-v1": {
        "normalize": True,
        "n_envs": 16,
        "n_steps": 256,
        "gae_lambda": 0.94,
        "gamma": 0.99,
        "n_epochs": 4,
        "ent_coef": 0.0,
    },
    "MountainCar-v0": {
        "normalize": True,
        "n_envs": 16,
        "n_steps": 16,
        "gae_lambda": 0.98,
        "gamma": 0.99,
        "n_epochs": 4,
        "ent_coef": 0.0,
    },
    "MountainCarContinuous-v0": {
        "normalize": True,
        "n_envs": 1,
        "n_steps": 8,
        "batch_size": 256,
        "gae_lambda": 0.9,
        "gamma": 0.9999,
        "n_epochs": 10,
        "ent_coef": 0.00429,
        "learning_rate": 7.77e-05,
        "clip_range": 0.1,
        "max_grad_norm": 5,
        "vf_coef": 0.19,
        "use_sde": True,
        "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
    },
    "Pendulum-v1": {
        "n_envs": 4,
        "n_steps": 1024,
        "gae_lambda": 0.95,
        "gamma": 0.9,
        "n_epochs": 10,
        "ent_coef": 0.0,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
        "use_sde": True,
        "sde_sample_freq": 4,
    },
    "LunarLander-v3": _LUNAR_LANDER,
    "LunarLanderContinuous-v3": _LUNAR_LANDER,
    "HalfCheetah-v5": _mujoco(
        batch_size=64,
        n_steps=512,
        gamma=0.98,
        learning_rate=2.0633e-05,
        ent_coef=0.000401762,
        clip_range=0.1,
        n_epochs=20,
        gae_lambda=0.92,
        max_grad_norm=0.8,
        vf_coef=0.58096,
    ),
    "Walker2d-v5": {
        "normalize": True,
        "n_envs": 1,
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.99,
        "learning_rate": 5.05041e-05,
        "ent_coef": 0.000585045,
        "clip_range": 0.1,
        "n_epochs": 20,
        "gae_lambda": 0.95,
        "max_grad_norm": 1,
        "vf_coef": 0.871923,
    },
    "Hopper-v5": _mujoco(
        batch_size=32,
        n_steps=512,
        gamma=0.999,
        learning_rate=9.80828e-05,
        ent_coef=0.00229519,
        clip_range=0.2,
        n_epochs=5,
        gae_lambda=0.99,
        max_grad_norm=0.7,
        vf_coef=0.835671,
    ),
    "Swimmer-v5": {"normalize": True, "n_envs": 1, "gamma": 0.9999},
    "Ant-v5": {"normalize": True, "n_envs": 1},
    "BipedalWalker-v3": {
        "normalize": True,
        "n_envs": 32,
        "n_steps": 2048,
        "batch_size": 64,
        "gae_lambda": 0.95,
        "gamma": 0.999,
        "n_epochs": 10,
        "ent_coef": 0.0,
        "learning_rate": 3e-4,
        "clip_range": 0.18,
    },
    "InvertedDoublePendulum-v5": {
        "normalize": True,
        "n_envs": 1,
        "batch_size": 512,
        "n_steps": 128,
        "gamma": 0.98,
        "learning_rate": 0.000155454,
        "ent_coef": 1.05057e-06,
        "clip_range": 0.4,
        "n_epochs": 10,
        "gae_lambda": 0.8,
        "max_grad_norm": 0.5,
        "vf_coef": 0.695929,
    },
    "Reacher-v5": {
        "normalize": True,
        "n_envs": 1,
        "batch_size": 32,
        "n_steps": 512,
        "gamma": 0.9,
        "learning_rate": 0.000104019,
        "ent_coef": 7.52585e-08,
        "clip_range": 0.3,
        "n_epochs": 5,
        "gae_lambda": 1.0,
        "max_grad_norm": 0.9,
        "vf_coef": 0.950368,
    },
    "Humanoid-v5": _mujoco(
        batch_size=256,
        n_steps=512,
        gamma=0.95,
        learning_rate=3.56987e-05,
        ent_coef=0.00238306,
        clip_range=0.3,
        n_epochs=5,
        gae_lambda=0.9,
        max_grad_norm=2,
        vf_coef=0.431892,
    ),
}
