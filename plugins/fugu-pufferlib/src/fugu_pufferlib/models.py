"""PufferLib's policies, with its names of parameters, so that its checkpoints load."""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu_pufferlib.pytorch import (
    Logits,
    flattened_tensor_size,
    layer_init,
    nativize_dtype,
    nativize_tensor,
)

State = dict[str, Any]


class Default(nn.Module):
    """One hidden layer, and heads for any action space of `vector.make`.

    What a recurrent wrapper needs is apart: `encode_observations` and `decode_actions`.

    Args:
        env: What tells the spaces: `vecenv.driver_env`.
        hidden_size: Numbers of the hidden layer.
    """

    def __init__(self, env: Any, hidden_size: int = 128) -> None:
        super().__init__()
        acted = env.single_action_space
        self.hidden_size = hidden_size
        self.is_multidiscrete = isinstance(acted, spaces.MultiDiscrete)
        self.is_continuous = isinstance(acted, spaces.Box)
        self.is_dict_obs = isinstance(_own_space(env), spaces.Dict)
        if self.is_dict_obs:
            self.dtype = nativize_dtype(env.emulated)
            self.encoder: nn.Module = nn.Linear(flattened_tensor_size(self.dtype), hidden_size)
        else:
            inputs = math.prod(env.single_observation_space.shape)
            self.encoder = nn.Sequential(nn.Linear(inputs, hidden_size), nn.GELU())
        if self.is_continuous:
            numbers = math.prod(acted.shape)
            self.decoder_mean = layer_init(nn.Linear(hidden_size, numbers), std=0.01)
            self.decoder_logstd = nn.Parameter(torch.zeros(1, numbers))
        else:
            heads = acted.nvec.tolist() if self.is_multidiscrete else [int(acted.n)]
            self.action_nvec = tuple(heads)
            self.decoder = layer_init(nn.Linear(hidden_size, sum(heads)), std=0.01)
        self.value = layer_init(nn.Linear(hidden_size, 1), std=1)

    def forward(self, observations: Tensor, state: State | None = None) -> tuple[Logits, Tensor]:
        """Logits and values `[batch, 1]` of observations `[batch, ...]`."""
        return self.forward_eval(observations, state)

    def forward_eval(
        self, observations: Tensor, state: State | None = None
    ) -> tuple[Logits, Tensor]:
        """The same."""
        return self.decode_actions(self.encode_observations(observations, state))

    def encode_observations(self, observations: Tensor, state: State | None = None) -> Tensor:
        """Hidden vectors `[batch, hidden_size]`."""
        flat = observations.flatten(1)
        if self.is_dict_obs:
            flat = torch.cat([leaf.flatten(1).float() for leaf in _leaves(flat, self.dtype)], 1)
        hidden: Tensor = self.encoder(flat.float())
        return hidden

    def decode_actions(self, hidden: Tensor) -> tuple[Logits, Tensor]:
        """Logits (a tuple of several heads', or a Normal) and values `[batch, 1]`."""
        values: Tensor = self.value(hidden)
        if self.is_continuous:
            mean = self.decoder_mean(hidden)
            return torch.distributions.Normal(
                mean, self.decoder_logstd.expand_as(mean).exp()
            ), values
        logits: Tensor = self.decoder(hidden)
        several = self.is_multidiscrete
        return torch.split(logits, [*self.action_nvec], 1) if several else logits, values


class LSTMWrapper(nn.Module):
    """A policy with an LSTM between `encode_observations` and `decode_actions`.

    Its state is a dict: `lstm_h` and `lstm_c`, None or tensors, are read and written anew. Nothing
    resets them where an episode ends but who calls it.
    """

    def __init__(
        self, env: Any, policy: Any, input_size: int = 128, hidden_size: int = 128
    ) -> None:
        super().__init__()
        self.obs_shape = tuple(env.single_observation_space.shape)
        self.policy, self.is_continuous = policy, policy.is_continuous
        self.input_size, self.hidden_size = input_size, hidden_size
        for name, parameter in policy.named_parameters():
            if "layer_norm" not in name:
                if "bias" in name:
                    nn.init.zeros_(parameter)
                elif "weight" in name and parameter.ndim >= 2:
                    nn.init.orthogonal_(parameter, 1.0)
        self.lstm = nn.LSTM(input_size, hidden_size)
        self.cell = nn.LSTMCell(input_size, hidden_size)  # one step; its weights are the LSTM's
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(self.cell, kind, getattr(self.lstm, f"{kind}_l0"))

    def forward_eval(self, observations: Tensor, state: State) -> tuple[Logits, Tensor]:
        """One step of `[batch, ...]`, from and to states `[batch, hidden_size]`."""
        hidden = self.policy.encode_observations(observations, state=state)
        before = _pair(state, len(observations), 0)
        after, cell = self.cell(hidden, before)
        state["hidden"], state["lstm_h"], state["lstm_c"] = after, after, cell
        logits, values = self.policy.decode_actions(after)
        return logits, values

    def forward(self, observations: Tensor, state: State) -> tuple[Logits, Tensor]:
        """Whole segments `[batch, time, ...]`; of logits the first axis is both together.

        Values are `[batch, time]`, states are `[1, batch, hidden_size]`, as torch's LSTM has them.
        """
        lead = observations.shape[: observations.ndim - len(self.obs_shape)]
        if tuple(observations.shape[len(lead) :]) != self.obs_shape or len(lead) not in (1, 2):
            raise UsageError(
                f"observations: given a tensor of shape {tuple(observations.shape)}; allowed: "
                f"[batch, {self.obs_shape}] or [batch, time, {self.obs_shape}]."
            )
        batch, time = (*lead, 1)[:2]
        flat = observations.reshape(batch * time, *self.obs_shape)
        inputs = self.policy.encode_observations(flat, state=state)
        by_time = inputs.reshape(batch, time, self.input_size).transpose(0, 1)
        outputs, (last_h, last_c) = self.lstm(by_time, _pair(state, batch, 1))
        hidden = outputs.transpose(0, 1)
        state["hidden"], state["lstm_h"], state["lstm_c"] = hidden, last_h.detach(), last_c.detach()
        logits, values = self.policy.decode_actions(hidden.reshape(batch * time, self.hidden_size))
        return logits, values.reshape(batch, time)


def _pair(state: State, batch: int, axis: int) -> tuple[Tensor, Tensor] | None:
    """The state that an LSTM begins with; None for zeros."""
    hidden, cell = state["lstm_h"], state["lstm_c"]
    if hidden is None:
        return None
    if cell is None or not hidden.shape[axis] == cell.shape[axis] == batch:
        raise UsageError(
            f"state: given lstm_h of shape {tuple(hidden.shape)} for a batch of {batch}; allowed: "
            "lstm_h and lstm_c of that batch, or None for both."
        )
    return hidden, cell


def _own_space(env: Any) -> Any:
    """The observation space of the environment below, if it tells one."""
    inner = getattr(env, "env", env)
    return getattr(inner, "observation_space", None)


def _leaves(observations: Tensor, dtype: Any) -> list[Tensor]:
    tree = nativize_tensor(observations, dtype)
    stack, found = [tree], []
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack += reversed(item.values())
        else:
            found.append(item)
    return found
