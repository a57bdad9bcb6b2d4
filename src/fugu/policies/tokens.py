"""A token policy: a causal transformer over the sequence so far, which samples with a KV cache.

Observations are sequences that grow within an episode: a MultiDiscrete in which 0 means that
nothing stands there yet, so that the observation before is a prefix of the present one. What is
seen first is the prompt. As long as an episode goes on, keys and values of what was seen before
are kept in the state, and only what is new is computed. Learning needs no state: the last sequence
of an episode holds all earlier ones, and one causal pass over it gives the outputs of every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.policies.cores import Core
from fugu.spaces import Layout


class TokenEncoder(nn.Module):
    """Hands tokens on as they are, `[batch, length]`."""

    def forward(self, observations: Tensor) -> Tensor:
        """As integers; what is below 0 counts as 0."""
        return observations.to(torch.int64).clamp_min(0)


class TokenCore(Core):
    """A causal transformer: blocks of attention and MLP that normalise first.

    Its inputs are tokens `[..., length]`, its output is that of the last one that is there. The
    sequence begins with a start of its own, so that an empty one has an output too. The state is
    the keys and values of all layers and how many places of them are filled.
    """

    def __init__(self, tokens: int, length: int, hidden_size: int, layers: int) -> None:
        places = length + 1  # the start is one of them
        super().__init__(layers * 2 * places * hidden_size + 1, hidden_size)
        self.tokens, self.places, self.hidden_size = tokens, places, hidden_size
        self.table = nn.Embedding(tokens, hidden_size)  # token 0 is the start
        self.positions = nn.Parameter(torch.randn(places, hidden_size) * 0.02)
        self.blocks = nn.ModuleList(TokenBlock(hidden_size) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden_size)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of tokens `[batch, length]`; what the state holds is not computed again."""
        tokens = hidden
        last = lengths(tokens)
        cache = state[:, :-1].reshape(len(tokens), len(self.blocks), 2, self.places, -1).clone()
        first = torch.minimum(state[:, -1].long(), last)
        outputs = hidden.new_zeros(len(tokens), self.hidden_size, dtype=self.positions.dtype)
        new = last - first + 1
        for rows in ((new == 1).nonzero()[:, 0], (new > 1).nonzero()[:, 0]):
            if len(rows):
                found, filled = self._extend(tokens[rows], first[rows], last[rows], cache[rows])
                outputs = outputs.index_put((rows,), found)
                cache = cache.index_put((rows,), filled)
        counts = (last + 1).to(state.dtype).unsqueeze(-1)
        return outputs, torch.cat([cache.flatten(1).to(state.dtype), counts], -1)

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Whole segments of tokens, `[rows, time, length]`; the state is not needed.

        Each episode of a row is computed once, over its last sequence.
        """
        sequences, owner, counts = last_sequences(hidden, resets)
        longest = int(counts.max()) + 1
        outputs = self._whole(sequences[:, : longest - 1])
        return outputs[owner, counts]

    def _whole(self, tokens: Tensor) -> Tensor:
        """Outputs of every place, `[rows, places, hidden]`, of sequences that have a start."""
        tokens = nn.functional.pad(tokens, (1, 0))
        vectors = self._embed(tokens, torch.arange(tokens.shape[1], device=tokens.device))
        for block in self._blocks():
            keys, values = block.keys_values(vectors)
            vectors = block(vectors, keys, values, None)
        normed: Tensor = self.norm(vectors)
        return normed

    def _extend(
        self, tokens: Tensor, first: Tensor, last: Tensor, cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute places from `first` to `last` of each row; outputs of the last, and the cache."""
        width = int((last - first).max()) + 1
        places = first.unsqueeze(-1) + torch.arange(width, device=tokens.device)
        places = torch.minimum(places, last.unsqueeze(-1))  # the last is computed once too often
        tokens = nn.functional.pad(tokens, (1, 0)).gather(1, places)
        vectors = self._embed(tokens, places)
        there = torch.arange(self.places, device=tokens.device)
        allowed = (there <= places.unsqueeze(-1)).unsqueeze(1)  # [rows, 1, width, places]
        index = places.unsqueeze(-1).expand(-1, -1, self.hidden_size)
        filled = []
        for number, block in enumerate(self._blocks()):
            both = [
                old.scatter(1, index, new.to(old.dtype))
                for old, new in zip(
                    cache[:, number].unbind(1), block.keys_values(vectors), strict=True
                )
            ]
            filled.append(torch.stack(both, 1))
            vectors = block(vectors, *both, allowed)
        outputs: Tensor = self.norm(vectors[:, -1])
        return outputs, torch.stack(filled, 1)

    def _blocks(self) -> Iterator[TokenBlock]:
        for block in self.blocks:
            assert isinstance(block, TokenBlock)
            yield block

    def _embed(self, tokens: Tensor, places: Tensor) -> Tensor:
        embedded: Tensor = self.table(tokens.clamp_max(self.tokens - 1)) + self.positions[places]
        return embedded


class TokenBlock(nn.Module):
    """Attention, then an MLP; both normalise first and add to what they were given."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.heads = math.gcd(hidden_size, 4)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.queries = nn.Linear(hidden_size, hidden_size)
        self.both = nn.Linear(hidden_size, 2 * hidden_size)
        self.merge = nn.Linear(hidden_size, hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 4 * hidden_size),
            nn.GELU(),
            nn.Linear(4 * hidden_size, hidden_size),
        )

    def keys_values(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Of vectors `[rows, places, hidden]`, each of their shape."""
        keys, values = self.both(self.attention_norm(vectors)).chunk(2, -1)
        return keys, values

    def forward(
        self, vectors: Tensor, keys: Tensor, values: Tensor, allowed: Tensor | None
    ) -> Tensor:
        """Vectors that have seen what `allowed` shows them; without it, all up to themselves."""
        queries = self._split(self.queries(self.attention_norm(vectors)))
        keys, values = self._split(keys.to(queries.dtype)), self._split(values.to(queries.dtype))
        seen = nn.functional.scaled_dot_product_attention(
            queries, keys, values, allowed, is_causal=allowed is None
        )
        vectors = vectors + self.merge(seen.transpose(1, 2).flatten(2))
        output: Tensor = vectors + self.mlp(self.mlp_norm(vectors))
        return output

    def _split(self, tensor: Tensor) -> Tensor:
        """[rows, places, hidden] to [rows, heads, places, hidden / heads]."""
        rows, places, hidden = tensor.shape
        return tensor.view(rows, places, self.heads, hidden // self.heads).transpose(1, 2)


def lengths(tokens: Tensor) -> Tensor:
    """How many tokens stand in sequences `[..., length]`, up to the first 0.

    >>> lengths(torch.tensor([[3, 1, 0, 0], [0, 0, 0, 0], [1, 0, 2, 0]])).tolist()
    [2, 0, 1]
    """
    return (tokens != 0).long().cumprod(-1).sum(-1)


def last_sequences(tokens: Tensor, resets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The episodes in segments of tokens `[rows, time, length]`.

    Returns:
        the last sequence of each episode `[episodes, length]`; whose episode each step is of, and
        how many tokens stand there, `[rows, time]`.
    """
    rows, steps = tokens.shape[:2]
    ends = torch.ones(rows, steps, dtype=torch.bool, device=tokens.device)
    ends[:, :-1] = resets[:, 1:].to(tokens.device, torch.bool)
    counts = lengths(tokens)
    # What follows an episode's last step in a padded row is empty: it is an end as well.
    ends[:, :-1] |= counts[:, 1:] < counts[:, :-1]
    owner = (ends.flatten().cumsum(0) - ends.flatten().long()).view(rows, steps)
    return tokens[ends], owner, counts


def make_token_parts(layout: Layout, hidden_size: int, layers: int) -> tuple[nn.Module, Core]:
    """The encoder and the core for observations that are sequences of tokens."""
    space = layout.space
    if not isinstance(space, spaces.MultiDiscrete) or len(space.shape) != 1:
        raise UsageError(
            f"core: given 'tokens' for {space}; allowed: a MultiDiscrete of one axis, in which 0 "
            "means that no token stands there yet."
        )
    core = TokenCore(int(space.nvec.max()), int(space.shape[0]), hidden_size, layers)
    return TokenEncoder(), core
