"""Causal language models of Hugging Face and their tokenizers, from files; nothing is downloaded.

`fugu.policies.language_policy` makes policies of them. Nothing in a stranger's folder is run.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fugu.core.errors import MissingExtraError, UsageError
from fugu.core.files import read_bytes

EXTRA = "lm"
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
CONFIGS = (CONFIG, "tokenizer_config.json", "generation_config.json", "processor_config.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
SAFE_WEIGHTS = re.compile(r"\w[\w.-]*\.safetensors(\.index\.json)?", re.ASCII)
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".msgpack", ".h5")


@dataclass(frozen=True)
class LanguageModel:
    """A model and its tokenizer."""

    model: Any  # A causal LM of `transformers`, with or without adapters of `peft`
    tokenizer: Any = None  # its tokenizer, of `transformers`; None if it came without one

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int = 64,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[str]:
        """Return the model's completion of each prompt.

        Args:
            prompts: Texts of any lengths.
            max_tokens: Most tokens of a completion.
            temperature: Divides logits before a token is drawn; 0 takes the likeliest.
            seed: Random seed; the same one gives the same completions.
        """
        if max_tokens < 1 or not temperature >= 0.0:
            raise UsageError(
                f"generate: given max_tokens={max_tokens}, temperature={temperature}; allowed: 1 "
                "or more, and 0 or more."
            )
        if not prompts:
            return []
        device, end = self.model.device, self.model.generation_config.eos_token_id
        end = self._tokenizer.eos_token_id if end is None else end
        padding = self._padding
        ids, there = _table([self.prompt_ids(text) for text in prompts], padding, left=True)
        drawn = {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            written = self.model.generate(
                input_ids=ids.to(device),
                attention_mask=there.to(device),
                max_new_tokens=max_tokens,
                do_sample=bool(drawn),
                eos_token_id=end,
                pad_token_id=padding,
                **drawn,
            )
        answers = written[:, ids.shape[1] :]
        return list(self._tokenizer.batch_decode(answers, skip_special_tokens=True))

    def log_probabilities(self, prompts: Sequence[str], completions: Sequence[str]) -> list[Tensor]:
        """Return those of each completion's tokens after its prompt; gradients flow."""
        if len(prompts) != len(completions):
            raise UsageError(
                f"completions: given {len(completions)} for {len(prompts)} prompts; allowed: one "
                "for each."
            )
        if not prompts:
            return []
        heads = [self.prompt_ids(text) for text in prompts]
        tails = [self.ids(text) for text in completions]
        rows = [head + tail for head, tail in zip(heads, tails, strict=True)]
        ids, there = _table(rows, self._padding, left=False)
        device = self.model.device
        logits = self.model(input_ids=ids.to(device), attention_mask=there.to(device)).logits
        found = []
        for row, head, tail in zip(logits, heads, tails, strict=True):
            first = len(head) - 1  # the place before the first token of the completion
            logs = torch.log_softmax(row[first : first + len(tail)].float(), -1)
            wanted = torch.tensor(tail, dtype=torch.int64, device=device).unsqueeze(-1)
            found.append(logs.gather(-1, wanted).squeeze(-1))
        return found

    # ------------------------------------------------------------------ tokens

    def ids(self, text: str) -> list[int]:
        """Return the tokens of a text, without special ones."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def prompt_ids(self, text: str) -> list[int]:
        """Return the tokens of a text at the start of a sequence, as the tokenizer begins one."""
        found = [*_opening(self._tokenizer), *self.ids(text)]
        if not found:
            raise UsageError(
                "prompts: given an empty one, and the tokenizer begins sequences with nothing; "
                "allowed: a text."
            )
        return found

    def save_tokenizer(self, path: str | Path) -> Path:
        """Write a file for `CodingEnv(tokenizer=path)`, which then has the model's own tokens.

        What the tokenizer puts around a text is left out: the policy begins sequences.
        """
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UsageError(
                f"tokenizer: given {type(self._tokenizer).__name__}, which is written in Python; "
                "allowed: one of the `tokenizers` package. Load it with use_fast=True."
            )
        content = json.loads(backend.to_str())
        content |= {"post_processor": None, "truncation": None, "padding": None}
        Path(path).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        return Path(path)

    @property
    def start(self) -> int | None:
        """Return the token that begins every sequence; None if none does."""
        opening = _opening(self.tokenizer) if self.tokenizer is not None else []
        return opening[0] if opening else None

    @property
    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UsageError("tokenizer: given none; allowed: the model's own, for texts.")
        return self.tokenizer

    @property
    def _padding(self) -> int:
        """Return what fills rows up; it is masked, so any token will do."""
        padding = self._tokenizer.pad_token_id
        return int(padding) if padding is not None else 0


def load_language_model(path: str | Path, *, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """Load a model and its tokenizer from a folder of `save_pretrained`, or from a GGUF file.

    Weights are safetensors or GGUF: nothing is unpickled. A folder's own code (`auto_map`) is never
    run, and nobody is asked whether to run it.

    Args:
        path: On this machine: nothing is downloaded.
        dtype: Of the weights; those of a GGUF file are unpacked to it, and can be trained.
    """
    package = import_extra("transformers")
    place = Path(path).expanduser().resolve()
    folder, has_tokenizer = place, True
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    weights: dict[str, Any] = {"dtype": dtype}
    if place.is_file() and place.suffix == ".gguf":
        import_extra("gguf")
        options["gguf_file"], folder = place.name, place.parent
    elif (place / CONFIG).is_file():
        check_weights(place)
        weights["use_safetensors"] = True
        has_tokenizer = any((place / name).is_file() for name in TOKENIZER_FILES)
    else:
        raise UsageError(
            f"model: given {str(path)!r}, where no model is; allowed: a folder with a config.json, "
            "as save_pretrained writes it, or a .gguf file. Nothing is downloaded: put it there."
        )
    check_config(folder)
    try:
        model = package.AutoModelForCausalLM.from_pretrained(str(folder), **weights, **options)
        tokenizer = None
        if has_tokenizer:
            tokenizer = package.AutoTokenizer.from_pretrained(str(folder), **options)
    except Exception as error:  # a broken file breaks its reader in many ways
        if needs_code(folder, error):
            raise UsageError(
                f"model: expected a model whose code is part of transformers; got {str(path)!r}, "
                "whose configuration names Python code of its own (auto_map), which fugu never "
                "runs. Load it with transformers where you trust it, and give the model instead."
            ) from None
        raise UsageError(
            f"model: given {str(path)!r}, which transformers cannot read ({_first_line(error)}); "
            "allowed: a causal language model with its weights."
        ) from error
    return LanguageModel(model.eval(), tokenizer)


def take_language_model(model: Any, tokenizer: Any = None) -> LanguageModel:
    """Load a model from a path, or copy one."""
    if isinstance(model, str | Path):
        found = load_language_model(model)
    else:
        given = model if isinstance(model, LanguageModel) else LanguageModel(model)
        found = LanguageModel(copy.deepcopy(given.model), given.tokenizer)
    return LanguageModel(found.model, tokenizer if tokenizer is not None else found.tokenizer)


def add_lora(model: Any, lora: Any) -> Any:
    """Add adapters, which alone are trained, to a model.

    Args:
        model: Is changed in place.
        lora: A `peft.LoraConfig`, or settings of one.
    """
    package = import_extra("peft")
    try:
        if isinstance(lora, Mapping):
            lora = package.LoraConfig(**{"task_type": "CAUSAL_LM", **lora})
        return package.get_peft_model(model, copy.deepcopy(lora))
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"lora: given {lora!r}, which peft refuses ({_first_line(error)}); allowed: a "
            "peft.LoraConfig or settings of one, such as {'r': 8, 'lora_alpha': 16}."
        ) from error


def import_extra(package: str) -> Any:
    """Import a package of the extra, or raise the error that names the extra."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise MissingExtraError(package, EXTRA) from None


# ---------------------------------------------------------------------- folders of strangers


def check_weights(folder: Path) -> None:
    """Raise UsageError unless the weights of a folder are safetensors.

    `transformers` would unpickle other weights, those of adapters too.
    """
    if (folder / "adapter_config.json").exists():
        raise UsageError(
            f"model: expected a whole model; got {str(folder)!r}, which has adapters "
            "(adapter_config.json). Merge them into the model with peft's merge_and_unload() and "
            "save that."
        )
    named = [_read_object(folder / CONFIG).get("transformers_weights", "model.safetensors")]
    if (folder / INDEX).exists():
        shards = _read_object(folder / INDEX).get("weight_map", {})
        named += shards.values() if isinstance(shards, dict) else [shards]
    for name in named:
        if not isinstance(name, str) or not SAFE_WEIGHTS.fullmatch(name):
            raise UsageError(
                f"model: expected weights in *.safetensors of {str(folder)!r}; got {name!r:.80}."
            )
    files = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in files if name.endswith(PICKLES)]
    if pickles and not any(name.endswith(".safetensors") for name in files):
        raise UsageError(
            f"model: expected weights in *.safetensors of {str(folder)!r}; got only {pickles[0]}, "
            "which can hold code. Convert them where you trust them: save_pretrained writes "
            "safetensors."
        )


def check_config(folder: Path) -> None:
    """Raise UsageError for settings that would have `transformers` fetch code from the Hub.

    An implementation of attention or of experts may be the name of a repository with kernels.
    """
    if not (folder / CONFIG).exists():  # a GGUF file holds its own
        return
    for key, value in _entries(_read_object(folder / CONFIG)):
        if "implementation" in key and isinstance(value, str) and re.search(r"[/:@\\]", value):
            raise UsageError(
                f"model: expected an implementation that transformers has, such as 'sdpa', in "
                f"{key} of {str(folder / CONFIG)!r}; got {value!r:.80}."
            )


def needs_code(folder: Path, error: Exception) -> bool:
    """Return whether `transformers` failed since the folder's own code (`auto_map`) is needed."""
    names = [name for name in CONFIGS if (folder / name).exists()]
    mapped = any(
        key == "auto_map" for name in names for key, _ in _entries(_read_object(folder / name))
    )
    return mapped and "trust_remote_code" in str(error)


def _entries(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of all objects in a JSON document.

    The values of an object are also listed under its own key: `{"attn": {"": "eager"}}`.
    """
    waiting: list[tuple[str, Any]] = [("", tree)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key, inner
                yield place, inner
                waiting.append((key, inner))
        elif isinstance(value, list):
            waiting += [(place, inner) for inner in value]


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bytes(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"model: expected JSON in {str(path)!r}; got {error!s:.200}.") from None
    if not isinstance(found, dict):
        raise UsageError(f"model: expected an object in {str(path)!r}; got {found!r:.80}.")
    return found


# ---------------------------------------------------------------------- tokens


def _opening(tokenizer: Any) -> list[int]:
    """Return what a tokenizer begins every sequence with: its BOS token, or nothing."""
    found = list(tokenizer("")["input_ids"])[:1]
    return found if found and found[0] == tokenizer.bos_token_id else []


def _table(rows: Sequence[list[int]], padding: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Return rows of tokens as a table, and where there are tokens, both `[rows, longest]`.

    >>> [part.tolist() for part in _table([[5], [6, 7]], 0, left=True)]
    [[[0, 5], [6, 7]], [[0, 1], [1, 1]]]
    """
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), padding, dtype=torch.int64)
    there = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        part = slice(longest - len(row), None) if left else slice(len(row))
        ids[i, part], there[i, part] = torch.tensor(row, dtype=torch.int64), 1
    return ids, there


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
