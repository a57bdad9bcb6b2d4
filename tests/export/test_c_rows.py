"""Rows in written C: leaves as `Layout` packs and unpacks them, actions as they are drawn."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from c_tools import SEED, at, check_actions, library, run_sanitized, some_masks
from gymnasium import spaces
from numpy.typing import NDArray
from policy_kinds import MIXED, SEQUENCES, TREE, observations_of

from fugu import Layout
from fugu.export.c_engine import PolicyRandom
from fugu.export.c_text import quoted
from fugu.export.c_writer import write_c
from fugu.nets import net as ops
from fugu.nets.net import Net
from fugu.spaces.action_rows import Continuous
from fugu.spaces.action_sampler import ActionSampler

HALVES = spaces.Dict(
    half=spaces.Box(-4, 4, (3,), np.float16), one=spaces.Box(-4, 4, (), np.float16)
)
EVERY = spaces.Dict(
    {
        "*/ int main(void)": spaces.Discrete(3),
        "a/b": spaces.Box(0, 9, (2,), np.uint32),
        "a": spaces.Dict(b=spaces.Box(0, 9, (2, 2), np.uint16), c=spaces.Box(-9, 9, (), np.int32)),
        "é??/": spaces.Box(0, 1, (1,), np.bool_),
        "wide": spaces.Box(0, 2**40, (2,), np.uint64),
    }
)
OBSERVATIONS = {
    "tree": TREE,
    "sequences": SEQUENCES,
    "halves": HALVES,
    "every": EVERY,
    "one": spaces.Discrete(4),
}
ACTIONS = {
    "discrete": spaces.Discrete(5, start=-2),
    "many": spaces.MultiDiscrete([3, 2, 7], start=[1, 0, -4]),
    "small": spaces.MultiDiscrete([2, 2], dtype=np.int8),
    "binary": spaces.MultiBinary((2, 3)),
    "box": spaces.Box(np.float32([-1, 0, -np.inf]), np.float32([1, 0.5, np.inf])),
    "doubles": spaces.Box(np.array([-1, -np.inf]), np.array([2, np.inf]), dtype=np.float64),
    "halves": spaces.Box(-2, 2, (3,), np.float16),
    "mixed": MIXED,
    "mask": spaces.Dict(
        {"mask": spaces.Box(-1, 1, (2,)), "random and " + "long " * 25: spaces.Box(-1, 1)}
    ),
    "gaps": spaces.Tuple((spaces.MultiBinary(3), spaces.Box(-1, 1), spaces.Discrete(2))),
    "nothing": spaces.Tuple(()),
}


def echo(observation: Layout, action: Layout, continuous: Continuous) -> Net:
    """A network whose params are the numbers that it sees."""
    net = Net(observation, action, continuous, 0)
    place = ops.Place(0, observation.dtype)
    net.params = net.add(ops.Read, 1, observation.size, place=place)
    return net


def plain_net(observation: Layout, action: Layout) -> Net:
    """A network that does not look at what it sees."""
    net = Net(observation, action, False, 0)
    numbers = np.zeros((1, ActionSampler(action, False).num_params), np.float32)
    net.params = net.add(ops.Constant, *numbers.shape, numbers=numbers)
    return net


# ---------------------------------------------------------------------- leaves

SETTER = re.compile(
    r"fugu_policy_set_(\w+)\(void\* observation, (?:const )?(\w+) value(\[\d+\])?\)"
)
GETTER = re.compile(r"(\w+) fugu_policy_get_(\w+)\(const void\* action(?:, (\w+) value\[\d+\])?\)")
TYPES = {"float": np.float32, "double": np.float64}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(TYPES.get(name) or name.removesuffix("_t"))


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_leaves_are_set_as_a_layout_packs_them(name: str, tmp_path: Path) -> None:
    layout = Layout.of(OBSERVATIONS[name], limits=5)
    report = write_c(plain_net(layout, Layout.of(spaces.Discrete(2))), tmp_path)
    setters = SETTER.findall(" ".join(report.header.read_text().split()))
    leaves = [leaf for leaf in layout.leaves if leaf.nbytes]
    assert len(setters) == len(leaves)
    calls = [
        f"void set_{i}(void* row, const {kind}* value) "
        f"{{ fugu_policy_set_{name}(row, {'value' if several else '*value'}); }}\n"
        for i, (name, kind, several) in enumerate(setters)
    ]
    heads = [call.split("{")[0].strip() + ";\n" for call in calls]
    text = '#include "policy.h"\n' + "".join(heads) + "".join(calls)
    functions = library(tmp_path, text)
    for packed in observations_of(layout, 6):
        row = layout.zeros()
        raw = packed.view(np.uint8)
        for i, (leaf, (_, kind, _)) in enumerate(zip(leaves, setters, strict=True)):
            numbers = raw[leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype)
            given = np.ascontiguousarray(
                numbers, np.uint8 if leaf.dtype == bool else dtype_of(kind)
            )
            functions[f"set_{i}"](at(row), at(given))
        assert row.tobytes() == packed.tobytes()


@pytest.mark.parametrize("name", ACTIONS)
def test_leaves_are_got_as_a_layout_unpacks_them(name: str, tmp_path: Path) -> None:
    layout = Layout.of(ACTIONS[name])
    report = write_c(plain_net(Layout.of(spaces.Discrete(2)), layout), tmp_path)
    getters = GETTER.findall(" ".join(report.header.read_text().split()))
    assert len(getters) == len(layout.leaves)
    calls = []
    for i, (single, leaf, several) in enumerate(getters):
        kind, call = several or single, f"fugu_policy_get_{leaf}(row"
        body = f"{call}, value);" if several else f"*value = {call});"
        calls.append(f"void get_{i}(const void* row, {kind}* value) {{ {body} }}\n")
    heads = [call.split("{")[0].strip() + ";\n" for call in calls]
    functions = library(tmp_path, '#include "policy.h"\n' + "".join(heads) + "".join(calls))
    for row in observations_of(layout, 6):
        for i, (leaf, (single, _, several)) in enumerate(zip(layout.leaves, getters, strict=True)):
            found = np.zeros(leaf.shape, dtype_of(several or single))
            functions[f"get_{i}"](at(row), at(found))
            raw = row.view(np.uint8)[leaf.offset : leaf.offset + leaf.nbytes]
            np.testing.assert_array_equal(found.reshape(-1), raw.view(leaf.dtype))


def test_halves_are_rounded_as_numpy_rounds_them(tmp_path: Path) -> None:
    layout = Layout.of(HALVES)
    report = write_c(plain_net(layout, Layout.of(spaces.Discrete(2))), tmp_path)
    text = (
        f'#include "{report.header.name}"\n'
        "void put(void* to, const float* from, int count);\n"
        "void put(void* to, const float* from, int count) "
        "{ fugu_policy_put_halves(to, from, count); }\n"
        "void take(const void* from, int count, float* to);\n"
        "void take(const void* from, int count, float* to) "
        "{ fugu_policy_take_halves(from, count, to); }\n"
    )
    functions = library(tmp_path, text)
    bits = np.arange(0, 2**32, 9973, np.uint32)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        middles = (every[1:].astype(np.float64) + every[:-1]) / 2
        numbers = np.concatenate([bits.view(np.float32), middles.astype(np.float32)])
        expected = numbers.astype(np.float16)
    found = np.zeros(len(numbers), np.float16)
    functions.put(at(found), at(numbers), len(numbers))
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(found[known].view(np.uint16), expected[known].view(np.uint16))
    assert np.isnan(found[~known]).all()
    back = np.zeros(len(every), np.float32)
    functions.take(at(every), len(every), at(back))
    np.testing.assert_array_equal(back, every.astype(np.float32))


def test_a_name_cannot_leave_its_comment() -> None:
    assert "*/" not in quoted('*/ "x" /* ??/')


# ---------------------------------------------------------------------- actions


@pytest.mark.parametrize("continuous", get_args(Continuous))
@pytest.mark.parametrize("name", [name for name in ACTIONS if name != "nothing"])
def test_actions_are_those_of_the_sampler(
    name: str, continuous: Continuous, tmp_path: Path
) -> None:
    action, count = Layout.of(ACTIONS[name]), 200
    sampler = ActionSampler(action, continuous)
    if continuous != "clipped" and all(numbers.plain for numbers in sampler.writer.numbers):
        pytest.skip("no number between two bounds")
    random = np.random.default_rng(5)
    params = random.normal(0, 2, (count, sampler.num_params)).astype(np.float32)
    masks = some_masks(sampler, count, random)
    params[::7, : sampler.num_choices] *= 20  # some are all but certain,
    params[::11, : sampler.num_choices] = 0  # some all alike,
    params[::13, : sampler.num_choices][~masks[::13]] = -np.inf
    observation = Layout.of(spaces.Box(-np.inf, np.inf, (sampler.num_params,)))
    net = echo(observation, action, continuous)
    write_c(net, tmp_path)
    found = run_sanitized(tmp_path, net, params, np.zeros((count, 0), np.float32), masks)
    np.testing.assert_array_equal(found.params, params)
    check_actions(sampler, found, masks)
    assert (found.greedy != found.drawn).any()


class Choosing:
    """`fugu_policy_act` of one head, called from here."""

    def __init__(self, choices: int, folder: Path) -> None:
        observation = Layout.of(spaces.Box(-np.inf, np.inf, (choices,)))
        net = echo(observation, Layout.of(spaces.Discrete(choices)), "clipped")
        report = write_c(net, folder)
        self._act = library(folder, '#include "policy.h"\n', report.source).fugu_policy_act

    def __call__(
        self, logits: NDArray[Any], mask: NDArray[Any] | None, random: NDArray[Any] | None
    ) -> int:
        action = np.zeros(1, np.int64)
        given = (None if each is None else at(each) for each in (mask, random))
        self._act(at(logits.astype(np.float32)), *given, at(action))
        return int(action[0])


def test_choices_come_as_often_as_they_should(tmp_path: Path) -> None:
    choose = Choosing(4, tmp_path)
    shares = np.array([0.5, 0.3, 0.2, 0.0])
    logits = np.log(np.array([0.5, 0.3, 0.2, 0.7]))
    mask, random = np.array([1, 1, 1, 0], np.uint8), np.array([3], np.uint64)
    drawn = [choose(logits, mask, random) for _ in range(20_000)]
    found = np.bincount(drawn, minlength=4) / len(drawn)
    np.testing.assert_allclose(found, shares, atol=0.012)  # three deviations
    assert found[3] == 0


def test_what_has_no_answer_has_a_harmless_one(tmp_path: Path) -> None:
    choose = Choosing(3, tmp_path)
    nothing, random = np.zeros(3, np.uint8), np.array([3], np.uint64)
    for chance in (None, random):
        assert choose(np.arange(3.0), nothing, chance) == 0
        assert choose(np.full(3, -np.inf), None, chance) == 0
        assert choose(np.full(3, np.nan), None, chance) in range(3)
        assert choose(np.array([1.0, np.inf, 2.0]), None, chance) in range(3)
    assert choose(np.array([1.0, 2.0, 2.0]), None, None) == 1  # the first of equals


def test_chance_is_that_of_native_environments(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "native/core/fugu_random.h"
    text = (
        f'#include "{source}"\n'
        "void draw(uint64_t state, int count, float* out);\n"
        "void draw(uint64_t state, int count, float* out) {\n"
        "    FuguRandom random = {state};\n"
        "    for (int i = 0; i < count; ++i)\n"
        "        out[i] = fugu_unit(&random);\n"
        "}\n"
    )
    found = np.zeros(100, np.float32)
    library(tmp_path, text).draw(ctypes.c_uint64(SEED), 100, at(found))
    np.testing.assert_array_equal(found, PolicyRandom(SEED).random((100,)))


def test_normals_are_normal() -> None:
    drawn = PolicyRandom(1).standard_normal((20_000,))
    assert abs(float(drawn.mean())) < 0.02
    assert abs(float(drawn.std()) - 1) < 0.02
    assert 0.006 < float((np.abs(drawn) > 2.5758).mean()) < 0.014
