"""A transformer core: attention over the last observations of the episode."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fugu.policies.core import Core


class TransformerCore(Core):
    """One block of causal attention over the last `window` hidden vectors of the episode.

    The block normalises first, adds what it computes to its input, and knows how far back a
    vector lies by a learned bias of each distance. The state is the window, oldest first, and a
    count of the vectors in it.
    """

    def __init__(self, input_size: int, hidden_size: int, window: int) -> None:
        super().__init__(window * hidden_size + 1, hidden_size)
        self.window, self.hidden_size = window, hidden_size
        self.heads = math.gcd(hidden_size, 4)
        same = input_size == hidden_size
        self.project = nn.Identity() if same else nn.Linear(input_size, hidden_size)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.queries = nn.Linear(hidden_size, hidden_size)
        self.keys_values = nn.Linear(hidden_size, 2 * hidden_size)
        self.merge = nn.Linear(hidden_size, hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 2 * hidden_size),
            nn.GELU(),
            nn.Linear(2 * hidden_size, hidden_size),
        )
        self.bias = nn.Parameter(torch.zeros(self.heads, window))  # by distance
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, 1.0)
                nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step, `[batch, inputs]`."""
        window, count = self._split(state)
        present = self.project(hidden).unsqueeze(1)
        window = torch.cat([window[:, 1:], present], 1)
        count = (count + 1).clamp_max(self.window)
        ages = torch.arange(self.window - 1, -1, -1, device=hidden.device)
        allowed = (ages < count.unsqueeze(-1)).unsqueeze(1)  # [batch, 1, window]
        bias = self.bias[:, ages].unsqueeze(1)  # [heads, 1, window]
        output = self._block(present, window, allowed, bias)[:, 0]
        return output, torch.cat([window.flatten(1), count.unsqueeze(-1)], -1)

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Whole segments, `[rows, time, inputs]`."""
        window, count = self._split(state)
        present = self.project(hidden)
        device, size, steps = hidden.device, self.window, present.shape[1]
        context = torch.cat([window, present], 1)  # [rows, window + time, hidden]
        # Episodes are numbered from 0, the one that the state is of; what the state does not hold
        # has number -1, which is no query's.
        episodes = resets.to(device, torch.int64).cumsum(1)
        places = torch.arange(size, device=device)
        before = torch.where(places >= size - count.unsqueeze(-1), 0, -1)
        owners = torch.cat([before, episodes], 1)
        time = torch.arange(steps, device=device).unsqueeze(-1)
        ages = size + time - torch.arange(size + steps, device=device)  # [time, window + time]
        near = (ages >= 0) & (ages < size)
        allowed = near & (episodes.unsqueeze(-1) == owners.unsqueeze(1))
        bias = self.bias[:, ages.clamp(0, size - 1)]
        return self._block(present, context, allowed, bias)

    def _split(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The window [batch, window, hidden] and the count [batch] of a flat state."""
        return state[:, :-1].reshape(-1, self.window, self.hidden_size), state[:, -1]

    def _block(self, present: Tensor, context: Tensor, allowed: Tensor, bias: Tensor) -> Tensor:
        """Queries [rows, time, hidden] over a context [rows, places, hidden].

        `allowed` is [rows, time, places], `bias` [heads, time, places].
        """
        # A weight of 0 does not hide what is not a number: an earlier episode's would stay.
        context = torch.where(context.isfinite(), context, 0.0)
        queries = self._heads(self.queries(self.attention_norm(present)))
        keys, values = self.keys_values(self.attention_norm(context)).chunk(2, -1)
        keys, values = self._heads(keys), self._heads(values)
        scores = torch.where(allowed.unsqueeze(1), bias, float("-inf"))
        seen = nn.functional.scaled_dot_product_attention(queries, keys, values, scores)
        present = present + self.merge(seen.transpose(1, 2).flatten(2))
        output: Tensor = present + self.mlp(self.mlp_norm(present))
        return output

    def _heads(self, tensor: Tensor) -> Tensor:
        """[rows, places, hidden] to [rows, heads, places, hidden / heads]."""
        rows, places, hidden = tensor.shape
        return tensor.view(rows, places, self.heads, hidden // self.heads).transpose(1, 2)
