"""Settings of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fugu.core.intervals import CheckedConfig, FiniteFloat, NonNegativeInt, PositiveInt
from fugu.spaces.action_rows import Continuous

Precision = Literal["auto", "float32", "bfloat16"]
PolicyEngine = Literal["auto", "torch", "native"]


@dataclass(frozen=True)
class PolicyConfig(CheckedConfig):
    """Settings of a policy.

    >>> PolicyConfig(core="lstm", hidden_size=256).encoder
    'auto'
    """

    section: ClassVar[str] = "policy"

    encoder: Literal["auto", "mlp", "nature", "impala", "set"] = "auto"
    """What reads observations: auto chooses by their kind, mlp never convolves, set reads items of
    an array alike and in no order, others name the network for images."""
    hidden_size: PositiveInt = 128
    """Width of the encoder's output and of the core."""
    layers: PositiveInt = 1
    """Hidden layers of an MLP encoder, of what follows the convolutions of others, of what reads
    the items of a set and of what follows, and blocks of a transformer over tokens."""
    activation: Literal["relu", "gelu", "silu", "tanh"] = "gelu"
    """What follows each hidden layer; convolutions always use relu, as published."""
    core: Literal["none", "lstm", "gru", "mingru", "transformer", "tokens"] = "none"
    """What remembers earlier observations of the episode; tokens: a causal transformer for
    observations that are sequences, with a KV cache."""
    window: PositiveInt = 64
    """Observations that the transformer looks back on, the present one included."""
    critic: Literal["auto", "shared", "own"] = "shared"
    """Whether values come from the network that actions come from, or from a second one like it:
    slower, and better where values are hard to learn, as in MuJoCo. Auto: a second one, but for
    networks of your own, which are shared."""
    continuous: Continuous = "clipped"
    """How actions come within two finite bounds: clipped there; scaled, so that -1 and 1 are the
    bounds, and clipped; or scaled after a tanh."""
    log_std: FiniteFloat = 0.0
    """Initial logarithm of the standard deviation of continuous actions, alike in all states."""

    recall: NonNegativeInt = 0
    """Answers to similar prompts that stand before tokens that are seen, from a memory of episodes
    that went well; 0: none."""
    recall_length: PositiveInt = 16
    """Tokens of each answer, its last ones."""
    recall_worth: FiniteFloat = 1.0
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
