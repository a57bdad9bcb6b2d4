"""Folders of language models that strangers made: what in them would run code is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fugu.core.errors import UsageError
from fugu.core.files import read_bytes

CONFIG = "config.json"
_CONFIGS = (CONFIG, "tokenizer_config.json", "generation_config.json", "processor_config.json")
_INDEX = "model.safetensors.index.json"
_SAFE = re.compile(r"\w[\w.-]*\.safetensors(\.index\.json)?", re.ASCII)
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".msgpack", ".h5")
_CODE = "trust_remote_code"  # what transformers asks for in its errors


def check_weights(folder: Path) -> None:
    """Raise UsageError unless the weights of a folder are safetensors alone.

    `transformers` would unpickle other weights, those of adapters among them.
    """
    if (folder / "adapter_config.json").exists():
        raise UsageError(
            f"model: expected a whole model; got {str(folder)!r}, which has adapters "
            "(adapter_config.json). Merge them into the model with peft's merge_and_unload() and "
            "save that."
        )
    named = [_read_object(folder / CONFIG).get("transformers_weights", "model.safetensors")]
    if (folder / _INDEX).exists():
        shards = _read_object(folder / _INDEX).get("weight_map", {})
        named += shards.values() if isinstance(shards, dict) else [shards]
    for name in named:
        if not isinstance(name, str) or not _SAFE.fullmatch(name):
            raise UsageError(
                f"model: expected weights in *.safetensors of {str(folder)!r}; got {name!r:.80}."
            )
    files = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in files if name.endswith(_PICKLES)]
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
    """Return whether `transformers` failed since a folder's own code, which never runs, is needed.

    Folders name such code by `auto_map`; models that `transformers` has do without it.
    """
    names = [name for name in _CONFIGS if (folder / name).exists()]
    mapped = any(
        key == "auto_map" for name in names for key, _ in _entries(_read_object(folder / name))
    )
    return mapped and _CODE in str(error)


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
