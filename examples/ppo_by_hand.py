"""PPO on CartPole from fugu's parts, without its trainer: the loop is yours to change.

    python examples/ppo_by_hand.py

Environments step in native threads, a policy acts, experience goes into segments, PPO learns.
"""

from __future__ import annotations

import numpy as np
import torch

import fugu
from fugu.algos.optimizers import OptimizerConfig, make_optimizer
from fugu.algos.ppo import Critics, PPOConfig, PPOLearner
from fugu.data.segments import Segments, SegmentShape
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import make_policy

NUM_ENVS, TOTAL_STEPS = 64, 150_000


def main() -> float:
    """Train, and return the mean return of the last episodes."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    vec = fugu.make("cartpole", NUM_ENVS)
    (group,) = vec.groups
    policy = make_policy(group, PolicyConfig(hidden_size=64))
    cfg = PPOConfig(horizon=32)
    optimizer = make_optimizer(policy, OptimizerConfig("adamw", 0.003))
    learner = PPOLearner(policy, optimizer, Critics(cfg), random)
    segments = Segments(group, SegmentShape(NUM_ENVS, NUM_ENVS, cfg.horizon, 1))
    states = np.zeros((NUM_ENVS, 0), np.float32)  # of a policy without memory
    returns: list[float] = []
    vec.async_reset(seed=0)
    for step in range(0, TOTAL_STEPS, NUM_ENVS):
        batch = vec.recv()
        rows, agents = batch.groups[0].rows, batch.agent_ids
        returns += [info["episode_return"] for (info,) in batch.infos.values()]
        segments.record_reward(
            agents, rows.rewards, rows.terminations, rows.truncations, rows.valid, rows.live
        )
        with torch.no_grad():
            cut = rows.truncations  # bootstrapped from the value of the last observation
            _, final, _ = policy(torch.from_numpy(rows.final[cut]), torch.zeros(int(cut.sum()), 0))
            segments.bootstrap(agents[cut], final.numpy())
            params, values, _ = policy(torch.from_numpy(rows.observations), torch.zeros(64, 0))
        samples, logs = policy.distribution.sample(params, None, random)
        predicted = values.numpy()
        segments.record_step(
            agents, rows.observations, rows.action_masks, samples, logs, predicted, states
        )
        vec.send(policy.distribution.to_rows(samples), agents)  # they step while we learn
        if segments.full:
            progress = step / TOTAL_STEPS
            for parameters in learner.optimizer.param_groups:
                parameters["lr"] = 0.003 * (1 - progress)
            learner.update(segments, progress, reward_divisor=20.0)
            if returns:
                print(f"{step:7,} steps: mean return {np.mean(returns[-100:]):.1f}")
    vec.close()
    return float(np.mean(returns[-50:]))


if __name__ == "__main__":
    main()
