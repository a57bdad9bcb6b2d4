"""Encoders of any observation, each leaf by its kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import LIMIT, any_space, value_of
from torch import nn

from fugu import Layout
from fugu.core.errors import UsageError
from fugu.policies import PolicyConfig
from fugu.policies.encoders import (
    AutoEncoder,
    Embedded,
    Numbers,
    OneHot,
    Pooled,
    Reading,
    make_encoder,
    make_features,
)
from fugu.policies.images import Convolution, ImageShape, ImpalaCnn, NatureCnn
from fugu.policies.layers import MlpEncoder, RunningScale
from fugu.policies.unpack import unpack


def rows_of(layout: Layout, count: int = 3, seed: int = 0) -> torch.Tensor:
    rows, rng = layout.zeros(count), np.random.default_rng(seed)
    for row in rows:
        layout.pack(value_of(layout.space, rng), row)
    return torch.from_numpy(rows)


def features_of(space: Space[Any], *values: Any, images: Any = "auto") -> torch.Tensor:
    """The features of values, [values, width]."""
    layout = Layout.of(space, limits=8)
    rows = layout.zeros(len(values))
    for row, value in zip(rows, values, strict=True):
        layout.pack(value, row)
    features = make_features(layout, Reading(images))
    found: torch.Tensor = features(unpack(layout, torch.from_numpy(rows)))
    return found


@settings(max_examples=60)
@given(space=any_space(4), seed=st.integers(0, 2**32 - 1))
def test_every_observation_space_has_an_encoder(space: Space[Any], seed: int) -> None:
    layout = Layout.of(space, limits=LIMIT)
    encoder = make_encoder(layout, PolicyConfig(hidden_size=8))
    hidden = encoder(rows_of(layout, 3, seed))
    assert hidden.shape == (3, 8)
    assert hidden.dtype == torch.float32
    zeroed = encoder(torch.from_numpy(layout.zeros(2)))  # as in rows that nobody wrote
    assert zeroed.isfinite().all()


def test_rows_of_floats_go_straight_into_one_linear_layer() -> None:
    layout = Layout.of(spaces.Dict(a=spaces.Box(-1, 1, (2, 3)), b=spaces.Box(-9, 9, (2,))))
    encoder = make_encoder(layout, PolicyConfig(hidden_size=16))
    assert isinstance(encoder, MlpEncoder)
    seen: list[torch.Tensor] = []
    encoder[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    rows = rows_of(layout)
    encoder(rows)
    assert seen[0].data_ptr() == rows.data_ptr()  # no copy


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_layers_and_activations_are_as_asked(activation: Any) -> None:
    cfg = PolicyConfig(hidden_size=32, layers=3, activation=activation)
    encoder = make_encoder(Layout.of(spaces.Box(-1, 1, (5,))), cfg)
    linear = [module for module in encoder if isinstance(module, nn.Linear)]
    assert [layer.in_features for layer in linear] == [5, 32, 32]
    assert [type(module).__name__.lower() for module in encoder][1::2] == [activation] * 3
    for layer in linear[1:]:  # orthogonal, with gain sqrt 2
        torch.testing.assert_close(layer.weight @ layer.weight.T, 2 * torch.eye(32))
        assert (layer.bias == 0).all()


def test_categories_are_one_hot_from_their_start() -> None:
    hot = features_of(spaces.Discrete(4, start=-1), -1, 2)
    assert hot.tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    space = spaces.MultiDiscrete([2, 3], start=[5, 0])
    assert features_of(space, np.array([6, 1])).tolist() == [[0, 1, 0, 1, 0]]
    alike = spaces.MultiDiscrete([2, 2])
    assert features_of(alike, np.array([1, 0])).tolist() == [[0, 1, 1, 0]]


def test_what_is_out_of_bounds_counts_as_the_nearest_category() -> None:
    layout = Layout.of(spaces.Discrete(3, start=5))
    features = make_features(layout)
    rows = torch.tensor([[0], [99]])
    assert features(unpack(layout, rows)).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_small_integers_are_one_hot_and_large_ones_scaled() -> None:
    grid = spaces.Box(0, 9, (11, 11), np.uint8)
    value = np.random.default_rng(0).integers(0, 10, (11, 11)).astype(np.uint8)
    hot = features_of(grid, value).view(11, 11, 10)
    assert (hot.sum(-1) == 1).all()
    np.testing.assert_array_equal(hot.argmax(-1), value)
    assert make_features(Layout.of(spaces.Box(0, 17, (4, 4), np.uint8))).width == 16
    scaled = features_of(spaces.Box(0, 255, (3,), np.uint8), np.uint8([0, 51, 255]))
    np.testing.assert_allclose(scaled, [[0, 0.2, 1]], atol=1e-6)
    binary = features_of(spaces.Box(0, 1, (2,), np.uint8), np.uint8([0, 1]))
    assert binary.tolist() == [[0, 1]]
    wide = features_of(spaces.Box(-(2**62), 2**62, (2,), np.int64), np.int64([-(2**60), 0]))
    np.testing.assert_allclose(wide, [[-60 * np.log(2), 0]], rtol=1e-5)


def test_kinds_by_number_of_categories() -> None:
    kinds = {n: type(make_features(Layout.of(spaces.Discrete(n)))) for n in (64, 65, 10**5)}
    assert kinds == {64: OneHot, 65: Embedded, 10**5: Numbers}
    large = make_features(Layout.of(spaces.MultiDiscrete([100, 300], start=[7, 0])))
    rows = torch.tensor([[106, 299], [7, 0]])
    out = large(rows)
    assert isinstance(large, Embedded)
    torch.testing.assert_close(out[0, 32:], large.table.weight[399])
    torch.testing.assert_close(out[1, :32], large.table.weight[0])


@pytest.mark.parametrize(
    ("shape", "order", "channels"),
    [
        ((84, 84, 3), (2, 0, 1), 3),
        ((4, 84, 84), (0, 1, 2), 4),
        ((3, 64, 48), (0, 1, 2), 3),
        ((4, 96, 80, 3), (0, 3, 1, 2), 12),
        ((4, 3, 96, 80), (0, 1, 2, 3), 12),
    ],
)
def test_images_are_recognised_in_any_order(
    shape: tuple[int, ...], order: tuple[int, ...], channels: int
) -> None:
    image = ImageShape.of(shape)
    assert image is not None
    assert (image.order, image.channels) == (order, channels)


@pytest.mark.parametrize("shape", [(3, 3, 9), (15, 84, 3), (84, 84), (84,)])
def test_small_and_flat_arrays_are_no_images(shape: tuple[int, ...]) -> None:
    assert ImageShape.of(shape) is None


def test_channels_first_and_last_see_the_same_pixels() -> None:
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (2, 40, 48, 3)).astype(np.uint8))
    network = NatureCnn(3)
    last = Convolution(ImageShape.of((40, 48, 3)), network)
    first = Convolution(ImageShape.of((3, 40, 48)), network)
    expected = network(pixels.permute(0, 3, 1, 2).float() / 255)
    torch.testing.assert_close(last(pixels), expected)
    torch.testing.assert_close(first(pixels.permute(0, 3, 1, 2).contiguous()), expected)


def network_of(space: Space[Any], **settings: Any) -> type[nn.Module] | None:
    encoder = make_encoder(Layout.of(space), PolicyConfig(hidden_size=16, **settings))
    for module in encoder.modules():
        if isinstance(module, Convolution):
            return type(module.network)
    return None


def test_networks_for_images_are_chosen_by_size_and_by_name() -> None:
    large = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    small = spaces.Box(0, 255, (20, 20, 3), np.uint8)
    assert network_of(large) is NatureCnn
    assert network_of(small) is ImpalaCnn
    assert network_of(large, encoder="impala") is ImpalaCnn
    assert network_of(large, encoder="mlp") is None
    assert network_of(spaces.Box(0, 255, (64, 64), np.uint8)) is None
    assert network_of(spaces.Box(0, 255, (64, 64), np.uint8), encoder="nature") is NatureCnn
    with pytest.raises(UsageError, match="given 'nature' for images of 20 x 20"):
        network_of(small, encoder="nature")
    with pytest.raises(UsageError, match="allowed: a space with an image"):
        network_of(spaces.Box(-1, 1, (4,)), encoder="impala")


@pytest.mark.parametrize("name", ["nature", "impala"])
def test_an_image_beside_a_vector_reaches_the_hidden_vector(name: Any) -> None:
    space = spaces.Dict(eye=spaces.Box(0, 255, (36, 36, 3), np.uint8), at=spaces.Box(-1, 1, (2,)))
    layout = Layout.of(space)
    encoder = make_encoder(layout, PolicyConfig(encoder=name, hidden_size=16))
    rows = torch.from_numpy(layout.zeros(3))
    tree = unpack(layout, rows)
    tree["eye"][1] = 200
    tree["at"][2] = 1.0
    hidden = encoder(rows)
    assert not torch.allclose(hidden[0], hidden[1])
    assert not torch.allclose(hidden[0], hidden[2])
    hidden.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_only_items_that_are_there_count() -> None:
    space = spaces.Sequence(spaces.Box(-1, 1, (2,)))
    layout = Layout.of(space, limits=4)
    features = make_features(layout)
    rows = layout.zeros(2)
    for row in rows:
        layout.pack((np.float32([1, 2]),), row)
    batch = torch.from_numpy(rows)
    tree = unpack(layout, batch)
    tree["items"][1, 2:] = torch.nan  # behind the end
    out = features(tree)
    torch.testing.assert_close(out[0], out[1])
    tree["mask"][1, 1] = True
    assert not torch.allclose(out[0], features(tree)[1])


def test_texts_differ_by_characters_and_by_order() -> None:
    out = features_of(spaces.Text(6, charset="abc"), "abc", "abc", "cba", "ab")
    torch.testing.assert_close(out[0], out[1])
    assert not torch.allclose(out[0], out[2])
    assert not torch.allclose(out[0], out[3])


def test_of_a_one_of_only_what_it_is_counts() -> None:
    space = spaces.OneOf((spaces.Box(-1, 1, (2,)), spaces.Discrete(3)))
    out = features_of(space, (0, np.float32([0.5, -0.5])), (1, 2))
    assert out.tolist() == [[1, 0, 0.5, -0.5, 0, 0, 0], [0, 1, 0, 0, 0, 0, 1]]


def test_a_row_of_nan_stays_alone() -> None:
    layout = Layout.of(spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(5)))
    encoder = AutoEncoder(layout, PolicyConfig(hidden_size=16))
    rows = rows_of(layout, 4)
    unpack(layout, rows)["a"][:] = 0.5
    clean = encoder(rows)
    unpack(layout, rows)["a"][2] = torch.nan
    poisoned = encoder(rows)
    others = [0, 1, 3]
    assert torch.equal(clean[others], poisoned[others])


CARDS = spaces.Dict(cards=spaces.Box(-1, 1, (5, 3)), turn=spaces.Box(-1, 1, (2,)))


def set_encoder(space: Space[Any], **settings: Any) -> tuple[Layout, nn.Module]:
    layout = Layout.of(space)
    return layout, make_encoder(layout, PolicyConfig(encoder="set", hidden_size=16, **settings))


def test_items_of_a_set_come_in_no_order() -> None:
    layout, encoder = set_encoder(CARDS, layers=2)
    rows = torch.randn(2, layout.size)
    shuffled = rows.clone()
    unpack(layout, shuffled)["cards"][:] = unpack(layout, rows)["cards"].flip(1)
    torch.testing.assert_close(encoder(rows), encoder(shuffled))
    unpack(layout, shuffled)["cards"][0, 0] += 1.0
    assert not torch.allclose(encoder(rows)[0], encoder(shuffled)[0])
    auto = make_encoder(layout, PolicyConfig(hidden_size=16))
    unpack(layout, shuffled)["cards"][:] = unpack(layout, rows)["cards"].flip(1)
    assert not torch.allclose(auto(rows), auto(shuffled))


def test_what_is_no_set_stands_beside_it() -> None:
    layout, encoder = set_encoder(CARDS)
    rows = torch.randn(2, layout.size)
    other = rows.clone()
    unpack(layout, other)["turn"][0] += 1.0
    assert not torch.allclose(encoder(rows)[0], encoder(other)[0])
    assert torch.equal(encoder(rows)[1], encoder(other)[1])
    encoder(rows).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize(
    ("space", "width"),
    [
        (spaces.Box(0, 9, (4, 2), np.int64), 20),
        (spaces.MultiBinary((4, 3)), 3),
        (spaces.MultiDiscrete([[2, 3], [4, 3]], start=[[0, 5], [1, 5]]), 8),
        (spaces.Box(-1, 1, (4, 2, 3)), 6),
    ],
)
def test_items_are_read_by_their_kind(space: Space[Any], width: int) -> None:
    layout, encoder = set_encoder(space)
    (pooled,) = (module for module in encoder.modules() if isinstance(module, Pooled))
    assert pooled.item.width == width
    assert encoder(rows_of(layout, 3)).shape == (3, 16)


def test_images_are_no_sets_and_a_set_must_be_there() -> None:
    image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    _, encoder = set_encoder(spaces.Dict(eye=image, cards=spaces.Box(-1, 1, (5, 3))))
    kinds = [type(module) for module in encoder.modules()]
    assert kinds.count(Pooled) == kinds.count(Convolution) == 1
    for space in (image, spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (0, 4))):
        with pytest.raises(UsageError, match="given 'set' for .*; allowed: .* counts items"):
            set_encoder(space)


def test_numbers_of_items_are_normalised_alike() -> None:
    _, encoder = set_encoder(CARDS, normalise=True)
    scales = [module for module in encoder.modules() if isinstance(module, RunningScale)]
    assert sorted(scale.mean.numel() for scale in scales) == [2, 3]
