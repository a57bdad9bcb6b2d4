"""Sweeps: many trainings that look for good settings, kept by Optuna. Needs `fugu-rl[sweep]`."""
