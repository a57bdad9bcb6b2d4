"""Settings of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fugu.core.errors import UsageError

Continuous = Literal["clipped", "tanh"]
Precision = Literal["auto", "float32", "bfloat16"]
PolicyEngine = Literal["auto", "torch", "native"]


@dataclass(frozen=True)
class PolicyConfig:
    """What a policy is built of.

    >>> PolicyConfig(core="lstm", hidden_size=256).encoder
    'auto'
    """

    encoder: Literal["auto", "mlp", "nature", "impala", "set"] = "auto"
    """What reads observations: auto chooses by their kind, mlp never convolves, set reads items of
    an array alike and in no order, others name the network for images."""
    hidden_size: int = 128
    """Width of the encoder's output and of the core."""
    layers: int = 1
    """Hidden layers of an MLP encoder, of what follows the convolutions of others, of what reads
    the items of a set and of what follows, and blocks of a transformer over tokens."""
    activation: Literal["relu", "gelu", "silu", "tanh"] = "gelu"
    """What follows each hidden layer; convolutions always use relu, as published."""
    core: Literal["none", "lstm", "gru", "mingru", "transformer", "tokens"] = "none"
    """What remembers earlier observations of the episode; tokens: a causal transformer for
    observations that are sequences, with a KV cache."""
    window: int = 64
    """Observations that the transformer looks back on, the present one included."""
    critic: Literal["auto", "shared", "own"] = "shared"
    """Whether values come from the network that actions come from, or from a second one like it:
    slower, and better where values are hard to learn, as in MuJoCo. Auto: a second one, but for
    networks of your own, which are shared."""
    continuous: Continuous = "clipped"
    """How numbers come within their bounds: cut off there, or squashed by a tanh."""
    log_std: float = 0.0
    """Initial logarithm of the standard deviation of continuous actions, alike in all states."""

    recall: int = 0
    """Answers to similar prompts that stand before tokens that are seen, from a memory of episodes
    that went well; 0: none."""
    recall_length: int = 16
    """Tokens of each answer, its last ones."""
    recall_worth: float = 1.0
    """The least return of an episode whose answer is remembered."""
    normalise: bool = False
    """Whether numbers of observations are centred and scaled by what was seen of them so far."""
    precision: Precision = "auto"
    """What products are computed in; weights, losses and sums stay float32 in any case. Auto takes
    bfloat16 for large batches, and for convolutions, on a processor that has instructions for
    it."""
    engine: PolicyEngine = "auto"
    """Who computes what it says while PPO collects and in evaluations: torch, or the native core,
    which auto takes for small batches on the CPU."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "layers", "window", "recall_length"):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name}: given {value}; allowed: 1 or more.")
        if self.recall < 0:
            raise UsageError(f"recall: given {self.recall}; allowed: 0 or more.")
