"""Dreamer V3: a world model, and an actor and a critic that learn from what it imagines."""
