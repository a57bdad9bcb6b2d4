"""The advantage kernel beside loops in C, NumPy and Python, and beside PufferLib's.

    python benchmarks/advantage.py [--quick] [--json FILE]

Segments of 64 steps, 512 and 8,192 rows of them, float32, the kernel called through its Python
front. The limit is a bare time-major loop in C that checks nothing, knows neither truncations nor
masks and is compiled for this very processor with relaxed float math. PufferLib 3.0's C++ kernel is
its published source (`make peers`), compiled with its own flags, on its own layout [rows, horizon].
All of them take turns, so that a busy moment of the machine hits them alike. Loops in Python are
measured on 32 rows and scaled: their time is proportional to the rows.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tyro
from claims import Claim, Options, finish, seconds_per_call
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fugu.native.advantage import advantages

ROOT = Path(__file__).parents[1]
HORIZON, SIZES, FEW = 64, (512, 8192), 32
GAMMA, LAMBDA, RHO_CLIP, C_CLIP = 0.99, 0.95, 1.0, 1.0
ROUNDS = 9

BARE = """
void bare(const float* rewards, const float* values, const float* dones, const float* ratios,
          float* advantages, float gamma, float decay, float rho, float c, int horizon, int rows) {
    for (int t = horizon - 1; t >= 0; --t) {
        const float *r = rewards + (long)t * rows, *v = values + (long)t * rows, *next = v + rows;
        const float *d = dones + (long)t * rows, *w = ratios + (long)t * rows;
        float *a = advantages + (long)t * rows, *trace = a + rows; /* one row more, of zeros */
        #pragma GCC ivdep
        for (int i = 0; i < rows; ++i) {
            const float n = 1.0f - d[i];
            const float delta = (w[i] < rho ? w[i] : rho) * (r[i] + gamma * next[i] * n - v[i]);
            a[i] = delta + decay * (w[i] < c ? w[i] : c) * n * trace[i];
        }
    }
}
"""
# What surrounds the published functions: they need nothing of torch themselves.
SHIM = """
#include <math.h>
namespace pufferlib {
%s
}
extern "C" void peer(float* values, float* rewards, float* dones, float* importance,
                     float* advantages, float gamma, float lambda, float rho, float c, int rows,
                     int horizon) {
    pufferlib::puff_advantage(values, rewards, dones, importance, advantages, gamma, lambda, rho, c,
                              rows, horizon);
}
"""
Call = Callable[[], object]
Arrays = dict[str, NDArray[Any]]


def compile_c(folder: Path, name: str, source: str, *flags: str) -> ctypes.CDLL | None:
    """The compiled source, or None where there is no compiler or it does not compile."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    file, library = folder / f"{name}.cpp", folder / f"{name}.so"
    file.write_text(source)
    command = [compiler, "-O3", "-shared", "-fPIC", *flags, str(file), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, check=False)
    return None if done.returncode else ctypes.CDLL(str(library))


def published_kernel() -> str | None:
    """The functions of PufferLib's kernel, cut out of its source as published."""
    folder = ROOT / ".venv-pufferlib"
    found = sorted(folder.glob("lib/python*/site-packages/pufferlib/extensions/pufferlib.cpp"))
    if not found:
        return None
    text = found[0].read_text()
    parts = []
    for name in ("void puff_advantage_row(", "void puff_advantage("):
        start = text.find(name)
        end = text.find("\n}\n", start)
        if start < 0 or end < 0:
            return None
        parts.append(text[start : end + 3])
    return "\n".join(parts)


def segments(rows: int) -> Arrays:
    """Random segments in which an episode ends every 50 steps, a tenth of them cut off."""
    random = np.random.default_rng(0)

    def floats(times: int) -> NDArray[np.float32]:
        return random.standard_normal((times, rows), np.float32)

    ends, cut = random.random((2, HORIZON, rows))
    return {
        "rewards": floats(HORIZON),
        "values": floats(HORIZON + 1),
        "final_values": floats(HORIZON),
        "terminations": (ends < 0.02) & (cut >= 0.1),
        "truncations": (ends < 0.02) & (cut < 0.1),
        "ratios": np.exp(0.1 * floats(HORIZON)),
    }


def numpy_loop(data: Arrays) -> NDArray[np.float32]:
    """As one would write it: a loop over time, rows at once."""
    out = np.empty_like(data["rewards"])
    trace = np.zeros_like(data["rewards"][0])
    rho, c = np.minimum(data["ratios"], RHO_CLIP), np.minimum(data["ratios"], C_CLIP)
    for t in reversed(range(HORIZON)):
        following = np.where(data["truncations"][t], data["final_values"][t], data["values"][t + 1])
        following = following * ~data["terminations"][t]
        goes_on = ~(data["terminations"][t] | data["truncations"][t])
        delta = rho[t] * (data["rewards"][t] + GAMMA * following - data["values"][t])
        trace = delta + GAMMA * LAMBDA * c[t] * goes_on * trace
        out[t] = trace
    return out


def python_loop(data: dict[str, Any], rows: int) -> list[list[float]]:
    """The same on lists of numbers, one at a time."""
    out = [[0.0] * rows for _ in range(HORIZON)]
    for row in range(rows):
        trace = 0.0
        for t in range(HORIZON - 1, -1, -1):
            following = data["values"][t + 1][row]
            if data["terminations"][t][row]:
                following = 0.0
            elif data["truncations"][t][row]:
                following = data["final_values"][t][row]
            ratio = data["ratios"][t][row]
            value, reward = data["values"][t][row], data["rewards"][t][row]
            delta = min(ratio, RHO_CLIP) * (reward + GAMMA * following - value)
            if data["terminations"][t][row] or data["truncations"][t][row]:
                trace = 0.0
            trace = delta + GAMMA * LAMBDA * min(ratio, C_CLIP) * trace
            out[t][row] = trace
    return out


def foreign(
    function: Any, arrays: list[NDArray[np.float32]], decay: float, sizes: tuple[int, int]
) -> Call:
    """A call of a C function on arrays that it keeps alive."""
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    numbers = [ctypes.c_float(x) for x in (GAMMA, decay, RHO_CLIP, C_CLIP)]
    return lambda: (function(*pointers, *numbers, *sizes), arrays)[0]


def contenders(rows: int, bare: Any, peer: Any) -> dict[str, Call]:
    """What is timed, by name, each on memory of its own; all agree before any is timed."""
    data = segments(rows)
    out = np.empty_like(data["rewards"])
    settings = {"gamma": GAMMA, "lambda_": LAMBDA, "rho_clip": RHO_CLIP, "c_clip": C_CLIP}

    def ours(threads: int) -> Call:
        return lambda: advantages(**data, **settings, out=out, threads=threads)  # type: ignore[arg-type]

    calls = {"fugu, 1 thread": ours(1), "fugu, 2 threads": ours(2)}
    expected = numpy_loop(data)
    for call in calls.values():
        call()
        np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-3)
    dones = (data["terminations"] | data["truncations"]).astype(np.float32)
    if bare is not None:
        result = np.zeros((HORIZON + 1, rows), np.float32)
        arrays = [data["rewards"], data["values"], dones, data["ratios"], result]
        calls["bare loop in C"] = foreign(bare, arrays, GAMMA * LAMBDA, (HORIZON, rows))
        calls["bare loop in C"]()
        whole = dict(data, terminations=dones != 0, truncations=np.zeros_like(dones, bool))
        np.testing.assert_allclose(result[:-1], numpy_loop(whole), rtol=1e-3, atol=1e-3)
    if peer is not None:
        names = ("values", "rewards", "ratios")
        turned = {n: np.ascontiguousarray(data[n][:HORIZON].T) for n in names}
        result = np.zeros((rows, HORIZON), np.float32)
        ends = np.ascontiguousarray(dones.T)
        arrays = [turned["values"], turned["rewards"], ends, turned["ratios"], result]
        calls["PufferLib 3.0"] = foreign(peer, arrays, LAMBDA, (rows, HORIZON))
    calls["NumPy loop"] = lambda: numpy_loop(data)
    return calls


def measure(rows: int, bare: Any, peer: Any, window: float) -> dict[str, float]:
    """Seconds of one call each, the median of rounds in which all take turns."""
    calls = contenders(rows, bare, peer)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds_per_call(call, window=window, windows=1))
    found = {name: median(values) for name, values in times.items()}
    lists = {name: array.tolist() for name, array in segments(FEW).items()}
    few = seconds_per_call(lambda: python_loop(lists, FEW), window=window, windows=3)
    return {**found, "Python loop (scaled)": few * rows / FEW}


def claims_of(rows: int, seconds: dict[str, float]) -> list[Claim]:
    """The claims on one size; what is absent is not measured."""
    ours = min(seconds["fugu, 1 thread"], seconds["fugu, 2 threads"])
    limit = seconds.get("bare loop in C")
    names = ("PufferLib 3.0", "NumPy loop", "Python loop (scaled)")
    peers = {name: seconds.get(name) for name in names}
    figures: dict[str, Any] = {"limit": limit, "peers": peers, "unit": "seconds"}

    def against(name: str, target: float) -> Claim:
        theirs = peers[names[("pufferlib", "numpy", "python").index(name)]]
        ratio = None if theirs is None else theirs / ours
        return Claim(f"advantage-{rows}-against-{name}", ratio, target, fugu=ours, **figures)

    alone = seconds["fugu, 1 thread"]  # as many threads as the bare loop has
    share = None if limit is None else limit / alone
    return [
        Claim(f"advantage-{rows}-against-bare-loop", share, 0.5, fugu=alone, **figures),
        against("pufferlib", 10),
        against("numpy", 4),
        against("python", 1000),
        Claim(f"advantage-{rows}-milliseconds", ours * 1e3, 1, at_most=True, fugu=ours, **figures),
    ]


def main(options: Options) -> None:
    """Measure and report."""
    source = published_kernel()
    with tempfile.TemporaryDirectory() as folder:
        limit_flags = ("-march=native", "-ffast-math")
        limit = compile_c(Path(folder), "bare", f'extern "C" {{{BARE}}}', *limit_flags)
        peer = compile_c(Path(folder), "peer", SHIM % source) if source else None
    if limit is None:
        print("The bare loop is absent: no C compiler that compiles it was found.")
    if peer is None:
        print("PufferLib 3.0's kernel is absent: make peers, and a C++ compiler, bring it.")
    bare, published = getattr(limit, "bare", None), getattr(peer, "peer", None)
    window = 0.02 if options.quick else 0.1
    results = {rows: measure(rows, bare, published, window) for rows in SIZES}
    title = f"microseconds for [{HORIZON} steps x rows]"
    table = Table("kernel", *(f"{rows:,} rows" for rows in SIZES), title=title)
    for name in results[SIZES[0]]:
        table.add_row(name, *(f"{results[rows][name] * 1e6:,.1f}" for rows in SIZES))
    Console().print(table)
    finish([claim for rows in SIZES for claim in claims_of(rows, results[rows])], options)


if __name__ == "__main__":
    main(tyro.cli(Options))
