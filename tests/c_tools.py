"""Written C, compiled and run, for tests."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fugu.envs.building import find_compiler
from fugu.export.c_engine import PolicyRandom
from fugu.nets.net import Net
from fugu.nets.reference import run_reference
from fugu.spaces.action_sampler import ActionSampler

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
SANITIZED = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SEED = 9  # of what is drawn

# Reads observations, states and masks; writes what a policy makes of them. Each has memory of its
# own, so that a sanitizer sees the first byte that is too far.
PROGRAM = r"""
#include "policy.h"
#include <stdio.h>
#include <stdlib.h>

static void* take(size_t size) {
    void* memory = malloc(size);
    if (size && fread(memory, 1, size, stdin) != size)
        exit(3);
    return memory;
}

static void give(void* memory, size_t size) {
    fwrite(memory, 1, size, stdout);
    free(memory);
}

int main(int argc, char** argv) {
    unsigned long long random = SEED;
    for (long i = 0, count = argc > 1 ? atol(argv[1]) : 0; i < count; ++i) {
        void* observation = take(FUGU_POLICY_OBSERVATION_BYTES);
        float* state = take(FUGU_POLICY_STATE * sizeof(float));
        unsigned char* mask = take(FUGU_POLICY_CHOICES);
        float* params = malloc(FUGU_POLICY_PARAMS * sizeof(float));
        float* values = malloc(FUGU_POLICY_CRITICS * sizeof(float));
        fugu_policy_forward(observation, state, params, values);
        for (int drawn = 0; drawn < 2; ++drawn) {
            void* action = malloc(FUGU_POLICY_ACTION_BYTES);
            fugu_policy_act(params, mask, drawn ? &random : NULL, action);
            give(action, FUGU_POLICY_ACTION_BYTES);
        }
        give(params, FUGU_POLICY_PARAMS * sizeof(float));
        give(values, FUGU_POLICY_CRITICS * sizeof(float));
        give(state, FUGU_POLICY_STATE * sizeof(float));
        free(observation);
        free(mask);
    }
    return 0;
}
"""


def compile_c(sources: list[str | Path], flags: tuple[str, ...], out: Path) -> None:
    """Compile, or fail with what the compiler says."""
    command = [*find_compiler(), *flags, *map(str, sources), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert not done.returncode, done.stderr


def library(folder: Path, text: str, *sources: Path) -> ctypes.CDLL:
    """A piece of C, and files beside it, as a library."""
    (folder / "piece.c").write_text(text)
    flags = (*STRICT, "-O2", "-fPIC", "-shared", f"-I{folder}")
    compile_c([folder / "piece.c", *sources], flags, folder / "piece.so")
    return ctypes.CDLL(str(folder / "piece.so"))


def at(array: NDArray[Any]) -> ctypes.c_void_p:
    """Where an array stands."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


@cache
def can_sanitize() -> bool:
    """Whether the compiler has sanitizers."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "nothing.c"
        source.write_text("int main(void) { return 0; }\n")
        try:
            compile_c([source], SANITIZED, source.with_suffix(".out"))
        except AssertionError:
            return False
        return subprocess.run([source.with_suffix(".out")], check=False).returncode == 0


@dataclass(frozen=True)
class Found:
    """What a policy made of rows, each `[count, numbers]`."""

    greedy: NDArray[Any]
    drawn: NDArray[Any]
    params: NDArray[np.float32]
    values: NDArray[np.float32]
    state: NDArray[np.float32]


def run_sanitized(
    folder: Path, net: Net, rows: NDArray[Any], states: NDArray[Any], masks: NDArray[Any]
) -> Found:
    """Run the C of a folder under sanitizers, compiled with every warning an error."""
    if not can_sanitize():
        pytest.skip("the compiler has no sanitizers")
    (folder / "main.c").write_text(PROGRAM.replace("SEED", str(SEED)))
    flags = (*STRICT, *SANITIZED, f"-I{folder}")
    compile_c([folder / "main.c", folder / "policy.c"], flags, folder / "program")
    given = b"".join(
        row.tobytes() + state.tobytes() + mask.astype(np.uint8).tobytes()
        for row, state, mask in zip(rows, states, masks, strict=True)
    )
    command = [str(folder / "program"), str(len(rows))]
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        check=False,
        timeout=60,
        env={"ASAN_OPTIONS": "detect_leaks=0"},  # nothing is allocated, and looking may hang
    )
    assert not done.returncode, done.stderr.decode()
    assert not done.stderr
    sampler, critics = ActionSampler(net.action, net.continuous), 0
    if net.values is not None:
        critics = net.shape(net.values)[1]
    widths = [net.action.nbytes] * 2 + [4 * sampler.num_params, 4 * critics, 4 * net.state_size]
    raw = np.frombuffer(done.stdout, np.uint8).reshape(len(rows), sum(widths))
    parts = [part.copy() for part in np.split(raw, np.cumsum(widths)[:-1], axis=1)]
    actions = [part.view(net.action.dtype) for part in parts[:2]]
    return Found(*actions, *(part.view(np.float32) for part in parts[2:]))


def check_against_reference(
    folder: Path, net: Net, rows: NDArray[Any], tolerance: float = 1e-5
) -> None:
    """Compare what a folder's C makes of observations with what the network means."""
    random, count = np.random.default_rng(2), len(rows)
    states = np.zeros((count, net.state_size), np.float32)
    for _ in range(3):  # as states are after some steps
        states = run_reference(net, rows, states)[2] if net.state_size else states
    states = states.copy()
    states[::5] = 0.0
    sampler = ActionSampler(net.action, net.continuous)
    masks = some_masks(sampler, count, random)
    found = run_sanitized(folder, net, rows, states, masks)
    params, values, after = run_reference(net, rows, states)
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(found.params, params, **close)
    np.testing.assert_allclose(found.values, values, **close)
    np.testing.assert_allclose(found.state, after, **close)
    check_actions(sampler, found, masks)


def some_masks(sampler: ActionSampler, count: int, random: Any) -> NDArray[np.bool_]:
    """Masks that allow one choice of each head at least."""
    masks: NDArray[np.bool_] = random.random((count, sampler.num_choices)) < 0.6
    first = 0
    for choices in sampler.choices:
        masks[np.arange(count), first + random.integers(choices, size=count)] = True
        first += choices
    return masks


def check_actions(sampler: ActionSampler, found: Found, masks: NDArray[np.bool_]) -> None:
    """Compare actions with what `ActionSampler` makes of the same params and chance."""
    random: Any = PolicyRandom(SEED)
    for i in range(len(masks)):
        for greedy, row in ((True, found.greedy[i]), (False, found.drawn[i])):
            params, mask = found.params[i : i + 1], masks[i : i + 1]
            samples, _ = sampler.sample(params, mask, random, greedy=greedy)
            expected = sampler.to_rows(samples)
            if sampler.num_heads == sampler.num_samples:
                assert row.tobytes() == expected.tobytes()
            for leaf in sampler.layout.leaves:
                part = slice(leaf.offset, leaf.offset + leaf.nbytes)
                one, other = (
                    each.reshape(-1).view(np.uint8)[part].view(leaf.dtype)
                    for each in (row, expected)
                )
                if leaf.dtype.kind == "f":
                    rounding = max(2e-6, float(np.finfo(leaf.dtype).eps))
                    np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding)
                else:
                    np.testing.assert_array_equal(one, other)
