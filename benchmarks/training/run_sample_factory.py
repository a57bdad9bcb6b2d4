"""Sample Factory's PPO on CartPole, timed. Settings: variant, copies, goal, seconds, seed.

Its 2 workers and its learner are processes of their own, which it takes some seconds to begin.
"""

from __future__ import annotations

import tempfile
from typing import Any

import gymnasium
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from watching import Watch, read_settings

WORKERS = 2
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "same": {
        "rollout": 128,
        "num_epochs": 4,
        "num_batches_per_epoch": 4,
        "use_rnn": False,
        "recurrence": 1,
        "nonlinearity": "tanh",
        "normalize_input": False,
        "normalize_returns": False,
    },
    "tuned": {  # its own example's for CartPole-v1
        "use_rnn": False,
        "recurrence": 1,
        "with_vtrace": False,
        "batch_size": 512,
        "reward_scale": 0.1,
    },
}


def make_cartpole(name: str, *_: Any, **__: Any) -> gymnasium.Env:
    """For its registry."""
    return gymnasium.make(name)


class Watching(AlgoObserver):
    """Asks the watch after each update."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        """Its statistics hold the returns of the last 100 episodes."""
        self._watch.note_last(runner.policy_avg_stats.get("reward", [[]])[0])
        if self._watch.done(runner.total_env_steps_since_resume or 0):
            self._watch.answer()


def main() -> None:
    """Train until the watch has seen enough."""
    settings = read_settings()
    copies, variant = settings["copies"], settings["variant"]
    register_env("CartPole-v1", make_cartpole)
    options: dict[str, Any] = {
        "env": "CartPole-v1",
        "device": "cpu",
        "seed": settings.get("seed", 0),
        "train_dir": tempfile.mkdtemp(),
        "num_workers": WORKERS,
        "num_envs_per_worker": copies // WORKERS,
        **VARIANTS[variant],
    }
    if variant == "same":
        options["batch_size"] = copies * 128 // 4
    argv = [f"--{key}={value}" for key, value in options.items()]
    if variant == "same":
        argv += ["--encoder_mlp_layers", "64", "64"]
    parser, _ = parse_sf_args(argv=argv)
    watch = Watch(settings)
    _, runner = make_runner(parse_full_cfg(parser, argv))
    runner.register_observer(Watching(watch))
    runner.init()
    runner.run()
    watch.answer()


if __name__ == "__main__":
    main()
