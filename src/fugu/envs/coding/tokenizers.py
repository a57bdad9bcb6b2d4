"""Texts as tokens: bytes, or pairs of them that often stand together."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fugu.core.errors import MissingExtraError, UsageError
from fugu.core.files import read_text
from fugu.sandbox.texts import clean


class Tokenizer(Protocol):
    """Turns text into numbers below `size`, and back."""

    @property
    def size(self) -> int:
        """Number of tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; an incomplete character becomes U+FFFD."""


class ByteTokenizer:
    """Each byte of a text is a token.

    >>> ByteTokenizer().decode(ByteTokenizer().encode("é"))
    'é'
    """

    size = 256

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return bytes(tokens).decode("utf-8", "replace")


class LetterTokenizer:
    """Each of a few letters is a token: the smallest vocabulary for a family of problems.

    >>> LetterTokenizer("ab+").encode("a+b")
    [0, 2, 1]
    """

    def __init__(self, letters: str) -> None:
        self._letters = letters
        self._numbers = {letter: number for number, letter in enumerate(letters)}

    @property
    def size(self) -> int:
        """Number of letters."""
        return len(self._letters)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without other letters."""
        return [self._numbers[letter] for letter in text if letter in self._numbers]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return "".join(self._letters[token] for token in tokens)


class PairTokenizer:
    """Byte-level BPE of the `tokenizers` package."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], size: int = 1024) -> PairTokenizer:
        """Train on some texts."""
        if size < 256:
            raise UsageError(f"size: given {size}; allowed: 256, one for each byte, or more.")
        package = _package()
        made = package.ByteLevelBPETokenizer()
        made.train_from_iterator(texts, vocab_size=size, show_progress=False)
        return cls(made)

    @classmethod
    def load(cls, path: str | Path) -> PairTokenizer:
        """Load a saved one, or any file of the `tokenizers` package."""
        package = _package()
        try:
            return cls(package.Tokenizer.from_str(read_text(path)))
        except FileNotFoundError:
            raise
        except Exception as error:  # the package raises plain Exceptions
            raise UsageError(
                f"{path}: expected a tokenizer's file; got another: {error}."
            ) from None

    def save(self, path: str | Path) -> None:
        """Save it to a file."""
        self._tokenizer.save(str(path))

    @property
    def size(self) -> int:
        """Number of tokens."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; a lone surrogate is a question mark."""
        return list(self._tokenizer.encode(clean(text)).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(list(tokens)))


def make_tokenizer(name: str, texts: Iterable[str] = ()) -> Tokenizer:
    """Make a tokenizer by name.

    Args:
        name: "bytes"; "bpe" or "bpe:SIZE", trained on `texts`; "letters:abc"; or a file.
        texts: Texts to train on.
    """
    kind, _, rest = name.partition(":")
    if kind == "bytes" and not rest:
        return ByteTokenizer()
    if kind == "letters" and rest:
        return LetterTokenizer(rest)
    if kind == "bpe" and (not rest or rest.isdigit()):
        return PairTokenizer.train(texts, int(rest or 1024))
    if Path(name).is_file():
        return PairTokenizer.load(name)
    raise UsageError(
        f"tokenizer: given {name!r}; allowed: bytes, bpe, bpe:SIZE, letters:abc, or a file."
    )


def _package() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ModuleNotFoundError:
        raise MissingExtraError("tokenizers", "coding") from None
