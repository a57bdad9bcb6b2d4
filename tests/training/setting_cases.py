"""For every setting of every algorithm: two values that must give different weights, or a reason.

`Differ` says that short runs end with different weights if they differ in that setting alone;
`Alike` that they end with the same ones, since the setting only says who computes them or where;
`Excused` names the test that covers the setting instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Tree = dict[str, Any]


@dataclass(frozen=True)
class Differ:
    """Two values of a setting, and all else that both runs need.

    Attributes:
        first: A value.
        second: Another; runs with the two must end with different weights.
        given: Settings of both, by their dotted names.
        env: The environment of both; the algorithm's own if empty.
        torch_only: Why the native core refuses what both need; empty: it must notice too.
    """

    first: Any
    second: Any
    given: Tree = field(default_factory=dict)
    env: str | Callable[[], Any] = ""
    torch_only: str = ""


@dataclass(frozen=True)
class Alike(Differ):
    """The same, of runs that must end with equal weights."""


@dataclass(frozen=True)
class Excused:
    """Why two short runs cannot tell the values apart.

    Attributes:
        reason: Said in words.
        test: The file of the test that covers the setting, from the project's folder.
    """

    reason: str
    test: str


Case = Differ | Excused


class FreeCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that costs where the cart is right of the middle, and where its pole leans."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        """One step, with its costs in the info."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        costs = {"cost": float(seen[0] > 0), "cost_lean": abs(float(seen[2]))}
        return seen, reward, terminated, truncated, {**info, **costs}


class Pictures(gymnasium.Env[Any, Any]):
    """Random images of 84 by 84; the reward is the action."""

    observation_space = spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        """End it once in a while."""
        return self._look(), float(action), bool(self.np_random.random() < 0.1), False, {}

    def _look(self) -> Any:
        return self.np_random.integers(0, 256, (84, 84, 1), np.uint8)


# What runs have that a case says nothing about. Episodes end within them.
RUNS: dict[str, Tree] = {
    "ppo": {
        "env": "cartpole",
        "vec.num_envs": 8,
        "train.horizon": 16,
        "train.total_steps": 6 * 128,
        "train.learning_rate": 0.01,
        "train.threads": 1,
        "policy.hidden_size": 16,
    },
    "safe_ppo": {
        "env": "constrained_cartpole",
        "vec.num_envs": 8,
        "train.horizon": 16,
        "train.total_steps": 6 * 128,
        "train.learning_rate": 0.01,
        "train.threads": 1,
        "train.cost_limit": 0.5,
        "policy.hidden_size": 16,
    },
    "mappo": {
        "env": "simple_spread",
        "vec.num_envs": 4,
        "train.horizon": 16,
        "train.total_steps": 4 * 192,
        "train.learning_rate": 0.01,
        "train.threads": 1,
        "policy.hidden_size": 16,
    },
    "grpo": {
        "env": "cartpole",
        "vec.num_envs": 8,
        "vec.group_size": 4,
        "train.teams": 4,
        "train.total_steps": 1500,
        "train.learning_rate": 0.01,
        "train.threads": 1,
        "policy.hidden_size": 16,
    },
    "dreamer": {
        "env": "cartpole",
        "vec.num_envs": 4,
        "train.batch_size": 3,
        "train.batch_length": 6,
        "train.imagination_starts": 3,
        "train.imagination_length": 3,
        "train.prefill": 64,
        "train.update_every": 16,
        "train.train_ratio": 4.0,
        "train.replay_size": 2000,
        "train.total_steps": 160,
        "train.warmup_steps": 4,
        "policy.deter": 16,
        "policy.hidden": 8,
        "policy.stoch": 4,
        "policy.classes": 4,
        "policy.blocks": 4,
        "policy.units": 8,
        "policy.layers": 1,
        "policy.depth": 2,
    },
    "decision_transformer": {
        "env": "cartpole",
        "train.data": "cartpole",
        "train.batch_size": 8,
        "train.batches": 3,
        "train.total_steps": 6 * 100,
        "train.threads": 1,
        "policy.hidden_size": 16,
        "policy.blocks": 1,
        "policy.window": 5,
    },
}

_SAME_NUMBERS = "It says who computes the same numbers, to the last digits."
_OPTIONS, _ENGINES = "tests/training/test_options.py", "tests/training/test_native_engine.py"
_RECALLING, _UNUSED = "tests/training/test_recalling.py", "tests/training/test_unused_settings.py"
_REFUSED = "The algorithm cannot use it, and refuses it."
_TOKENS = "It needs an environment of tokens."

LEARNING: dict[str, Case] = {
    "train.total_steps": Differ(400, 800),
    "train.optimiser": Differ("adamw", "muon"),
    "train.learning_rate": Differ(0.01, 0.02),
    "train.schedule": Differ("linear", "cosine"),
    "train.final_learning_rate": Differ(0.0, 0.5, {"train.schedule": "linear"}),
    "train.warmup": Differ(0.0, 0.9, {"train.schedule": "constant"}),
    "train.weight_decay": Differ(0.0, 0.1),
    "train.adam_beta1": Differ(0.9, 0.5, {"train.optimiser": "adamw"}),
    "train.adam_beta2": Differ(0.999, 0.9, {"train.optimiser": "adamw"}),
    "train.adam_eps": Differ(1e-5, 1e-2, {"train.optimiser": "adamw"}),
    "train.momentum": Differ(0.95, 0.5, {"train.optimiser": "muon"}),
    "train.cpu_offload": Alike(False, True),
    "train.compile": Excused(_SAME_NUMBERS, _OPTIONS),
    "train.threads": Excused(_SAME_NUMBERS, _OPTIONS),
    "train.deterministic": Alike(False, True),
}

_FAST: Tree = {"train.learning_rate": 0.05}
_VTRACE: Tree = {"train.advantage": "vtrace", **_FAST}

PPO_TRAIN: dict[str, Case] = {
    **LEARNING,
    "train.horizon": Differ(16, 8),
    "train.rows": Differ(0, 4),
    "train.epochs": Differ(2, 3),
    "train.replay_ratio": Differ(None, 2.5),
    "train.minibatches": Differ(4, 2),
    "train.draw": Differ("rows", "steps"),
    "train.microbatch": Alike(0, 48, torch_only="the native learner has tiles of its own"),
    "train.gamma": Differ(0.99, 0.9),
    "train.lambda_": Differ(0.95, 0.5),
    "train.advantage": Differ("gae", "vtrace"),
    "train.rho_clip": Differ(1.0, 0.5, _VTRACE),
    "train.c_clip": Differ(1.0, 0.5, _VTRACE),
    "train.first_ratios": Differ("one", "measured", {"train.rows": 4, **_VTRACE}),
    "train.clip": Differ(0.2, 0.01),
    "train.value_clip": Differ(0.2, 0.01, {"train.value_loss": "clipped"}),
    "train.value_loss": Differ("mse", "clipped", {"train.value_clip": 0.01}),
    "train.huber_delta": Differ(10.0, 0.1, {"train.value_loss": "huber"}),
    "train.value_coefficient": Differ(0.5, 0.1),
    "train.entropy_coefficient": Differ(0.01, 0.1),
    "train.final_entropy_coefficient": Differ(None, 0.0, {"train.entropy_coefficient": 0.1}),
    "train.normalise_advantages": Differ(True, False),
    "train.advantage_std_min": Differ(0.0, 10.0),
    "train.alpha": Differ(0.0, 1.0),
    "train.beta": Differ(0.4, 0.9, {"train.alpha": 1.0}),
    "train.priorities": Differ("corrected", "published", {"train.alpha": 1.0}),
    "train.target_kl": Differ(None, 1e-5, _FAST),
    "train.desired_kl": Differ(None, 1e-4),
    "train.final_desired_kl": Differ(None, 1e-6, {"train.desired_kl": 0.01}),
    "train.normalise_rewards": Differ(True, False, {"train.normalise_advantages": False}),
    "train.reward_clip": Differ(None, 0.1, {"train.normalise_advantages": False}),
    "train.intrinsic": Differ("none", "rnd"),
    "train.intrinsic_coef": Differ(0.5, 0.1, {"train.intrinsic": "rnd"}),
    "train.intrinsic_end": Differ(0.5, 0.9, {"train.intrinsic": "rnd"}),
    "train.max_gradient_norm": Differ(0.5, 0.01),
    "train.best_episodes": Differ(0, 4),
    "train.best_coefficient": Differ(0.1, 1.0, {"train.best_episodes": 4}),
    "train.loss": Excused("A function of one's own.", "tests/algos/test_custom_loss.py"),
    "train.engine": Excused(_SAME_NUMBERS, _ENGINES),
}

POLICY: dict[str, Case] = {
    "policy.encoder": Differ(
        "nature", "impala", {"vec.num_envs": 4}, Pictures, "of the kind permute"
    ),
    "policy.hidden_size": Differ(16, 8),
    "policy.layers": Differ(1, 2),
    "policy.activation": Differ("relu", "tanh"),
    "policy.core": Differ("none", "lstm"),
    "policy.window": Differ(2, 8, {"policy.core": "transformer"}, torch_only="of the kind attend"),
    "policy.critic": Differ("shared", "own"),
    "policy.continuous": Differ("clipped", "tanh", {}, "pendulum", "squashed by a tanh"),
    "policy.log_std": Differ(0.0, -1.0, env="pendulum"),
    "policy.recall": Excused(_TOKENS, _RECALLING),
    "policy.recall_length": Excused(_TOKENS, _RECALLING),
    "policy.recall_worth": Excused(_TOKENS, _RECALLING),
    "policy.normalise": Differ(False, True),
    "policy.precision": Differ("float32", "bfloat16"),
    "policy.engine": Excused(_SAME_NUMBERS, "tests/training/test_forwards.py"),
}

_PID: Tree = {"train.multiplier": "pid"}
_STEEP: Tree = {"train.multiplier_rate": 0.5}
_LONG: Tree = {"train.horizon": 64}  # whole episodes of simple_spread
_REFUSED_RND: dict[str, Case] = {
    name: Excused(_REFUSED, _UNUSED)
    for name in ("train.intrinsic", "train.intrinsic_coef", "train.intrinsic_end", "train.loss")
}

SAFE_PPO: dict[str, Case] = {
    **PPO_TRAIN,
    **POLICY,
    **_REFUSED_RND,
    "policy.encoder": Excused("The same code as PPO's.", "tests/policies"),
    "policy.continuous": Excused("The same code as PPO's.", "tests/policies"),
    "policy.log_std": Excused("The same code as PPO's.", "tests/policies"),
    "train.costs": Differ(("cost",), ("cost_lean",), env=FreeCartPole),
    "train.cost_limit": Differ(0.5, 50.0),
    "train.final_cost_limit": Differ(None, 50.0),
    "train.cost_gamma": Differ(None, 0.5),
    "train.cost_lambda": Differ(None, 0.5),
    "train.normalise_costs": Differ(True, False),
    "train.multiplier": Differ("lagrange", "pid"),
    "train.initial_multiplier": Differ(1.0, 0.1),
    "train.multiplier_cap": Differ(
        100.0, 1.0, {"env_kwargs.x_safe": 0.0, "train.cost_limit": 0.0, **_STEEP}
    ),
    "train.multiplier_rate": Differ(0.035, 0.5),
    "train.pid_proportional": Differ(0.1, 1.0, _PID),
    "train.pid_integral": Differ(0.01, 1.0, _PID),
    "train.pid_derivative": Differ(0.01, 1.0, {**_PID, "train.pid_delay": 1}),
    "train.pid_smoothing": Differ(0.95, 0.1, _PID),
    "train.pid_delay": Differ(10, 1, {**_PID, "train.pid_derivative": 1.0}),
}

MAPPO: dict[str, Case] = {
    **PPO_TRAIN,
    **POLICY,
    **_REFUSED_RND,
    "policy.encoder": Excused("The same code as PPO's.", "tests/policies"),
    "policy.continuous": Excused("The same code as PPO's.", "tests/policies"),
    "policy.log_std": Excused("The same code as PPO's.", "tests/policies"),
    "policy.critic": Excused(_REFUSED, _UNUSED),
    "policy.recall": Excused(_REFUSED, _UNUSED),
    "train.critic": Differ("central", "local"),
    "train.state": Excused("It needs an environment with a state.", "tests/algos/test_mappo.py"),
    "train.own_observation": Differ(True, False),
    "train.agent_ids": Differ(True, False),
    "train.share_parameters": Differ(True, False),
    "train.normalise_values": Differ(True, False),
    "train.time_limits": Differ("bootstrap", "end"),
    "train.beta": Differ(0.4, 0.9, {"train.alpha": 1.0, "train.minibatches": 4}),
    "train.priorities": Differ(
        "corrected", "published", {"train.alpha": 1.0, "train.minibatches": 4}
    ),
    "train.best_episodes": Differ(0, 4, _LONG),
    "train.best_coefficient": Differ(0.1, 1.0, {"train.best_episodes": 4, **_LONG}),
}

GRPO: dict[str, Case] = {
    **LEARNING,
    **POLICY,
    "train.cpu_offload": Excused(_REFUSED, _UNUSED),
    "policy.critic": Excused(_REFUSED, _UNUSED),
    "train.teams": Differ(4, 2),
    "train.advantages": Differ("outcome", "process"),
    "train.gamma": Differ(1.0, 0.9, {"train.advantages": "process"}),
    "train.normalise_std": Differ(True, False),
    "train.length": Differ("episode", "constant"),
    "train.constant_length": Differ(500, 50, {"train.length": "constant"}),
    "train.clip_low": Differ(0.2, 0.01, _FAST),
    "train.clip_high": Differ(0.2, 0.01, _FAST),
    "train.dynamic_sampling": Excused(
        "Teams of equal returns are rare.", "tests/algos/test_grpo.py"
    ),
    "train.most_sampling": Excused("Teams of equal returns are rare.", "tests/algos/test_grpo.py"),
    "train.beta": Differ(0.0, 1.0, _FAST),
    "train.entropy_coefficient": Differ(0.0, 0.1),
    "train.final_entropy_coefficient": Differ(None, 0.0, {"train.entropy_coefficient": 0.5}),
    "train.epochs": Differ(2, 3),
    "train.minibatches": Differ(4, 2),
    "train.microbatch": Alike(4096, 48),
    "train.max_gradient_norm": Differ(0.5, 0.01),
    "train.ahead": Differ(16, 1),
    "train.longest": Excused(
        "It ends the run with an error.", "tests/training/test_grpo_engine.py"
    ),
    "train.reward_model": Excused("It needs a model.", "tests/training/test_grpo_engine.py"),
}

DREAMER: dict[str, Case] = {
    **LEARNING,
    "train.total_steps": Differ(128, 160),
    "train.optimiser": Differ("laprop", "adamw"),
    "train.warmup": Differ(0.0, 0.9),
    "train.cpu_offload": Excused(_REFUSED, _UNUSED),
    "train.train_ratio": Differ(4.0, 8.0),
    "train.batch_size": Differ(3, 4),
    "train.batch_length": Differ(6, 5),
    "train.replay_size": Differ(2000, 64),
    "train.online": Differ(True, False),
    "train.prefill": Differ(64, 96),
    "train.update_every": Differ(16, 32),
    "train.warmup_steps": Differ(4, 0),
    "train.imagination_length": Differ(3, 4),
    "train.imagination_starts": Differ(3, 2),
    "train.discount_horizon": Differ(333.0, 3.0),
    "train.lambda_": Differ(0.95, 0.5),
    "train.entropy_coefficient": Differ(3e-4, 0.1),
    "train.free_nats": Differ(1.0, 0.0),
    "train.dynamics_scale": Differ(1.0, 0.1, {"train.free_nats": 0.0}),
    "train.representation_scale": Differ(0.1, 1.0, {"train.free_nats": 0.0}),
    "train.reconstruction_scale": Differ(1.0, 0.1),
    "train.reward_scale": Differ(1.0, 0.1),
    "train.continue_scale": Differ(1.0, 0.1),
    "train.policy_scale": Differ(1.0, 0.1),
    "train.value_scale": Differ(1.0, 0.1),
    "train.replay_value_scale": Differ(0.3, 1.0),
    "train.slow_rate": Differ(0.02, 0.5),
    "train.slow_scale": Differ(1.0, 0.1),
    "train.return_rate": Differ(0.01, 0.5, {"train.return_limit": 1e-6}),
    "train.return_low": Differ(0.05, 0.4, {"train.return_limit": 1e-6}),
    "train.return_high": Differ(0.95, 0.6, {"train.return_limit": 1e-6}),
    "train.return_limit": Differ(1.0, 1e-6),
    "policy.deter": Differ(16, 8),
    "policy.hidden": Differ(8, 4),
    "policy.stoch": Differ(4, 3),
    "policy.classes": Differ(4, 3),
    "policy.blocks": Differ(4, 2),
    "policy.units": Differ(8, 4),
    "policy.depth": Differ(2, 3, {"train.total_steps": 96}, env=Pictures),
    "policy.strided": Differ(True, False, {"train.total_steps": 96}, env=Pictures),
    "policy.layers": Differ(1, 2),
    "policy.bins": Differ(255, 63),
    "policy.unimix": Differ(0.01, 0.1),
}

DECISION_TRANSFORMER: dict[str, Case] = {
    **LEARNING,
    **POLICY,
    "train.cpu_offload": Excused(_REFUSED, _UNUSED),
    "train.data": Differ("cartpole", "cartpole_again"),
    "train.batch_size": Differ(8, 4),
    "train.batches": Differ(3, 2),
    "train.percentile": Differ(None, 50.0),
    "train.loss": Differ("mse", "normal", {"train.data": "pendulum"}, env="pendulum"),
    "train.return_scale": Differ(0.0, 3.0),
    "train.target": Excused(
        "It is what evaluations ask for.", "tests/training/test_decision_transformer.py"
    ),
    "train.max_gradient_norm": Differ(0.25, 0.01),
    "policy.encoder": Excused("The same code as PPO's.", "tests/policies"),
    "policy.core": Excused("It is one itself, and refuses others.", _UNUSED),
    "policy.window": Differ(5, 3),
    "policy.critic": Excused(_REFUSED, _UNUSED),
    "policy.continuous": Differ("clipped", "tanh", {"train.data": "pendulum"}, env="pendulum"),
    "policy.log_std": Differ(
        0.0, -1.0, {"train.data": "pendulum", "train.loss": "normal"}, env="pendulum"
    ),
    "policy.recall": Excused(_REFUSED, _UNUSED),
    "policy.engine": Excused(_REFUSED, _UNUSED),
    "policy.blocks": Differ(1, 2),
    "policy.heads": Differ(1, 2),
    "policy.dropout": Differ(0.1, 0.5),
    "policy.timesteps": Differ(1024, 4),
    "policy.delayed": Differ(False, True),
}

CASES: dict[str, dict[str, Case]] = {
    "ppo": {**PPO_TRAIN, **POLICY},
    "safe_ppo": SAFE_PPO,
    "mappo": MAPPO,
    "grpo": GRPO,
    "dreamer": DREAMER,
    "decision_transformer": DECISION_TRANSFORMER,
}
