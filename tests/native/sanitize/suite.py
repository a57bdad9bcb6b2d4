"""Runs the tests of all that calls native code with an extension that was built with sanitizers.

    python tests/native/sanitize/suite.py [--kinds address thread] [--tests tests/native ...]

The build is its own, in build/sanitize-suite, and so are the reports. Exit status 1 if a test fails
or a sanitizer complains of native code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from staging import ROOT, stage

FOLDER = ROOT / "build" / "sanitize-suite"
FLAGS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize=vptr"],
    "thread": ["-fsanitize=thread"],
}
RUNTIMES = {"address": ("libasan.so", "libstdc++.so"), "thread": ("libtsan.so", "libstdc++.so")}
TESTS = {
    "address": (
        *("tests/native", "tests/spaces", "tests/vector", "tests/nets", "tests/algos"),
        *("tests/data", "tests/core", "tests/policies", "tests/training", "tests/envs"),
        *("tests/league", "tests/memory"),
    ),
    # Where native code has threads of its own.
    "thread": (
        *("tests/native", "tests/nets", "tests/algos", "tests/data", "tests/vector"),
        "tests/training/test_native_engine.py",
    ),
}
# The sandbox, whose programs begin without variables and so without a sanitizer; trials that are
# timed; and a fork among threads, which the sanitizer cannot follow.
LEFT_OUT = {
    "address": (
        "--ignore=tests/envs/test_coding.py",
        "--ignore=tests/policies/test_language_policy.py",
        "--ignore=tests/training/test_programs.py",
        "--ignore=tests/training/test_recalling.py",
    ),
    "thread": (
        "--ignore=tests/vector/test_autotune.py",
        "--ignore=tests/vector/test_measuring.py",
        "--deselect=tests/vector/test_equivalence.py::test_a_fork_leaves_the_threads_of_opencv_alone",
    ),
}
REPORT = re.compile(r"runtime error:|ERROR: AddressSanitizer|WARNING: ThreadSanitizer")


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    kinds: tuple[str, ...] = ("address", "thread")
    tests: tuple[str, ...] = ()
    """Others than those."""


def runtime(name: str) -> str:
    """Where the compiler keeps a library."""
    command = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def variables(kind: str, site: Path, reports: Path) -> dict[str, str]:
    """What makes Python load the sanitizer first.

    Leaks of the interpreter are not looked at, nor faults, which some tests bring about.
    """
    common = f"log_path={reports}/report:print_stacktrace=1"
    return {
        "PYTHONPATH": str(site),
        "LD_PRELOAD": ":".join(map(runtime, RUNTIMES[kind])),
        "ASAN_OPTIONS": f"{common}:detect_leaks=0:allocator_may_return_null=1:handle_segv=0",
        "UBSAN_OPTIONS": common,
        "TSAN_OPTIONS": f"log_path={reports}/report:exitcode=0:ignore_noninstrumented_modules=1:"
        "die_after_fork=0:handle_segv=0",
        "OMP_NUM_THREADS": "1",
    }


def run(kind: str, tests: tuple[str, ...]) -> int:
    """Build with one kind of sanitizer and test; how much went wrong."""
    print(f"{kind}: building", flush=True)
    flags = ["-g", "-O1", "-fno-omit-frame-pointer", "-ffp-contract=off", *FLAGS[kind]]
    site, reports = stage(FOLDER / kind, ("gcc", "g++"), flags), FOLDER / kind / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not slow"]
    command += ["-p", "no:cacheprovider", *(tests or TESTS[kind]), *LEFT_OUT[kind]]
    environment = {**os.environ, **variables(kind, site, reports)}
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False)
    texts = [path.read_text(errors="replace") for path in sorted(reports.iterdir())]
    found = sum(len(REPORT.findall(text)) for text in texts)
    for text in texts[:3]:
        print(text[:4000])
    print(f"{kind}: {found} reports, pytest's status {done.returncode}", flush=True)
    return found + done.returncode


def main(options: Options) -> int:
    """One kind after the other."""
    return int(sum(run(kind, options.tests) for kind in options.kinds) > 0)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
