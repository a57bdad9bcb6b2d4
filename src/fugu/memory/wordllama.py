"""Word vectors of the package `wordllama`, read from the files that it brings."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fugu.core.errors import MissingExtraError, UsageError
from fugu.memory.items import Floats

PACKAGE, EXTRA = "wordllama", "memory"


class WordLlama:
    """The mean of a text's token vectors: near for texts that mean alike, in English above all.

    Args:
        folder: The package's folder; that of the installed one if not given.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        place = _package_folder() if folder is None else Path(folder)
        weights = _only(place / "weights", "*.safetensors")
        vocabulary = _only(place / "tokenizers", "*.json")
        tensors = _module("safetensors.numpy").load_file(weights)
        if len(tensors) != 1:
            raise UsageError(f"{weights}: it holds {len(tensors)} tables; allowed: one.")
        self._table: Floats = next(iter(tensors.values())).astype(np.float32)  # [tokens, numbers]
        self._tokenizer = _module("tokenizers").Tokenizer.from_file(str(vocabulary))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.dimensions = int(self._table.shape[1])
        self.name = f"{weights.stem}-{len(self._table)}"

    def __call__(self, texts: Sequence[str]) -> Floats:
        """One row of length 1 for each text; zeros for one without tokens."""
        rows = np.zeros((len(texts), self.dimensions), np.float32)
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for row, tokens in zip(rows, encoded, strict=True):
            if tokens.ids:
                mean = self._table[tokens.ids].mean(axis=0, dtype=np.float64)
                row[:] = mean / max(float(np.sqrt((mean * mean).sum())), 1e-30)
        return rows


def _package_folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)  # not imported: it sets up logging for everybody
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(PACKAGE, EXTRA)
    return Path(next(iter(spec.submodule_search_locations)))


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(name.partition(".")[0], EXTRA) from error


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UsageError(
            f"wordllama: {folder} holds {len(found)} files {pattern}; allowed: one. "
            "Install a version of the package that brings its table."
        )
    return found[0]
