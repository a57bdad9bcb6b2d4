"""Environments: the contract, adapters for other people's, and a checker."""

from fugu.envs.contract import AgentGroup, Buffers, Env
from fugu.envs.emulation import emulate
from fugu.envs.episode_stats import EpisodeStats

__all__ = ["AgentGroup", "Buffers", "Env", "EpisodeStats", "emulate"]
