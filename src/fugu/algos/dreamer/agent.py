"""Dreamer's agent: acts by its world model's latent states, and learns in what it imagines."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.algos.dreamer.config import DreamerConfig, DreamerPolicyConfig
from fugu.algos.dreamer.networks import (
    ActionEncoder,
    Decoder,
    DreamerActor,
    Encoder,
    Latents,
    Mlp,
    Rssm,
    TwoHotHead,
    two_hot_loss,
)
from fugu.algos.optimizers import set_learning_rate
from fugu.data.replay import Sequences
from fugu.envs.contract import AgentGroup
from fugu.policies.distribution import ActionDistribution
from fugu.policies.policy import Policy

Losses = dict[str, Tensor]


class WorldModel(nn.Module):
    """Encoder, recurrent model, decoder, and heads for rewards and the continuation of episodes."""

    masked: Tensor  # whether any action was ever masked; only then are masks predicted

    def __init__(self, group: AgentGroup, code: ActionEncoder, cfg: DreamerPolicyConfig) -> None:
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
        """Return the latent states of all steps of the sequences but the one before each."""
        rssm, first = self.rssm, batch.first[1:]
        tokens = self.encoder(batch.observations[1:])
        actions = self.code(batch.samples[:-1])
        uniforms = rssm.uniforms(*first.shape, random=random)
        stoch = rssm.one_hot(batch.stoch)
        return rssm.observe(tokens, actions, first, batch.deter, stoch, uniforms)

    def losses(
        self, batch: Sequences, latents: Latents, features: Tensor, cfg: DreamerConfig
    ) -> Losses:
        """Return the mean loss of every prediction of the sequences."""
        cross_entropy = nn.functional.binary_cross_entropy_with_logits
        dynamics, representation = self.rssm.divergences(latents, cfg.free_nats)
        rewards = self.reward(features).log_softmax(-1)
        continues = (~batch.terminal[1:]).float() * (1.0 - 1.0 / cfg.discount_horizon)
        predicted = self.continues(features).squeeze(-1)
        found = {
            "dynamics": dynamics,
            "representation": representation,
            "reconstruction": self.decoder.loss(features, batch.observations[1:]),
            "reward": two_hot_loss(rewards, batch.rewards[1:], self.reward.bins),
            "continue": cross_entropy(predicted, continues, reduction="none"),
        }
        if self.masks is not None and self.masked:
            masks = batch.masks[1:].float()
            wrong = cross_entropy(self.masks(features), masks, reduction="none").sum(-1)
            found["masks"] = torch.where(batch.last[1:], 0.0, wrong)  # no action follows there
        return {name: loss.mean() for name, loss in found.items()}

    def allowed(self, features: Tensor) -> Tensor | None:
        """Predict which choices are allowed; None if all always were."""
        if self.masks is None or not self.masked:
            return None
        logits: Tensor = self.masks(features)
        allowed = logits > 0
        # A head of which nothing seems to be allowed keeps its most probable choice.
        for group in self.code.heads:
            part = group.split(logits)
            best = torch.zeros_like(part, dtype=torch.bool)
            best.scatter_(-1, part.argmax(-1, keepdim=True), True)
            allowed[..., group.logits] |= best.flatten(-2)
        return allowed

    @torch.no_grad()
    def open_loop(
        self, observations: Tensor, samples: Tensor, context: int, random: torch.Generator
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Look at the first observations of episodes and predict the rest from actions alone.

        Args:
            observations: From the starts of episodes, `[time, batch, size]`.
            samples: Of the action after each, `[time, batch, numbers]`.
            context: Number of observations that are looked at.
            random: Draws latent states.

        Returns:
            Of each part of the observations, `[time, batch, ...]`: what is predicted (for the
            context, what is reconstructed), and what was true.
        """
        rssm = self.rssm
        time, batch = observations.shape[:2]
        uniforms = rssm.uniforms(time, batch, random=random)
        actions = self.code(samples).roll(1, 0)  # what came before each observation
        first = torch.zeros(context, batch, dtype=torch.bool, device=observations.device)
        first[0] = True
        deter, stoch = rssm.split(torch.zeros(batch, rssm.num_features, device=observations.device))
        tokens = self.encoder(observations[:context])
        seen = rssm.observe(tokens, actions[:context], first, deter, stoch, uniforms[:context])
        features = [*seen.features]
        deter, stoch = seen.deter[-1], seen.stoch[-1]
        embedded = rssm.embed_actions(actions)
        for step in range(context, time):
            deter = rssm.advance(deter, stoch, embedded[step])
            stoch = rssm.draw(rssm.prior(deter), uniforms[step])
            features.append(torch.cat([deter, stoch], -1))
        parts, outputs = self.decoder.parts, self.decoder(torch.stack(features))
        best = [part.best(output) for part, output in zip(parts, outputs, strict=True)]
        return best, self.decoder.truths(observations)


class ReturnScale(nn.Module):
    """Moving means of two percentiles of returns; their distance scales advantages.

    >>> scale = ReturnScale()
    >>> scale(torch.linspace(0.0, 100.0, 101), (0.05, 0.95), rate=0.5, limit=1.0).item()
    45.0
    """

    low: Tensor
    high: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    @torch.no_grad()
    def forward(
        self, returns: Tensor, shares: tuple[float, float], rate: float, limit: float
    ) -> Tensor:
        """Add these returns and return the scale, which is at least `limit`."""
        low, high = torch.quantile(returns.flatten(), torch.tensor(shares, device=returns.device))
        self.low.lerp_(low, rate)
        self.high.lerp_(high, rate)
        return (self.high - self.low).clamp_min(limit)


def lambda_returns(rewards: Tensor, values: Tensor, discounts: Tensor, traces: Tensor) -> Tensor:
    """Return the lambda-returns of all steps but the last, `[time - 1, ...]`.

    `R_t = r_{t+1} + d_{t+1} ((1 - l_{t+1}) v_{t+1} + l_{t+1} R_{t+1})`, and the value at the end.

    Args:
        rewards: Received with each observation, `[time, ...]`.
        values: Of each step, `[time, ...]`.
        discounts: Weight of a step's value and of all behind it; 0 where an episode terminates.
        traces: Weight of the return, and not of the value; 0 where an episode ends.
    """
    fixed = torch.addcmul(rewards, discounts * (1.0 - traces), values)
    weights = discounts * traces
    found = torch.empty_like(rewards[1:])
    following = values[-1]
    for time in range(rewards.shape[0] - 1, 0, -1):
        following = torch.addcmul(fixed[time], weights[time], following)
        found[time - 1] = following
    return found


@dataclass(frozen=True)
class Imagined:
    """Imagined trajectories, `[time, starts, ...]`."""

    features: Tensor  # latent states, beginning with the one that each starts from
    samples: Tensor  # of the actions in all states but the last
    masks: Tensor | None  # what was allowed for them; None if everything always was


class DreamerAgent(Policy):
    """World model, actor, critic and slow critic, with the interface of every policy.

    An agent's state is its latent state and its last action: deter, stoch and the encoded action,
    side by side. `acted` puts the action in. `forward` takes the most probable latent states;
    `step` draws them, as training does. `slow_critic` is a moving mean of the critic's weights.
    """

    def __init__(self, group: AgentGroup, cfg: DreamerPolicyConfig) -> None:
        nn.Module.__init__(self)  # none of a plain policy's parts is needed
        self.distribution = ActionDistribution(group.action_layout)
        self.num_params, self.num_critics = self.distribution.num_params, 1
        code = ActionEncoder(group.action_layout, self.distribution)
        self.world = WorldModel(group, code, cfg)
        features = self.world.rssm.num_features
        self.actor = DreamerActor(features, code, self.distribution, cfg)
        self.critic = TwoHotHead(features, cfg.layers, cfg)
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.return_scale = ReturnScale()
        self.log_std = None
        self.state_size = features + code.size
        self._sizes = [self.world.rssm.deter, features - self.world.rssm.deter, code.size]

    # ------------------------------------------------------------------ acting

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take one step with the most probable latent state; see `Policy.forward`."""
        params, state = self.step(observations, state, None)
        features = state[:, : self.world.rssm.num_features]
        values = self.critic.mean(self.critic(features)).unsqueeze(-1)
        return params, values, state

    def forward_segments(
        self, observations: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Raise: segments lack the actions before each observation."""
        raise NotImplementedError("Dreamer learns from sequences: losses(batch, random)")

    def step(
        self, observations: Tensor, state: Tensor, random: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return params and the new states, of observations `[batch, size]` and the states before.

        A state of zeros begins an episode. Without `random`, latent states are the most probable.
        """
        rssm = self.world.rssm
        deter, stoch, action = torch.split(state, self._sizes, -1)
        deter = rssm.advance(deter, stoch, rssm.embed_actions(action))
        seen = rssm.see_tokens(self.world.encoder(observations))
        uniforms = None if random is None else rssm.uniforms(len(state), random=random)
        stoch = rssm.draw(rssm.posterior(deter, seen), uniforms)
        features = torch.cat([deter, stoch], -1)
        params: Tensor = self.actor(features)
        return params, torch.cat([features, torch.zeros_like(action)], -1)

    def acted(self, state: Tensor, samples: NDArray[np.float32]) -> Tensor:
        """Return the states after these samples were drawn."""
        action = self.world.code(torch.from_numpy(samples).to(state.device))
        return torch.cat([state[:, : self.world.rssm.num_features], action], -1)

    # ------------------------------------------------------------------ learning

    def losses(
        self, batch: Sequences, cfg: DreamerConfig, random: torch.Generator
    ) -> tuple[Tensor, Losses, Latents]:
        """Return the whole loss, its parts, and the latent states of the sequences."""
        latents = self.world.observe(batch, random)
        features = latents.features
        parts = self.world.losses(batch, latents, features, cfg)
        ends = features[-cfg.starts :]  # [starts, batch, features]
        imagined = self.imagine(ends.detach().flatten(0, 1), cfg.imagination_length, random)
        behaviour, returns = self.behaviour_losses(imagined, cfg)
        parts |= behaviour
        parts["replay_value"] = self.replay_value_loss(batch, ends, returns, cfg)
        scales = {
            "dynamics": cfg.dynamics_scale,
            "representation": cfg.representation_scale,
            "reconstruction": cfg.reconstruction_scale,
            "reward": cfg.reward_scale,
            "continue": cfg.continue_scale,
            "masks": cfg.reconstruction_scale,
            "policy": cfg.policy_scale,
            "value": cfg.value_scale,
            "replay_value": cfg.replay_value_scale,
        }
        total = sum(parts[name] * scale for name, scale in scales.items() if name in parts)
        assert isinstance(total, Tensor)
        return total, {name: part.detach() for name, part in parts.items()}, latents

    @torch.no_grad()
    def imagine(self, features: Tensor, length: int, random: torch.Generator) -> Imagined:
        """Act in imagination from latent states `[starts, features]`."""
        rssm, starts = self.world.rssm, len(features)
        trail = features.new_empty(length + 1, starts, features.shape[-1])
        samples = features.new_empty(length, starts, self.distribution.num_samples)
        masks: list[Tensor] = []
        uniforms = rssm.uniforms(length, starts, random=random)
        trail[0] = features
        for time in range(length):
            now = trail[time]
            allowed = self.world.allowed(now)
            masks += [] if allowed is None else [allowed]
            samples[time] = self.actor.draw(self.actor(now), allowed, random)
            deter, stoch = rssm.split(now)
            action = rssm.embed_actions(self.world.code(samples[time]))
            deter = rssm.advance(deter, stoch, action)
            trail[time + 1, :, : rssm.deter] = deter
            trail[time + 1, :, rssm.deter :] = rssm.draw(rssm.prior(deter), uniforms[time])
        return Imagined(trail, samples, torch.stack(masks) if masks else None)

    def behaviour_losses(self, imagined: Imagined, cfg: DreamerConfig) -> tuple[Losses, Tensor]:
        """Return the losses of actor and critic, and the imagined returns `[time, starts]`."""
        features, critic, world = imagined.features, self.critic, self.world
        logits = critic(features)
        with torch.no_grad():
            values = critic.mean(logits)
            rewards = world.reward.mean(world.reward(features))
            continues = torch.sigmoid(world.continues(features).squeeze(-1))
            weights = continues.cumprod(0)[:-1]
            traces = torch.full_like(continues, cfg.lambda_)
            returns = lambda_returns(rewards, values, continues, traces)
            shares = cfg.return_low, cfg.return_high
            scale = self.return_scale(returns, shares, cfg.return_rate, cfg.return_limit)
            advantages = (returns - values[:-1]) / scale
        params = self.actor(features[:-1])
        chosen, entropies = self.distribution.evaluate(params, imagined.samples, imagined.masks)
        policy = -weights * (chosen * advantages + cfg.entropy_coefficient * entropies)
        value = weights * self._value_errors(features[:-1], logits[:-1], returns, cfg)
        found = {
            "policy": policy.mean(),
            "value": value.mean(),
            "entropy": entropies.mean(),
            "imagined_return": returns.mean(),
            "return_scale": scale,
        }
        return found, returns

    def replay_value_loss(
        self, batch: Sequences, features: Tensor, returns: Tensor, cfg: DreamerConfig
    ) -> Tensor:
        """Return the critic's loss in replay, bootstrapped from imagined returns.

        Args:
            batch: The sequences.
            features: Of the steps that imagination started from, `[starts, batch, features]`.
            returns: Imagined from them, `[time, starts * batch]`.
            cfg: The settings.
        """
        starts = len(features)
        last, terminal = batch.last[-starts:], batch.terminal[-starts:]
        values = returns[0].view(last.shape)
        discounts = (~terminal).float() * (1.0 - 1.0 / cfg.discount_horizon)
        traces = (~last).float() * cfg.lambda_
        targets = lambda_returns(batch.rewards[-starts:], values, discounts, traces)
        logits = self.critic(features[:-1])
        errors = self._value_errors(features[:-1], logits, targets, cfg)
        return torch.where(last[:-1], 0.0, errors).mean() if starts > 1 else errors.sum()

    def _value_errors(
        self, features: Tensor, logits: Tensor, targets: Tensor, cfg: DreamerConfig
    ) -> Tensor:
        with torch.no_grad():
            slow = self.slow_critic.mean(self.slow_critic(features))
        logs, bins = logits.log_softmax(-1), self.critic.bins
        return two_hot_loss(logs, targets, bins) + cfg.slow_scale * two_hot_loss(logs, slow, bins)


class DreamerLearner:
    """Improves an agent, one gradient step at a time; `steps` counts them."""

    def __init__(
        self, agent: DreamerAgent, optimizer: torch.optim.Optimizer, cfg: DreamerConfig
    ) -> None:
        self.agent, self.optimizer, self.cfg, self.steps = agent, optimizer, cfg, 0
        self._critic: list[Tensor] = list(agent.critic.parameters())
        self._slow_critic: list[Tensor] = list(agent.slow_critic.parameters())

    def step(
        self, batch: Sequences, learning_rate: float, random: torch.Generator
    ) -> tuple[Losses, Latents]:
        """Take one gradient step; return the losses and the new latent states."""
        loss, parts, latents = self.agent.losses(batch, self.cfg, random)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.steps += 1
        warmup = min(1.0, self.steps / max(self.cfg.warmup_steps, 1))
        set_learning_rate(self.optimizer, learning_rate * warmup)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self._slow_critic, self._critic, self.cfg.slow_rate)
        return parts, latents
