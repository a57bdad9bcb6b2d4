"""Language models from files: what they say is what `transformers` says, and nobody is called."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason='pip install "fugu-rl[lm]"')

import torch
from tiny_language import make_language_model, save_language_model

from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.coding.tokenizers import PairTokenizer
from fugu.policies.language_model import LanguageModel, load_language_model, take_language_model

TEXTS = ["a+b", "f(n)=7", "return n*2\n"]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("somebody wants to connect")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


# ------------------------------------------------------------------ files


@pytest.mark.usefixtures("offline")
def test_a_folder_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    made, found = make_language_model(), load_language_model(save_language_model(tmp_path))
    assert found.tokenizer("a+b")["input_ids"] == made.tokenizer("a+b")["input_ids"]
    for name, weight in made.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], weight), name
    assert not found.model.training


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    make_language_model().model.save_pretrained(tmp_path)
    found = load_language_model(tmp_path)
    assert found.tokenizer is None
    with pytest.raises(UsageError, match="tokenizer: given none"):
        found.generate(["a"])


def test_weights_have_the_type_that_is_asked_for(tmp_path: Path) -> None:
    found = load_language_model(save_language_model(tmp_path), dtype=torch.bfloat16)
    assert found.model.dtype == torch.bfloat16


@pytest.mark.usefixtures("offline")
def test_what_is_not_there_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Nothing is downloaded"):
        load_language_model("somebody/some-model")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UsageError, match="which transformers cannot read"):
        load_language_model(tmp_path)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, but no more")
    with pytest.raises(UsageError, match="which transformers cannot read"):
        load_language_model(tmp_path / "broken.gguf")


def test_a_missing_package_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"fugu-rl\[lm\]"):
        load_language_model(tmp_path)


def test_a_model_that_is_given_stays_as_it_is() -> None:
    made = make_language_model()
    taken = take_language_model(made)
    with torch.no_grad():
        next(taken.model.parameters()).add_(1.0)
    assert not torch.equal(next(taken.model.parameters()), next(made.model.parameters()))
    assert taken.tokenizer is made.tokenizer


# ------------------------------------------------------------------ texts


def reference(made: LanguageModel, prompt: str, completion: str) -> torch.Tensor:
    """Log-probabilities of one completion, by one pass without padding."""
    head, tail = made.prompt_ids(prompt), made.ids(completion)
    logits = made.model(input_ids=torch.tensor([head + tail])).logits[0]
    logs = torch.log_softmax(logits, -1)
    return torch.stack([logs[len(head) - 1 + i, token] for i, token in enumerate(tail)])


@pytest.mark.parametrize("begins", [False, True])
@torch.no_grad()
def test_log_probabilities_are_the_models(begins: bool) -> None:
    made = make_language_model(begins)
    found = made.log_probabilities(TEXTS, ["7", "n*n+1", "b"])
    for row, prompt, completion in zip(found, TEXTS, ["7", "n*n+1", "b"], strict=True):
        torch.testing.assert_close(row, reference(made, prompt, completion), rtol=1e-4, atol=1e-4)
    assert made.log_probabilities(["a"], [""])[0].shape == (0,)


def test_gradients_flow_through_log_probabilities() -> None:
    made = make_language_model()
    made.log_probabilities(["a"], ["b"])[0].sum().backward()
    assert next(made.model.parameters()).grad is not None


@torch.no_grad()
def test_the_likeliest_answer_is_the_likeliest_token_each_time() -> None:
    made = make_language_model()
    for text, answer in zip(
        TEXTS, made.generate(TEXTS, max_tokens=6, temperature=0.0), strict=True
    ):
        ids = made.prompt_ids(text)
        for _ in range(6):
            ids.append(int(made.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == made.tokenizer.eos_token_id:
                break
        written = ids[len(made.prompt_ids(text)) :]
        assert answer == made.tokenizer.decode(written, skip_special_tokens=True)


def test_a_seed_decides_what_is_drawn() -> None:
    made, before = make_language_model(), torch.random.get_rng_state()
    first, again, other = (made.generate(TEXTS, max_tokens=12, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert torch.equal(torch.random.get_rng_state(), before)


@torch.no_grad()
def test_tokens_are_drawn_as_often_as_the_model_says() -> None:
    made = make_language_model()
    answers = made.generate(["a+"] * 4000, max_tokens=1, seed=3)
    logits = made.model(input_ids=torch.tensor([made.prompt_ids("a+")])).logits[0, -1]
    for token in (logits[2:].topk(3).indices + 2).tolist():  # letters alone
        share = sum(answer == made.tokenizer.decode([token]) for answer in answers) / 4000
        expected = float(torch.softmax(logits, -1)[token])
        assert share == pytest.approx(expected, abs=4 * (expected / 4000) ** 0.5)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda made: made.generate(["a"], max_tokens=0), "1 or more"),
        (lambda made: made.generate(["a"], temperature=-1.0), "0 or more"),
        (lambda made: made.generate([""]), "an empty one"),
        (lambda made: made.log_probabilities(["a"], []), "given 0 for 1 prompts"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        call(make_language_model())


def test_nothing_for_nothing() -> None:
    made = make_language_model()
    assert made.generate([]) == []
    assert made.log_probabilities([], []) == []


# ------------------------------------------------------------------ the environment's tokenizer


@pytest.mark.parametrize("begins", [False, True])
def test_an_environment_gets_the_models_tokens(begins: bool, tmp_path: Path) -> None:
    made = make_language_model(begins)
    assert made.start == (0 if begins else None)
    own = PairTokenizer.load(made.save_tokenizer(tmp_path / "tokenizer.json"))
    assert own.size == len(made.tokenizer)
    for text in TEXTS:
        assert own.encode(text) == made.ids(text)
        assert own.decode(own.encode(text)) == text
