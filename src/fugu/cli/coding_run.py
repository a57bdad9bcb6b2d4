"""`fugu coding run`: try the sandbox with a program."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from fugu.core.errors import UsageError
from fugu.sandbox import Backend, Execution, Limits, Program, make_executor
from fugu.sandbox.execution import printable, shown

_SHOWN = 10_000  # characters of an answer


@dataclass(frozen=True)
class CodingRun:
    """Run a program in the sandbox and tell what came of it.

    fugu coding run hello.py | fugu coding run sums.py --entry add --input "(1, 2)" "(3, 4)"
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The program."""
    entry: str = ""
    """A function to call with each input; without one, the program runs as a script."""
    input: tuple[str, ...] = ()
    """With an entry, arguments as tuples in Python; without, texts for standard input."""
    limits: Limits = field(default_factory=Limits)
    """What the program may take."""
    backend: Backend = "zygote"
    """What runs it; unsafe does not isolate it."""
    missing_walls: bool = False
    """Run although the self-test finds a wall missing."""
    json: bool = False
    """Print what came of it as one JSON object and nothing else."""

    def run(self) -> int:
        """Run it; 0 if it passed."""
        try:
            source = self.file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"coding run: given {str(self.file)!r}, which cannot be read: {error}; "
                "allowed: a file of Python."
            ) from None
        inputs = [_arguments(text) for text in self.input] if self.entry else list(self.input)
        options = {} if self.backend == "unsafe" else {"missing_walls": self.missing_walls}
        with make_executor(self.backend, **options) as executor:
            execution = executor.run(Program(source, self.entry), inputs, self.limits)
        if self.json:
            print(json.dumps(_as_json(execution), indent=2))
        else:
            _show(execution)
        return 0 if execution.verdict == "passed" else 1


def _arguments(text: str) -> tuple[Any, ...]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, tuple):
        raise UsageError(
            f"coding run: given the input {text!r}; allowed: a tuple of arguments such as "
            '"(1, [2, 3])", and "(1,)" for one.'
        )
    return value


def _as_json(execution: Execution) -> dict[str, Any]:
    """What came of it; values that JSON does not have as Python writes them."""
    found = asdict(replace(execution, outputs=()))
    outputs = []
    for outcome in execution.outputs:
        value: Any = outcome.value
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, TypeError):
            value = shown(value, _SHOWN)
        outputs.append({"value": value, "error": outcome.error, "text": outcome.text})
    return {**found, "outputs": outputs}


def _show(execution: Execution) -> None:
    from rich.console import Console

    console = Console(highlight=False)

    def show(text: str) -> None:
        console.print(printable(text), markup=False)

    color = "green" if execution.verdict == "passed" else "red"
    console.print(f"[{color}]{execution.verdict}[/]", end=" ")
    show(execution.message)
    used = f"{execution.cpu_seconds * 1e3:.1f} ms of processor time"
    show(f"{used}, {execution.peak_memory / 2**20:.1f} MiB at most")
    for outcome in execution.outputs:
        if outcome.error:
            show(f"{outcome.error}: {outcome.text}")
        elif outcome.value != execution.stdout:  # a script's answer is what it printed
            show(shown(outcome.value, _SHOWN))
    for text in (execution.stdout, execution.stderr):
        if text:
            show(text.rstrip("\n"))
