"""brainf beside its reference: the language, the cases of tasks, rewards, solutions."""

import itertools

import numpy as np
import pytest
from program_reference import HIDDEN, TASKS, TOKENS, judge_program, make_case, run_program

import fugu

SOLUTIONS = {
    "echo": ",[.,].",
    "reverse": ">,[>,]<[.<].",
    "remove-char": ",[-[+.[-]],].",
    "count-char": ",[->+<[[-]>-<],]>.",
    "add": ",>,[-<+>]<.>.",
    "bool-logic": ",>,>,+<[-<+[->>+<<]>]>.",
    "print-hello": "++++++++.---.+++++++..+++.",
    "echo-twice": ">,[.>,].<[<]>[.>].",
    "echo-thrice": ">,[.>,].<[<]>[.>].<[<]>[.>].",
    "copy-reverse": ">,[.>,].<[.<].>[.>].",
    "zero-cascade": ",[.>[->+>.<<]>[-<+>]<+<,]",
    "cascade": ">+<,[>[->+<<.>]>[-<+>]<+<,].",
    "shift-left": ",>,[.,]<.>.",
    "shift-right": ">,[>,]<.[-]<[<]>[.>].",
    "remove-last": ">,[>,]<[-]<[<]>[.>].",
    "remove-last-two": ">,[>,]<[-]<[-]<[<]>[.>].",
    "length": ">,[[-]<+>,]<.",
    "echo-second-seq": ",[,],[.,].",
    "echo-nth-seq": ",-[->,[,]<]>,[.,].",
    "substring": ",>,<[->>,<<]>>,<[->.,<]",
}


def make(task, **settings):
    settings["task"] = TASKS.index(task)
    return fugu.make("brainf", 1, backend="native", num_workers=1, env_kwargs=settings)


def write(vec, program, length=32):
    """Writes a program, checks what is seen meanwhile, and gives the reward and the info."""
    tokens = [TOKENS.index(token) for token in program]
    actions = tokens + [0] * (len(tokens) < length)
    for at, action in enumerate(actions):
        vec.send(np.array([[action]]))
        batch = vec.recv()
        seen = batch.final[0] if at == len(actions) - 1 else batch.observations[0]
        written = tokens[: at + 1]
        assert seen.tolist() == written + [0] * (length - len(written))
        assert batch.terminations[0] == (at == len(actions) - 1)
    assert not batch.observations.any()
    (info,) = batch.infos[0]
    return float(batch.rewards[0]), info


@pytest.mark.parametrize(
    ("program", "given", "base", "written"),
    [
        ("", [1], 256, []),
        (".,.,.,.", [7, 8], 256, [0, 7, 8, 0]),
        ("-.+.", [], 256, [255, 0]),
        ("++.-.-.", [], 2, [0, 1, 0]),
        ("<<+>.<.", [], 256, [0, 1]),  # the tape has a left end
        ("]+.[.", [], 256, [1, 1]),  # brackets without a partner do nothing
        ("[.]+[.-]", [], 256, [1]),
        ("++[>++[>+<-]<-]>>.", [], 256, [4]),
        ("+[]", [], 256, None),
        ("+[>+]", [], 256, None),
    ],
)
def test_the_reference_speaks_the_language(program, given, base, written):
    assert run_program(program, given, base) == written


def test_a_run_of_5000_steps_has_failed():
    assert run_program("+" * 4999, []) == []
    assert run_program("+" * 5000, []) is None


@pytest.mark.parametrize(
    ("task", "given", "wanted"),
    [
        ("riffle", [1, 2, 3, 4], [4, 1, 3, 2]),
        ("riffle", [1, 2, 3], [3, 1, 2, 0]),
        ("unriffle", [1, 2, 3, 4, 5], [2, 4, 5, 3, 1, 0]),
        ("middle-char", [1, 2, 3], [2]),
        ("middle-char", [1, 2], [0]),
        ("echo-alternating", [1, 2, 3, 4, 5], [1, 3, 5, 2, 4, 0]),
        ("echo-half", [1, 2, 3, 4, 5], [1, 2, 0]),
        ("zero-cascade", [5, 6, 7], [5, 6, 0, 7, 0, 0]),
        ("cascade", [5, 6, 7], [5, 6, 6, 7, 7, 7, 0]),
    ],
)
def test_the_reference_wants_what_tasks_say(task, given, wanted):
    from program_reference import WORDS

    assert WORDS[task][2](given) == wanted


def test_cases_of_tasks_without_a_word():
    for number in range(16):
        (given,), (half,) = make_case("divide-2", number)
        assert half == given // 2
        given, wanted = make_case("dedup", number)
        assert wanted[-1] == given[-1] == 0
        assert all(a != b for a, b in itertools.pairwise(wanted))
        assert set(wanted) == set(given)
    assert [make_case("bool-logic", i)[1] for i in range(8)] == [
        [value] for value in (1, 0, 0, 1, 1, 0, 1, 0)
    ]


def some_programs(task, rng):
    yield from ("", ",.", ",[.,]", ",.,.,.,.,.,.,.", ".,>,[[<.>-]<,]", "+[.+]", "+[,.]", "+[]")
    yield SOLUTIONS.get(task, "")
    for _ in range(25):
        weights = rng.dirichlet(np.ones(8))
        count = int(rng.integers(1, 33))
        yield "".join(TOKENS[1 + i] for i in rng.choice(8, count, p=weights))


@pytest.mark.parametrize("shorter", [0, 1])
@pytest.mark.parametrize("task", TASKS)
def test_rewards_are_those_of_the_reference(task, shorter):
    with make(task, shorter=shorter) as vec:
        vec.reset(seed=1)
        for program in some_programs(task, np.random.default_rng(TASKS.index(task))):
            reward, solved = judge_program(task, program, shorter=shorter)
            found, info = write(vec, program)
            assert found == pytest.approx(reward, abs=1e-5), program
            assert info["solved"] == solved, program
            hidden = solved and judge_program(task, program, first=HIDDEN)[1]
            assert info["general"] == hidden
            assert info["tokens"] == len(program)


@pytest.mark.parametrize("task", SOLUTIONS)
def test_tasks_can_be_solved_and_solutions_are_general(task):
    program = SOLUTIONS[task]
    with make(task, length=40) as vec:
        vec.reset(seed=1)
        reward, info = write(vec, program, 40)
        assert (reward, info["solved"], info["general"]) == (1.0, 1, 1)
        reward, info = write(vec, program[:-1], 40)
        assert reward < 1
        assert not info["solved"]


def test_a_program_ends_when_it_is_full():
    with make("echo", length=5) as vec:
        vec.reset(seed=1)
        for _ in range(3):
            reward, info = write(vec, ",.,.,", 5)
            assert info["episode_length"] == 5
            assert 0 < reward < 1


def test_no_seed_changes_the_cases():
    rewards = set()
    for seed in (1, 2):
        with make("reverse") as vec:
            vec.reset(seed=seed)
            rewards.add(write(vec, ",.,.,.")[0])
    assert len(rewards) == 1


def test_endless_programs_cost_a_little():
    with make("reverse") as vec:
        vec.reset(seed=1)
        assert write(vec, "+[]")[0] == pytest.approx(-2 / 64)
