"""Run a policy's C, compiled for this machine, and compile it for others."""

from __future__ import annotations

import ctypes
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.files import DOCUMENT, read_bytes
from fugu.envs.building import SUFFIX, find_compiler, run_compiler, zig
from fugu.export.c_text import PARTS
from fugu.export.c_writer import FACTS, write_c
from fugu.export.engine import PolicyFacts
from fugu.nets.net import Floats, Net

BATCH = PARTS / "batch.c"
ALLOWED = "policy.h and policy.c as fugu export wrote them"
HOST_FLAGS = ("-std=c99", "-O3", "-fPIC", "-shared")
WASM_FLAGS = (
    "-std=c99",
    "-O3",
    "-g0",
    "-s",
    "-msimd128",
    "-mbulk-memory",
    "-ffreestanding",
    "-nostdlib",
    "-Wl,--no-entry",
    "-Wl,-z,stack-size=65536",
)
WASM_EXPORTS = (
    "fugu_policy_size",
    "fugu_policy_rows",
    "fugu_policy_forward",
    "fugu_policy_act",
    "__heap_base",
)
GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def build_library(folder: Path, library: Path) -> None:
    """Compile a folder's policy as a shared library of this machine."""
    sources = [str(folder / "policy.c"), str(BATCH)]
    command = [*find_compiler(), *HOST_FLAGS, f"-I{folder}", *sources, "-o", str(library)]
    run_compiler(command, str(folder), ALLOWED)


def build_wasm(folder: Path, module: Path) -> None:
    """Compile a folder's policy as a WebAssembly module that imports nothing."""
    sources = [str(folder / "policy.c"), str(BATCH)]
    exports = [f"-Wl,--export={name}" for name in WASM_EXPORTS]
    arguments = [*WASM_FLAGS, *exports, f"-I{folder}", *sources, "-o", str(module)]
    run_compiler([*zig("wasm32-freestanding"), *arguments], str(folder), ALLOWED)


def check_sizes(found: Sequence[int], facts: PolicyFacts, place: Path) -> None:
    """Raise unless what `fugu_policy_size` of a compiled policy returns agrees with its facts."""
    if tuple(found) != facts.sizes:
        raise UsageError(
            f"{place}: given a policy of the sizes {tuple(found)}; allowed: {facts.sizes}, which "
            "its facts say. Export it again."
        )


class _Batch(ctypes.Structure):
    """The argument of `fugu_policy_rows`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "states", "params", "values")),
        ("count", ctypes.c_int),
    )


class CEngine:
    """Runs a folder with `policy.h`, `policy.c` and `policy.json`.

    Whoever opens one runs its code: take none from strangers.
    """

    def __init__(self, folder: Path) -> None:
        facts = folder / FACTS
        if not facts.is_file():
            raise UsageError(
                f"{folder}: given a folder without {FACTS}; allowed: one that fugu export wrote."
            )
        self.facts = PolicyFacts.from_json(read_bytes(facts, DOCUMENT), str(facts))
        # A library that is loaded stays, though its file is deleted.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            library = Path(made) / f"policy{SUFFIX}"
            build_library(folder, library)
            self.library = ctypes.CDLL(str(library))
        self._run = self.library.fugu_policy_rows
        check_sizes([self.library.fugu_policy_size(i) for i in range(6)], self.facts, folder)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Run one pass; see `Engine.forward`."""
        count, observations = len(rows), np.ascontiguousarray(rows)
        after = np.array(state, np.float32, order="C")
        params = np.zeros((count, self.facts.sizes[2]), np.float32)
        values = np.zeros((count, self.facts.num_critics), np.float32)
        arrays = (observations, after, params, values)
        self._run(ctypes.byref(_Batch(*(each.ctypes.data for each in arrays), count)))
        return params, values, after


def make_engine(net: Net) -> CEngine:
    """Write a network as C and compile it."""
    with tempfile.TemporaryDirectory() as folder:
        write_c(net, folder)
        return CEngine(Path(folder))


class PolicyRandom:
    """The generator of `fugu_policy_act` in Python: SplitMix64, and Box and Muller's normals.

    It has the two methods of a NumPy generator that `ActionSampler` calls. C draws for one row
    after the other, so draw for one row at a time.

    `state` is what `*random` is, before a call or after it.

    >>> random = PolicyRandom(1)
    >>> random.random((2,)).tolist(), hex(random.state)
    ([0.5665615200996399, 0.7457817196846008], '0x3c6ef372fe94f82b')
    """

    def __init__(self, state: int) -> None:
        self.state = state & MASK

    def unit(self) -> int:
        """Draw a number of [0, 1) in units of 2^-24."""
        self.state = (self.state + GOLDEN) & MASK
        word = self.state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
        return (word ^ (word >> 31)) >> 40

    def random(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Floats:
        """Draw numbers of [0, 1)."""
        numbers = [self.unit() / 2**24 for _ in range(math.prod(shape))]
        return np.array(numbers, dtype).reshape(shape)

    def standard_normal(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Floats:
        """Draw numbers of mean 0 and deviation 1."""
        numbers = []
        for _ in range(math.prod(shape)):
            size = math.sqrt(-2.0 * math.log(1.0 - self.unit() / 2**24))
            numbers.append(size * math.cos(math.tau * self.unit() / 2**24))
        return np.array(numbers, dtype).reshape(shape)
