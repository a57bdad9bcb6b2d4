"""Tuning: the parts of `fugu.vector.autotune`, which is what to import."""
