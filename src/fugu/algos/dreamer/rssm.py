"""The recurrent state-space model: what has happened so far as a latent state, and what may come.

A latent state is `deter`, which a recurrent unit of blocks makes of the state and the action
before, and `stoch`, one-hot categories drawn from a prior (of `deter` alone) or from a posterior
(of `deter` and the observation). Tensors of sequences have time first, `[time, batch, ...]`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fugu.algos.dreamer.config import DreamerPolicyConfig

EPSILON = 1e-4  # of norms
TRUNCATED = 0.87962566103423978  # the deviation of a normal that is cut off at two deviations


class Norm(nn.Module):
    """Numbers divided by their root mean square, times a learned scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, numbers: Tensor) -> Tensor:
        """Of vectors `[..., width]`."""
        return nn.functional.rms_norm(numbers, self.scale.shape, self.scale, EPSILON)


class Dense(nn.Sequential):
    """A linear layer, a norm and a SiLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(make_linear(inputs, outputs), Norm(outputs), nn.SiLU())


class BlockLinear(nn.Module):
    """A linear layer of blocks: each part of the inputs reaches its own part of the outputs."""

    def __init__(self, inputs: int, outputs: int, blocks: int, bias: bool, fan_in: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(blocks, 1, outputs // blocks)) if bias else None
        fill(self.weight, fan_in or inputs // blocks)

    def forward(self, blocks: Tensor) -> Tensor:
        """`[blocks, batch, inputs of a block]` to `[blocks, batch, outputs of a block]`."""
        if self.bias is None:
            return torch.bmm(blocks, self.weight)
        return torch.baddbmm(self.bias, blocks, self.weight)


@dataclass(frozen=True)
class Latents:
    """Latent states of a sequence.

    Attributes:
        deter: `[time, batch, deter]`
        stoch: One-hot, `[time, batch, classes * stoch]`.
        posterior: Probabilities that it was drawn from, `[time, batch, classes, stoch]`.
    """

    deter: Tensor
    stoch: Tensor
    posterior: Tensor

    @property
    def features(self) -> Tensor:
        """What all heads see, `[time, batch, deter + classes * stoch]`."""
        return torch.cat([self.deter, self.stoch], -1)


class Rssm(nn.Module):
    """The model's parts, one step at a time or whole sequences.

    Classes stand before variables, `[..., classes, stoch]`: sums over classes then run along rows
    of memory, which is many times as fast.

    Attributes:
        deter: Numbers of the recurrent part.
        stoch: Categorical variables.
        classes: Of each.
        num_features: Numbers of a latent state.
    """

    def __init__(self, num_actions: int, num_tokens: int, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self.deter, self.stoch, self.classes = cfg.deter, cfg.stoch, cfg.classes
        self.num_features = cfg.deter + cfg.stoch * cfg.classes
        self._blocks, self._unimix = cfg.blocks, cfg.unimix
        self.from_deter = Dense(cfg.deter, cfg.hidden)
        self.from_stoch = Dense(cfg.stoch * cfg.classes, cfg.hidden)
        self.from_action = Dense(num_actions, cfg.hidden)
        # Every block sees its own part of deter and all inputs: the latter is one dense layer.
        fan_in = cfg.deter // cfg.blocks + 3 * cfg.hidden
        self.mix_deter = BlockLinear(cfg.deter, cfg.deter, cfg.blocks, False, fan_in)
        self.mix_inputs = make_linear(3 * cfg.hidden, cfg.deter, fan_in=fan_in)
        self.mix_norm = Norm(cfg.deter)
        self.gates = BlockLinear(cfg.deter, 3 * cfg.deter, cfg.blocks, True)
        logits = cfg.stoch * cfg.classes
        self.prior_head = nn.Sequential(
            Dense(cfg.deter, cfg.hidden),
            Dense(cfg.hidden, cfg.hidden),
            make_linear(cfg.hidden, logits),
        )
        # A linear layer of deter and tokens side by side, in two parts: tokens are known before.
        fan_in = cfg.deter + num_tokens
        self.see_deter = make_linear(cfg.deter, cfg.hidden, bias=False, fan_in=fan_in)
        self.see_tokens = make_linear(num_tokens, cfg.hidden, fan_in=fan_in)
        self.posterior_head = nn.Sequential(
            Norm(cfg.hidden), nn.SiLU(), make_linear(cfg.hidden, logits)
        )

    # ------------------------------------------------------------------ one step

    def advance(self, deter: Tensor, stoch: Tensor, action: Tensor) -> Tensor:
        """The next deter, of a state and an embedded action `[batch, hidden]`."""
        batch, width = deter.shape
        blocks = deter.view(batch, self._blocks, -1).transpose(0, 1)
        inputs = torch.cat([self.from_deter(deter), self.from_stoch(stoch), action], -1)
        mixed = self.mix_deter(blocks).transpose(0, 1).reshape(batch, width)
        mixed = nn.functional.silu(self.mix_norm(mixed + self.mix_inputs(inputs)))
        gates = self.gates(mixed.view(batch, self._blocks, -1).transpose(0, 1))
        reset, candidate, update = gates.chunk(3, -1)  # [blocks, batch, deter of a block]
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        after = torch.lerp(blocks, candidate, torch.sigmoid(update - 1.0))
        return after.transpose(0, 1).reshape(batch, width)

    def prior(self, deter: Tensor) -> Tensor:
        """Probabilities `[..., classes, stoch]` of what comes with a deter."""
        return self._mix(self.prior_head(deter))

    def posterior(self, deter: Tensor, seen: Tensor) -> Tensor:
        """Probabilities `[..., classes, stoch]`, given `see_tokens` of what was observed."""
        return self._mix(self.posterior_head(self.see_deter(deter) + seen))

    def draw(self, probabilities: Tensor, uniforms: Tensor | None) -> Tensor:
        """One-hot categories `[..., classes * stoch]`, the most probable ones without chance.

        Gradients go straight through to the probabilities.
        """
        with torch.no_grad():
            if uniforms is None:
                index = probabilities.argmax(-2, keepdim=True)
            else:
                index = (probabilities.cumsum(-2) < uniforms).sum(-2, keepdim=True)
                index = index.clamp_max(self.classes - 1)
            chosen = torch.zeros_like(probabilities).scatter_(-2, index, 1.0)
        if probabilities.requires_grad:
            chosen = chosen + (probabilities - probabilities.detach())
        return chosen.flatten(-2)

    def uniforms(self, *lead: int, random: torch.Generator) -> Tensor:
        """Random numbers for `draw`, `[*lead, 1, stoch]`."""
        return torch.rand(*lead, 1, self.stoch, generator=random, device=random.device)

    def categories(self, stoch: Tensor) -> Tensor:
        """Which classes one-hot ones `[..., classes * stoch]` are, `[..., stoch]`."""
        return self._shape(stoch).argmax(-2)

    def one_hot(self, categories: Tensor) -> Tensor:
        """What `categories` was given."""
        shape = (*categories.shape[:-1], self.classes, self.stoch)
        empty = torch.zeros(shape, device=categories.device)
        return empty.scatter_(-2, categories.unsqueeze(-2), 1.0).flatten(-2)

    def embed_actions(self, actions: Tensor) -> Tensor:
        """Encoded actions `[..., actions]` as `advance` takes them."""
        embedded: Tensor = self.from_action(actions / actions.detach().abs().clamp_min(1.0))
        return embedded

    # ------------------------------------------------------------------ sequences

    def observe(
        self,
        tokens: Tensor,
        actions: Tensor,
        first: Tensor,
        deter: Tensor,
        stoch: Tensor,
        uniforms: Tensor,
    ) -> Latents:
        """Latent states of observed sequences.

        Args:
            tokens: Encoded observations, `[time, batch, tokens]`.
            actions: Encoded actions before each, `[time, batch, actions]`.
            first: Where episodes begin, and nothing of before counts, `[time, batch]`.
            deter: Before the first step, `[batch, deter]`.
            stoch: The same, `[batch, classes * stoch]`.
            uniforms: Random numbers from [0, 1), `[time, batch, 1, stoch]`.
        """
        seen = self.see_tokens(tokens)
        embedded = self.embed_actions(torch.where(first.unsqueeze(-1), 0.0, actions))
        anew = first.any(1).tolist()
        found: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for time in range(tokens.shape[0]):
            if anew[time]:
                begin = first[time].unsqueeze(-1)
                deter, stoch = torch.where(begin, 0.0, deter), torch.where(begin, 0.0, stoch)
            deter = self.advance(deter, stoch, embedded[time])
            posterior = self.posterior(deter, seen[time])
            stoch = self.draw(posterior, uniforms[time])
            for all_, one in zip(found, (deter, stoch, posterior), strict=True):
                all_.append(one)
        return Latents(*(torch.stack(each) for each in found))

    def divergences(self, latents: Latents, free_nats: float) -> tuple[Tensor, Tensor]:
        """Of the posterior from the prior, `[time, batch]`; one trains the prior, one the other."""
        prior, posterior = self.prior(latents.deter), latents.posterior
        dynamics = divergence(posterior.detach(), prior).clamp_min(free_nats)
        representation = divergence(posterior, prior.detach()).clamp_min(free_nats)
        return dynamics, representation

    def _shape(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], self.classes, self.stoch)

    def _mix(self, logits: Tensor) -> Tensor:
        return self._shape(logits).softmax(-2) * (1.0 - self._unimix) + self._unimix / self.classes


def divergence(left: Tensor, right: Tensor) -> Tensor:
    """Kullback-Leibler divergence of categories `[..., classes, stoch]`, summed over all."""
    return (left * (left.log() - right.log())).sum((-2, -1))


def make_linear(
    inputs: int, outputs: int, *, bias: bool = True, scale: float = 1.0, fan_in: int = 0
) -> nn.Linear:
    """A linear layer with weights from a truncated normal that keeps variance, and no bias yet."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    fill(layer.weight, fan_in or inputs, scale)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def fill(weight: Tensor, fan_in: int, scale: float = 1.0) -> None:
    """Weights from a normal cut off at two deviations, of variance `scale^2 / fan_in`."""
    deviation = scale / TRUNCATED / math.sqrt(max(fan_in, 1))
    if deviation:
        nn.init.trunc_normal_(weight, 0.0, deviation, -2.0 * deviation, 2.0 * deviation)
    else:
        nn.init.zeros_(weight)
