"""Importing fugu does nothing but define names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys, threading, warnings

def snapshot():
    signals = {s: signal.getsignal(s) for s in signal.valid_signals()}
    return (dict(os.environ), list(warnings.filters), signals, threading.active_count(),
            sorted(os.listdir()), sys.stdout, sys.stderr, os.getcwd())

writes = []
def audit(event, arguments):
    if event == "open" and arguments[1] and any(c in str(arguments[1]) for c in "wax+"):
        writes.append(arguments[0])
    if event in ("os.mkdir", "os.symlink", "os.rename", "subprocess.Popen", "socket.connect"):
        writes.append((event, arguments))
sys.dont_write_bytecode = True
sys.addaudithook(audit)
before = snapshot()
IMPORT
assert snapshot() == before, "something global was touched"
assert not writes, writes
for heavy in ("torch", "pettingzoo", "rich", "tyro", "matplotlib"):
    assert heavy not in sys.modules, heavy
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60
    )


def test_import_touches_nothing_and_prints_nothing(tmp_path: Path) -> None:
    done = run(PROGRAM.replace("IMPORT", "import fugu"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def test_the_check_can_fail(tmp_path: Path) -> None:
    """A negative control: each thing that must not happen is noticed."""
    for statement, word in [
        ("os.environ['X'] = '1'", "global"),
        ("warnings.simplefilter('ignore')", "global"),
        ("signal.signal(signal.SIGTERM, lambda *_: None)", "global"),
        ("open('file', 'w')", "global|file"),
        ("import torch", "global|torch"),
    ]:
        done = run(PROGRAM.replace("IMPORT", statement), tmp_path)
        assert done.returncode != 0, statement
        assert any(part in done.stderr for part in word.split("|")), done.stderr


def test_nothing_below_the_torch_line_imports_torch(tmp_path: Path) -> None:
    program = (
        "import sys, fugu.core.errors, fugu.spaces, fugu.envs, fugu.native.packing;"
        "assert 'torch' not in sys.modules"
    )
    assert run(program, tmp_path).returncode == 0


def test_every_public_name_loads(tmp_path: Path) -> None:
    done = run("import fugu; [getattr(fugu, name) for name in fugu.__all__]", tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error_that_lists_the_others(tmp_path: Path) -> None:
    done = run("import fugu; fugu.emulat", tmp_path)
    assert "has no attribute 'emulat'" in done.stderr
    assert "'emulate'" in done.stderr


def test_it_works_without_the_extension(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["fugu._native"] = None  # as if it had not been built
import gymnasium, numpy as np
import fugu, fugu.native
assert not fugu.native.available and "fugu._native" in fugu.native.reason
env = fugu.emulate(gymnasium.make("CartPole-v1"))
env.reset(1)
env.step()
(rows,) = env.buffers
bare = gymnasium.make("CartPole-v1")
from fugu.core.seeding import episode_seed
bare.reset(seed=episode_seed(1, 0))
assert np.array_equal(bare.step(0)[0], rows.observations[0])
"""
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr
