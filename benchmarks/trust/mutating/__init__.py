"""Mutants: how they are made, and the process that runs tests with them."""
