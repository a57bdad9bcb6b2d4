"""What PufferLib's settings are called here, and why some are not."""

from __future__ import annotations

from typing import Any

# Of its default.ini, what changes what is learned.
DEFAULTS: dict[str, dict[str, Any]] = {
    "vec": {"num_envs": 2},
    "train": {
        "optimizer": "muon",
        "anneal_lr": True,
        "total_timesteps": 10_000_000,
        "learning_rate": 0.015,
        "gamma": 0.995,
        "gae_lambda": 0.90,
        "update_epochs": 1,
        "clip_coef": 0.2,
        "vf_coef": 2.0,
        "vf_clip_coef": 0.2,
        "max_grad_norm": 1.5,
        "ent_coef": 0.001,
        "adam_beta1": 0.95,
        "adam_beta2": 0.999,
        "adam_eps": 1e-12,
        "batch_size": "auto",
        "minibatch_size": 8192,
        "max_minibatch_size": 32768,
        "bptt_horizon": 64,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.8,
        "prio_beta0": 0.2,
    },
}

RENAMED = {
    "train.total_timesteps": "train.total_steps",
    "train.learning_rate": "train.learning_rate",
    "train.gamma": "train.gamma",
    "train.gae_lambda": "train.lambda",
    "train.clip_coef": "train.clip",
    "train.vf_coef": "train.value_coefficient",
    "train.vf_clip_coef": "train.value_clip",
    "train.max_grad_norm": "train.max_gradient_norm",
    "train.bptt_horizon": "train.horizon",
    "train.vtrace_rho_clip": "train.rho_clip",
    "train.vtrace_c_clip": "train.c_clip",
    "train.prio_alpha": "train.alpha",
    "train.prio_beta0": "train.beta",
    "train.cpu_offload": "train.cpu_offload",
    "train.compile": "train.compile",
    "train.torch_deterministic": "train.deterministic",
    "train.precision": "policy.precision",
    "train.seed": "seed",
    "train.device": "device",
    "train.data_dir": "run.folder",
    "vec.num_workers": "vec.num_workers",
}

_OLDER = "PufferLib 3.0 does not read it there; its place is the section vec"
DROPPED = {
    "train.name": "runs are named by --run.name",
    "train.project": "Weights & Biases is asked for by --run.wandb",
    "train.checkpoint_interval": "checkpoints are written by time: --run.checkpoint-seconds",
    "train.compile_mode": "torch chooses",
    "train.compile_fullgraph": "torch chooses",
    "train.num_envs": _OLDER,
    "train.num_workers": _OLDER,
    "train.env_batch_size": _OLDER,
    "train.zero_copy": _OLDER,
    "vec.zero_copy": "rows are views wherever they are contiguous",
    "vec.overwork": "workers that wait take no core",
    "vec.seed": "PufferLib drops it; seed is the root of all chance here",
    "rnn.input_size": "encoder and core are equally wide: policy.hidden_size",
}

# What PufferLib's trainer always does, and fugu's only if it is told to.
ADDED: dict[str, tuple[Any, str]] = {
    "train.reward_clip": (1.0, "PufferLib cuts rewards at 1"),
    "train.normalise_rewards": (False, "PufferLib does not scale rewards"),
    "train.value_loss": ("clipped", "as PufferLib fits values"),
    "train.priorities": ("published", "as PufferLib weighs rows; corrected is the other way"),
}

BACKENDS = {"Serial": "serial", "Multiprocessing": "process", "Ray": "ray"}
OPTIMISERS = {"muon": "muon", "adam": "adamw"}
OCEAN = {"grid": "maze", "pysquared": "squared"}  # environments whose names differ
ARGUMENTS = {"frameskip": "frame_skip"}  # and arguments of them
SWEPT = {"vec.num_envs": "vec.num_envs", "train.ent_coef": "train.entropy_coefficient"}
# Settings that may not be 0 here, and whose ranges may begin there in an INI file.
ABOVE_ZERO = {"train.clip", "train.value_clip", "train.max_gradient_norm", "train.adam_eps"}
SCALES: dict[str, dict[str, bool]] = {
    "uniform": {},
    "int_uniform": {"integer": True},
    "uniform_pow2": {"power_of_two": True},
    "log_normal": {"log": True},
    "logit_normal": {"logit": True},
}
