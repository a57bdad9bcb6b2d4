"""Dreamer's agent: acts by its world model's latent states, and learns in what it imagines."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.algos.dreamer.config import DreamerConfig, DreamerPolicyConfig
from fugu.algos.dreamer.maths import ReturnScale, lambda_returns, two_hot_loss
from fugu.algos.dreamer.networks import ActionCode, Actor, TwoHotHead
from fugu.algos.dreamer.rssm import Latents
from fugu.algos.dreamer.world import Losses, WorldModel
from fugu.data.replay import Sequences
from fugu.envs.contract import AgentGroup
from fugu.policies.distribution import ActionDistribution
from fugu.policies.policy import Policy


@dataclass(frozen=True)
class Imagined:
    """Imagined stretches, `[time, starts, ...]`.

    Attributes:
        features: Latent states, the one each starts from first.
        samples: Of the actions in all but the last.
        masks: What was allowed for them; None if everything always was.
    """

    features: Tensor
    samples: Tensor
    masks: Tensor | None


class DreamerAgent(Policy):
    """World model, actor, critic and slow critic, with the interface of every policy.

    An agent's state is its latent state and what it did last: deter, stoch and the encoded action,
    side by side. `acted` puts the action in. Where `forward` is used, latent states are the most
    probable ones; `step` draws them, as training does.

    Attributes:
        world: The world model.
        actor: Latent states to params of the actions' distribution.
        critic: Latent states to values.
        slow_critic: A moving mean of the critic's weights.
        return_scale: What advantages are divided by.
    """

    def __init__(self, group: AgentGroup, cfg: DreamerPolicyConfig) -> None:
        nn.Module.__init__(self)  # none of a plain policy's parts is needed
        self.distribution = ActionDistribution(group.action_layout)
        self.num_params, self.num_critics = self.distribution.num_params, 1
        code = ActionCode(group.action_layout, self.distribution)
        self.world = WorldModel(group, code, cfg)
        features = self.world.rssm.num_features
        self.actor = Actor(features, code, self.distribution, cfg)
        self.critic = TwoHotHead(features, cfg.layers, cfg)
        self.slow_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.return_scale = ReturnScale()
        self.log_std = None
        self.state_size = features + code.size
        self._sizes = [self.world.rssm.deter, features - self.world.rssm.deter, code.size]

    # ------------------------------------------------------------------ acting

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step, with the most probable latent state; see `Policy.forward`."""
        params, state = self.step(observations, state, None)
        features = state[:, : self.world.rssm.num_features]
        values = self.critic.mean(self.critic(features)).unsqueeze(-1)
        return params, values, state

    def forward_segments(
        self, observations: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Not possible: segments do not say what was done before each observation."""
        raise NotImplementedError("Dreamer learns from sequences: losses(batch, random)")

    def step(
        self, observations: Tensor, state: Tensor, random: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Params and the new states, of observations `[batch, size]` and the states before.

        A state of zeros begins an episode. Without chance, latent states are the most probable.
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
        """The states of agents that did this."""
        action = self.world.code(torch.from_numpy(samples).to(state.device))
        return torch.cat([state[:, : self.world.rssm.num_features], action], -1)

    # ------------------------------------------------------------------ learning

    def losses(
        self, batch: Sequences, cfg: DreamerConfig, random: torch.Generator
    ) -> tuple[Tensor, Losses, Latents]:
        """The whole loss, its parts, and the latent states of the sequences."""
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
            deter, stoch = now[:, : rssm.deter], now[:, rssm.deter :]
            action = rssm.embed_actions(self.world.code(samples[time]))
            deter = rssm.advance(deter, stoch, action)
            trail[time + 1, :, : rssm.deter] = deter
            trail[time + 1, :, rssm.deter :] = rssm.draw(rssm.prior(deter), uniforms[time])
        return Imagined(trail, samples, torch.stack(masks) if masks else None)

    def behaviour_losses(self, imagined: Imagined, cfg: DreamerConfig) -> tuple[Losses, Tensor]:
        """The actor's and the critic's loss, and the returns `[time, starts]` of the stretches."""
        features, critic, world = imagined.features, self.critic, self.world
        logits = critic(features)
        with torch.no_grad():
            values = critic.mean(logits)
            rewards = world.reward.mean(world.reward(features))
            goes_on = torch.sigmoid(world.continues(features).squeeze(-1))
            weights = goes_on.cumprod(0)[:-1]
            traces = torch.full_like(goes_on, cfg.lambda_)
            returns = lambda_returns(rewards, values, goes_on, traces)
            shares = cfg.return_low, cfg.return_high
            scale = self.return_scale(returns, shares, cfg.return_rate, cfg.return_limit)
            advantages = (returns - values[:-1]) / scale
            slow = self.slow_critic.mean(self.slow_critic(features[:-1]))
        params = self.actor(features[:-1])
        chosen, entropies = self.distribution.evaluate(params, imagined.samples, imagined.masks)
        policy = -weights * (chosen * advantages + cfg.entropy_coefficient * entropies)
        value = weights * self._value_errors(logits[:-1], returns, slow, cfg)
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
        """The critic's loss in replay, where imagined returns are what comes after each step.

        Args:
            batch: The sequences.
            features: Of the steps that imagination started from, `[starts, batch, features]`.
            returns: Imagined from them, `[time, starts * batch]`.
            cfg: Settings.
        """
        starts = len(features)
        last, terminal = batch.last[-starts:], batch.terminal[-starts:]
        promised = returns[0].view(last.shape)
        discounts = (~terminal).float() * (1.0 - 1.0 / cfg.discount_horizon)
        traces = (~last).float() * cfg.lambda_
        targets = lambda_returns(batch.rewards[-starts:], promised, discounts, traces)
        with torch.no_grad():
            slow = self.slow_critic.mean(self.slow_critic(features[:-1]))
        errors = self._value_errors(self.critic(features[:-1]), targets, slow, cfg)
        return torch.where(last[:-1], 0.0, errors).mean() if starts > 1 else errors.sum()

    def _value_errors(
        self, logits: Tensor, targets: Tensor, slow: Tensor, cfg: DreamerConfig
    ) -> Tensor:
        logs = logits.log_softmax(-1)
        errors = two_hot_loss(logs, targets, self.critic.bins)
        return errors + cfg.slow_scale * two_hot_loss(logs, slow, self.critic.bins)

    @torch.no_grad()
    def update_slow_critic(self, rate: float) -> None:
        """Let a share of the critic go over into the slow one."""
        slow: list[Tensor] = list(self.slow_critic.parameters())
        torch._foreach_lerp_(slow, list(self.critic.parameters()), rate)


class DreamerLearner:
    """Improves an agent, one gradient step at a time.

    Attributes:
        agent: What is improved.
        optimiser: Of all its parts.
        steps: Gradient steps so far.
    """

    def __init__(
        self, agent: DreamerAgent, optimiser: torch.optim.Optimizer, cfg: DreamerConfig
    ) -> None:
        self.agent, self.optimiser, self.cfg, self.steps = agent, optimiser, cfg, 0

    def step(
        self, batch: Sequences, learning_rate: float, random: torch.Generator
    ) -> tuple[Losses, Latents]:
        """One gradient step; what there is to say of it, and the new latent states."""
        loss, parts, latents = self.agent.losses(batch, self.cfg, random)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.steps += 1
        risen = min(1.0, self.steps / max(self.cfg.warmup_steps, 1))
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate * risen
        self.optimiser.step()
        self.agent.update_slow_critic(self.cfg.slow_rate)
        return parts, latents
