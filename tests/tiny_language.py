"""Tiny random language models, and a tokenizer whose tokens are letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, processors

from fugu.policies.language_model import LanguageModel

LETTERS = "\n 0123456789abefnrstuy()=,+-*:"
SPECIAL = ("<begin>", "<end>")
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
COMMON = {"max_position_embeddings": 96, "initializer_range": 0.2,
          "bos_token_id": 0, "eos_token_id": 1}  # fmt: skip


def make_model(kind: str = "llama", vocabulary: int = 12, seed: int = 0) -> Any:
    """A random one: "llama"; "gpt2" has places of its own and ties its tables; "mistral" looks
    back on 4 tokens only; "gemma2" bends its logits."""
    torch.manual_seed(seed)
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(
            vocab_size=vocabulary, n_embd=32, n_layer=2, n_head=4, n_positions=96,
            initializer_range=0.2, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5,
            bos_token_id=0, eos_token_id=1,
        )  # fmt: skip
    elif kind == "gemma2":
        more = {"head_dim": 8, "sliding_window": 4, "final_logit_softcapping": 2.0}
        config = transformers.Gemma2Config(vocab_size=vocabulary, **SIZES, **COMMON, **more)
    elif kind == "mistral":
        config = transformers.MistralConfig(
            vocab_size=vocabulary, **SIZES, **COMMON, sliding_window=4
        )
    else:
        config = transformers.LlamaConfig(vocab_size=vocabulary, **SIZES, **COMMON)
    return transformers.AutoModelForCausalLM.from_config(config)


def make_tokenizer(begins: bool = False) -> Any:
    """Each letter is a token; with `begins`, one stands before every sequence."""
    tokens = {token: number for number, token in enumerate((*SPECIAL, *LETTERS))}
    backend = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(SPECIAL))
    if begins:
        backend.post_processor = processors.TemplateProcessing(
            single="<begin> $A", special_tokens=[("<begin>", 0)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<begin>", eos_token="<end>"
    )


def make_language_model(begins: bool = False, seed: int = 0) -> LanguageModel:
    """A llama that knows letters."""
    tokenizer = make_tokenizer(begins)
    return LanguageModel(make_model(vocabulary=len(tokenizer), seed=seed), tokenizer)


def save_language_model(folder: Path, begins: bool = False) -> Path:
    """The same as files."""
    made = make_language_model(begins)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder
