"""Slow references of list_dsl and brainf: the same chance, plain Python for everything else."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from fugu.core.seeding import derive

MASK = 2**64 - 1
Numbers = list[int]


class Random:
    """The generator of native environments."""

    def __init__(self, state: int) -> None:
        self.state = state

    def below(self, count: int) -> int:
        word = derive(self.state)
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return ((word >> 32) * count) >> 32

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)


# ------------------------------------------------------------------ list_dsl

OPERATIONS: list[Callable[[Numbers], Numbers]] = [
    sorted,
    lambda x: x[::-1],
    lambda x: [v + 1 for v in x],
    lambda x: [v - 1 for v in x],
    lambda x: [2 * v for v in x],
    lambda x: [int(v / 2) for v in x],
    lambda x: [-v for v in x],
    lambda x: [v * v for v in x],
    lambda x: [abs(v) for v in x],
    lambda x: [v for v in x if v % 2 == 0],
    lambda x: [v for v in x if v % 2 == 1],
    lambda x: [v for v in x if v > 0],
    lambda x: [v for v in x if v < 0],
    lambda x: x[1:],
    lambda x: x[:-1],
    lambda x: list(itertools.accumulate(x)),
    lambda x: list(itertools.accumulate(x, max)),
    lambda x: [b - a for a, b in itertools.pairwise(x)],
    lambda x: x[1:] + x[:1],
    lambda x: list(dict.fromkeys(x)),
]
TRAIN, HELD_OUT, ALL = range(3)


def run_list(program: Numbers, numbers: Numbers) -> Numbers:
    for operation in program:
        numbers = [max(-64, min(64, v)) for v in OPERATIONS[operation](numbers)]
    return numbers


def draw_list(random: Random, shortest: int) -> Numbers:
    return [random.below(17) - 8 for _ in range(random.between(shortest, 6))]


def make_probes() -> list[Numbers]:
    random = Random(0x6C697374)
    return [draw_list(random, 6) for _ in range(8)]


def is_held_out(program: Numbers) -> bool:
    word = 0
    for probe in make_probes():
        out = run_list(program, probe)
        packed = bytes([len(out), *(v % 256 for v in out)])
        word = derive(word ^ int.from_bytes(packed, "little"))
    return len(program) > 1 and word % 5 == 0


def has_held_out_part(program: Numbers) -> bool:
    places = itertools.combinations(range(len(program) + 1), 2)
    return any(is_held_out(program[begin:end]) for begin, end in places)


class ListTask:
    """One copy of list_dsl."""

    def __init__(
        self,
        seed: int,
        *,
        length: int = 2,
        mixed: int = 0,
        spare: int = 0,
        split: int = TRAIN,
        shaping: float = 0.0,
    ) -> None:
        self.seed, self.length, self.mixed, self.spare = seed, length, mixed, spare
        self.split, self.shaping, self.episode = split, shaping, 0
        self.reset()

    def reset(self) -> None:
        random = Random(derive(self.seed, self.episode))
        self.episode += 1
        while True:
            self.program = self._draw_program(random)
            self.lists, self.outputs = [], []
            for _ in range(10):
                self.lists.append(draw_list(random, 3))
                self.outputs.append(run_list(self.program, self.lists[-1]))
            if sum(map(bool, self.outputs[:5])) >= 3 and not self.has_shortcut():
                break
        self.left = len(self.program) + self.spare

    def _draw_program(self, random: Random) -> Numbers:
        held_out = self.split == HELD_OUT
        shortest = self.length if not self.mixed else 2 if held_out and self.length > 1 else 1
        while True:
            count = random.between(shortest, self.length)
            program = [random.below(20) for _ in range(count)]
            if self.split == ALL or self.length == 1:
                return program
            if is_held_out(program) if held_out else not has_held_out_part(program):
                return program

    def has_shortcut(self) -> bool:
        examples = list(zip(self.lists[:5], self.outputs[:5], strict=True))
        return any(
            all(run_list(list(program), x) == out for x, out in examples)
            for count in range(len(self.program))
            for program in itertools.product(range(20), repeat=count)
        )

    def right(self) -> list[bool]:
        return [x == out for x, out in zip(self.lists, self.outputs, strict=True)]

    def step(self, operation: int) -> tuple[float, bool, bool, bool]:
        """The reward, whether the episode ended, whether it was solved, and seemed to be."""
        before = sum(self.right()[:5])
        self.lists = [run_list([operation], x) for x in self.lists]
        self.left -= 1
        right = self.right()
        shown, solved = all(right[:5]), all(right)
        reward = self.shaping * (sum(right[:5]) - before) / 5 + solved
        return reward, shown or self.left == 0, solved, shown

    def observation(self) -> np.ndarray:
        rows: list[float] = []
        for now, out in zip(self.lists[:5], self.outputs[:5], strict=True):
            for place in range(6):
                a, b = (x[place] if place < len(x) else None for x in (now, out))
                for v in (a, b):
                    rows += [(v or 0) / 8, v is not None]
                both = a is not None and b is not None
                rows += [max(-8, min(8, b - a)) / 4 if both else 0, both and a == b]
            rows += facts_of(now) + facts_of(out)
        return np.array([*rows, np.float32(self.left) / np.float32(3)], np.float32)


def facts_of(numbers: Numbers) -> list[float]:
    counts = [
        len(numbers),
        sum(v % 2 for v in numbers),
        sum(v > 0 for v in numbers),
        sum(v < 0 for v in numbers),
        len(set(numbers)),
        sum(b >= a for a, b in itertools.pairwise(numbers)),
    ]
    ends = min(numbers, default=0), max(numbers, default=0)
    return [*(count / 6 for count in counts), *(v / 8 for v in ends), sum(numbers) / 64]


# ------------------------------------------------------------------ brainf

TASKS = [
    "echo",
    "reverse",
    "remove-char",
    "count-char",
    "add",
    "bool-logic",
    "print-hello",
    "echo-twice",
    "echo-thrice",
    "copy-reverse",
    "zero-cascade",
    "cascade",
    "shift-left",
    "shift-right",
    "riffle",
    "unriffle",
    "middle-char",
    "remove-last",
    "remove-last-two",
    "echo-alternating",
    "echo-half",
    "length",
    "echo-second-seq",
    "echo-nth-seq",
    "substring",
    "divide-2",
    "dedup",
]
TOKENS = " ><+-[].,"
STEPS = 5000
HIDDEN = 1 << 16
BASES = {"echo": 27, "count-char": 27, "print-hello": 27, "bool-logic": 2}
WORDS = {  # the longest, the letters, and what is wanted of a word
    "echo": (6, 26, lambda x: [*x, 0]),
    "reverse": (6, 255, lambda x: [*x[::-1], 0]),
    "echo-twice": (6, 255, lambda x: [*x, 0] * 2),
    "echo-thrice": (6, 255, lambda x: [*x, 0] * 3),
    "copy-reverse": (6, 255, lambda x: [*x, 0, *x[::-1], 0, *x, 0]),
    "zero-cascade": (6, 255, lambda x: [v for i, c in enumerate(x) for v in [c] + [0] * i]),
    "cascade": (6, 19, lambda x: [*(c for i, c in enumerate(x) for _ in range(i + 1)), 0]),
    "shift-left": (6, 255, lambda x: [*x[1:], x[0], 0]),
    "shift-right": (6, 255, lambda x: [x[-1], *x[:-1], 0]),
    "riffle": (8, 19, lambda x: riffle(x) + [0] * (len(x) % 2)),
    "unriffle": (8, 19, lambda x: [*x[1::2], *x[::2][::-1], 0]),
    "middle-char": (10, 255, lambda x: [x[len(x) // 2] if len(x) % 2 else 0]),
    "remove-last": (6, 19, lambda x: [*x[:-1], 0]),
    "remove-last-two": (6, 9, lambda x: [*x[:-2], 0]),
    "echo-alternating": (8, 19, lambda x: [*x[::2], *x[1::2], 0]),
    "echo-half": (9, 19, lambda x: [*x[: len(x) // 2], 0]),
    "length": (14, 255, lambda x: [len(x)]),
}


def riffle(word: Numbers) -> Numbers:
    left, out = list(word), []
    while left:
        out.append(left.pop())
        out += [left.pop(0)] if left else []
    return out


def make_case(task: str, number: int) -> tuple[Numbers, Numbers]:
    """An input, and what is to be written for it."""
    random = Random(derive(TASKS.index(task), number))
    if task in WORDS:
        longest, letters, wanted = WORDS[task]
        word = draw_word(random, 1, longest, letters)
        return word, wanted(word)
    return _draw_case(task, random, number % HIDDEN)


def draw_word(random: Random, least: int, most: int, letters: int) -> Numbers:
    return [random.between(1, letters) for _ in range(random.between(least, most))]


def _draw_case(task: str, random: Random, number: int) -> tuple[Numbers, Numbers]:
    match task:
        case "remove-char":
            count = random.between(1, 6)
            place = random.below(count)
            word = [1 if i == place else random.between(2, 255) for i in range(count)]
            return word, [*(v for v in word if v != 1), 0]
        case "count-char":
            count = random.between(1, 6)
            word = [1 if random.below(2) else random.between(2, 26) for _ in range(count)]
            return word, [word.count(1)]
        case "add":
            pair = [0 if number == place else random.below(256) for place in range(2)]
            return pair, [sum(pair) % 256, 0]
        case "bool-logic":
            x, y, z = (number >> 2 & 1, number >> 1 & 1, number & 1)
            return [x, y, z], [int((x and not z) or (not y and not z) or (not x and y and z))]
        case "print-hello":
            return [], [ord(letter) - ord("a") + 1 for letter in "hello"]
        case "echo-second-seq":
            first, second = (draw_word(random, 1, 5, 255) for _ in range(2))
            return [*first, 0, *second, 0], [*second, 0]
        case "echo-nth-seq":
            count = random.between(1, 6)
            chosen = random.between(1, count)
            words = [[*draw_word(random, 0, 3, 255), 0] for _ in range(count)]
            return [chosen, *itertools.chain(*words)], words[chosen - 1]
        case "substring":
            count = random.between(2, 15)
            first, last = sorted(random.below(count) for _ in range(2))
            word = draw_word(random, count, count, 255)
            return [first, last - first, *word, 0], word[first:last]
        case "divide-2":
            number = random.below(256)
            return [number], [number // 2]
    runs, letter = random.between(1, 4), random.below(6)  # dedup
    word = []
    for _ in range(runs):
        word += [1 + letter] * random.between(1, 4)
        letter = (letter + random.between(1, 5)) % 6
    return [*word, 0], [*(v for v, _ in itertools.groupby(word)), 0]


def run_program(program: str, numbers: Numbers, base: int = 256) -> Numbers | None:
    """What a program writes; None if it takes too long."""
    partners, opened = {}, []
    for i, token in enumerate(program):
        if token == "[":
            opened.append(i)
        elif token == "]" and opened:
            j = opened.pop()
            partners[i], partners[j] = j, i
    tape, cell, at, out, left = [0], 0, 0, [], list(numbers)
    for _ in range(STEPS - 1):
        if at >= len(program):
            return out
        match program[at]:
            case ">":
                cell += 1
                tape += [0] if cell == len(tape) else []
            case "<":
                cell = max(cell - 1, 0)
            case "+" | "-":
                tape[cell] = (tape[cell] + (1 if program[at] == "+" else -1)) % base
            case "[" if not tape[cell]:
                at = partners.get(at, at)
            case "]" if tape[cell]:
                at = partners.get(at, at)
            case ".":
                out.append(tape[cell])
            case ",":
                tape[cell] = left.pop(0) if left else 0
        at += 1
    return out if at >= len(program) else None


def judge_program(
    task: str, program: str, *, length: int = 32, shorter: int = 0, first: int = 0
) -> tuple[float, bool]:
    """The reward of a program, and whether all cases are right."""
    base, score, solved = BASES.get(task, 256), 0.0, True
    cases = {"print-hello": 1, "bool-logic": 8}.get(task, 16)
    for number in range(first, first + cases):
        given, wanted = make_case(task, number)
        out = run_program(program, given, base)
        if out is None:
            return -2 / (4 * cases), False
        distance = base * abs(len(out) - len(wanted))
        distance += sum(abs(a - b) for a, b in zip(out, wanted, strict=False))
        score += max(1 - distance / (base * max(len(wanted), 1)), -1)
        if out == wanted:
            score += 2 + (1 - len(program) / length if shorter else 1)
        solved &= out == wanted
    return score / (4 * cases), solved
