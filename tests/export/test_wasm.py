"""Policies as WebAssembly: one file that holds all it needs, and that can do no harm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_kinds import KINDS, drive, observations_of

pytest.importorskip("wasmtime")
pytest.importorskip("ziglang")

import wasmtime

import fugu
from fugu.core.errors import UsageError
from fugu.export import wasm_engine
from fugu.export.engine import PolicyFacts
from fugu.export.wasm_engine import WasmEngine, make_engine, open_engine, read_facts, write_wasm
from fugu.nets.net import Net
from fugu.nets.reading import read_policy
from fugu.nets.reference import run_reference
from fugu.policies import PolicyConfig, make_policy

# A program of ours in all but what it does.
FOREIGN = """
(module
  (memory (export "memory") 2)
  (global (export "__heap_base") i32 (i32.const 1024))
  (func (export "fugu_policy_size") (param i32) (result i32)
    {sizes})
  (func (export "fugu_policy_rows") (param i32)
    {rows}))
"""


def net_of(name: str) -> Net:
    return read_policy(*next(kind for kind in KINDS if kind.name == name).make())


def module_of(net: Net, rows: str) -> bytes:
    """A module with the facts of a policy, and other code."""
    answer = "(i32.const -1)"
    for place, size in enumerate(PolicyFacts.of(net).sizes):
        same = f"(i32.eq (local.get 0) (i32.const {place}))"
        answer = f"(if (result i32) {same} (then (i32.const {size})) (else {answer}))"
    code = bytes(wasmtime.wat2wasm(FOREIGN.format(sizes=answer, rows=rows)))
    return code + wasm_engine._section(PolicyFacts.of(net).to_json().encode())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    net, path = net_of("lstm"), tmp_path_factory.mktemp("wasm") / "deep/policy.wasm"
    write_wasm(net, path)
    return net, path


@pytest.mark.parametrize("name", ["tree", "gru"])
def test_a_module_means_what_its_policy_does(name: str) -> None:
    policy, layout = next(kind for kind in KINDS if kind.name == name).make()
    engine = make_engine(read_policy(policy, layout))
    drive(policy, layout, engine.forward, 8, 7)


def test_a_file_holds_its_facts_and_imports_nothing(written: tuple[Net, Path]) -> None:
    net, path = written
    module = path.read_bytes()
    assert json.loads(read_facts(module, path)) == json.loads(PolicyFacts.of(net).to_json())
    parsed = wasmtime.Module(wasmtime.Engine(), module)
    assert list(parsed.imports) == []
    assert [*path.parent.iterdir()] == [path]
    assert open_engine(path).facts == PolicyFacts.of(net)


def test_any_number_of_rows(written: tuple[Net, Path]) -> None:
    net, path = written
    engine = open_engine(path)
    rows = observations_of(net.observation, 5000)
    state = np.random.default_rng(0).normal(size=(5000, net.state_size)).astype(np.float32)
    before = state.copy()
    expected = run_reference(net, rows, state)
    for count in (3, 5000, 1):  # memory grows, and stays
        found = engine.forward(rows[:count], state[:count])
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted[:count], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state, before)


def test_int8(tmp_path: Path) -> None:
    net = net_of("flat-image")
    rows = observations_of(net.observation, 64)
    plain = write_wasm(net, tmp_path / "plain.wasm")
    report = write_wasm(net, tmp_path / "small.wasm", int8=True, observations=rows)
    assert report.weight_bytes < plain.weight_bytes / 3
    lengths = [(tmp_path / f"{name}.wasm").stat().st_size for name in ("plain", "small")]
    assert lengths[1] < lengths[0] / 2
    assert report.loss is not None
    params = [
        open_engine(tmp_path / f"{name}.wasm").forward(rows, np.zeros((64, 0), np.float32))[0]
        for name in ("plain", "small")
    ]
    difference = float(np.abs(params[0] - params[1]).max())
    assert 0 < difference < max(0.05, 2 * report.loss.largest_error)


def test_actions_come_from_the_module_too(written: tuple[Net, Path]) -> None:
    _, path = written
    store = wasmtime.Store()
    module = wasmtime.Module(store.engine, path.read_bytes())
    exports = wasmtime.Instance(store, module, []).exports(store)
    memory: Any = exports["memory"]
    act: Any = exports["fugu_policy_act"]
    heap: Any = exports["__heap_base"]
    base = heap.value(store) + 15 & ~15
    memory.write(store, np.float32([0.0, 3.0, 1.0, 2.0]).tobytes(), base)
    memory.write(store, bytes([1, 0, 1, 1]), base + 16)
    act(store, base, base + 16, 0, base + 32)
    assert int.from_bytes(memory.read(store, base + 32, base + 40), "little") == 3
    act(store, base, 0, 0, base + 32)
    assert int.from_bytes(memory.read(store, base + 32, base + 40), "little") == 1


def test_neither_torch_nor_a_compiler_is_needed(written: tuple[Net, Path]) -> None:
    net, path = written
    code = (
        "import sys\n"
        "for name in ('torch', 'ziglang', 'onnx', 'jax'):\n"
        "    sys.modules[name] = None\n"
        "import numpy as np, fugu.export\n"
        f"policy = fugu.export.load({str(path)!r}, engine='wasm')\n"
        "state = None\n"
        "for i in range(3):\n"
        "    action, value, state = policy.act(np.full(5, 0.5 * i, np.float32), state)\n"
        "print(int(action), repr(float(value)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240
    )
    assert not done.returncode, done.stderr
    state = np.zeros((1, net.state_size), np.float32)
    for i in range(3):
        params, values, state = run_reference(net, np.full((1, 5), 0.5 * i, np.float32), state)
    action, value = done.stdout.split()
    assert int(action) == int(params.argmax())
    assert float(value) == pytest.approx(float(values[0, 0]), abs=1e-5)


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_breakout_is_small(int8: bool, tmp_path: Path) -> None:
    with fugu.make("breakout", 1, backend="serial") as vec:
        group = vec.groups[0]
    net = read_policy(make_policy(group, PolicyConfig()), group.observation_layout)
    report = write_wasm(net, tmp_path / "policy.wasm", int8=int8)
    size = (tmp_path / "policy.wasm").stat().st_size
    print(f"\n{size:,} bytes; {report}")
    assert size < (30_000 if int8 else 75_000)


# ---------------------------------------------------------------------- files that are not ours


@pytest.mark.parametrize("cut", [0, 4, 8, 9, 100, -1])
def test_a_file_that_is_cut_off_is_refused(
    cut: int, written: tuple[Net, Path], tmp_path: Path
) -> None:
    path = tmp_path / "cut.wasm"
    path.write_bytes(written[1].read_bytes()[:cut])
    with pytest.raises(UsageError, match=r"cut\.wasm: given"):
        open_engine(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.wasm"
    with pytest.raises(UsageError, match="cannot be read"):
        open_engine(path)
    path.write_bytes(bytes(wasmtime.wat2wasm("(module)")))
    with pytest.raises(UsageError, match="no section of that name"):
        open_engine(path)
    facts = wasm_engine._section(PolicyFacts.of(net_of("mlp")).to_json().encode())
    path.write_bytes(bytes(wasmtime.wat2wasm("(module)")) + facts)
    with pytest.raises(UsageError, match="it has no 'memory'"):
        open_engine(path)
    needy = wasmtime.wat2wasm('(module (import "a" "b" (func)))')
    path.write_bytes(bytes(needy) + facts)
    with pytest.raises(UsageError, match="it does not start"):
        open_engine(path)


def test_facts_of_another_policy_are_refused() -> None:
    module = module_of(net_of("mlp"), "")
    other = wasm_engine._section(PolicyFacts.of(net_of("lstm")).to_json().encode())
    first = module.index(wasm_engine._section(PolicyFacts.of(net_of("mlp")).to_json().encode()))
    with pytest.raises(UsageError, match="given a policy of the sizes"):
        WasmEngine(module[:first] + other, Path("other.wasm"))


def test_a_module_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm_engine, "FUEL", 10**6)
    net = net_of("mlp")
    engine = WasmEngine(module_of(net, "(loop (br 0))"), Path("endless.wasm"))
    with pytest.raises(UsageError, match="it broke off"):
        engine.forward(observations_of(net.observation, 2), np.zeros((2, 0), np.float32))


def test_too_many_rows_are_refused(
    written: tuple[Net, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wasm_engine, "MOST_MEMORY", 2**20)
    net, path = written
    engine = open_engine(path)
    rows = np.zeros((20_000, 5), np.float32)
    with pytest.raises(UsageError, match="Take fewer at once"):
        engine.forward(rows, np.zeros((20_000, net.state_size), np.float32))
    engine.forward(rows[:9], np.zeros((9, net.state_size), np.float32))
