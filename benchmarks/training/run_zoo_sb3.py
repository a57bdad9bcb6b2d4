"""One training of Stable-Baselines3's PPO for `zoo.py`, with tuned settings.

Settings: env, steps, seed, threads (0: torch chooses), episodes, settings (of `zoo_tasks.SB3`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from watching import answer, read_settings


def schedule(value: Any) -> Any:
    """Return a number, or what "lin_X" stands for: X at first, 0 at the end."""
    if not isinstance(value, str):
        return value
    first = float(value.removeprefix("lin_"))
    falls: Callable[[float], float] = lambda left: first * left  # noqa: E731
    return falls


class Ticker(BaseCallback):
    """Prints the steps so far every few seconds, and notes the returns of each rollout."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self._total, self._last = total, 0.0
        self._ended: list[float] = []
        self.returns: list[tuple[int, float, float]] = []
        self.marks: list[tuple[int, float]] = []  # steps and seconds at the end of each rollout

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        self._ended += [
            float(info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info
        ]
        if time.monotonic() - self._last > 2.0:
            self._last = time.monotonic()
            facts = {"steps": self.num_timesteps, "total": self._total}
            print("PROGRESS " + json.dumps(facts), flush=True)
        return True

    def _on_rollout_end(self) -> None:
        self.marks.append((self.num_timesteps, time.perf_counter() - self._began))
        if self._ended:
            mean = sum(self._ended) / len(self._ended)
            self.returns.append((self.num_timesteps, float(len(self._ended)), mean))
            self._ended = []


def make_model(settings: dict[str, Any]) -> tuple[PPO, VecEnv]:
    """Return the model and its environments."""
    given = dict(settings["settings"])
    vec: VecEnv = make_vec_env(settings["env"], n_envs=given.pop("n_envs"), seed=settings["seed"])
    if given.pop("normalize", False):
        vec = VecNormalize(vec, gamma=given.get("gamma", 0.99))
    network = dict(given.pop("policy_kwargs", {}))
    if "activation_fn" in network:
        network["activation_fn"] = getattr(torch.nn, network["activation_fn"])
    given = {name: schedule(value) for name, value in given.items()}
    model = PPO(
        "MlpPolicy", vec, device="cpu", seed=settings["seed"], policy_kwargs=network, **given
    )
    return model, vec


def main() -> None:
    """Train, evaluate, and answer."""
    settings = read_settings()
    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    model, vec = make_model(settings)
    ticker = Ticker(settings["steps"])
    began = time.perf_counter()
    model.learn(settings["steps"], callback=ticker)
    seconds = time.perf_counter() - began
    judge: VecEnv = make_vec_env(settings["env"], n_envs=1, seed=10_000 + settings["seed"])
    if isinstance(vec, VecNormalize):
        judge = VecNormalize(judge, training=False, norm_reward=False)
        judge.obs_rms = vec.obs_rms
    found, _ = evaluate_policy(
        model, judge, n_eval_episodes=settings["episodes"], return_episode_rewards=True
    )
    returns = torch.tensor(found, dtype=torch.float64)
    evaluation = {
        "episodes": len(found),
        "mean_return": float(returns.mean()),
        "deviation": float(returns.std()) if len(found) > 1 else 0.0,
        "lowest": float(returns.min()),
        "highest": float(returns.max()),
    }
    answer(
        marks=[ticker.marks[0], ticker.marks[-1]] if len(ticker.marks) > 1 else [],
        evaluation=evaluation,
        seconds=seconds,
        steps=model.num_timesteps,
        total_steps=settings["steps"],
        returns=ticker.returns,
    )


if __name__ == "__main__":
    main()
