"""Modules: a native environment, and policies in C, compiled to WebAssembly."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from fugu.core.errors import UsageError
from fugu.envs.building import include_folder, run_compiler, zig
from fugu.envs.contract import AgentGroup
from fugu.envs.native_env import NativeEnv

PolicyFiles: TypeAlias = tuple[Path, Path]
"""`policy.h` and `policy.c`, as `fugu export --to c` writes them."""

ALLOWED = (
    "C99 with fugu_env.h alone, and policies that were exported for this environment with these "
    "settings"
)
FLAGS = (
    "-mbulk-memory",
    "-std=c99",
    "-g0",
    "-s",
    "-ffreestanding",
    "-nostdlib",
    "-ffp-contract=off",  # the same bits as the native library
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wl,--no-entry",
    "-Wl,-z,stack-size=262144",
)
SMALL = ("-O2",)
FAST = ("-O3", "-msimd128")  # for networks; every browser since 2023 has these instructions
# The macros of policy.h that say how large a policy's rows are, in the order of FuguPolicy.
SIZES = ("OBSERVATION_BYTES", "STATE", "PARAMS", "CRITICS", "CHOICES", "ACTION_BYTES")


def build_module(env: NativeEnv, policies: Mapping[str, PolicyFiles] | None = None) -> bytes:
    """Compile an environment, with its settings, to a WebAssembly module that imports nothing.

    Args:
        env: The environment; its header must stand beside its library.
        policies: Of groups, by their names; a policy's rows must be those of its group.
    """
    given = dict(policies or {})
    names = [group.name for group in env.groups]
    for name in given:
        if name not in names:
            raise UsageError(
                f"policies: given one for {name!r}; allowed: {', '.join(names)}, the groups of "
                f"{env.library.name!r}."
            )
    header = _header_of(env)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        sources = [place / "module.c", include_folder() / "fugu_web.c"]
        sources[0].write_text(_module(env, given))
        for i, group in enumerate(env.groups):
            if group.name in given:
                sources.append(place / f"policy_{i}.c")
                sources[-1].write_text(_policy(i, group, given[group.name]))
        made = place / "module.wasm"
        includes = [f"-I{header.parent}", f"-I{include_folder()}"]
        flags = [*FLAGS, *(FAST if given else SMALL), *includes]
        command = [*zig("wasm32-freestanding"), *flags, *map(str, sources), "-o", str(made)]
        run_compiler(command, env.library.name, ALLOWED)
        return made.read_bytes()


def _header_of(env: NativeEnv) -> Path:
    header = Path(env.library.path).with_suffix(".h")
    if not header.is_file():
        raise UsageError(
            f"env: given {env.library.path!r}, without {header.name!r} beside it; allowed: a "
            "library in the folder of its header, where fugu env build puts it."
        )
    return header


def _module(env: NativeEnv, policies: Mapping[str, PolicyFiles]) -> str:
    """The C file that says what a module is made of."""
    name, groups = env.library.name, env.groups
    rows = [
        f"{{{g.observation_layout.nbytes}, {g.action_layout.nbytes}, {g.mask_width}}}"
        for g in groups
    ]
    thinking = [i for i, group in enumerate(groups) if group.name in policies]
    pointers = [f"&fugu_policy_{i}" if i in thinking else "0" for i in range(len(groups))]
    return "\n".join(
        [
            f'#include "{name}.h"',
            '#include "fugu_web.h"',
            *(f"extern const FuguPolicy fugu_policy_{i};" for i in thinking),
            f"const FuguDefinition* const fugu_web_definition = &{name}_definition;",
            f"const double fugu_web_settings[] = {{{', '.join(map(repr, env.spec.values))}}};",
            f"const FuguRowBytes fugu_web_rows[] = {{{', '.join(rows)}}};",
            f"const FuguPolicy* const fugu_web_policies[] = {{{', '.join(pointers)}}};",
            "",
        ]
    )


def _policy(index: int, group: AgentGroup, files: PolicyFiles) -> str:
    """The C file that gives a policy's functions names of their own, and checks its rows."""
    header, source = files
    for file in files:
        if not file.is_file():
            raise UsageError(f"policies: given {str(file)!r}; allowed: a file that exists.")
    expected = {
        "OBSERVATION_BYTES": group.observation_layout.nbytes,
        "ACTION_BYTES": group.action_layout.nbytes,
        "CHOICES": group.mask_width,
    }
    checks = [
        f'_Static_assert(FUGU_POLICY_{name} == {size}, "{name} of {group.name} is {size}");'
        for name, size in expected.items()
    ]
    functions = [f"fugu_policy_{what}" for what in ("forward", "act")]
    parts = [*(f"FUGU_POLICY_{name}" for name in SIZES), *functions]
    return "\n".join(
        [
            *(f"#define {function} {function}_{index}" for function in functions),
            *(f"#include {json.dumps(str(file.resolve()))}" for file in (header, source)),
            '#include "fugu_web.h"',
            *checks,
            f"const FuguPolicy fugu_policy_{index} = {{{', '.join(parts)}}};",
            "",
        ]
    )
