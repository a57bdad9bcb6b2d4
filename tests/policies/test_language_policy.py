"""Language models as policies: what they say is the model's, and they learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason='pip install "fugu-rl[lm]"')

import numpy as np
import torch
import transformers
from gymnasium import spaces
from tiny_language import make_language_model, make_model, make_tokenizer

from fugu.core.errors import UsageError
from fugu.envs.coding import CodingEnv, Problem
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.language_policy import LanguageCore, make_language_policy
from fugu.policies.policy import Policy
from fugu.sandbox import Case, Task
from fugu.spaces import Layout
from fugu.store.checkpoint import load_checkpoint
from fugu.training.session import resume, train
from fugu.training.trainer import Progress, Trainer
from fugu.vector import make

pytestmark = pytest.mark.timeout(200)
LENGTH, TOKENS = 14, 12
KINDS = ["llama", "gpt2", "mistral", "gemma2"]
READS, WRITES = range(TOKENS), [3, 1, 7, 8]


def group_of(seen: spaces.Space[Any], done: spaces.Space[Any]) -> AgentGroup:
    return AgentGroup("agent", (0,), Layout.of(seen), Layout.of(done))


GROUP = group_of(spaces.MultiDiscrete([TOKENS] * LENGTH), spaces.Discrete(len(WRITES)))


def make_one(kind: str = "llama", critics: int = 0, **options: Any) -> tuple[Policy, Any]:
    """A policy, and the model that it is made of."""
    model = make_model(kind, TOKENS).eval()
    given = {"model": model, "reads": READS, "writes": WRITES, **options}
    return make_language_policy(GROUP, PolicyConfig(), critics, **given), model


def episodes(prompts: list[int], steps: int, seed: int = 1) -> torch.Tensor:
    """Sequences that grow by one token a step, `[rows, steps, length]`."""
    random = np.random.default_rng(seed)
    out = np.zeros((len(prompts), steps, LENGTH), np.int64)
    for row, prompt in zip(out, prompts, strict=True):
        tokens = random.integers(1, TOKENS, LENGTH)
        for t in range(steps):
            row[t, : prompt + t] = tokens[: prompt + t]
    return torch.from_numpy(out)


def said(model: Any, sequence: torch.Tensor) -> torch.Tensor:
    """What the model itself says after a sequence, of the tokens that are actions."""
    ids = sequence[: int((sequence != 0).sum())]
    return model(input_ids=ids[None]).logits[0, -1, WRITES]  # type: ignore[no-any-return]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------ steps and passes


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_steps_equal_one_pass_equal_the_model(kind: str) -> None:
    policy, model = make_one(kind)
    seen = episodes([1, 3, 8, 5], 6)
    resets = torch.zeros(4, 6, dtype=torch.bool)
    whole, _ = policy.forward_segments(seen, policy.initial_state(4), resets)
    state = policy.initial_state(4)
    for t in range(6):
        params, values, state = policy(seen[:, t], state)
        close(params, whole[:, t])
        close(params, torch.stack([said(model, row[t]) for row in seen]))
        assert values.shape == (4, 0)
        assert state[:, -1].tolist() == [n + t for n in (1, 3, 8, 5)]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_rows_go_on_begin_jump_and_wait_side_by_side(kind: str) -> None:
    """By 1 token, from nothing, by 5, by 2, with nothing there, and by none."""
    policy, model = make_one(kind)
    seen = episodes([4, 6, 2, 9, 1, 3], 6)
    _, _, state = policy(seen[:, 0], policy.initial_state(6))
    state[1] = 0.0  # a new episode
    now = torch.stack([seen[0, 1], seen[1, 0], seen[2, 5], seen[3, 2], seen[4, 0], seen[5, 0]])
    now[4] = 0
    params, _, state = policy(now, state)
    assert state[:, -1].tolist() == [5, 6, 7, 11, 0, 3]
    assert not params[4].any()
    for row in (0, 1, 2, 3, 5):
        close(params[row], said(model, now[row]))
    later = torch.cat([seen[:4, 5], seen[4:, 0]])  # now they go on from what they kept
    params, _, _ = policy(later, state)
    for row in range(6):
        close(params[row], said(model, later[row]))


@torch.no_grad()
def test_segments_with_ends_inside_and_padding_after() -> None:
    policy, model = make_one()
    seen = episodes([2, 3], 3)
    row = torch.cat([seen[0], seen[1], torch.zeros(2, LENGTH, dtype=torch.int64)])[None]
    resets = torch.zeros(1, 8, dtype=torch.bool)
    resets[0, 3] = True
    found, _ = policy.forward_segments(row, policy.initial_state(1), resets)
    for t in range(6):
        close(found[0, t], said(model, row[0, t]))
    empty, _ = policy.forward_segments(row[:, 6:], policy.initial_state(1), resets[:, :2])
    assert not empty.any()


@torch.no_grad()
def test_later_tokens_change_no_earlier_output() -> None:
    policy, _ = make_one()
    seen = episodes([3], 5)
    resets = torch.zeros(1, 5, dtype=torch.bool)
    before, _ = policy.forward_segments(seen, policy.initial_state(1), resets)
    other = seen.clone()
    other[0, 4, 6] = seen[0, 4, 6] % (TOKENS - 1) + 1
    after, _ = policy.forward_segments(other, policy.initial_state(1), resets)
    close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])


def test_a_step_computes_only_what_is_new() -> None:
    policy, _ = make_one()
    assert isinstance(policy.core, LanguageCore)
    widths: list[int] = []
    tables = policy.core.model.get_input_embeddings()
    tables.register_forward_hook(lambda module, given, out: widths.append(given[0].shape[1]))
    seen, state = episodes([5, 5], 3), policy.initial_state(2)
    for t in range(3):
        _, _, state = policy(seen[:, t], state)
    assert widths == [5, 1, 1]


def test_gradients_are_the_models() -> None:
    policy, model = make_one("gpt2")
    seen = episodes([2, 4], 3)
    params, _ = policy.forward_segments(
        seen, policy.initial_state(2), torch.zeros(2, 3, dtype=torch.bool)
    )
    params.square().sum().backward()
    torch.stack(
        [said(model, seen[i, t]) for i in range(2) for t in range(3)]
    ).square().sum().backward()
    assert isinstance(policy.core, LanguageCore)
    for (name, mine), theirs in zip(
        policy.core.model.named_parameters(), model.parameters(), strict=True
    ):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3, msg=name)


def test_dropout_does_not_disturb_what_is_learned_from() -> None:
    policy, model = make_one("gpt2")
    policy.train()
    seen = episodes([4], 1)[:, 0]
    close(policy(seen, policy.initial_state(1))[0][0], said(model, seen[0]))


def test_bfloat16_products_are_close() -> None:
    model = make_model()
    options: dict[str, Any] = {"model": model, "reads": READS, "writes": WRITES}
    policy = make_language_policy(GROUP, PolicyConfig(precision="bfloat16"), 1, **options)
    seen, state = episodes([2, 6], 3), policy.initial_state(2)
    for t in range(3):
        params, _, state = policy(seen[:, t], state)
        expected = torch.stack([said(model.eval(), row[t]) for row in seen])
        torch.testing.assert_close(params, expected, rtol=0.1, atol=0.1)


# ------------------------------------------------------------------ programs

SAME = Problem(
    "same",
    "n\n",
    Task("same", "same", (Case((3,), 3), Case((-5,), -5))),
    header="def same(n):\n    return ",
    solution="n",
)


def coding(folder: Path, **options: Any) -> Callable[[], CodingEnv]:
    """Makes environments with the tiny model's tokens."""
    path = make_language_model().save_tokenizer(folder / "tokenizer.json")
    return partial(CodingEnv, [SAME], split="all", tokenizer=str(path), prompt_length=8, **options)


@pytest.mark.parametrize("begins", [False, True])
@torch.no_grad()
def test_a_program_is_as_likely_as_the_model_says(begins: bool, tmp_path: Path) -> None:
    made = make_language_model(begins)
    end = made.tokenizer.eos_token_id
    with make(coding(tmp_path, program_length=6), 1, backend="serial") as vec:
        policy = make_language_policy(vec.groups[0], PolicyConfig(), 1, model=made)
        seen, _ = vec.reset(seed=1)
        state, logs = policy.initial_state(1), []
        actions = [*made.ids("n+0"), len(made.tokenizer)]  # the last hands it in
        for action in actions:
            params, values, state = policy(torch.from_numpy(np.array(seen)), state)
            chosen = torch.tensor([[float(action)]])
            logs.append(policy.distribution.evaluate(params, chosen)[0])
            assert values.tolist() == [[0.0]]
            seen = vec.step(np.array([[action]]))[0]
    found = made.log_probabilities(["n\n\n"], ["n+0"])[0]
    logits = made.model(input_ids=torch.tensor([made.prompt_ids("n\n\nn+0")])).logits[0, -1]
    expected = torch.cat([found, torch.log_softmax(logits, -1)[[end]]])
    close(torch.cat(logs), expected)


def learn(env: Callable[[], CodingEnv], **settings: Any) -> tuple[list[float], Policy]:
    """Mean rewards of a short training's updates, and what came of it."""
    rewards: list[float] = []

    def watch(trainer: Trainer, progress: Progress) -> None:
        rewards.append(progress.episodes["episode_return"])

    model = make_language_model()
    found = train(
        env,
        algo="grpo",
        keep=False,
        show=False,
        callbacks=[watch],
        vec={"num_envs": 64, "group_size": 16, "backend": "serial"},
        policy_factory=partial(make_language_policy, model=model, **settings.pop("policy", {})),
        train={
            "teams": 4,
            "epochs": 2,
            "minibatches": 1,
            "optimiser": "adamw",
            "schedule": "constant",
            "total_steps": 64 * 30,
            **settings,
        },
    )
    return rewards, found.policies[0]


def test_grpo_raises_what_programs_are_worth(tmp_path: Path) -> None:
    rewards, _ = learn(coding(tmp_path, program_length=1), learning_rate=0.003)
    assert np.mean(rewards[:3]) < 0.3
    assert np.mean(rewards[-3:]) > 0.9


def test_without_learning_they_stay_worth_what_they_were(tmp_path: Path) -> None:
    rewards, policy = learn(coding(tmp_path, program_length=1), learning_rate=0.0)
    assert np.mean(rewards[-3:]) < 0.3
    assert isinstance(policy.core, LanguageCore)
    for mine, theirs in zip(
        policy.core.model.parameters(), make_language_model().model.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_lora_trains_adapters_alone(tmp_path: Path) -> None:
    rewards, policy = learn(
        coding(tmp_path, program_length=1),
        learning_rate=0.02,
        policy={"lora": {"r": 4, "lora_alpha": 16, "target_modules": "all-linear"}},
    )
    assert np.mean(rewards[-3:]) > 0.6
    assert isinstance(policy.core, LanguageCore)
    kept = policy.state_dict()
    assert kept
    assert all("lora_" in name for name in kept)
    assert any(bool(weight.any()) for name, weight in kept.items() if "lora_B" in name)
    original = make_language_model().model.state_dict()
    bare = policy.core.model.unload().state_dict()
    assert sorted(bare) == sorted(original)
    for name, weight in original.items():
        assert torch.equal(bare[name], weight), name


# ------------------------------------------------------------------ whole runs

SEQUENCES = "sequence_task:SequenceTask"
COPYING: dict[str, Any] = {"reads": range(6), "writes": [1, 2, 3, 4]}


def copying(kind: str = "gpt2", **options: Any) -> Callable[..., Policy]:
    """For the sequence task of four tokens."""
    return partial(make_language_policy, model=make_model(kind, 8), **COPYING, **options)


@pytest.mark.parametrize("lora", [None, {"r": 2, "lora_alpha": 8}])
def test_stopped_and_resumed_equals_never_stopped(lora: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "algo": "grpo",
        "show": False,
        "seed": 3,
        "vec": {"num_envs": 8, "group_size": 4, "backend": "serial"},
        "train": {
            "teams": 2,
            "epochs": 1,
            "minibatches": 1,
            "beta": 0.01,
            "total_steps": 200,
            "optimiser": "adamw",
            "learning_rate": 0.003,
        },
        "policy_factory": copying(lora=lora),
    }
    whole = train(SEQUENCES, run={"folder": tmp_path, "name": "whole"}, **options)

    def stop(trainer: Trainer, progress: Progress) -> None:
        trainer.stopping = progress.updates == 3

    part = train(SEQUENCES, run={"folder": tmp_path, "name": "part"}, callbacks=[stop], **options)
    assert part.status == "stopped"
    rest = resume("part", root=tmp_path, show=False, policy_factory=copying(lora=lora))
    assert rest.status == "finished"
    assert rest.run is not None
    assert whole.run is not None
    paths = rest.run.latest(), whole.run.latest()
    assert paths[0] is not None
    assert paths[1] is not None
    mine, theirs = (load_checkpoint(path).tensors for path in paths)
    assert any(name.startswith("reference.") for name in theirs["learner_0"])
    if lora:
        assert all("lora_" in name for name in theirs["policy_0"])
    else:
        assert "core.model.lm_head.weight" not in theirs["policy_0"]  # it is the table of tokens
    for file, entries in theirs.items():
        assert sorted(mine[file]) == sorted(entries)
        for key, value in entries.items():
            assert torch.equal(mine[file][key], value), f"{file}.{key}"


def test_ppo_trains_values_too() -> None:
    found = train(
        SEQUENCES,
        keep=False,
        show=False,
        vec={"num_envs": 8, "backend": "serial"},
        policy_factory=copying("llama"),
        train={
            "total_steps": 256,
            "horizon": 16,
            "minibatches": 2,
            "optimiser": "adamw",
            "learning_rate": 0.001,
        },
    )
    kept = found.policies[0].state_dict()
    assert kept["decoder.values.weight"].any()
    original = make_model("llama", 8).state_dict()
    assert not torch.equal(kept["core.model.lm_head.weight"], original["lm_head.weight"])


# ------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("group", "options", "told"),
    [
        (group_of(spaces.Box(0, 1, (3,)), spaces.Discrete(4)), {}, "allowed: a MultiDiscrete"),
        (group_of(spaces.MultiDiscrete([12] * 5), spaces.Box(0, 1)), {}, "allowed: a Discrete"),
        (GROUP, {"reads": range(5)}, "reads: given 5 tokens; allowed: 12"),
        (GROUP, {"writes": [1, 2, 3, 12]}, "allowed: 0 to 11"),
        (GROUP, {"writes": None}, "tokenizer: given none"),
        (GROUP, {"lora": {"rank": 3}}, "lora: given"),
        (GROUP, {"lora": {"target_modules": ["nowhere"]}}, "which peft refuses"),
        (
            group_of(spaces.MultiDiscrete([12] * 97), spaces.Discrete(4)),
            {},
            "one of 96 places for sequences of 97",
        ),
    ],
)
def test_what_does_not_fit_is_refused(group: AgentGroup, options: Any, told: str) -> None:
    given = {"model": make_model(), "reads": READS, "writes": WRITES, **options}
    with pytest.raises(UsageError, match=told):
        make_language_policy(group, PolicyConfig(), **given)


def test_an_environment_with_other_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match=r"save_tokenizer"):
        make_language_policy(
            GROUP, PolicyConfig(), model=make_model(vocabulary=40), tokenizer=make_tokenizer()
        )


def test_a_model_without_keys_and_values_is_refused() -> None:
    config = transformers.MambaConfig(
        vocab_size=TOKENS, hidden_size=16, state_size=4, num_hidden_layers=1
    )
    with pytest.raises(UsageError, match="keeps keys and values"):
        make_language_policy(
            GROUP,
            PolicyConfig(),
            model=transformers.AutoModelForCausalLM.from_config(config),
            reads=READS,
            writes=WRITES,
        )
