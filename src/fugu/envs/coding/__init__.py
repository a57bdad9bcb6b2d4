"""Coding: environments whose agents write programs; `CodingEnv` and the problems it poses."""

from fugu.envs.coding.env import CodingEnv
from fugu.envs.coding.problems import Problem, load_problems, read_problems

__all__ = ["CodingEnv", "Problem", "load_problems", "read_problems"]
