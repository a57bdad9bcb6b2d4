"""Policies that are language models: any causal LM of `transformers`, sampled with a KV cache.

Observations are sequences of tokens that grow, as `fugu.policies.tokens` has them. Keys and values
of what was seen are kept in the policy's state; learning is one causal pass over the last sequence
of each episode. Logits are the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.envs.coding.env import OWN, TOLD, WRITE
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.cores import Core
from fugu.policies.distribution import FORBIDDEN, ActionDistribution
from fugu.policies.language_model import (
    LanguageModel,
    add_lora,
    import_extra,
    take_language_model,
)
from fugu.policies.policy import Policy
from fugu.policies.tokens import TokenEncoder, last_sequences, lengths

Shape = tuple[int, int]  # heads and their width


class LanguageCore(Core):
    """A causal language model over tokens `[..., length]`; its output is the last hidden state.

    The state is the keys and values of all layers, place by place, and how many places are filled.
    A sequence in which nothing stands has an output of zeros, unless the model begins all of them.
    The model stays in evaluation mode: with dropout, what is learned from would not be what acted.

    Args:
        model: A causal LM of `transformers`, with adapters of `peft` or without.
        reads: The model's token for each token of the observations, `[tokens]`.
        length: Of the sequences.
        start: The model's token before every sequence.
    """

    reads: Tensor

    def __init__(self, model: Any, reads: Tensor, length: int, start: int | None = None) -> None:
        shapes, hidden_size = _probe(model)
        places = length + (start is not None)
        numbers = sum(heads * width for heads, width in shapes)
        super().__init__(places * numbers + 1, hidden_size)
        self.model, self.places = model.eval(), places
        self._shapes, self._start = shapes, start
        self.register_buffer("reads", reads, persistent=False)

    def train(self, mode: bool = True) -> LanguageCore:
        """As a module's, but for the model."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of tokens `[batch, length]`; what the state holds is not computed again."""
        ids, counts = self._read(hidden)
        new = counts - torch.minimum(state[:, -1].long(), counts - 1)
        outputs = torch.zeros(len(ids), self.output_size, dtype=self.model.dtype, device=ids.device)
        after = state.clone()
        after[:, -1] = counts.to(after.dtype)
        cache = after[:, :-1].view(len(ids), self.places, -1)
        for chosen in ((new == 1) & (counts > 0), new > 1):
            rows = chosen.nonzero()[:, 0]
            if len(rows):
                found = self._extend(ids[rows], counts[rows], int(new[rows].max()), cache, rows)
                outputs[rows] = found.to(outputs.dtype)
        return outputs, after

    def forward_segments(self, hidden: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Whole segments of tokens, `[rows, time, length]`; the state is not needed."""
        sequences, owner, counts = last_sequences(hidden, resets)
        ids, _ = self._read(sequences[:, : max(1, int(counts.max()))])
        found = _body(self.model)(input_ids=ids, use_cache=False).last_hidden_state
        places = counts - int(self._start is None)
        outputs = found[owner, places.clamp_min(0)]
        return torch.where((places >= 0).unsqueeze(-1), outputs, 0.0)

    def _read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The model's tokens of sequences, and how many there are."""
        ids, counts = self.reads[tokens.clamp_max(len(self.reads) - 1)], lengths(tokens)
        if self._start is None:
            return ids, counts
        return nn.functional.pad(ids, (1, 0), value=self._start), counts + 1

    def _extend(
        self, ids: Tensor, counts: Tensor, width: int, cache: Tensor, rows: Tensor
    ) -> Tensor:
        """Outputs of rows after their last `width` tokens, whose keys and values are kept.

        Slots are filled from the right: rows of different lengths end together, and nothing but
        padding on the left comes between their tokens.
        """
        past = max(0, int(counts.max()) - width)
        slots = torch.arange(past + width, device=ids.device)
        places = (counts - past - width).unsqueeze(-1) + slots
        there, places = places >= 0, places.clamp_min(0)
        kept = self._rebuild(cache[rows.unsqueeze(-1), places[:, :past]])
        new = places[:, past:]
        found = _body(self.model)(
            input_ids=ids.gather(1, new),
            attention_mask=there.long(),
            position_ids=new,
            past_key_values=kept,
            use_cache=True,
        ).last_hidden_state
        row, slot = there[:, past:].nonzero(as_tuple=True)
        cache[rows[row], new[row, slot]] = _numbers(kept, past)[row, slot].to(cache.dtype)
        last: Tensor = found[:, -1]
        return last

    def _rebuild(self, numbers: Tensor) -> Any:
        """A cache of `transformers` with numbers `[rows, places, numbers]`."""
        kept = _empty_cache()
        if not numbers.shape[1]:
            return kept
        sizes = [heads * width for heads, width in self._shapes]
        flat = torch.split(numbers.to(self.model.dtype), sizes, -1)
        parts = [
            part.view(*part.shape[:2], *shape).transpose(1, 2)  # [rows, heads, places, width]
            for part, shape in zip(flat, self._shapes, strict=True)
        ]
        for layer, (keys, values) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
            kept.update(keys, values, layer)
        return kept


class LanguageHead(nn.Module):
    """Logits of those tokens that are actions, and values that are 0 at first.

    Where several actions stand for one token, the last of them has its logit and the others none.
    So an end that is the model's own has the model's probability.

    Args:
        model: Whose core it follows, which holds its weights.
        writes: The model's token for each action, `[actions]`.
        critics: Values of an observation.
    """

    writes: Tensor
    twice: Tensor

    def __init__(self, model: Any, writes: Tensor, critics: int) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple: as a module of its own, it would be saved twice
        self.values: nn.Linear | None = None
        if critics:
            self.values = nn.Linear(_hidden_size(model), critics)
            nn.init.zeros_(self.values.weight)
            nn.init.zeros_(self.values.bias)
        last = {int(token): action for action, token in enumerate(writes)}
        twice = [last[int(token)] != action for action, token in enumerate(writes)]
        self.register_buffer("writes", writes, persistent=False)
        self.register_buffer("twice", torch.tensor(twice), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden vectors `[..., hidden]` to `[..., actions + critics]`."""
        logits = _logits(self._model[0], hidden)[..., self.writes].float()
        logits = logits.masked_fill(self.twice, FORBIDDEN)
        if self.values is None:
            return logits
        return torch.cat([logits, self.values(hidden.to(self.values.weight.dtype)).float()], -1)


class LanguagePolicy(Policy):
    """A policy whose state is what is trained: the rest is the model's, and comes with it."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        trained = {name for name, weight in self.named_parameters() if weight.requires_grad}
        self._left_out = frozenset(super().state_dict()) - trained

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """What is trained, by name; of weights that are shared, one."""
        found: dict[str, Any] = super().state_dict(*args, **kwargs)
        for name in self._left_out:
            found.pop(f"{kwargs.get('prefix', '')}{name}", None)
        return found

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Go back to a `state_dict`; what is not trained stays as it is."""
        own = super().state_dict()
        full = {**{name: own[name] for name in self._left_out}, **state_dict}
        return super().load_state_dict(full, strict, assign)


def make_language_policy(
    group: AgentGroup,
    cfg: PolicyConfig,
    num_critics: int = 1,
    *,
    model: LanguageModel | str | Path | Any,
    tokenizer: Any = None,
    lora: Any = None,
    reads: Sequence[int] | None = None,
    writes: Sequence[int] | None = None,
) -> Policy:
    """A policy that is a language model; with `functools.partial`, a `policy_factory`.

    Args:
        group: Whose observations and actions.
        cfg: Only `precision` counts; the rest is the model's.
        num_critics: Values of an observation, by a layer on the last hidden state.
        model: A path for `load_language_model`, or a model, which is copied.
        tokenizer: The model's, if it comes without one.
        lora: Train adapters alone: a `peft.LoraConfig` or settings of one, such as `{"r": 8}`.
        reads: The model's token for each token of the observations; those of a `CodingEnv` with
            the model's tokenizer if not given.
        writes: The model's token for each action; likewise.
    """
    found = take_language_model(model, tokenizer)
    length, tokens, actions = _sizes(group)
    if reads is None or writes is None:
        read, written = coding_tokens(found)
        reads = read if reads is None else reads
        writes = written if writes is None else writes
    _check(found.model, "reads", reads, tokens)
    _check(found.model, "writes", writes, actions)
    wrapped = found.model if lora is None else add_lora(found.model, lora)
    core = LanguageCore(wrapped, torch.tensor(reads), length, found.start)
    most = getattr(wrapped.config, "max_position_embeddings", None)
    if most is not None and core.places > most:
        raise UsageError(
            f"model: given one of {most} places for sequences of {core.places}; allowed: one that "
            "has as many. Give the environment shorter sequences."
        )
    head = LanguageHead(wrapped, torch.tensor(writes), num_critics)
    distribution = ActionDistribution(group.action_layout, cfg.continuous)
    parts = TokenEncoder(), core, head, distribution, num_critics, cfg.log_std, cfg.precision
    return LanguagePolicy(*parts)


def coding_tokens(found: LanguageModel) -> tuple[list[int], list[int]]:
    """The model's tokens for what a `CodingEnv` shows and for what is written there.

    Its marks are a line's end, if that is one token. The program's end is the model's own.
    """
    tokenizer = found.tokenizer
    if tokenizer is None or tokenizer.eos_token_id is None:
        given = "none" if tokenizer is None else "one without an end (eos_token)"
        raise UsageError(
            f"tokenizer: given {given}; allowed: the model's own. Or say reads=... and "
            "writes=..., the model's tokens for those of the environment."
        )
    end, line = int(tokenizer.eos_token_id), found.ids("\n")
    marks = [end] * OWN
    marks[WRITE] = marks[TOLD] = line[0] if len(line) == 1 else end
    own = range(len(tokenizer))
    return [*marks, *own], [*own, end]


def _sizes(group: AgentGroup) -> tuple[int, int, int]:
    """Length of the sequences, how many tokens there are, how many actions."""
    seen, done = group.observation_layout.space, group.action_layout.space
    if not isinstance(seen, spaces.MultiDiscrete) or len(seen.shape) != 1:
        raise UsageError(
            f"policy: given a language model for {seen}; allowed: a MultiDiscrete of one axis, in "
            "which 0 means that no token stands there yet."
        )
    if not isinstance(done, spaces.Discrete):
        raise UsageError(
            f"policy: given a language model for actions {done}; allowed: a Discrete of tokens."
        )
    return int(seen.shape[0]), int(seen.nvec.max()), int(done.n)


def _check(model: Any, name: str, given: Sequence[int], count: int) -> None:
    """Raise if these are not as many tokens of the model as the environment has."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if len(given) != count:
        raise UsageError(
            f"{name}: given {len(given)} tokens; allowed: {count}, as many as the environment has. "
            "Has it the model's tokenizer? LanguageModel.save_tokenizer writes it to a file."
        )
    if not all(0 <= token < vocabulary for token in given):
        raise UsageError(
            f"{name}: given tokens from {min(given)} to {max(given)}; allowed: 0 to "
            f"{vocabulary - 1}, the model's."
        )


# ---------------------------------------------------------------------- the model's parts


def _causal(model: Any) -> Any:
    """The model itself, within its adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _body(model: Any) -> Any:
    """What gives hidden states."""
    return _causal(model).base_model


def _hidden_size(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[-1])


def _logits(model: Any, hidden: Tensor) -> Tensor:
    """The model's logits of its last hidden states."""
    causal = _causal(model)
    logits: Tensor = causal.get_output_embeddings()(hidden)
    settings = causal.config
    logits = logits * (getattr(settings, "logit_scale", None) or 1.0)
    logits = logits / (getattr(settings, "logits_scaling", None) or 1.0)
    cap = getattr(settings, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _empty_cache() -> Any:
    return import_extra("transformers").DynamicCache()


def _numbers(kept: Any, first: int) -> Tensor:
    """Keys and values of a cache from a slot on, `[rows, slots, numbers]`."""
    both = [tensor for layer in kept.layers for tensor in (layer.keys, layer.values)]
    return torch.cat([tensor[:, :, first:].transpose(1, 2).flatten(2) for tensor in both], -1)


@torch.no_grad()
def _probe(model: Any) -> tuple[list[Shape], int]:
    """What a model keeps of a token, layer by layer keys and values, and its hidden size.

    Raises:
        UsageError: If it keeps something else, or makes its logits in a way of its own.
    """
    model.eval()
    ids, kept = torch.zeros(1, 2, dtype=torch.int64, device=model.device), _empty_cache()
    try:
        hidden = _body(model)(input_ids=ids, past_key_values=kept, use_cache=True).last_hidden_state
        shapes = [
            (int(tensor.shape[1]), int(tensor.shape[3]))
            for layer in kept.layers
            for tensor in (layer.keys, layer.values)
        ]
        whole = model(input_ids=ids).logits
        fits = bool(shapes) and torch.allclose(_logits(model, hidden), whole, 1e-3, 1e-3)
    except (TypeError, AttributeError, ValueError) as error:
        raise _refused(model, f"{type(error).__name__}: {error}") from error
    if not fits:
        raise _refused(model, "no keys and values" if not shapes else "logits of another kind")
    return shapes, int(hidden.shape[-1])


def _refused(model: Any, reason: str) -> UsageError:
    return UsageError(
        f"model: given {type(_causal(model)).__name__} ({reason}); allowed: a causal language "
        "model that keeps keys and values of every layer and whose logits are its output layer's."
    )
