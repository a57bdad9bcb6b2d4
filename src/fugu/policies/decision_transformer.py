"""The Decision Transformer's policy: what to do, given what is still to be earned.

An episode is a sequence of tokens, three for each step: the return to go, what is seen, what is
done. A causal transformer reads the last of them; each action is predicted from the token of what
was seen, which comes before the action's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fugu.core.errors import UsageError
from fugu.core.intervals import (
    FractionBelowOne,
    PositiveInt,
)
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.cores import Core
from fugu.policies.distribution import ActionDistribution
from fugu.policies.encoders import make_encoder
from fugu.policies.layers import ACTIVATIONS
from fugu.policies.policy import Policy, make_head

TOKENS = 3  # of a step: return to go, observation, action
SEEN = 1  # which of them an action is predicted from


@dataclass(frozen=True)
class DecisionTransformerPolicyConfig(PolicyConfig):
    """What a Decision Transformer is built of."""

    activation: Literal["relu", "gelu", "tanh"] = "relu"
    window: int = 20
    """Steps that it looks back on, the present one included."""
    normalise: bool = True
    """Whether numbers of observations are centred and scaled by those of the data."""
    blocks: PositiveInt = 3
    """Blocks of attention."""
    heads: PositiveInt = 1
    """Heads of each; they share the hidden size."""
    dropout: FractionBelowOne = 0.1
    """Share of numbers that is left out while it learns."""
    timesteps: PositiveInt = 1024
    """Steps of an episode that are told apart; later ones count as the last of them."""
    delayed: bool = False
    """Count rewards only in the end: the return to go is the whole return at every step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.heads:
            raise UsageError(
                f"policy.heads: given {self.heads}; allowed: a divisor of the hidden size, "
                f"{self.hidden_size}."
            )
        if self.core != "none":
            raise UsageError(f"policy.core: given {self.core!r}; allowed: none, it is one itself.")


class Block(nn.Module):
    """One block of GPT-2: attention and an MLP, each normalised first and added to its input."""

    def __init__(self, cfg: DecisionTransformerPolicyConfig) -> None:
        super().__init__()
        hidden = cfg.hidden_size
        self.heads, self.dropout = cfg.heads, nn.Dropout(cfg.dropout)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.queries_keys_values = nn.Linear(hidden, 3 * hidden)
        self.merge = nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden),
            ACTIVATIONS[cfg.activation](),
            nn.Linear(4 * hidden, hidden),
        )

    def forward(self, tokens: Tensor, allowed: Tensor) -> Tensor:
        """Tokens `[batch, tokens, hidden]`; who sees whom is `[batch, 1, tokens, tokens]`."""
        batch, count, hidden = tokens.shape
        split = self.queries_keys_values(self.attention_norm(tokens))
        split = split.view(batch, count, 3, self.heads, hidden // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each [batch, heads, tokens, width]
        rate = self.dropout.p if self.training else 0.0
        seen = functional.scaled_dot_product_attention(queries, keys, values, allowed, rate)
        tokens = tokens + self.dropout(self.merge(seen.transpose(1, 2).flatten(2)))
        output: Tensor = tokens + self.dropout(self.mlp(self.mlp_norm(tokens)))
        return output


class ActionEmbedding(nn.Module):
    """Any action as one vector: a row of a table for each choice, a linear map of numbers."""

    offsets: Tensor
    table: nn.Embedding | None
    numbers: nn.Linear | None

    def __init__(self, distribution: ActionDistribution, hidden: int) -> None:
        super().__init__()
        counts = np.array(distribution.choices, np.int64)
        self._heads, self._hidden = len(counts), hidden
        offsets = torch.from_numpy(np.cumsum(counts) - counts)
        self.register_buffer("offsets", offsets, persistent=False)
        self.table = nn.Embedding(int(counts.sum()), hidden) if self._heads else None
        dims = distribution.num_continuous
        self.numbers = nn.Linear(dims, hidden) if dims else None

    def forward(self, samples: Tensor) -> Tensor:
        """Samples `[..., numbers]` to `[..., hidden]`."""
        found = samples.new_zeros(*samples.shape[:-1], self._hidden)
        if self.table is not None:
            indices = samples[..., : self._heads].long() + self.offsets
            found = found + self.table(indices).sum(-2)
        if self.numbers is not None:
            found = found + self.numbers(samples[..., self._heads :])
        return found


class DecisionCore(Core):
    """The transformer. An agent's state is its window of steps, oldest first, and three counters.

    A slot of the window holds what was seen (encoded), what was done, the return to go and the
    time. Then come how many slots are taken, the time, and what was earned so far.

    Attributes:
        scale: What returns to go are divided by.
        target: The return that is asked for.
        conditioned: 1; 0 if returns to go are not shown (behaviour cloning).
    """

    scale: Tensor
    target: Tensor
    conditioned: Tensor

    def __init__(
        self, cfg: DecisionTransformerPolicyConfig, distribution: ActionDistribution
    ) -> None:
        hidden, self._samples = cfg.hidden_size, distribution.num_samples
        slot = hidden + distribution.num_samples + 2
        super().__init__(cfg.window * slot + 3, hidden)
        self.window, self._slot, self._hidden = cfg.window, slot, hidden
        self.embed_return, self.embed_state = nn.Linear(1, hidden), nn.Linear(hidden, hidden)
        self.embed_action = ActionEmbedding(distribution, hidden)
        self.embed_time = nn.Embedding(cfg.timesteps, hidden)
        self.norm, self.final_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(cfg.dropout)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.blocks))
        for name, value in (("scale", 1.0), ("target", 0.0), ("conditioned", 1.0)):
            self.register_buffer(name, torch.tensor(value))
        self._initialise(cfg.blocks)

    def _initialise(self, blocks: int) -> None:
        """As GPT-2: small weights, smaller ones where a block adds to its input."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                adds = name.endswith((".merge", ".mlp.2"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * blocks) if adds else 0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def attend(
        self, hidden: Tensor, samples: Tensor, returns: Tensor, times: Tensor, mask: Tensor
    ) -> Tensor:
        """Outputs at the tokens of what was seen, `[batch, window, hidden]`.

        Args:
            hidden: Encoded observations, `[batch, window, hidden]`.
            samples: Of the actions, `[batch, window, numbers]`.
            returns: To go, `[batch, window]`.
            times: Since the episode began, `[batch, window]`.
            mask: Whether a step is there, `[batch, window]`.
        """
        shown = (returns / self.scale * self.conditioned).unsqueeze(-1)
        parts = [self.embed_return(shown), self.embed_state(hidden), self.embed_action(samples)]
        places = self.embed_time(times.long().clamp(0, self.embed_time.num_embeddings - 1))
        tokens = torch.stack(parts, 2) + places.unsqueeze(2)  # [batch, window, 3, hidden]
        tokens = self.dropout(self.norm(tokens.flatten(1, 2)))
        count = tokens.shape[1]
        earlier = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril()
        there = mask.repeat_interleave(TOKENS, 1).unsqueeze(1)  # [batch, 1, tokens]
        # Padding sees itself: a softmax over nothing is not a number.
        itself = torch.eye(count, dtype=torch.bool, device=tokens.device)
        allowed = (earlier & there | itself).unsqueeze(1)
        for block in self.blocks:
            tokens = block(tokens, allowed)
        outputs: Tensor = self.final_norm(tokens).unflatten(1, (-1, TOKENS))[:, :, SEEN]
        return outputs

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step, `[batch, hidden]`: what is seen joins the window, its action not known yet."""
        slots, count, time, earned = self._split(state)
        nothing = hidden.new_zeros(len(hidden), self._samples)
        to_go = self.target - earned
        present = torch.cat([hidden, nothing, to_go.unsqueeze(-1), time.unsqueeze(-1)], -1)
        slots = torch.cat([slots[:, 1:], present.unsqueeze(1)], 1)
        count = (count + 1).clamp_max(self.window)
        taken = int(count.max()) if len(count) else 1  # empty slots cost time and say nothing
        recent = slots[:, self.window - taken :]
        ages = torch.arange(taken - 1, -1, -1, device=hidden.device)
        seen, done, returns, times = torch.split(
            recent, [self._hidden, self._samples, 1, 1], dim=-1
        )
        there = ages < count.unsqueeze(-1)
        outputs = self.attend(seen, done, returns[..., 0], times[..., 0], there)[:, -1]
        counters = torch.stack([count, time + 1, earned], -1)
        return outputs, torch.cat([slots.flatten(1), counters], -1)

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Not from observations alone."""
        raise UsageError(
            "forward_segments: given to a Decision Transformer, which needs actions and returns "
            "beside observations; allowed: forward_sequences."
        )

    def write_action(self, state: Tensor, samples: Tensor) -> Tensor:
        """The state with what was done in its last slot."""
        state = state.clone()
        last = (self.window - 1) * self._slot + self._hidden
        state[:, last : last + self._samples] = samples
        return state

    def _split(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The window `[batch, window, slot]`, and count, time and earnings, `[batch]` each."""
        count, time, earned = state[:, -3:].unbind(-1)
        return state[:, :-3].reshape(-1, self.window, self._slot), count, time, earned


class DecisionTransformer(Policy):
    """Acts so as to earn what it is asked for.

    Who plays it says what came of an action: `acted` after it was drawn, `earned` before the next
    observation.
    """

    core: DecisionCore

    def __init__(
        self,
        encoder: nn.Module,
        core: DecisionCore,
        distribution: ActionDistribution,
        cfg: DecisionTransformerPolicyConfig,
    ) -> None:
        head = make_head(cfg.hidden_size, distribution.num_outputs, 0)
        super().__init__(encoder, core, head, distribution, 0, cfg.log_std, cfg.precision)
        self._delayed = cfg.delayed

    def forward_sequences(
        self, observations: Tensor, samples: Tensor, returns: Tensor, times: Tensor, mask: Tensor
    ) -> Tensor:
        """Params of each step's action, `[batch, window, num_params]`; see `DecisionCore.attend`.

        Observations are `[batch, window, size]` in the layout's dtype. No action is predicted from
        itself, nor from anything later.
        """
        batch, window = mask.shape
        with self._products(observations):
            hidden = self.encoder(observations.flatten(0, 1)).unflatten(0, (batch, window))
            outputs = self.core.attend(hidden, samples, returns, times, mask)
            params, _ = self._decode(outputs)
        return params

    def ask(self, target: float) -> None:
        """Aim at this return from the next episode on."""
        self.core.target.fill_(float(target))

    def acted(self, state: Tensor, samples: NDArray[np.float32]) -> Tensor:
        """The state, now that these samples `[batch, numbers]` were drawn."""
        done = self.distribution.to_samples(self.distribution.to_rows(samples))
        return self.core.write_action(state, torch.from_numpy(done).to(state))

    def earned(self, state: Tensor, rewards: NDArray[np.float32]) -> Tensor:
        """The state, now that these rewards `[batch]` came; the return to go is less by them."""
        if self._delayed:
            return state
        state = state.clone()
        state[:, -1] += torch.from_numpy(np.ascontiguousarray(rewards)).to(state)
        return state


def make_decision_transformer(group: AgentGroup, cfg: PolicyConfig, **_: Any) -> Policy:
    """A Decision Transformer for a group of agents."""
    if not isinstance(cfg, DecisionTransformerPolicyConfig):
        raise UsageError(
            f"policy: given a {type(cfg).__name__}; allowed: a DecisionTransformerPolicyConfig."
        )
    distribution = ActionDistribution(group.action_layout, cfg.continuous)
    encoder = make_encoder(group.observation_layout, cfg)
    return DecisionTransformer(encoder, DecisionCore(cfg, distribution), distribution, cfg)
