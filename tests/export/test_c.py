"""Policies written as C: they mean what the network means, and touch nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_tools import STRICT, check_against_reference
from gymnasium import spaces
from policy_kinds import KINDS, Kind, observations_of

from fugu import Layout
from fugu.core.errors import UsageError
from fugu.envs.building import zig
from fugu.export.c_engine import CEngine
from fugu.export.c_text import PARTS
from fugu.export.c_writer import write_c
from fugu.nets import net as ops
from fugu.nets.net import Net
from fugu.nets.reading import read_policy

CORTEX = (
    "-mcpu=cortex_m4+vfp4d16sp",
    "-O2",
    "-ffreestanding",
    "-fno-unwind-tables",
    "-fno-asynchronous-unwind-tables",
)
# What a compiler calls for numbers of 64 bits, which this processor does not know.
WIDE = {"tree": {"__aeabi_l2f", "__aeabi_d2f"}, "doubles": {"__aeabi_d2f"}}
CALLS = ("malloc", "memcpy", "memset", "math.h", "string.h", "stdlib.h", "stdio.h")


def net_of(kind: Kind) -> Net:
    return read_policy(*kind.make())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_written_c_means_what_the_network_does(kind: Kind, tmp_path: Path) -> None:
    net = net_of(kind)
    write_c(net, tmp_path)
    check_against_reference(tmp_path, net, observations_of(net.observation, 25))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_bare_processor_needs_nothing_else(kind: Kind, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    report = write_c(net_of(kind), tmp_path)
    made = tmp_path / "policy.o"
    command = [*zig("thumb-freestanding-eabihf"), *CORTEX, *STRICT, "-c", str(report.source)]
    done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert undefined_symbols(made, tmp_path) == WIDE.get(kind.name, set())


def undefined_symbols(made: Path, folder: Path) -> set[str]:
    """What a linker misses."""
    linker = [sys.executable, "-m", "ziglang", "ld.lld", "-e", "fugu_policy_forward"]
    command = [*linker, str(made), "-o", str(folder / "linked")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    marker = "undefined symbol: "
    found = {line.split(marker)[1] for line in done.stderr.splitlines() if marker in line}
    assert bool(done.returncode) == bool(found), done.stderr
    return found


def test_a_linker_does_miss_what_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    source = tmp_path / "needy.c"
    source.write_text("float sinf(float x);\nfloat half(float x) { return sinf(x) / 2; }\n")
    made = tmp_path / "needy.o"
    command = [*zig("thumb-freestanding-eabihf"), *CORTEX, "-c", str(source), "-o", str(made)]
    subprocess.run(command, check=True, timeout=240)
    assert undefined_symbols(made, tmp_path) == {"sinf"}


@pytest.mark.parametrize("name", ["mlp", "tree", "impala", "transformer"])
def test_the_text_names_no_library(name: str, tmp_path: Path) -> None:
    report = write_c(net_of(next(kind for kind in KINDS if kind.name == name)), tmp_path)
    text = report.header.read_text() + report.source.read_text()
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("/*"))
    assert not [call for call in CALLS if call in code]
    includes = {line for line in code.splitlines() if line.startswith("#include")}
    assert includes == {"#include <stddef.h>", "#include <stdint.h>", '#include "policy.h"'}
    assert max(map(len, text.splitlines())) <= 100


def test_memory_is_told_and_is_all_there_is(tmp_path: Path) -> None:
    net = net_of(next(kind for kind in KINDS if kind.name == "lstm"))
    report = write_c(net, tmp_path)
    header = report.header.read_text()
    assert f"#define FUGU_POLICY_SCRATCH_BYTES {report.scratch_bytes} " in header
    assert f"#define FUGU_POLICY_WEIGHT_BYTES {report.weight_bytes} " in header
    assert report.weight_bytes == report.float_bytes == 4 * net.num_weights
    made = tmp_path / "policy.o"
    command = [*zig("x86_64-linux-musl"), "-O2", "-c", str(report.source), "-o", str(made)]
    subprocess.run(command, check=True, timeout=240)
    sections = section_sizes(made)
    assert sections[".bss"] == report.scratch_bytes
    assert not sections.get(".data")
    constants = sum(size for name, size in sections.items() if name.startswith(".rodata"))
    assert report.weight_bytes <= constants < report.weight_bytes + 2048


def section_sizes(made: Path) -> dict[str, int]:
    """Of an object file, by name."""
    raw = made.read_bytes()
    table = int.from_bytes(raw[0x28:0x30], "little")
    size, count, names = np.frombuffer(raw[0x3A:0x40], "<u2").tolist()
    headers = [raw[table + i * size : table + (i + 1) * size] for i in range(count)]
    text = int.from_bytes(headers[names][0x18:0x20], "little")
    sizes: dict[str, int] = {}
    for header in headers:
        begin = text + int.from_bytes(header[:4], "little")
        name = raw[begin : raw.index(b"\0", begin)].decode()
        sizes[name] = sizes.get(name, 0) + int.from_bytes(header[0x20:0x28], "little")
    return sizes


# ---------------------------------------------------------------------- any network at all


class Making:
    """A network by chance, whose values are cut, joined and used again in every way."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        layouts = Layout.of(spaces.Box(-2, 2, (12,))), Layout.of(spaces.Discrete(3))
        self.net = Net(*layouts, False, 8)
        place = ops.Place(0, np.dtype(np.float32))
        self.values = [
            self.net.add(ops.Read, 1, 12, place=place),
            self.net.add(ops.Read, 3, 4, place=place),
            self.net.add(ops.State, 1, 8, begin=0),
            self.net.add(ops.State, 1, 4, begin=2),
            self.net.add(ops.Constant, 3, 4, numbers=self.floats(3, 4)),
        ]

    def floats(self, *shape: int) -> Any:
        return self.random.normal(size=shape).astype(np.float32)

    def any_value(self, *shape: int) -> int:
        fitting = [v for v in self.values if not shape or self.net.shape(v) == shape]
        return int(self.random.choice(fitting))

    def linear(self, value: int, width: int) -> int:
        rows, inputs = self.net.shape(value)
        weight, bias = self.floats(width, inputs) / inputs, self.floats(width)
        return self.net.add(ops.Linear, rows, width, value, weight=weight, bias=bias)

    def grow(self) -> int:
        """One more operation."""
        add, value = self.net.add, self.any_value()
        rows, width = shape = self.net.shape(value)
        match str(self.random.choice(["cut", "reshape", "apply", "two", "blend", "scale", "join",
                                      "linear", "keep", "reduce", "norm", "permute"])):  # fmt: skip
            case "cut" if width > 1:
                begin = int(self.random.integers(width - 1))
                return add(ops.Cut, rows, width - begin - 1, value, begin=begin)
            case "reshape":
                return add(ops.Reshape, width, rows, value)
            case "two":
                function = str(self.random.choice(["add", "multiply"]))
                other = self.any_value(*shape)
                found = add(ops.Combine, *shape, value, other, function=function)
                return add(ops.Apply, *shape, found, function="tanh")
            case "blend":
                others = self.any_value(*shape), self.any_value(*shape)
                return add(ops.Blend, *shape, value, *others)
            case "scale":
                parts = {"shift": self.floats(width), "divisor": np.abs(self.floats(width)) + 1}
                return add(ops.Scale, *shape, value, **parts, most=1.5)
            case "join":
                others = [v for v in self.values if self.net.shape(v)[0] == rows]
                other = int(self.random.choice(others))
                return add(ops.Join, rows, width + self.net.shape(other)[1], value, other)
            case "linear":
                return self.linear(value, int(self.random.integers(1, 9)))
            case "keep":
                flags = self.linear(self.any_value(*shape), 1)
                return add(ops.Keep, *shape, value, flags)
            case "reduce" if rows > 1:
                function = str(self.random.choice(["sum", "mean", "largest"]))
                return add(ops.Reduce, 1, width, value, function=function, count=rows)
            case "norm" if width > 2:
                parts = {"weight": self.floats(width), "bias": self.floats(width)}
                return add(ops.Normalise, *shape, value, **parts, epsilon=0.1)
            case "permute" if width % 2 == 0:
                parts = {"shape": (2, width // 2), "order": (1, 0)}
                return add(ops.Permute, *shape, value, **parts)
        function = str(self.random.choice(["relu", "tanh", "sigmoid"]))
        return add(ops.Apply, *shape, value, function=function)

    def finish(self) -> Net:
        """Outputs that depend on many values."""
        for _ in range(40):
            self.values.append(self.grow())
        ones = [v for v in self.values if self.net.shape(v)[0] == 1]
        some = [int(v) for v in self.random.choice(ones, 5)]
        width = sum(self.net.shape(v)[1] for v in some)
        joined = self.net.add(ops.Join, 1, width, *some)
        outputs = self.linear(joined, 5)
        self.net.params = self.net.add(ops.Cut, 1, 3, outputs, begin=0)
        self.net.values = self.net.add(ops.Cut, 1, 2, outputs, begin=3)
        self.net.state = self.linear(joined, 8)
        return self.net


@pytest.mark.parametrize("seed", range(8))
def test_memory_that_values_share_is_never_in_the_way(seed: int, tmp_path: Path) -> None:
    net = Making(seed).finish()
    write_c(net, tmp_path)
    check_against_reference(tmp_path, net, observations_of(net.observation, 20))


# ---------------------------------------------------------------------- mistakes


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    net = net_of(KINDS[0])
    net.operations[1].weight[0, 0] = np.nan  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="linear_1_weight with numbers that are not finite"):
        write_c(net, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_lacks_its_facts_is_refused(tmp_path: Path) -> None:
    write_c(net_of(KINDS[0]), tmp_path)
    (tmp_path / "policy.json").unlink()
    with pytest.raises(UsageError, match="without policy.json"):
        CEngine(tmp_path)


def test_facts_of_another_policy_are_refused(tmp_path: Path) -> None:
    write_c(net_of(KINDS[0]), tmp_path)
    write_c(net_of(KINDS[1]), tmp_path / "other")
    write_c(net_of(next(kind for kind in KINDS if kind.name == "lstm")), tmp_path / "lstm")
    (tmp_path / "lstm/policy.json").replace(tmp_path / "policy.json")
    with pytest.raises(UsageError, match="given a policy of the sizes"):
        CEngine(tmp_path)


def test_parts_are_laid_out_as_the_writer_expects() -> None:
    for file in PARTS.glob("*.c"):
        text = file.read_text()
        assert "\t" not in text
        assert max(map(len, text.splitlines())) <= 100
