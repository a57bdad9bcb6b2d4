"""The Decision Transformer's policy: actions, given the return that is still to be collected.

An episode is a sequence of tokens, three for each step: the return to go, the observation, the
action. A causal transformer reads the last of them; each action is predicted from the token of the
observation, which comes before the action's own.
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
from fugu.core.intervals import FractionBelowOne, PositiveInt
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.cores import Core
from fugu.policies.distribution import ActionDistribution
from fugu.policies.encoders import make_encoder
from fugu.policies.layers import ACTIVATIONS
from fugu.policies.policy import Policy, make_head

TOKENS = 3  # of a step: return to go, observation, action
OBSERVATION = 1  # the token of a step that its action is predicted from


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
    """One block of GPT-2: attention and an MLP, each after a norm and added to its input."""

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
        """Transform tokens `[batch, tokens, hidden]`; `allowed` is `[batch, 1, tokens, tokens]`."""
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
    """Embeds any action as one vector: rows of a table for choices, a linear map of numbers."""

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
        """Map samples `[..., numbers]` to `[..., hidden]`."""
        found = samples.new_zeros(*samples.shape[:-1], self._hidden)
        if self.table is not None:
            indices = samples[..., : self._heads].long() + self.offsets
            found = found + self.table(indices).sum(-2)
        if self.numbers is not None:
            found = found + self.numbers(samples[..., self._heads :])
        return found


class DecisionCore(Core):
    """The transformer. An agent's state is its window of steps, oldest first, and three counters.

    A slot of the window has the encoded observation, the action, the return to go and the time.
    The counters are the number of filled slots, the time, and the return so far.
    """

    scale: Tensor  # divides returns to go
    target: Tensor  # the return that is asked for
    conditioned: Tensor  # 1; 0 if returns to go are not shown (behavior cloning)

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
        for name, module in self.named_modules():  # as GPT-2
            if isinstance(module, nn.Linear | nn.Embedding):
                residual = name.endswith((".merge", ".mlp.2"))
                std = 0.02 / math.sqrt(2 * cfg.blocks) if residual else 0.02
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def attend(
        self, hidden: Tensor, samples: Tensor, returns: Tensor, times: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the outputs at the tokens of observations, `[batch, window, hidden]`.

        Args:
            hidden: Encoded observations, `[batch, window, hidden]`.
            samples: Of the actions, `[batch, window, numbers]`.
            returns: To go, `[batch, window]`.
            times: Since the episode began, `[batch, window]`.
            mask: False where there is only padding, `[batch, window]`.
        """
        shown = (returns / self.scale * self.conditioned).unsqueeze(-1)
        parts = [self.embed_return(shown), self.embed_state(hidden), self.embed_action(samples)]
        places = self.embed_time(times.long().clamp(0, self.embed_time.num_embeddings - 1))
        tokens = torch.stack(parts, 2) + places.unsqueeze(2)  # [batch, window, 3, hidden]
        tokens = self.dropout(self.norm(tokens.flatten(1, 2)))
        count = tokens.shape[1]
        earlier = torch.ones(count, count, dtype=torch.bool, device=tokens.device).tril()
        there = mask.repeat_interleave(TOKENS, 1).unsqueeze(1)  # [batch, 1, tokens]
        # Padding sees itself: a softmax over nothing is NaN.
        itself = torch.eye(count, dtype=torch.bool, device=tokens.device)
        allowed = (earlier & there | itself).unsqueeze(1)
        for block in self.blocks:
            tokens = block(tokens, allowed)
        outputs: Tensor = self.final_norm(tokens).unflatten(1, (-1, TOKENS))[:, :, OBSERVATION]
        return outputs

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step: the observation `[batch, hidden]` joins the window without its action."""
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
        """Raise: observations alone are not enough."""
        raise UsageError(
            "forward_segments: given to a Decision Transformer, which needs actions and returns "
            "beside observations; allowed: forward_sequences."
        )

    def write_action(self, state: Tensor, samples: Tensor) -> Tensor:
        """Return the state with the action in its last slot."""
        state = state.clone()
        last = (self.window - 1) * self._slot + self._hidden
        state[:, last : last + self._samples] = samples
        return state

    def _split(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the window `[batch, window, slot]`, and count, time and return, `[batch]` each."""
        count, time, earned = state[:, -3:].unbind(-1)
        return state[:, :-3].reshape(-1, self.window, self._slot), count, time, earned


class DecisionTransformer(Policy):
    """Acts to collect the return that it is asked for.

    A caller passes actions to `acted` after they were drawn, and rewards to `earned` before the
    next observation.
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
        """Return parameters of each step's action, `[batch, window, num_params]`.

        Observations are `[batch, window, size]` in the layout's dtype; see `DecisionCore.attend`.
        No action is predicted from itself, nor from anything later.
        """
        batch, window = mask.shape
        with self._products(observations.device):
            hidden = self.encoder(observations.flatten(0, 1)).unflatten(0, (batch, window))
            outputs = self.core.attend(hidden, samples, returns, times, mask)
            params, _ = self._decode(outputs)
        return params

    def ask(self, target: float) -> None:
        """Ask for this return from the next episode on."""
        self.core.target.fill_(float(target))

    def acted(self, state: Tensor, samples: NDArray[np.float32]) -> Tensor:
        """Return the state after these samples `[batch, numbers]` were drawn."""
        done = self.distribution.to_samples(self.distribution.to_rows(samples))
        return self.core.write_action(state, torch.from_numpy(done).to(state))

    def earned(self, state: Tensor, rewards: NDArray[np.float32]) -> Tensor:
        """Return the state after these rewards `[batch]`, which lower the return to go."""
        if self._delayed:
            return state
        state = state.clone()
        state[:, -1] += torch.from_numpy(np.ascontiguousarray(rewards)).to(state)
        return state


def make_decision_transformer(group: AgentGroup, cfg: PolicyConfig, **_: Any) -> Policy:
    """Make a Decision Transformer for a group of agents."""
    if not isinstance(cfg, DecisionTransformerPolicyConfig):
        raise UsageError(
            f"policy: given a {type(cfg).__name__}; allowed: a DecisionTransformerPolicyConfig."
        )
    distribution = ActionDistribution(group.action_layout, cfg.continuous)
    encoder = make_encoder(group.observation_layout, cfg)
    return DecisionTransformer(encoder, DecisionCore(cfg, distribution), distribution, cfg)
