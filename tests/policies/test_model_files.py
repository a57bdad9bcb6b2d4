"""Folders of language models that strangers made: none of their code runs, and nobody is asked."""

from __future__ import annotations

import builtins
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason='pip install "fugu-rl[lm]"')

import torch
from tiny_language import save_language_model

from fugu.core.errors import UsageError
from fugu.policies.language_model import load_language_model

CODE = """
open("harmed", "w").close()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

class StrangeConfig(LlamaConfig):
    model_type = "strange"

class StrangeModel(LlamaForCausalLM):
    config_class = StrangeConfig

class StrangeTokenizer(PreTrainedTokenizerFast):
    pass
"""
MAPS = {
    "AutoConfig": "strange.StrangeConfig",
    "AutoModelForCausalLM": "strange.StrangeModel",
    "AutoTokenizer": ["strange.StrangeTokenizer", "strange.StrangeTokenizer"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder, with code that leaves a mark; a question to the user fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))

    def answer(prompt: str = "") -> str:
        Path("asked").write_text(prompt)
        return "y"

    monkeypatch.setattr(builtins, "input", answer)
    found = save_language_model(tmp_path / "model")
    (found / "strange.py").write_text(CODE)
    return found


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("config.json", {"model_type": "strange"}),
        ("tokenizer_config.json", {"tokenizer_class": "Strange"}),
    ],
)
def test_code_of_a_folder_is_never_run_and_nobody_is_asked(
    file: str, kind: dict[str, str], folder: Path
) -> None:
    change(folder / file, auto_map=MAPS, **kind)
    with pytest.raises(UsageError, match=r"own \(auto_map\), which fugu never runs") as caught:
        load_language_model(folder)
    assert "trust_remote_code" not in str(caught.value)
    assert not Path("harmed").exists()
    assert not Path("asked").exists()


def test_a_model_that_transformers_has_does_without_the_code_of_its_folder(folder: Path) -> None:
    change(folder / "config.json", auto_map=MAPS)
    assert type(load_language_model(folder).model).__name__ == "LlamaForCausalLM"
    assert not Path("harmed").exists()
    assert not Path("asked").exists()


def test_a_generation_function_of_a_folder_is_not_run(folder: Path) -> None:
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE + "\ndef generate(**_): ...\n")
    load_language_model(folder).generate(["a"], max_tokens=1)
    assert not Path("harmed").exists()


class Evil:
    def __reduce__(self) -> Any:
        return open, ("harmed", "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_not_loaded(name: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UsageError, match=rf"expected weights in \*\.safetensors .*{name}"):
        load_language_model(folder)
    assert not Path("harmed").exists()


def test_pickled_weights_of_tensors_alone_are_not_loaded_either(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.ones(1)}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="which can hold code"):
        load_language_model(folder)


@pytest.mark.parametrize("shard", ["pytorch_model.bin", "../x.safetensors", "/x.safetensors", 3])
def test_an_index_names_safetensors_of_the_folder_alone(shard: Any, folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"lm_head.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"expected weights in \*\.safetensors"):
        load_language_model(folder)


def test_weights_that_a_config_names_are_safetensors(folder: Path) -> None:
    change(folder / "config.json", transformers_weights="adapter_model.bin")
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UsageError, match=r"got 'adapter_model\.bin'"):
        load_language_model(folder)
    assert not Path("harmed").exists()


def test_adapters_of_a_folder_are_not_loaded(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UsageError, match=r"expected a whole model; .*adapter_config\.json"):
        load_language_model(folder)
    assert not Path("harmed").exists()


@pytest.mark.parametrize("value", ["evil/kernels", {"": "evil/kernels"}, "evil/kernels@main:f"])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_kernels_of_the_hub_are_not_fetched(key: str, value: Any, folder: Path) -> None:
    change(folder / "config.json", text_config={key: value})
    with pytest.raises(UsageError, match="got 'evil/kernels"):
        load_language_model(folder)


@pytest.mark.parametrize("text", ["[", "[]", "3", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        load_language_model(folder)
