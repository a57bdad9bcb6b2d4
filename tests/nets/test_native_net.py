"""The native runner gives what torch gives, row by row, on every kind of processor here."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from policy_kinds import KINDS, Kind, drive, observations_of

from fugu import Layout, native
from fugu.core.errors import UsageError
from fugu.nets import net as ops
from fugu.nets.native import NativeNet, targets, work_of
from fugu.nets.net import Net, Place
from fugu.nets.reading import read_policy
from fugu.nets.reference import run_reference
from fugu.policies.layers import RunningScale

pytestmark = pytest.mark.skipif(not native.available, reason="the extension is not built")
TARGETS = list(targets())


def native_of(kind: Kind, target: str | None = None) -> tuple[NativeNet, Layout]:
    policy, layout = kind.make()
    return NativeNet(read_policy(policy, layout), target), layout


def named(name: str) -> Kind:
    return next(kind for kind in KINDS if kind.name == name)


def states_of(net: NativeNet, batch: int) -> NDArray[np.float32]:
    random = np.random.default_rng(4)
    return random.standard_normal((batch, net.net.state_size)).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_gives_what_torch_gives(kind: Kind, target: str) -> None:
    policy, layout = kind.make()
    drive(policy, layout, NativeNet(read_policy(policy, layout), target).forward, 100, 5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_is_the_same_in_any_batch(kind: Kind, target: str) -> None:
    net, layout = native_of(kind, target)
    rows, states = observations_of(layout, 27), states_of(net, 27)
    whole = net.forward(rows, states)
    for begin, end in ((0, 1), (1, 3), (3, 6), (6, 11), (11, 27)):
        part = net.forward(rows[begin:end], states[begin:end])
        for got, expected in zip(part, whole, strict=True):
            np.testing.assert_array_equal(got, expected[begin:end])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_a_large_batch_goes_through_in_parts(name: str, target: str) -> None:
    net, layout = native_of(named(name), target)
    rows, states = np.tile(observations_of(layout, 5), (41, 1)), np.tile(states_of(net, 5), (41, 1))
    few, many = net.forward(rows[:5], states[:5]), net.forward(rows, states)
    for got, expected in zip(many, few, strict=True):
        np.testing.assert_array_equal(got, np.tile(expected, (41, 1)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["mlp", "lstm", "gru", "mingru", "transformer", "own-critic"])
def test_what_is_no_number_stays_in_its_row(name: str, target: str) -> None:
    net, layout = native_of(named(name), target)
    rows, states = observations_of(layout, 9), states_of(net, 9)
    clean = net.forward(rows, states)
    rows[2], states[6] = np.nan, np.nan
    spoilt, others = net.forward(rows, states), [0, 1, 3, 4, 5, 7, 8]
    for got, expected in zip(spoilt, clean, strict=True):
        np.testing.assert_array_equal(got[others], expected[others])
    assert np.isnan(spoilt[0][2]).any()


# ------------------------------------------------------------------ operations by themselves


def plain_net(dtype: Any, width: int, state_size: int = 0) -> Net:
    layout = Layout.of(spaces.Box(-1, 1, (width,), dtype))
    return Net(layout, Layout.of(spaces.Discrete(2)), False, state_size)


def run_all(net: Net, rows: NDArray[Any], state: Any = None) -> dict[str, NDArray[np.float32]]:
    """Params, by target."""
    states = np.zeros((len(rows), net.state_size), np.float32) if state is None else state
    return {target: NativeNet(net, target).forward(rows, states)[0] for target in TARGETS}


def numbers() -> NDArray[np.float32]:
    """From tiny to 90, of both signs, and the ends of what there is."""
    sizes = np.concatenate([np.geomspace(1e-30, 90, 50_001), np.linspace(0, 90, 50_001)])
    ends = [0, -0.0, np.inf, -np.inf, 1e30, -1e30, np.nan]
    return np.concatenate([sizes, -sizes, ends]).astype(np.float32)


def meaning(function: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """In float64; NumPy's reference is too slow for so many."""
    errors = torch.special.erf(torch.from_numpy(x / np.sqrt(2))).numpy()
    sigmoid = 1 / (1 + np.exp(-x))
    found: dict[str, NDArray[np.float64]] = {
        "relu": np.maximum(x, 0),
        "gelu": x * 0.5 * (1 + errors),
        "tanh": np.tanh(x),
        "sigmoid": sigmoid,
        "symlog": np.sign(x) * np.log1p(np.abs(x)),
        "mingru": np.where(x >= 0, x + 0.5, sigmoid),
        "finite": np.where(np.isfinite(x), x, 0),
    }
    return found[function]


@pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "function", ["relu", "gelu", "tanh", "sigmoid", "symlog", "mingru", "finite"]
)
def test_functions_are_accurate(function: Any, target: str) -> None:
    x = numbers()
    net = plain_net(np.float32, 1)
    value = net.add(ops.Read, 1, 1, place=Place(0, np.dtype(np.float32)))
    net.params = net.add(ops.Apply, 1, 1, value, function=function)
    states = np.zeros((len(x), 0), np.float32)
    found = NativeNet(net, target).forward(x[:, None], states)[0][:, 0]
    expected = meaning(function, x.astype(np.float64))
    if function == "mingru":  # which says nothing of what is no number
        found, expected = found[:-1], expected[:-1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    if function in ("tanh", "sigmoid", "symlog"):  # relative to themselves, however small
        near = np.abs(x) < 60
        np.testing.assert_allclose(found[near], expected[near], rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("dtype", "?bBhHiIqQefd")
def test_numbers_of_every_type_are_read(dtype: str) -> None:
    kind = np.dtype(dtype)
    random = np.random.default_rng(0)
    rows = random.integers(0, 256, (40, 7 * kind.itemsize), np.uint8)
    if kind.kind == "b":
        rows %= 2
    layout = Layout.of(spaces.Box(0, 1, (7 * kind.itemsize,), np.uint8))
    net = Net(layout, Layout.of(spaces.Discrete(2)), False, 0)
    net.params = net.add(ops.Read, 1, 7, place=Place(0, kind))
    with np.errstate(all="ignore"):
        expected = rows.view(kind).astype(np.float32)
    for found in run_all(net, rows).values():
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", "?bBhHiIqQ")
def test_integers_out_of_bounds_are_the_nearest(dtype: str) -> None:
    kind = np.dtype(dtype)
    low, high = (0, 1) if dtype == "?" else (np.iinfo(kind).min, np.iinfo(kind).max)
    high = min(int(high), 2**63 - 1)
    given = np.array([[low, high], [high, low], [1, 0]], kind)
    layout = Layout.of(spaces.Box(0, 1, (2 * kind.itemsize,), np.uint8))
    net = Net(layout, Layout.of(spaces.Discrete(2)), False, 0)
    place, start, counts = Place(0, kind), np.array([-1, 0]), np.array([3, 2])
    hot = net.add(ops.OneHot, 1, 5, place=place, start=start, counts=counts)
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    parts = {"place": place, "start": start, "counts": counts, "offsets": np.array([0, 3])}
    known = net.add(ops.Embed, 1, 4, table=table, **parts)
    net.params = net.add(ops.Join, 1, 9, hot, known)
    first = np.clip(given[:, 0].astype(float) + 1, 0, 2).astype(int)
    second = np.clip(given[:, 1].astype(float), 0, 1).astype(int)
    expected = [*np.eye(3)[first].T, *np.eye(2)[second].T, *table[first].T, *table[3 + second].T]
    for found in run_all(net, given.view(np.uint8).reshape(3, -1)).values():
        np.testing.assert_array_equal(found, np.transpose(expected))


class Maker:
    """Networks of random operations on random shapes."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.net = plain_net(np.float32, 24, 6)
        add = self.net.add
        self.add = add
        first = add(ops.Read, 1, 24, place=Place(0, np.dtype(np.float32)))
        self.values = [
            first,
            add(ops.Read, 2, 4, place=Place(32, np.dtype(np.float32))),
            add(ops.State, 1, 5, begin=1),
            add(ops.Constant, 2, 3, numbers=self.floats(2, 3)),
        ]

    def floats(self, *shape: int) -> NDArray[np.float32]:
        return self.random.standard_normal(shape).astype(np.float32)

    def pick(self) -> tuple[int, int, int]:
        value = int(self.random.choice(self.values))
        return (value, *self.net.shape(value))

    def grow(self) -> None:
        """One operation more."""
        value, rows, width = self.pick()
        alike = [v for v in self.values if self.net.shape(v) == (rows, width)]
        other, third = (int(self.random.choice(alike)) for _ in range(2))
        match int(self.random.integers(13)):
            case 0:
                out = int(self.random.integers(1, 40))
                parts = {"weight": self.floats(out, width) / np.sqrt(width)}
                made = self.add(ops.Linear, rows, out, value, **parts, bias=self.floats(out))
            case 1:
                names = ["relu", "gelu", "tanh", "sigmoid", "symlog", "mingru", "finite"]
                function = str(self.random.choice(names))
                made = self.add(ops.Apply, rows, width, value, function=function)
            case 2:
                made = self.add(ops.Combine, rows, width, value, other, function="multiply")
                made = self.add(ops.Apply, rows, width, made, function="tanh")
            case 3:
                made = self.add(ops.Combine, rows, width, other, value, function="add")
            case 4:
                made = self.add(ops.Blend, rows, width, value, other, third)
            case 5:
                begin = int(self.random.integers(width))
                made = self.add(ops.Cut, rows, width - begin, value, begin=begin)
            case 6:
                made = self.add(ops.Reshape, width, rows, value)
            case 7:
                mask = self.add(ops.Cut, rows, 1, other, begin=width - 1)
                made = self.add(ops.Keep, rows, width, value, mask)
            case 8:
                function = str(self.random.choice(["sum", "mean", "largest"]))
                made = self.add(ops.Reduce, 1, width, value, function=function, count=rows)
            case 9:
                parts = {"weight": self.floats(width), "bias": self.floats(width)}
                made = self.add(ops.Normalise, rows, width, value, **parts, epsilon=1e-2)
            case 10:
                made = self.add(ops.Join, rows, 3 * width, value, other, third)
            case 11:
                parts = {"shift": self.floats(width), "divisor": 1 + np.abs(self.floats(width))}
                made = self.add(ops.Scale, rows, width, value, **parts, most=1.5)
            case _:
                made = self.image(value, rows, width)
        self.values.append(made)

    def image(self, value: int, rows: int, width: int) -> int:
        """Some operations on images, in either order of their axes."""
        weight = self.floats(2 * 6 * 5, width) / np.sqrt(width)
        value = self.add(ops.Linear, rows, 60, value, weight=weight, bias=self.floats(60))
        if self.random.random() < 0.5:
            parts: Any = {"shape": (6, 5, 2), "order": (2, 0, 1)}
            value = self.add(ops.Permute, rows, 60, value, **parts)
        if self.random.random() < 0.5:
            whole = {"shift": np.zeros(60, np.float32), "divisor": np.full(60, 5, np.float32)}
            value = self.add(ops.Scale, rows, 60, value, **whole, most=np.inf)
        stride, padding = int(self.random.integers(1, 3)), int(self.random.integers(0, 2))
        sides = [(side + 2 * padding - 3) // stride + 1 for side in (6, 5)]
        out = (3, *sides)
        parts = {"image": (2, 6, 5), "out": out, "stride": stride, "padding": padding}
        weight = self.floats(3, 2, 3, 3)
        seen = self.add(
            ops.Convolve,
            rows,
            int(np.prod(out)),
            value,
            weight=weight,
            bias=self.floats(3),
            **parts,
        )
        pooled = (2, 6, 5) if self.random.random() < 0.5 else out
        size = int(np.prod(pooled))
        source = value if pooled == (2, 6, 5) else seen
        if min(pooled[1:]) > 1:
            most = {"image": pooled, "out": pooled, "kernel": 3, "stride": 1, "padding": 1}
            best = self.add(ops.Pool, rows, size, source, **most)
            source = self.add(ops.Combine, rows, size, source, best, function="add")
        both = self.add(ops.Join, rows, size + int(np.prod(out)), source, seen)
        weight = self.floats(7, int(np.prod(out))) / 5
        self.values.append(self.add(ops.Linear, rows, 7, seen, weight=weight, bias=self.floats(7)))
        return both


@pytest.mark.parametrize("seed", range(60))
def test_networks_of_random_operations_mean_the_same(seed: int) -> None:
    maker = Maker(seed)
    net = maker.net
    while len(net.operations) < 40:
        maker.grow()
    singles = [v for v in range(len(net.operations)) if net.shape(v)[0] == 1]
    net.params = maker.add(ops.Join, 1, sum(net.shape(v)[1] for v in singles), *singles)
    random = np.random.default_rng(seed)
    rows = random.standard_normal((5, 24)).astype(np.float32)
    state = random.standard_normal((5, 6)).astype(np.float32)
    expected = run_reference(net, rows, state)[0]
    for target, found in run_all(net, rows, state).items():
        scale = 1 + np.abs(expected).max()
        np.testing.assert_allclose(found / scale, expected / scale, atol=3e-5, err_msg=target)


# ------------------------------------------------------------------ how it is called


def test_it_writes_where_it_is_told() -> None:
    net, layout = native_of(named("lstm"))
    rows, states = observations_of(layout, 6), states_of(net, 6)
    expected = net.forward(rows, states)
    out = (*(np.empty_like(part) for part in expected[:2]), states)
    assert net.forward(rows, states, out) is out  # in place, the state too
    for got, wanted in zip(out, expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_no_rows_give_no_rows() -> None:
    net, layout = native_of(named("lstm"))
    found = net.forward(observations_of(layout, 0), states_of(net, 0))
    assert [part.shape for part in found] == [(0, 4), (0, 1), (0, 32)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_new_weights_are_taken_over(kind: Kind) -> None:
    policy, layout = kind.make()
    net = NativeNet(read_policy(policy, layout))
    rows, states = observations_of(layout, 3), states_of(net, 3)
    before = net.forward(rows, states)[0]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.5)
    policy.note(torch.from_numpy(rows))
    fresh = read_policy(policy, layout)
    net.update(fresh)
    after = net.forward(rows, states)
    assert (after[0] != before).any()
    for got, expected in zip(after, NativeNet(fresh).forward(rows, states), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_normalization_starts_with_the_first_observations(target: str) -> None:
    policy, layout = named("mlp-relu-normalised").make()
    for scale in policy.scales:  # as before training
        scale.load_state_dict(RunningScale(scale.mean.numel()).state_dict())
    net = NativeNet(read_policy(policy, layout), target)
    rows, state = observations_of(layout, 7) * 100, np.zeros((7, 0), np.float32)
    for _ in range(2):
        with torch.no_grad():
            expected, *_ = policy(torch.from_numpy(rows), torch.from_numpy(state))
        np.testing.assert_allclose(net.forward(rows, state)[0], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            run_reference(net.net, rows, state)[0], expected, rtol=1e-4, atol=1e-4
        )
        policy.note(torch.from_numpy(rows / 100))
        net.update(read_policy(policy, layout))


def test_another_network_is_refused_and_no_half_of_it_runs() -> None:
    net, layout = native_of(named("mlp"))
    rows, states = observations_of(layout, 2), states_of(net, 2)
    before, own = net.forward(rows, states), net.net
    for other in ("mlp-relu-normalised", "lstm", "no-critic"):
        with pytest.raises(UsageError, match="update: given a network of other operations"):
            net.update(read_policy(*named(other).make()))
        with pytest.raises(UsageError, match="not whole"):
            net.forward(rows, states)
        net.update(own)
        np.testing.assert_array_equal(net.forward(rows, states)[0], before[0])


def test_what_does_not_fit_is_refused() -> None:
    net, layout = native_of(named("lstm"))
    rows, states = observations_of(layout, 4), states_of(net, 4)
    good = net.forward(rows, states)
    for bad in (rows.astype(np.float64), rows[:, :-1].copy(), rows[0], rows[::2], rows.tolist()):
        with pytest.raises(UsageError, match=r"rows: given .*C-contiguous float32.*\[batch, 5\]"):
            net.forward(bad, states)
    for bad in (states[:3], states.astype(np.float64), states[:, ::2], None):
        with pytest.raises(UsageError, match=r"state: given .*\[batch, 32\]"):
            net.forward(rows, bad)
    locked = np.zeros_like(good[1])
    locked.flags.writeable = False
    for wrong in ((good[0], good[1]), list(good), (good[0], locked, good[2]), good[::-1]):
        with pytest.raises(UsageError, match="out: given .*three C-contiguous float32 arrays"):
            net.forward(rows, states, wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="target: given 'avx1024'; allowed: .*baseline"):
        NativeNet(net.net, "avx1024")


def test_numbers_that_overflow_are_refused() -> None:
    from fugu._native import NetRunner

    most = 2**64 - 1
    net = NetRunner("f4", 8, 4, next(iter(targets())))
    value = net.read(1, 8, 0, "f4")
    for told in (
        lambda: net.read(1, 1, most - 3, "f4"),
        lambda: net.read(2**62, 2**62, 0, "f4"),
        lambda: net.state(most, 1),
        lambda: net.cut(value, most, 1),
        lambda: net.reshape(value, 2**63, 2**61),
        lambda: net.permute(value, [1] * 64, list(range(64))),
        lambda: net.one_hot(1, 0, "u1", [0, 0], [2**63 - 1, 2**63 - 1]),
        lambda: net.pool(value, [2, 2, 2], [2**63 + 1, 1, 2], 1, 2, 0),
    ):
        with pytest.raises(ValueError, match="beyond|not so many|differ|fit|too many|too large"):
            told()


def test_threads_share_it() -> None:
    net, layout = native_of(named("gru"))
    rows, states = observations_of(layout, 64), states_of(net, 64)
    expected, wrong = net.forward(rows, states), []

    def run(begin: int) -> None:
        for _ in range(50):
            part = slice(begin, begin + 16)
            for got, wanted in zip(net.forward(rows[part], states[part]), expected, strict=True):
                if (got != wanted[part]).any():
                    wrong.append(begin)

    threads = [threading.Thread(target=run, args=(begin,)) for begin in (0, 16, 32, 48)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(("name", "work"), [("mlp", 5 * 16 + 16 * 5), ("nature", 0)])
def test_its_work_is_counted(name: str, work: int) -> None:
    net, _ = native_of(named(name))
    if name == "nature":  # 44 x 40 pixels: 10 x 9, 4 x 3 and 2 x 1 windows
        work = 90 * 32 * 3 * 64 + 12 * 64 * 32 * 16 + 2 * 64 * 64 * 9 + 128 * 16 + 16 * 5
    assert work_of(net.net) == work
