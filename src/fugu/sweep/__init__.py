"""Hyperparameter sweeps, stored and searched by Optuna. Needs `fugu-rl[sweep]`."""
