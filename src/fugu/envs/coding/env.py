"""CodingEnv: an agent writes a program token by token, a sandbox runs it, tests decide."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.coding.catalogue import Problems, find_problems
from fugu.envs.coding.problems import Problem
from fugu.envs.coding.tokenizers import Tokenizer, make_tokenizer
from fugu.memory import Memory, Where
from fugu.sandbox import VERDICTS, Backend, ExecutorPool, Grade
from fugu.sandbox.texts import printable

Step = tuple[Any, float, bool, bool, dict[str, Any]]
Tokens = NDArray[np.int64]
Recall = Callable[[str, str, int], list[str]]  # of a prompt, a problem's name, and a count
# Tokens of the environment's own come before the tokenizer's.
NOTHING, END, WRITE, TOLD = range(4)
OWN = 4
POLL_SECONDS = 0.0005  # between two polls of a step that waits
# What "shaped" pays beside the share of hidden tests that pass, which has the rest.
COMPILES, RUNS = 0.1, 0.1


class PoolClient:
    """The executors and memories that all environments of a process share.

    The pool is closed when its last environment leaves.
    """

    _shared: ClassVar[dict[tuple[str, int], PoolClient]] = {}

    def __init__(self, backend: Backend, executors: int) -> None:
        self._key = str(backend), executors
        is_worker = multiprocessing.parent_process() is not None
        self.pool = ExecutorPool(backend, executors or (1 if is_worker else None))
        self._memories: dict[Path, Recall] = {}
        self._users = 0

    @classmethod
    def join(cls, backend: Backend, executors: int) -> PoolClient:
        """Return the one of this process; `leave` it in the end."""
        key = str(backend), executors
        if key not in cls._shared:
            cls._shared[key] = cls(backend, executors)
        cls._shared[key]._users += 1
        return cls._shared[key]

    def leave(self) -> None:
        """Leave; the last environment closes the pool."""
        self._users -= 1
        if self._users == 0:
            self._shared.pop(self._key, None)
            self.pool.close()

    def memory(self, file: str | Path) -> Recall:
        """Return a function that finds solved programs of other problems for a prompt."""
        path = Path(file).resolve()
        if path not in self._memories:
            known = Memory.load(path)

            def recall(prompt: str, name: str, count: int) -> list[str]:
                where = Where(not_task=name, min_reward=1.0)
                (matches,) = known.query([prompt], count, where=where)
                return [match.item.metadata.get("program", match.item.text) for match in matches]

            self._memories[path] = recall
        return self._memories[path]


class CodingEnv(gymnasium.Env[Any, Any]):
    """Programs for problems; one token is one step.

    The observation is the sequence so far: the prompt, a mark, the program, and, if there are
    several turns, what came of it, a mark, the next program. It only grows within an episode.
    With `observation="parts"` the three are apart, with their lengths.

    An action is a token of the tokenizer, or the one beyond them, which hands the program in; at
    `program_length` it is handed in by itself. While it runs, `poll` gives None: nobody waits.

    Args:
        problems: "humaneval", "codeio", "expressions", a JSONL file, or problems themselves.
        split: Which of them: "train", "held_out" (one in five, by name), or "all".
        turns: Programs of an episode: while one fails and turns are left, the outcome of public
            tests is shown and another may be written.
        reward: "all": 1 if all hidden tests pass; "fraction" of them; "shaped": a tenth for a
            program that compiles, another for one that runs without an error, the rest by fraction.
        observation: "sequence" or "parts".
        tokenizer: "bytes", "bpe", "bpe:SIZE", "letters:abc", or a file.
        prompt_length: Tokens of a prompt that are shown, its last ones.
        program_length: Tokens of a program at most.
        feedback_length: Tokens of the feedback after a turn.
        memory: A file that a `fugu.memory.Memory` was saved to, with solved programs.
        recall: Programs of like problems that stand in the prompt; never the problem's own.
        executor: The backend that runs programs; see `fugu.sandbox`.
        executors: How many at once in this process; 0: one a core, in a worker process one.
        cpu_seconds: Processor time of a program; if not given, as its task says, or 2.
        memory_bytes: Memory of a program; if not given, as its task says, or 256 MiB.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(
        self,
        problems: str | Path | Sequence[Problem] = "expressions",
        *,
        split: Literal["train", "held_out", "all"] = "train",
        turns: int = 1,
        reward: Literal["all", "fraction", "shaped"] = "all",
        observation: Literal["sequence", "parts"] = "sequence",
        tokenizer: str = "bytes",
        prompt_length: int = 256,
        program_length: int = 64,
        feedback_length: int = 64,
        memory: str | Path | None = None,
        recall: int = 2,
        executor: Backend = "zygote",
        executors: int = 0,
        cpu_seconds: float | None = None,
        memory_bytes: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        for name, value, allowed in (
            ("split", split, ("train", "held_out", "all")),
            ("reward", reward, ("all", "fraction", "shaped")),
            ("observation", observation, ("sequence", "parts")),
        ):
            if value not in allowed:
                raise UsageError(f"{name}: given {value!r}; allowed: {', '.join(allowed)}.")
        lengths = {"prompt_length": prompt_length, "program_length": program_length}
        for name, number in {"turns": turns, **lengths}.items():
            if number < 1:
                raise UsageError(f"{name}: given {number}; allowed: 1 or more.")
        asked = {"cpu_seconds": cpu_seconds, "memory": memory_bytes}
        limits = {name: limit for name, limit in asked.items() if limit is not None}
        self.problems: Problems = find_problems(problems, split, limits)
        texts = self.problems.texts() if tokenizer.startswith("bpe") else ()
        self.tokenizer: Tokenizer = make_tokenizer(tokenizer, texts)
        self.render_mode = render_mode
        self._turns, self._reward = turns, reward
        self._lengths = prompt_length, program_length, feedback_length if turns > 1 else 0
        self._client = PoolClient.join(executor, executors)
        self._recall = self._client.memory(memory) if memory is not None else None
        self._recalled = recall
        self._parts = observation == "parts"
        self._size = self.tokenizer.size + OWN
        turn = program_length + feedback_length + 2 if turns > 1 else program_length
        self._places = prompt_length + 1 + turns * turn
        self.observation_space = self._make_space()
        self.action_space = spaces.Discrete(self.tokenizer.size + 1)
        self._ticket = -1
        self._closed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw a problem; `options={"problem": name}` asks for one."""
        super().reset(seed=seed)
        self._forget()
        wanted = (options or {}).get("problem")
        first = int(self.np_random.integers(len(self.problems)))
        self.problem = self.problems.get(self.pool, first, wanted)
        self._asked = self._prompt()
        prompt = self.tokenizer.encode(self._asked)[-self._lengths[0] :]
        self._sequence = [token + OWN for token in prompt] + [WRITE]
        self._shown = len(prompt)
        self._written: list[int] = []
        self._feedback: list[int] = []
        self._turn = 0
        self._messages: list[tuple[str, str]] = [("user", self._asked)]
        return self._observe(), {}

    def step(self, action: int) -> Step:
        """Write a token; wait for the tests, if it was the last."""
        self.begin_step(action)
        while (result := self.poll()) is None:
            time.sleep(POLL_SECONDS)
        return result

    def begin_step(self, action: int) -> None:
        """Write a token, or hand the program in."""
        token = int(action)
        ends = token == self.tokenizer.size
        if not ends:
            self._written.append(token)
            self._sequence.append(token + OWN)
            ends = len(self._written) == self._lengths[1]
        else:
            self._sequence.append(END)
        if ends:
            self._hand_in()

    def poll(self) -> Step | None:
        """Return the result of the step; None while the program runs."""
        if self._ticket < 0:
            return self._observe(), 0.0, False, False, {}
        grade = self.pool.result(self._ticket)
        if grade is None:
            return None
        self._ticket = -1
        return self._judge(grade)

    def action_masks(self) -> NDArray[np.bool_]:
        """Allow all tokens, always: tests judge the program."""
        return np.ones(self.tokenizer.size + 1, np.bool_)

    def render(self) -> Any:
        """Return the problem and the program so far as text."""
        return printable(f"{self.problem.prompt}\n{self.program}")

    def close(self) -> None:
        """Leave the executors, once."""
        if not self._closed:
            self._closed = True
            self._forget()
            self._client.leave()

    @property
    def pool(self) -> ExecutorPool:
        """The executors, which all environments of the process share."""
        return self._client.pool

    @property
    def program(self) -> str:
        """The source of this turn's program."""
        return self.problem.source(self.tokenizer.decode(self._written))

    def _forget(self) -> None:
        """Drop a program that is still being graded."""
        if self._ticket >= 0:
            self.pool.forget(self._ticket)
        self._ticket = -1

    @property
    def _last_turn(self) -> bool:
        return self._turn + 1 == self._turns or self.problem.public is None

    def _hand_in(self) -> None:
        """Submit the program: to hidden tests in the last turn, else to public ones first."""
        public = self.problem.public
        task = self.problem.hidden if self._last_turn or public is None else public
        self._hidden = task is self.problem.hidden
        self._ticket = self.pool.submit(self.program, task)

    def _judge(self, grade: Grade) -> Step | None:
        if self._hidden:
            return self._finish(grade)
        if grade.verdict == "passed":  # of public tests
            self._hidden = True
            self._ticket = self.pool.submit(self.program, self.problem.hidden)
            return self.poll()
        said = self.tokenizer.encode(f"{grade.verdict}: {grade.message}")[: self._lengths[2]]
        self._messages += [("assistant", self.program), ("user", self.tokenizer.decode(said))]
        self._feedback = [token + OWN for token in said]
        self._sequence += [TOLD, *self._feedback, WRITE]
        self._written, self._turn = [], self._turn + 1
        return self._observe(), 0.0, False, False, {}

    def _finish(self, grade: Grade) -> Step:
        info: dict[str, Any] = {
            "solved": float(grade.verdict == "passed"),
            "fraction": grade.fraction,
            "turns": float(self._turn + 1),
            "cpu_seconds": grade.execution.cpu_seconds,
            "verdict": {name: float(name == grade.verdict) for name in VERDICTS},
            "task": self.problem.name,
            "prompt": self._asked,
            "program": self.program,
        }
        if self._turn:
            info["messages"] = (*self._messages, ("assistant", self.program))
        return self._observe(), self._reward_of(grade), True, False, info

    def _reward_of(self, grade: Grade) -> float:
        if self._reward == "all":
            return float(grade.verdict == "passed")
        if self._reward == "fraction":
            return grade.fraction
        paid = COMPILES if grade.verdict != "syntax" else 0.0
        paid += RUNS if grade.verdict in ("passed", "wrong") else 0.0
        return paid + (1.0 - COMPILES - RUNS) * grade.fraction

    def _prompt(self) -> str:
        """Return the problem's prompt behind programs that solved similar ones."""
        if self._recall is None:
            return self.problem.prompt
        similar = self._recall(self.problem.prompt, self.problem.name, self._recalled)
        return "\n".join([*similar, self.problem.prompt])

    def _make_space(self) -> spaces.Space[Any]:
        if not self._parts:
            return spaces.MultiDiscrete([self._size] * self._places)
        found: dict[str, spaces.Space[Any]] = {}
        for name, length in zip(("prompt", "program", "feedback"), self._lengths, strict=True):
            if length:
                found[name] = spaces.MultiDiscrete([self._size] * length)
                found[f"{name}_length"] = spaces.Discrete(length + 1)
        return spaces.Dict(found)

    def _observe(self) -> Any:
        if not self._parts:
            return _filled(self._sequence, self._places)
        written = [token + OWN for token in self._written]
        parts = self._sequence[: self._shown], written, self._feedback
        found: dict[str, Any] = {}
        names = ("prompt", "program", "feedback")
        for name, length, part in zip(names, self._lengths, parts, strict=True):
            if length:
                found[name], found[f"{name}_length"] = _filled(part, length), len(part)
        return found


def _filled(tokens: Sequence[int], places: int) -> Tokens:
    found = np.zeros(places, np.int64)
    found[: len(tokens)] = tokens
    return found
