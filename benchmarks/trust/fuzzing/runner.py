"""Feeding inputs to a reader, many in one forked child, and seeing what becomes of it."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import resource
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from fugu.core.errors import FuguError
from fuzzing.arena import Arena, Files

BATCH = 2000  # inputs of a child
ALARM = 5.0  # seconds after which an input is given up
PATIENCE = 15.0  # seconds without a word after which a child is
SECONDS = 2.0  # of the processor, that an input may take
ROOM = 4 << 30  # bytes of addresses that a child may take beside what it was born with
GROWTH = 512 << 20  # bytes that it may grow by in fact
LONGEST = 20_000  # characters of a message


@dataclass(frozen=True)
class Input:
    """Something hostile.

    Attributes:
        use: Which of a reader's functions gets it.
        files: What is laid out in the arena's target.
        more: What else the function is given, as JSON has it.
    """

    use: str
    files: Files
    more: Mapping[str, Any] = field(default_factory=dict)


class HangError(BaseException):
    """An input that takes too long."""


class Reader(Protocol):
    """What is fuzzed."""

    name: str

    def make(self, random: Random, arena: Arena) -> Input:
        """A hostile input."""
        raise NotImplementedError("make(random, arena) -> Input")

    def feed(self, given: Input, arena: Arena) -> None:
        """Read what the arena holds, as a command of fugu would."""
        raise NotImplementedError("feed(given, arena) -> None")


@dataclass(frozen=True)
class Finding:
    """What should not have come of an input.

    Attributes:
        index: Of the input.
        what: An exception, crash, hang and so on.
        where: The last lines of fugu that were run.
    """

    index: int
    what: str
    where: str = ""

    @property
    def signature(self) -> str:
        """The same for findings of one cause, as far as can be told."""
        return f"{re.split('[:(]', self.what)[0]} {self.where}"


@dataclass
class Outcome:
    """What came of many inputs.

    Attributes:
        inputs: That were fed.
        loaded: That were read.
        refused: By the kind of error.
        findings: All others.
        seconds: It took.
    """

    inputs: int = 0
    loaded: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Outcome) -> None:
        """Take in another's."""
        self.inputs, self.loaded = self.inputs + other.inputs, self.loaded + other.loaded
        self.refused.update(other.refused)
        self.findings += other.findings


def input_of(reader: Reader, arena: Arena, seed: int, index: int) -> Input:
    """The input of that number, always the same."""
    return reader.make(Random(f"{seed} {reader.name} {index}"), arena)


def fuzz(
    reader: Reader,
    arena: Arena,
    seed: int,
    indices: Iterable[int],
    tell: Callable[[int], None] = lambda done: None,
) -> Outcome:
    """Feed the inputs of these numbers."""
    found, began, left = Outcome(), time.perf_counter(), list(indices)
    gc.freeze()  # children would copy all that they count references of
    while left:
        batch = left[:BATCH]
        done = run_child(reader, arena, lambda i: input_of(reader, arena, seed, i), batch, tell)
        found.add(done)
        left = left[done.inputs :]
    gc.unfreeze()
    found.seconds = time.perf_counter() - began
    return found


def run_child(
    reader: Reader,
    arena: Arena,
    make: Callable[[int], Input],
    indices: list[int],
    tell: Callable[[int], None] = lambda done: None,
) -> Outcome:
    """Feed inputs in a child until one ends it; that one is a finding, and the last that counts."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        _be_child(reader, arena, make, indices, write)
    os.close(write)
    found, status = Outcome(), 0
    try:
        for line in _lines(read):
            _note(found, indices[found.inputs], line)
            if not found.inputs % 100:
                tell(100)
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        found.findings.append(Finding(indices[found.inputs], f"hang: {PATIENCE:g} s"))
        found.inputs += 1
        os.waitpid(child, 0)
    else:
        _, status = os.waitpid(child, 0)
        if found.inputs < len(indices):
            ended = f"crash: {_ending(status)}"
            found.findings.append(Finding(indices[found.inputs], ended))
            found.inputs += 1
    finally:
        os.close(read)
    if arena.harm():  # of a child that could not tell
        found.findings.append(Finding(indices[found.inputs - 1], "touched what is not its own"))
    return found


def _note(found: Outcome, index: int, line: str) -> None:
    kind, _, rest = line.partition(" ")
    found.inputs += 1
    if kind == "loaded":
        found.loaded += 1
    elif kind == "refused":
        found.refused[rest] += 1
    else:
        found.findings.append(Finding(index, *json.loads(rest)))


def _lines(read: int) -> Iterator[str]:
    """What a child says; TimeoutError if it is silent for too long."""
    rest = b""
    while True:
        if not select.select([read], [], [], PATIENCE)[0]:
            raise TimeoutError
        chunk = os.read(read, 65536)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in lines)


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"


def _be_child(
    reader: Reader,
    arena: Arena,
    make: Callable[[int], Input],
    indices: list[int],
    write: int,
) -> None:
    """Feed and tell; never returns."""
    try:
        logging.disable()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.chdir(arena.work)
        room = _addresses() + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, _give_up)
        for index in indices:
            os.write(write, judge(reader, arena, make(index)).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def judge(reader: Reader, arena: Arena, given: Input) -> str:
    """What comes of an input, in one line."""
    arena.fill(given.files)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    where = ""
    try:
        signal.setitimer(signal.ITIMER_REAL, ALARM)
        reader.feed(given, arena)
    except FuguError as error:
        told = str(error).strip()
        line = f"refused {type(error).__name__}"
        if not told or len(told) > LONGEST:
            line, where = f"a {type(error).__name__} of {len(told)} characters", _where(error)
    except (Exception, SystemExit, HangError) as error:
        line, where = f"{type(error).__name__}: {error}"[:500], _where(error)
    else:
        line = "loaded"
    signal.setitimer(signal.ITIMER_REAL, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    taken = time.process_time() - began
    if harm := arena.harm():
        line, where = harm, where or given.use
    elif grown > GROWTH:  # which takes its time, too
        line, where = f"memory: {grown >> 20} MiB", where or given.use
    elif taken > SECONDS:
        line, where = f"slow: {taken:.1f} s", where or given.use
    if line == "loaded" or line.startswith("refused "):
        return line
    return "finding " + json.dumps([f"{line} (given to {given.use})", where])


def _give_up(*_: object) -> None:
    raise HangError(f"{ALARM:g} s")


def _where(error: BaseException) -> str:
    """The last line of fugu's own, and the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/src/fugu/" in frame.filename] or frames[-1:]
    chosen = [own[-1], frames[-1]] if frames[-1] is not own[-1] else own[-1:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in chosen)


def _addresses() -> int:
    """Bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
