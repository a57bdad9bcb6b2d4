"""Rollouts: policies act in a vector, and what follows is recorded for learning."""
