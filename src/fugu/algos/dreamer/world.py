"""The world model: observations to latent states, and these to all that can be predicted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fugu.algos.dreamer.config import DreamerConfig, DreamerPolicyConfig
from fugu.algos.dreamer.decoder import Decoder, Prediction
from fugu.algos.dreamer.maths import two_hot_loss
from fugu.algos.dreamer.networks import ActionCode, Encoder, Mlp, TwoHotHead
from fugu.algos.dreamer.rssm import Latents, Rssm
from fugu.data.replay import Sequences
from fugu.envs.contract import AgentGroup

Losses = dict[str, Tensor]


@dataclass(frozen=True)
class OpenLoop:
    """What a world model predicts while it does not look.

    Attributes:
        predictions: Of every part of the observations, `[time, batch, ...]`; up to the context
            what it makes of what it sees, then what it expects.
        truths: The same parts as they were.
        names: Of the parts.
    """

    predictions: list[Tensor]
    truths: list[Tensor]
    names: list[str]


class WorldModel(nn.Module):
    """Encoder, recurrent model, decoder, and heads for rewards and for whether it goes on.

    Attributes:
        masked: Whether masks were ever seen that forbid something; they are predicted then.
    """

    masked: Tensor

    def __init__(self, group: AgentGroup, code: ActionCode, cfg: DreamerPolicyConfig) -> None:
        super().__init__()
        self.code = code
        self.encoder = Encoder(group.observation_layout, cfg)
        self.rssm = Rssm(code.size, self.encoder.num_tokens, cfg)
        features = self.rssm.num_features
        self.decoder = Decoder(features, group.observation_layout, cfg)
        self.reward = TwoHotHead(features, 1, cfg)
        self.continues = Mlp(features, cfg.units, 1, 1)
        self.masks = Mlp(features, cfg.units, 1, group.mask_width) if group.mask_width else None
        self.register_buffer("masked", torch.zeros((), dtype=torch.bool))

    def observe(self, batch: Sequences, random: torch.Generator) -> Latents:
        """Latent states of all steps of the sequences but the one before each."""
        rssm, first = self.rssm, batch.first[1:]
        tokens = self.encoder(batch.observations[1:])
        actions = self.code(batch.samples[:-1])
        uniforms = rssm.uniforms(*first.shape, random=random)
        stoch = rssm.one_hot(batch.stoch)
        return rssm.observe(tokens, actions, first, batch.deter, stoch, uniforms)

    def losses(
        self, batch: Sequences, latents: Latents, features: Tensor, cfg: DreamerConfig
    ) -> Losses:
        """What is wrong with every prediction of the sequences, each as one number."""
        dynamics, representation = self.rssm.divergences(latents, cfg.free_nats)
        rewards = self.reward(features).log_softmax(-1)
        goes_on = (~batch.terminal[1:]).float() * (1.0 - 1.0 / cfg.discount_horizon)
        said = self.continues(features).squeeze(-1)
        found = {
            "dynamics": dynamics,
            "representation": representation,
            "reconstruction": self.decoder.loss(features, batch.observations[1:]),
            "reward": two_hot_loss(rewards, batch.rewards[1:], self.reward.bins),
            "continue": nn.functional.binary_cross_entropy_with_logits(
                said, goes_on, reduction="none"
            ),
        }
        if self.masks is not None and self.masked:
            wanted = batch.masks[1:].float()
            wrong = nn.functional.binary_cross_entropy_with_logits(
                self.masks(features), wanted, reduction="none"
            ).sum(-1)
            found["masks"] = torch.where(batch.last[1:], 0.0, wrong)  # nothing is done there
        return {name: loss.mean() for name, loss in found.items()}

    def allowed(self, features: Tensor) -> Tensor | None:
        """Which choices probably are; None if all always were."""
        if self.masks is None or not self.masked:
            return None
        logits: Tensor = self.masks(features)
        allowed = logits > 0
        # A head of which nothing seems to be allowed is left its most probable choice.
        for run in self.code.heads:
            part = run.split(logits)
            best = torch.zeros_like(part, dtype=torch.bool)
            best.scatter_(-1, part.argmax(-1, keepdim=True), True)
            allowed[..., run.logits] |= best.flatten(-2)
        return allowed

    @torch.no_grad()
    def open_loop(
        self, observations: Tensor, samples: Tensor, context: int, random: torch.Generator
    ) -> OpenLoop:
        """Look at the first observations of episodes and predict the others from actions alone.

        Args:
            observations: Of one stretch of each episode from its start, `[time, batch, size]`.
            samples: Of the action behind each, `[time, batch, numbers]`.
            context: How many are looked at.
            random: Where chance comes from.
        """
        rssm, device = self.rssm, observations.device
        time, batch = observations.shape[:2]
        uniforms = rssm.uniforms(time, batch, random=random)
        actions = self.code(samples).roll(1, 0)  # what came before each observation
        first = torch.zeros(context, batch, dtype=torch.bool, device=device)
        first[0] = True
        deter = torch.zeros(batch, rssm.deter, device=device)
        stoch = torch.zeros(batch, rssm.num_features - rssm.deter, device=device)
        tokens = self.encoder(observations[:context])
        seen = rssm.observe(tokens, actions[:context], first, deter, stoch, uniforms[:context])
        features = [*seen.features]
        deter, stoch = seen.deter[-1], seen.stoch[-1]
        embedded = rssm.embed_actions(actions)
        for step in range(context, time):
            deter = rssm.advance(deter, stoch, embedded[step])
            stoch = rssm.draw(rssm.prior(deter), uniforms[step])
            features.append(torch.cat([deter, stoch], -1))
        predictions: list[Prediction] = self.decoder(torch.stack(features))
        truths = [truth for truth, _ in self.decoder.truths(observations)]
        names = [part.name for part in self.decoder.parts]
        return OpenLoop([prediction.best() for prediction in predictions], truths, names)
