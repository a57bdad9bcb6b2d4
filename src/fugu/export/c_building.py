"""Policies in C compiled: for this machine, for WebAssembly, for any target that zig knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fugu.core.errors import UsageError
from fugu.envs.building import find_compiler, run_compiler, zig
from fugu.export.c_text import PARTS
from fugu.export.engine import PolicyFacts
from fugu.spaces.action_sampler import ActionSampler

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
    """Raise unless a compiled policy has the sizes that its facts speak of."""
    expected = sizes(facts)
    if tuple(found) != expected:
        raise UsageError(
            f"{place}: given a policy of the sizes {tuple(found)}; allowed: {expected}, which its "
            "facts say. Export it again."
        )


def sizes(facts: PolicyFacts) -> tuple[int, ...]:
    """What `fugu_policy_size` answers, in order."""
    sampler = ActionSampler(facts.action, facts.continuous)
    return (
        facts.observation.nbytes,
        facts.state_size,
        sampler.num_params,
        facts.num_critics,
        sampler.num_choices,
        facts.action.nbytes,
    )
